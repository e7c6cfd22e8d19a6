"""A policy that was taken away acts as ours does: in NumPy alone, as ONNX, and read back."""

import dataclasses
import functools
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium import spaces

from fedpg import ConfigError, Problem, StorageError, make_config, make_problem, make_task, train_seeds
from fedpg.cli import main
from fedpg.export import export_policy, is_exported, load_exported
from fedpg.export.card import card, history_of, interval_of
from fedpg.export.network import network_of
from fedpg.storage import write_config

F = 5


class Spaces(gymnasium.Env[Any, Any]):
    """Only its spaces count here."""

    def __init__(self, actions: spaces.Space[Any]) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (F,), np.float32)
        self.action_space = actions


BOXES: dict[str, spaces.Space[Any]] = {
    "discrete": spaces.Discrete(4),
    "discrete from 3": spaces.Discrete(4, start=3),
    "box": spaces.Box(np.array([-2, 0, -0.4], np.float32), np.array([2, 10, 0.4], np.float32)),
    "box without ends": spaces.Box(
        np.array([-np.inf, 0.25, -1], np.float32), np.array([np.inf, np.inf, 1], np.float32)
    ),
    "wide box": spaces.Box(-3.0, 1.0, (2,), np.float64),
}
FORMS: list[tuple[str, dict[str, Any]]] = [
    ("discrete", {"categorical": "paper"}),
    ("discrete from 3", {"categorical": "plain", "activation": "tanh", "hidden": (8, 6)}),
    ("discrete", {"hidden": ()}),
    ("box", {"gaussian": "paper", "hidden": (7,)}),
    ("box", {"gaussian": "released", "hidden": (7, 6)}),
    ("box without ends", {"gaussian": "released", "activation": "tanh", "hidden": (7,)}),
    ("wide box", {"gaussian": "paper", "hidden": (7,)}),
]
each_form = pytest.mark.parametrize(("kind", "settings"), FORMS, ids=lambda x: x if isinstance(x, str) else None)


def make(kind: str, settings: dict[str, Any]) -> tuple[Problem, dict[str, np.ndarray]]:
    """A problem with such actions, and parameters as far from 0 as trained ones are."""
    task = make_task(functools.partial(Spaces, BOXES[kind]))
    problem = make_problem(make_config("LunarLander-v3", **({"hidden": (8,)} | settings)), task)
    theta = 3 * np.asarray(problem.policy.init(jax.random.key(1)))
    return problem, dict(problem.policy.unravel(theta))  # type: ignore[arg-type]


def export(problem: Problem, params: dict[str, Any], to: Any, out: Path) -> Path:
    export_policy(problem, params, problem.config, to, out, out.parent / "no run", np.zeros(0))
    return out


mode = jax.jit(lambda policy, *given: policy.mode(*given), static_argnums=0)
log_prob = jax.jit(lambda policy, *given: policy.log_prob(*given), static_argnums=0)


def ours(problem: Problem, params: dict[str, Any], observations: np.ndarray) -> np.ndarray:
    greedy = np.asarray(mode(problem.policy, params, observations.T))
    return problem.task.to_task(greedy.T)


def same(problem: Problem, params: dict[str, Any], observations: np.ndarray, actions: np.ndarray) -> None:
    """As ours are, to rounding; of two actions that are as good as each other, either."""
    expected = ours(problem, params, observations)
    assert actions.shape == expected.shape
    if not isinstance(problem.task.actions, spaces.Discrete):
        assert actions.dtype == expected.dtype
        np.testing.assert_allclose(actions, expected, rtol=1e-4, atol=1e-4)
        return
    wrong = actions != expected
    start = problem.task.to_task(np.array(0))
    log_p = [np.asarray(log_prob(problem.policy, params, observations.T, a - start)) for a in (actions, expected)]
    assert np.abs(log_p[0] - log_p[1])[wrong].max(initial=0.0) < 1e-5


def observations(count: int = 500) -> np.ndarray:
    drawn = np.random.default_rng(0).normal(size=(count, F)) * 10.0 ** np.arange(-2, F - 2)
    return drawn.astype(np.float32)


def imported(folder: Path) -> Any:
    spec = importlib.util.spec_from_file_location("exported_policy", folder / "policy.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@each_form
def test_the_policy_in_numpy_acts_as_ours_does(kind: str, settings: dict[str, Any], tmp_path: Path):
    problem, params = make(kind, settings)
    policy, seen = imported(export(problem, params, "numpy", tmp_path / "out")), observations()
    same(problem, params, seen, policy.act(seen))
    np.testing.assert_allclose(policy.act(seen[3]), policy.act(seen)[3], rtol=1e-4, atol=1e-4)
    assert len(set(np.round(policy.act(seen).ravel(), 3))) > 1, "what always does the same would be easy to copy"


@each_form
def test_the_policy_in_onnx_acts_as_ours_does(kind: str, settings: dict[str, Any], tmp_path: Path):
    pytest.importorskip("onnx", reason="the extra onnx is not installed")
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    problem, params = make(kind, settings)
    out = export(problem, params, "onnx", tmp_path / "out")
    session = runtime.InferenceSession(out / "policy.onnx", providers=["CPUExecutionProvider"])
    for count in (1, 500):
        seen = observations(count)
        action, *rest = session.run(None, {"observation": seen})
        same(problem, params, seen, action)
        policy = imported(export(problem, params, "numpy", tmp_path / f"numpy-{count}"))
        made = policy.distribution(seen)
        expected = (
            [made] if network_of(problem, params).discrete else [made[0], np.broadcast_to(made[1], made[0].shape)]
        )
        for theirs, mine in zip(rest, expected, strict=True):
            np.testing.assert_allclose(theirs, mine, rtol=1e-4, atol=1e-4)
    about = json.loads(session.get_modelmeta().custom_metadata_map["fedpg"])
    assert about["settings"]["task"] == "LunarLander-v3"


@pytest.mark.parametrize("kind", ["discrete from 3", "box"])
def test_samples_have_the_law_of_the_policy(kind: str, tmp_path: Path):
    problem, params = make(kind, {})
    policy = imported(export(problem, params, "numpy", tmp_path / "out"))
    many = np.repeat(observations(1) / 10, 20_000, axis=0)
    drawn, made = policy.sample(many, np.random.default_rng(1)), policy.distribution(many[0])
    if kind == "box":
        within = np.clip(made[0] + made[1] * np.random.default_rng(2).normal(size=(20_000, 3)), -1, 1)
        np.testing.assert_allclose(drawn.mean(0), policy.to_task(within).mean(0), atol=0.1)
        assert policy.to_task(np.full(3, 1e9)).tolist() == pytest.approx([2, 10, 0.4])
    else:
        odds = np.exp(made - made.max())
        shares = [(drawn == 3 + a).mean() for a in range(4)]
        np.testing.assert_allclose(shares, odds / odds.sum(), atol=0.02)


@pytest.mark.parametrize("to", ["numpy", "onnx"])
@pytest.mark.parametrize(("task", "settings"), [("CartPole-v1", {}), ("Pendulum-v1", {"gaussian": "released"})])
def test_an_exported_policy_is_read_back_to_the_bit(to: Any, task: str, settings: dict[str, Any], tmp_path: Path):
    if to == "onnx":
        pytest.importorskip("onnx", reason="the extra onnx is not installed")
    problem = make_problem(make_config(task, hidden=(8,), **settings))
    params = problem.policy.unravel(np.asarray(problem.policy.init(jax.random.key(0))))
    out = export(problem, params, to, tmp_path / "out")
    assert not is_exported(out / f"other.{'npz' if to == 'numpy' else 'onnx'}"), "it is another file than the policy's"
    for path in (out, out / "policy.json", *out.glob("policy.npz"), *out.glob("policy.onnx")):
        again, tensors = load_exported(path)
        assert again.config.task == task
        assert {name: value.tobytes() for name, value in tensors.items()} == {
            name: np.asarray(value).tobytes() for name, value in params.items()
        }


def test_the_exported_policy_imports_numpy_and_nothing_else(tmp_path: Path):
    problem, params = make("discrete", {})
    out = export(problem, params, "numpy", tmp_path / "out")
    script = (
        "import sys, policy\n"
        f"print(policy.act([0.1] * {F}))\n"
        "print(sorted({'jax', 'fedpg', 'gymnasium', 'safetensors'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=out, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[1] == "[]"
    code = [
        line for line in (out / "policy.py").read_text().splitlines() if line.startswith("    ") and '"""' not in line
    ]
    assert len(code) <= 10, "about ten lines"


@pytest.mark.slow
def test_export_evaluate_and_play_from_the_command_line(
    tiny: Callable[..., Problem], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    problem = tiny()
    train_seeds(problem, [3], tmp_path / "run")
    assert main(["export", str(tmp_path / "run"), "--episodes", "3"]) == 0
    out = tmp_path / "run" / "exported-numpy"
    assert capsys.readouterr().out.split() == [
        str(out / name) for name in ("policy.py", "policy.npz", "README.md", "policy.json")
    ]
    shown = []
    for path in (tmp_path / "run", out, out / "policy.npz"):
        assert main(["evaluate", str(path), "--episodes", "3"]) == 0
        shown.append(capsys.readouterr().out.splitlines()[-2])
    assert len(set(shown)) == 1
    assert main(["play", str(out), "--out", str(tmp_path / "play.gif")]) == 0
    assert (tmp_path / "play.gif").stat().st_size > 0
    # The card has what the records say.
    rows = [json.loads(line) for line in (tmp_path / "run" / "records.jsonl").read_text().splitlines()][1:]
    card = (out / "README.md").read_text()
    assert f"{len(rows)} rounds" in card
    assert "| seed | 3 |" in card
    for agent, role in enumerate(["honest"] * 3 + ["Byzantine"]):
        share = np.mean([row["accepted"][agent] for row in rows])
        assert f"| agent {agent} | {role} | {share:.0%} |" in card
    content = json.loads((out / "policy.json").read_text())
    assert content["settings"]["byzantine"] == 1, "as it was trained"
    assert content["return"]["low"] <= content["return"]["mean"] <= content["return"]["high"]


def test_the_card_of_real_sites_calls_nobody_honest_since_nobody_knows(tmp_path: Path):
    problem, params = make("discrete", {"agents": 5})
    network = network_of(problem, params)
    rows: list[dict[str, Any]] = [{"trajectories": 0}, {"trajectories": 4, "accepted": [True] * 4 + [False]}]
    (tmp_path / "records.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def text(**settings: Any) -> str:
        config = dataclasses.replace(problem.config, **settings)
        write_config(tmp_path, config, 0)
        return card(config, network, history_of(tmp_path), np.zeros(0), [])

    assert "5 agents, all honest" in (simulated := text())
    assert simulated.count("| honest |") == 5
    line = {"round": 1, "sites": {f"ward-{agent}": {} for agent in range(5)}}
    for ledger in (json.dumps(line) + "\n", '{"event": "connected"}\n', "damaged"):
        (tmp_path / "federation.jsonl").write_text(ledger)
        said = text()
        assert ", 5 sites |" in said
        assert "honest" not in said
        assert said.count("| unknown |") == 5
        assert ("| ward-4 |" in said) == ("ward" in ledger)
    # In a trial it is known who was told to lie.
    trial = text(byzantine=1, attack="sign-flipping")
    assert "5 agents, 1 of them Byzantine" in trial
    assert trial.count("| Byzantine |") == 1


def test_an_interval_of_the_mean_is_that_of_the_bootstrap():
    values = np.random.default_rng(0).normal(5.0, 2.0, 400)
    mean, low, high = interval_of(values)
    assert mean == pytest.approx(values.mean())
    assert (high - low) / 2 == pytest.approx(1.96 * values.std() / 20, rel=0.1)


def test_a_users_own_network_cannot_be_exported_and_the_error_says_what_can_be_done(tmp_path: Path):
    problem, params = make("discrete", {})
    own = problem._replace(config=make_config("LunarLander-v3", policy="mine:policy"))
    with pytest.raises(ConfigError, match=r"mine:policy.*policy\.safetensors.*jax\.export"):
        export(own, params, "numpy", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_with_something_else_is_not_written_to(tmp_path: Path):
    problem, params = make("discrete", {})
    (tmp_path / "thesis.txt").write_text("years")
    with pytest.raises(StorageError, match="something else"):
        export(problem, params, "numpy", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
    out = export(problem, params, "numpy", tmp_path / "out")
    assert export(problem, params, "numpy", out) == out, "its own folder it writes again"


@pytest.mark.parametrize("damage", ["npz", "tensor", "json", "newer"])
def test_a_damaged_export_is_refused(damage: str, tmp_path: Path):
    problem = make_problem(make_config(hidden=(8,)))
    params = problem.policy.unravel(np.asarray(problem.policy.init(jax.random.key(0))))
    out = export(problem, params, "numpy", tmp_path / "out")
    about = json.loads((out / "policy.json").read_text())
    if damage == "npz":
        (out / "policy.npz").write_bytes(b"nothing")
    elif damage == "tensor":
        np.savez(out / "policy.npz", **(params | {"w0": np.full_like(params["w0"], np.nan)}))
    elif damage == "json":
        (out / "policy.json").write_text("{}")
    else:
        (out / "policy.json").write_text(json.dumps(about | {"format": "fedpg policy 2"}))
    with pytest.raises(StorageError, match="newer fedpg" if damage == "newer" else "policy"):
        load_exported(out)
