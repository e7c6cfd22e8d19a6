"""What a ClientApp does: one agent's answer to a broadcast, in a simulation or on Flower's own SuperNodes."""

import dataclasses
import functools
import logging
from collections.abc import Callable
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict

from fedpg.config import Config
from fedpg.federation.messages import MessageError
from fedpg.federation.site import Site, pack_memory, unpack_memory
from fedpg.flower.exchange import RECORD
from fedpg.flower.run_config import read_run_config
from fedpg.problem import Problem


class SiteError(RuntimeError):
    """The kind of an error at this node: Flower sends an error's text to the server."""


def answer(message: Message, context: Context, make: Callable[[Config], Problem]) -> Message:
    """A gradient from this node's own task: `task` in its node-config, or else that of the run."""
    try:
        return _answer(message, context, make)
    except MessageError:  # it quotes the server's message, and nothing of this node
        raise
    except Exception as error:
        logging.getLogger(__name__).error("this round failed here", exc_info=error)
        # The text may quote what the environment knows.
        raise SiteError(f"{type(error).__name__}; its text is in the node's own log") from None


def _answer(message: Message, context: Context, make: Callable[[Config], Problem]) -> Message:
    settings = tuple(sorted(context.run_config.items()))
    site = _site(settings, str(context.node_config.get("task", "")), make)
    values: Any = dict(message.content[RECORD])  # type: ignore[call-overload]
    agent = values.get("agent")
    # Flower keeps a node's state between its messages; the process may be gone, or serve another node meanwhile.
    site.memories.clear()
    kept = context.state.get(RECORD)
    if isinstance(kept, ConfigRecord) and isinstance(kept.get("memory"), bytes):
        site.memories[agent] = unpack_memory(bytes(kept["memory"]), site.problem)  # type: ignore[arg-type]
    reply = site(values)
    context.state[RECORD] = ConfigRecord({"memory": pack_memory(site.memories[agent])})
    return Message(RecordDict({RECORD: ConfigRecord(reply)}), reply_to=message)


@functools.cache
def _site(settings: tuple[tuple[str, Any], ...], task: str, make: Callable[[Config], Problem]) -> Site:
    """Kept for as long as the process lives: all rounds in simulation, one message on a SuperNode."""
    config = read_run_config(dict(settings)).config
    return Site(make(dataclasses.replace(config, task=task or config.task)))
