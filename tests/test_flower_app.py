"""The Flower app: its two halves in this process, on a grid that hands messages over."""

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from fedpg_br.client_app import app as client_app
from fedpg_br.server_app import app as server_app
from flwr.app import Context, Error, Message, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.supercore.task_identity import TaskIdentity

from federations import SECRET, LostRecord
from fedpg import ConfigError, make_config, make_problem
from fedpg.flower.run_config import OTHERS, SETTINGS, read_run_config
from fedpg.flower.server_app import numbered
from fedpg.training import train_seeds

pytestmark = pytest.mark.network

EXAMPLE = Path(__file__).parents[1] / "examples" / "flower-app" / "pyproject.toml"


def context(node: int, run_config: dict[str, Any], task: str = "") -> Context:
    own = {"task": task} if task else {}
    return Context(run_id=1, node_id=node, node_config=own, state=RecordDict(), run_config=run_config)


class HereGrid:
    """Nodes in this process; one of them may fail, and some may have tasks of their own."""

    def __init__(
        self,
        nodes: list[int],
        run_config: dict[str, Any],
        failing: int | None = None,
        tasks: Mapping[int, str] | None = None,
    ) -> None:
        self.nodes, self.run_config, self.failing, self.tasks = nodes, run_config, failing, tasks or {}
        self.replies: dict[str, Message] = {}

    def get_node_ids(self) -> Iterable[int]:
        return self.nodes

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            id_ = message.metadata.__dict__["_message_id"] = str(uuid4())
            node = message.metadata.dst_node_id
            if node == self.failing:
                self.replies[id_] = Message(Error(2, "the app raised an exception"), reply_to=message)
            else:
                self.replies[id_] = self.reply(message, node)
            ids.append(id_)
        return ids

    def reply(self, message: Message, node: int) -> Message:
        try:
            return client_app(message, context(node, self.run_config, self.tasks.get(node, "")))
        except Exception as ex:  # as Flower does it
            return Message(Error(2, str(type(ex)) + ":<'" + str(ex) + "'>"), reply_to=message)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self.replies.pop(id_) for id_ in message_ids if id_ in self.replies]


@pytest.fixture
def in_flower(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Flower's messages are marked with."""
    for name, value in {"_run_id": 1, "_task_id": 1, "_node_id": SUPERLINK_NODE_ID}.items():
        monkeypatch.setattr(TaskIdentity, name, value)


@pytest.mark.usefixtures("in_flower")
def test_the_app_trains_as_a_simulation_does(tmp_path: Path):
    values = {"agents": 4, "byzantine": 1, "attack": "sign-flipping", "rounds": 3, "out": str(tmp_path / "run")}
    # Nodes have large numbers of Flower's own; the fourth, by number, is agent 3, which is Byzantine.
    grid = HereGrid([2**40, 7, 2**50, 99], values, failing=99)
    server_app(grid=grid, context=context(0, values))  # type: ignore[arg-type]
    rows = [json.loads(line) for line in (tmp_path / "run" / "records.jsonl").read_text().splitlines()]
    assert [row["round"] for row in rows] == [0, 1, 2, 3]
    assert [row["status"] for row in rows[1:]] == [["answered", "failed at the site", "answered", "answered"]] * 3
    lines = [json.loads(line) for line in (tmp_path / "run" / "federation.jsonl").read_text().splitlines()]
    assert {line["sites"]["node-1"]["reason"] for line in lines} == {"failed at the site: the app raised an exception"}
    config = make_config(agents=4, byzantine=1, attack="sign-flipping", trajectories=40)
    simulated = train_seeds(make_problem(config), [0], tmp_path / "simulated")[0]
    here = list(simulated.records.rows())
    assert rows[1]["batch"] == here[1]["batch"]
    assert [n for k, n in enumerate(rows[1]["norms"]) if k != 1] == pytest.approx(
        [n for k, n in enumerate(here[1]["norms"]) if k != 1], rel=1e-4
    )


@pytest.mark.usefixtures("in_flower")
def test_the_text_of_an_error_stays_in_the_nodes_own_log(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """Of the task's step, and of a task that cannot be made."""
    values = {"agents": 4, "rounds": 1, "quorum": 2, "out": str(tmp_path / "run")}
    tasks = {30: "federations:failing_cartpole", 40: f"no_such_module:{SECRET}"}
    server_app(grid=HereGrid([10, 20, 30, 40], values, tasks=tasks), context=context(0, values))  # type: ignore[arg-type]
    (line,) = map(json.loads, (tmp_path / "run" / "federation.jsonl").read_text().splitlines())
    assert [site["outcome"] for site in line["sites"].values()][2:] == ["failed", "failed"]
    assert LostRecord.__name__ in line["sites"]["node-2"]["reason"]
    assert "ConfigError" in line["sites"]["node-3"]["reason"]
    assert SECRET not in json.dumps(line)
    assert [SECRET in logged for logged in caplog.text.split("this round failed here")[1:]] == [True, True]


def test_the_app_has_the_layout_that_flowers_baselines_have():
    folder, settings = EXAMPLE.parent, tomllib.loads(EXAMPLE.read_text())
    components = settings["tool"]["flwr"]["app"]["components"]
    (package,) = {path.partition(".")[0] for path in components.values()}
    parts = ("client_app", "dataset", "model", "server_app", "strategy", "utils")
    assert all((folder / package / f"{part}.py").exists() for part in parts)
    page = (folder / "README.md").read_text()
    assert re.match(r"---\ntitle: .+\nurl: https://.+\nlabels: \[.+\]\ndataset: \[.+\]\n---\n", page)
    wanted = ("Paper:", "Authors:", "What is implemented:", "Datasets:", "Hardware setup:", "Contributors:")
    assert [word for word in wanted if f"**{word}**" not in page] == []


@pytest.mark.parametrize("path", sorted(EXAMPLE.parent.glob("conf/*.toml")), ids=lambda path: path.stem)
def test_an_experiment_of_the_example_is_one_of_the_paper(path: Path):
    known = tomllib.loads(EXAMPLE.read_text())["tool"]["flwr"]["app"]["config"]
    given = tomllib.loads(path.read_text())
    assert set(given) <= set(known), "Flower refuses a key that the app does not have"
    assert read_run_config(known | given).config.preset == "paper"
    assert f"conf/{path.name}" in (EXAMPLE.parent / "README.md").read_text()


def test_the_examples_keys_are_those_that_are_read():
    app = tomllib.loads(EXAMPLE.read_text())["tool"]["flwr"]["app"]
    assert set(app["config"]) == {*SETTINGS, *OTHERS}
    assert read_run_config(app["config"]).config == make_config()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"agent": 3}, "agents"),
        ({"deadline": "soon"}, "deadline"),
        ({"deadline": 0.0}, "deadline"),
        ({"deadline": float("inf")}, "deadline"),
        ({"seed": 1.5}, "seed"),
        ({"quorum": 99}, "quorum"),
        ({"quorum": 1.5}, "quorum"),
        ({"rounds": 2.5}, "rounds"),
        ({"rounds": -1}, "rounds"),
        ({"rounds": True}, "rounds"),
        ({"byzantine": 6}, "byzantine"),
        ({"algorithm": "sgd"}, "algorithm"),
    ],
)
def test_a_run_config_that_cannot_work_is_refused(values: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        read_run_config(values)


def test_nodes_keep_their_agents_numbers_and_a_new_one_takes_a_lost_ones():
    grid = HereGrid([30, 10, 20], {})
    nodes = numbered(grid, 3)  # type: ignore[arg-type]
    assert nodes() == {0: 10, 1: 20, 2: 30}
    grid.nodes = [30, 10]
    assert nodes() == {0: 10, 2: 30}
    grid.nodes = [30, 10, 5]
    assert nodes() == {0: 10, 1: 5, 2: 30}
    grid.nodes = [30, 10, 5, 1]
    assert nodes() == {0: 10, 1: 5, 2: 30}
