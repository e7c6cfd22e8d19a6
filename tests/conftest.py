"""A tiny federation for the tests that train, compiled once for all of them."""

import dataclasses
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import pytest

import fedpg.training.run
from fedpg import Config, make_config
from fedpg.agents import Problem, make_problem
from fedpg.federation.site import Responder, make_responder
from fedpg.training.rounds import Advance, compile_rounds
from tiny import TINY, compiled_hastily


@pytest.fixture(scope="session")
def tiny() -> Callable[..., Problem]:
    """Makes the tiny problem, with other settings instead."""
    return lambda **settings: make_problem(make_config(**(TINY | settings)))


@pytest.fixture(scope="session")
def compiled() -> Iterator[Callable[[Problem], Advance]]:
    """`compile_rounds`, here and in training, but once per problem: compiling takes longer than the tests."""
    known: dict[Any, Advance] = {}

    def once(problem: Problem) -> Advance:
        # The length of a run is an argument of the compiled function. A function of the user's has no name of its own.
        settings = dataclasses.replace(problem.config, trajectories=1)
        own = problem.attack if ":" in problem.config.attack else None
        key = (settings, own, id(problem.environment), jax.config.read("jax_disable_most_optimizations"))
        if key not in known:
            known[key] = compile_rounds(problem)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fedpg.training.run, "compile_rounds", once)
        yield once


@pytest.fixture
def compiled_fast() -> Iterator[None]:
    """Compiles with less optimisation, in half the time: for what is compiled to be used in one test."""
    with compiled_hastily(forget=False):
        yield


@pytest.fixture(scope="session")
def as_options() -> Callable[[Config], list[str]]:
    """The tiny settings, or others in their place, as words of the command line."""

    def words(config: Config) -> list[str]:
        values = {name: getattr(config, name) for name in TINY}
        each = {f"--{k.replace('_', '-')}": v if isinstance(v, tuple) else (v,) for k, v in values.items()}
        return [str(word) for option, value in each.items() for word in (option, *value)]

    return words


@pytest.fixture(scope="session")
def content() -> Callable[[Path], dict[str, bytes]]:
    """Reads all files below a folder, by their paths."""
    return lambda folder: {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture(scope="module")
def shared_compilations(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """All processes of these tests share what they compile, and spend little on it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
        patch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "compiled"))
        patch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
        with compiled_hastily():
            yield


@pytest.fixture(scope="module")
def responders() -> Callable[[Config], Responder]:
    """The computation of a site, compiled once for all sites of the same settings."""
    known: dict[Config, Responder] = {}
    lock = threading.Lock()

    def responder(config: Config) -> Responder:
        config = dataclasses.replace(config, trajectories=1)
        if config not in known:
            known[config] = make_responder(make_problem(config))
        respond = known[config]

        def one_at_a_time(values: Mapping[str, Any]) -> dict[str, Any]:
            with lock:
                return respond(values)

        return one_at_a_time

    return responder
