"""fedpg_br: the server's half, the rounds."""

from fedpg.flower.server_app import train
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedpg_br.strategy import make_federated_problem
from fedpg_br.utils import summary

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train with the nodes of this run, write a run folder, and say what came of it."""
    run = train(grid, context, make_federated_problem)
    print(summary(run.records))
