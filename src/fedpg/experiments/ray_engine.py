"""The same units over a Ray cluster."""

import logging
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedpg.config import to_json
from fedpg.errors import ConfigError, SimulationError
from fedpg.experiments.fingerprint import fingerprint
from fedpg.experiments.runner import Engine
from fedpg.experiments.work import Event, Unit, work
from fedpg.extras import need


def ray_engine(address: str | None, runs: Path, stop: threading.Event) -> tuple[Engine, int]:
    """An engine and how many cores it has: those of the cluster at `address`, or of a local one that is started.

    Every machine of the cluster needs this version of `fedpg`. Run folders are on the machine that trains them;
    finished runs come back here.
    """
    need("ray")
    import ray

    if not ray.is_initialized():
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="os.fork")  # Ray starts its own programs, nothing of JAX's
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False)
        except (ConnectionError, ValueError) as error:
            raise ConfigError(f"there is no Ray cluster at {address!r}: {error}") from error
    # A unit is trained on one machine, so it cannot have more cores than one has.
    each = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
    most = min(filter(None, each), default=1)
    remote: Any = ray.remote(num_returns="streaming", max_retries=0)(work)

    def engine(unit: Unit, share: int) -> Iterator[Event]:
        cores = min(share, most)
        events = remote.options(num_cpus=cores).remote(
            to_json(unit.config), unit.seeds, str(runs.resolve()), fingerprint(unit.config), cores
        )
        try:
            while not stop.is_set():
                if ray.wait([events], timeout=0.5)[0]:
                    yield ray.get(next(events))
        except StopIteration:
            return
        except ray.exceptions.RayTaskError as error:
            raise SimulationError(f"{unit.label}, on Ray: {error.cause}") from error
        except ray.exceptions.RayError as error:  # a worker or a machine was lost
            raise SimulationError(f"{unit.label}, on Ray: {error}. Give the same command to go on") from error
        finally:
            ray.cancel(events)  # interrupts what still runs, as by Ctrl-C

    return engine, int(ray.cluster_resources().get("CPU", 1))
