"""The examples of extensions as pieces of a run: resumed, over messages, and by the command line."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import safetensors.numpy

import fedpg
from extension_examples import PLAIN, SEED, SMALL, importable, load, problem_of
from fedpg.cli import main
from fedpg.federation.messages import decode_reply, encode_broadcast, settings_digest
from fedpg.federation.site import Site
from fedpg.problem import Broadcast, Outcome, Problem, Replies
from fedpg.training import train_seeds
from fedpg.training.checkpoint import FILE

__all__ = ["importable"]

NAMED: dict[str, dict[str, Any]] = {
    "centred clipping": {"aggregator": "centred_clipping:centred_clipping", "aggregator_options": ("tau=0.5",)},
    "FLTrust": {"aggregator": "fltrust:fltrust"},
    "NNM": {"aggregator": "nnm:nnm_fedpg"},
    "mimic": {"attack": "mimic:mimic"},
    "momentum": {"algorithm": "momentum:MOMENTUM"},
}
REMEMBERING = {"centred clipping": ".aggregator", "mimic": ".agents['attack']", "momentum": ".agents['agents']"}


def policies(run: fedpg.Run) -> dict[str, bytes]:
    return {name: np.asarray(value).tobytes() for name, value in run.policy.params.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", REMEMBERING)
def test_what_remembers_goes_on_from_a_checkpoint_to_the_same_bits(name: str, tmp_path: Path):
    problem = problem_of(**NAMED[name])
    short = problem._replace(config=dataclasses.replace(problem.config, trajectories=8))
    whole = train_seeds(problem, [SEED], tmp_path / "whole")[0]
    train_seeds(short, [SEED], tmp_path / "parts")
    saved = safetensors.numpy.load_file(tmp_path / "parts" / FILE)
    memories = [value for key, value in saved.items() if key.startswith(REMEMBERING[name])]
    assert any(value.ndim and value.any() for value in memories)
    resumed = train_seeds(problem, [SEED], tmp_path / "parts", resume=True)[0]
    assert len(resumed.records) > len(saved["log/round"])
    assert policies(resumed) == policies(whole)
    for column in ("distances", "norms", "gradient_norm", "batch"):
        np.testing.assert_array_equal(resumed.records.column(column), whole.records.column(column))


class Messages:
    """A federation of sites whose messages are carried by hand."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.site = problem, Site(problem)

    def ask(self, broadcast: Broadcast, memory: Any) -> tuple[Replies, Any]:
        problem = self.problem
        schema, size, settings = problem.algorithm.reply, problem.policy.size, settings_digest(problem.config)
        raw = [self.site(encode_broadcast(broadcast, k, settings)) for k in range(problem.config.agents)]
        replies = [decode_reply(values, broadcast.round, size, schema) for values in raw]
        vectors = {name: np.stack([reply.vectors[name] for reply in replies]) for name in schema.vectors}
        returns, steps = (np.array([getattr(r, name) for r in replies]) for name in ("mean_return", "steps"))
        return Replies(vectors, {}, np.zeros(len(replies), int), returns, steps, broadcast.batch), memory

    def tell(self, round_: int, outcome: Outcome) -> None:
        pass

    def warm_up(self, memory: Any) -> list[Any]:
        return []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["centred clipping", "FLTrust", "momentum"])
def test_sites_that_exchange_messages_learn_what_agents_in_one_process_do(name: str):
    problem = problem_of(**NAMED[name])
    together = train_seeds(problem, [SEED])[0]
    apart = train_seeds(problem, [SEED], sites=Messages(problem))[0]
    assert len(together.records) >= 3
    for key, value in together.policy.params.items():
        np.testing.assert_allclose(apart.policy.params[key], value, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(apart.records.column("norms"), together.records.column("norms"), rtol=1e-3)


def words(settings: dict[str, Any]) -> list[str]:
    """Settings as words of the command line."""
    each = {f"--{k.replace('_', '-')}": v if isinstance(v, tuple) else (v,) for k, v in settings.items()}
    return [str(word) for option, value in each.items() for word in (option, *value)]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMED)
def test_the_command_line_takes_it_by_its_name(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    settings = SMALL | {"trajectories": 6} | NAMED[name]
    assert main(["train", *words(settings), "--out", str(tmp_path / "run"), "--quiet"]) == 0
    assert main(["evaluate", str(tmp_path / "run"), "--episodes", "2"]) == 0
    assert "mean return" in capsys.readouterr().out


@pytest.mark.slow
def test_the_command_line_takes_a_task_whose_agents_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    settings = PLAIN | {"agents": 10, "task": "pole_lengths:POLES", "preset": "paper"}
    assert main(["train", *words(settings), "--out", str(tmp_path / "run"), "--quiet"]) == 0
    assert main(["evaluate", str(tmp_path / "run"), "--episodes", "2"]) == 0
    assert main(["train", *words(settings | {"agents": 9}), "--out", str(tmp_path / "other"), "--quiet"]) == 2
    assert "10 agents, not for 9" in capsys.readouterr().err


@pytest.mark.slow
def test_a_policy_by_equinox_is_trained_saved_evaluated_and_played_by_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    import equinox

    settings = SMALL | {"trajectories": 6, "test_horizon": 15, "policy": "equinox_policy:policy"}
    run, picture = str(tmp_path / "run"), tmp_path / "play.gif"
    assert main(["train", *words(settings), "--out", run, "--quiet"]) == 0
    assert main(["evaluate", run, "--episodes", "2"]) == 0
    assert main(["play", run, "--out", str(picture)]) == 0
    assert picture.stat().st_size > 0
    # Its tensors have the names of Equinox's own: whoever has Equinox can use the file without this package.
    network = equinox.nn.MLP(4, 2, 32, 2, key=jax.random.key(0))
    saved = safetensors.numpy.load_file(tmp_path / "run" / "policy.safetensors")
    named, tree = jax.tree_util.tree_flatten_with_path(equinox.filter(network, equinox.is_array))
    loaded = tree.unflatten([saved[jax.tree_util.keystr(path)] for path, _ in named])
    network = equinox.combine(loaded, network)
    problem = fedpg.make_problem(fedpg.make_config(**settings))
    observations = np.random.default_rng(1).normal(size=(4, 20)).astype(np.float32)
    logits = np.asarray(jax.jit(jax.vmap(network, in_axes=1, out_axes=1))(observations))
    np.testing.assert_array_equal(jax.jit(problem.policy.mode)(saved, observations), logits.argmax(axis=0))


@pytest.mark.slow
def test_a_policy_that_was_trained_with_objects_can_be_evaluated_by_its_folder(tmp_path: Path):
    own = {"aggregator": load("centred_clipping:centred_clipping")(), "algorithm": load("momentum:MOMENTUM")}
    run = fedpg.train(**(SMALL | {"trajectories": 6} | own), out=tmp_path / "run")
    assert run.config.aggregator.startswith("custom:")
    assert main(["evaluate", str(tmp_path / "run"), "--episodes", "2"]) == 0
