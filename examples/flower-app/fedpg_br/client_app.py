"""fedpg_br: the nodes' half, one gradient per round."""

from fedpg.flower.client_app import answer
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedpg_br.strategy import make_federated_problem

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Sample episodes with the policy that came, and reply with their gradient."""
    return answer(message, context, make_federated_problem)
