"""Real federations on loopback for the tests: a server process, sites as processes or as threads of the test."""

import json
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium

from fedpg import make_config
from fedpg.federation.messages import largest
from fedpg.federation.site import Responder
from fedpg.flower.warm import Address, run_site
from fedpg.serving.demo import free_port
from fedpg.sites.certificates import read_site_key
from fedpg.sites.folder import Federation, create, read_site
from processes import Process
from tiny import TINY

HONEST: dict[str, Any] = TINY | {"byzantine": 0, "attack": "random-noise", "batch": (4, 4)}
HONEST |= {"aggregator": "fedpg", "sigma": 1e9}
"""Everybody whose reply can be used is accepted. With one size of batch, there is half as much to compile."""
HOLD, AT_WORK = "hold", "at-work"
"""Files in the folder that a site was started in: what holds its task, and what says that it is held."""


def held_cartpole() -> gymnasium.Env[Any, Any]:
    """A task whose agent is still at work when the test acts, however slow the machine: no episode begins while there
    is a file HOLD."""

    class Held(gymnasium.Wrapper[Any, Any, Any, Any]):
        def reset(self, **options: Any) -> Any:
            while Path(HOLD).exists():
                Path(AT_WORK).touch()
                time.sleep(0.01)
            return self.env.reset(**options)

    return Held(gymnasium.make("CartPole-v1"))


SECRET = "record 4711: Jane Doe"
SHARED = "record 4712: John Doe"


class LostRecord(ValueError):
    """What a task may raise."""


def failing_cartpole(text: str = SECRET) -> gymnasium.Env[Any, Any]:
    """A task whose second step fails, with an error that quotes what only the site may know."""

    class Failing(gymnasium.Wrapper[Any, Any, Any, Any]):
        steps = 0

        def step(self, action: Any) -> Any:
            self.steps += 1
            if self.steps > 1:
                raise LostRecord(text)
            return self.env.step(action)

    return Failing(gymnasium.make("CartPole-v1"))


def sharing_cartpole() -> gymnasium.Env[Any, Any]:
    """The same, of a site that shares its errors."""
    return failing_cartpole(SHARED)


def federation(folder: Path, deadline: float = 60.0, quorum: int = 0, seed: int = 0, **settings: Any) -> Federation:
    config = make_config(**(HONEST | settings))
    return create(folder, config, f"127.0.0.1:{free_port()}", deadline, quorum, seed)


def statuses(line: dict[str, Any]) -> list[str]:
    return [site["status"] for site in line["sites"].values()]


def outcomes(line: dict[str, Any]) -> list[str]:
    return [site["outcome"] for site in line["sites"].values()]


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]


def until(true: Callable[[], Any], what: str, seconds: float = 300.0) -> Any:
    """Wait until something is true, and give that."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = true()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"waited {seconds} s in vain: {what}")


class Server(Process):
    """`fedpg serve`."""

    def __init__(self, federation: Federation, *words: str, **options: Any) -> None:
        self.out = federation.folder / "run"
        super().__init__(federation.folder / "serve.log", "serve", str(federation.folder), *words, **options)

    def lines(self) -> list[dict[str, Any]]:
        """federation.jsonl so far."""
        path = self.out / "federation.jsonl"
        if not path.exists():
            return []
        return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def rounds(self) -> list[dict[str, Any]]:
        return [line for line in self.lines() if line.get("quorum") is True]

    def events(self, event: str, site: str | None = None) -> list[dict[str, Any]]:
        return [e for e in self.lines() if e.get("event") == event and (site is None or e.get("site") == site)]

    def at_least(self, rounds: int) -> list[dict[str, Any]]:
        """Wait for so many rounds."""

        def enough() -> Any:
            assert not self.ended or len(self.rounds()) >= rounds, self.said[-2000:]
            return len(self.rounds()) >= rounds and self.rounds()

        return until(enough, f"{rounds} rounds; there are {len(self.rounds())}; {self.said[-500:]}")


Respond = Callable[[Mapping[str, Any]], dict[str, Any]]


class Sites:
    """Sites in threads of the test, each with its own key and connection; a responder may be shared."""

    def __init__(self, federation: Federation) -> None:
        self.folder = federation.folder / "sites"
        self.stop = threading.Event()
        self.said: dict[str, list[str]] = {}
        self.errors: dict[str, BaseException] = {}
        self.threads: list[threading.Thread] = []

    def address(self, name: str) -> Address:
        folder = self.folder / name
        site = read_site(folder)
        return Address(site.address, (folder / "ca.crt").read_bytes(), read_site_key(folder / "site.key"))

    def start(self, name: str, respond: Respond, address: Address | None = None) -> None:
        said = self.said.setdefault(name, [])
        most = largest(read_site(self.folder / name).parameters)
        self.run(name, lambda: run_site(address or self.address(name), respond, said.append, self.stop, most))

    def run(self, name: str, target: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                target()
            except BaseException as error:
                self.errors[name] = error

        thread = threading.Thread(target=guarded, daemon=True, name=name)
        thread.start()
        self.threads.append(thread)

    def __enter__(self) -> "Sites":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join(timeout=20)


class Gate:
    """Lets the sites that share it reply to as many rounds as the test wants."""

    def __init__(self, respond: Responder, rounds: int = 0) -> None:
        self.respond, self.open = respond, rounds
        self.changed = threading.Condition()

    def __call__(self, values: Mapping[str, Any]) -> dict[str, Any]:
        with self.changed:
            assert self.changed.wait_for(lambda: values["round"] <= self.open, timeout=100)
        return self.respond(values)

    def let(self, rounds: int) -> None:
        with self.changed:
            self.open = rounds
            self.changed.notify_all()
