"""What a ServerApp does: the same training as `fedpg train`, with the nodes of a Flower run as its agents."""

import threading
from collections.abc import Callable
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid

from fedpg.config import Config
from fedpg.federation.site import refuse_collusion
from fedpg.flower.exchange import Exchange
from fedpg.flower.run_config import read_run_config
from fedpg.problem import Problem
from fedpg.sites.ledger import FILE, Ledger
from fedpg.training import Run, train_seeds
from fedpg.training.folders import check_folder, make_folder, new_folder
from fedpg.training.progress import Lines

POLL = 0.2
"""Seconds between two looks for replies: each is a request to the SuperLink."""


def train(grid: Grid, context: Context, make: Callable[[Config], Problem]) -> Run:
    """Rounds with the nodes of this run, and a run folder."""
    wanted = read_run_config(context.run_config)
    config, stop = wanted.config, threading.Event()
    problem = make(config)
    refuse_collusion(problem)
    out = (Path(wanted.out) if wanted.out else new_folder(config)).resolve()  # Flower decides where this process runs
    check_folder(out, config, wanted.seed, resume=True)
    make_folder(out, config, wanted.seed)  # the ledger is in it, and begins before the run
    reporter = Lines(config, rounds=wanted.rounds)
    ledger = Ledger([f"node-{agent}" for agent in range(config.agents)], out / FILE, reporter.note)
    reporter.ledger = ledger  # nobody knows which of these lie
    exchange = Exchange(
        grid,
        numbered(grid, config.agents),
        problem,
        ledger,
        stop,
        deadline=wanted.deadline,
        quorum=wanted.quorum,
        poll=POLL,
        rounds=wanted.rounds,
    )
    return train_seeds(problem, [wanted.seed], out, True, reporter, stop, exchange)[0]


def numbered(grid: Grid, agents: int) -> Callable[[], dict[int, int]]:
    """Gives the nodes that are there their agents' numbers, and leaves them theirs; a new one may take a lost one's."""
    known: dict[int, int] = {}  # agent -> node

    def nodes() -> dict[int, int]:
        online = set(grid.get_node_ids())
        new = sorted(online - set(known.values()))
        free = [agent for agent in range(agents) if known.get(agent) not in online]
        known.update(zip(free, new, strict=False))
        return {agent: node for agent, node in sorted(known.items()) if node in online}

    return nodes
