"""The ClientApp: one agent's answer to a broadcast, for `flwr run` in simulation or on Flower's own SuperNodes."""

import dataclasses
import functools
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedpg.agents import make_problem
from fedpg.federation.site import Responder, make_responder
from fedpg.flower.exchange import RECORD
from fedpg.flower.run_config import read_run_config

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """A gradient from this node's own task: `task` in its node-config, or else that of the run."""
    settings = tuple(sorted(context.run_config.items()))
    respond = _responder(settings, str(context.node_config.get("task", "")))
    values: Any = message.content[RECORD]
    return Message(RecordDict({RECORD: ConfigRecord(respond(dict(values)))}), reply_to=message)


@functools.cache
def _responder(settings: tuple[tuple[str, Any], ...], task: str) -> Responder:
    """Kept for as long as the process lives: all rounds in simulation, one message on a SuperNode."""
    config = read_run_config(dict(settings)).config
    return make_responder(make_problem(dataclasses.replace(config, task=task or config.task)))
