"""The folder of a federation, its keys and certificates, and the commands around it."""

import dataclasses
import errno
import socket
import stat
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from federations import HONEST, federation
from fedpg import make_config, make_problem
from fedpg.cli import main
from fedpg.cli.federation import Serve, words_of
from fedpg.errors import ConfigError
from fedpg.flower.link import Link
from fedpg.flower.web import Server as HttpServer
from fedpg.serving.join import join
from fedpg.serving.serve import serve
from fedpg.sites import folder
from fedpg.sites.certificates import read_site_key
from fedpg.sites.folder import _listen, create, read_federation, read_site, refuse_open, split_address
from fedpg.sites.ledger import Ledger
from fedpg.storage import StorageError


def test_keys_and_certificates_that_cannot_work_are_named(tmp_path: Path):
    made = federation(tmp_path / "f", agents=3)
    public, site = made.folder / "keys", made.folder / "sites" / "site-0"
    (public / "site-2.pub").write_bytes((public / "site-0.pub").read_bytes())
    with pytest.raises(ConfigError, match=r"site-0\.pub and .*site-2\.pub are the same key"):
        made.public_keys()
    (site / "ca.crt").write_text("-----BEGIN CERTIFICATE-----\njunk\n")
    with pytest.raises(StorageError, match=r"ca\.crt is no certificate"):
        join(read_site(site), quiet=True)
    text = (site / "site.toml").read_text()
    (site / "site.toml").write_text(text.replace("agent = 0", "agent = 3", 1))
    with pytest.raises(ConfigError, match="agent = 3"):
        read_site(site)
    link = Link([], 1000, Ledger([]))
    for certificate, key in (("server.crt", "no.key"), ("README.md", "server.key")):
        with pytest.raises(ConfigError, match=certificate):
            HttpServer(link, "127.0.0.1", 0, made.folder / certificate, made.folder / key)


@pytest.mark.parametrize(
    ("address", "listen"),
    [
        ("[::1]:18444", "[::1]:18444"),
        ("[2001:db8::1]:1", "[::]:1"),
        ("127.0.0.2:5", "127.0.0.1:5"),
        ("localhost:5", "127.0.0.1:5"),
        ("fl.example.org:8443", "0.0.0.0:8443"),
    ],
)
def test_a_server_listens_in_the_family_of_its_address(address: str, listen: str):
    host, port = split_address(address)
    assert f"{_listen(host)}:{port}" == listen
    split_address(listen)


def test_a_federations_folder_is_made_whole_with_its_keys_closed(tmp_path: Path):
    made = federation(tmp_path / "f", agents=3, deadline=7, seed=9)
    assert read_federation(made.folder) == made._replace(deadline=7)
    secrets = [*made.folder.rglob("*.key")]
    assert {p.name for p in secrets} == {"ca.key", "server.key", "site.key"}
    assert len(secrets) == 5
    assert {stat.S_IMODE(p.stat().st_mode) for p in secrets} == {0o600}
    for agent, name in enumerate(made.sites):
        site = read_site(made.folder / "sites" / name)
        assert site.parameters == make_problem(made.config).policy.size
        assert (site.name, site.agent, site.config) == (name, agent, made.config)
        handed = {p.name for p in (made.folder / "sites" / name).iterdir()}
        assert handed == {"ca.crt", "site.key", "site.toml", "README.md"}
    assert "fedpg serve" in (made.folder / "README.md").read_text()
    with pytest.raises(StorageError, match="exists already"):
        create(made.folder, made.config, "127.0.0.1:8443")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("deadline = 60.0", "deadline = 0.5", "deadline"),
        ("quorum = 0", "quorum = 9", "quorum = 9"),
        ("numbers = [0, 1, 2]", "numbers = [0, 1, 1]", "numbers"),
        ("seed = 0", 'seed = "0"', "seed"),
        ('"site-2"]', '"site-1"]', "sites"),
        ('"site-2"]', '"../../etc"]', "name"),
        ('"site-0", "site-1", "site-2"]', "[1], [2], [3]]", "a name of its own"),
        ("agents = 3", "agents = 4", "agents = 4"),
        ("agents = 3", "agents = many", "cannot be read"),
        ("seed = 0", "seed = 0\ncolour = 1", "colour"),
        ("discount = ", "discounts = ", "discounts"),
    ],
)
def test_a_federation_file_that_cannot_work_is_refused(tmp_path: Path, old: str, new: str, message: str):
    made = federation(tmp_path / "f", agents=3)
    text = (made.folder / "federation.toml").read_text()
    assert old in text
    (made.folder / "federation.toml").write_text(text.replace(old, new, 1))
    with pytest.raises((ConfigError, StorageError), match=message):
        read_federation(made.folder)


@pytest.mark.parametrize(
    "address",
    [
        *(
            "host",
            "host:",
            ":1",
            "host:0",
            "host:99999",
            "host:http",
            "http://host:1",
            "host/path:1",
            "::1:1",
            "[host]:1",
        ),
        *(
            "m\u00fcnchen.example:8443",
            "-host:1",
            "a..b:1",
            "a b:1",
            "host:\u00b2",
            "host:\uff18\uff14",
            f"host:{'9' * 5000}",
        ),
    ],
)
def test_an_address_is_a_host_and_a_port(tmp_path: Path, address: str):
    with pytest.raises(ConfigError, match="host:port"):
        create(tmp_path / "f", make_config(**HONEST), address)
    assert not (tmp_path / "f").exists()


def test_without_tls_only_on_this_machine_unless_forced(tmp_path: Path):
    assert refuse_open("127.0.0.1", insecure=True, force=False) is None
    assert refuse_open("0.0.0.0", insecure=False, force=False) is None
    assert refuse_open("0.0.0.0", insecure=True, force=True) is None
    for host in ("0.0.0.0", "10.0.0.1", "fl.example.org", "::"):
        with pytest.raises(ConfigError, match="--force"):
            refuse_open(host, insecure=True, force=False)


def test_a_site_whose_task_does_not_fit_is_told_so(tmp_path: Path):
    made = federation(tmp_path / "f", agents=3)
    with pytest.raises(ConfigError, match=r"every site's task must have the sizes of the server's, CartPole-v1"):
        join(read_site(made.folder / "sites" / "site-0"), task="Acrobot-v1", quiet=True)


def test_a_site_whose_task_makes_as_many_parameters_by_other_sizes_is_told_so(tmp_path: Path):
    made = federation(tmp_path / "f", agents=3, hidden=())  # 4 observations and 2 actions: 10 parameters, as 1 and 5
    place = made.folder / "sites" / "site-0"
    task = f"{__name__}:five_ways"
    with pytest.raises(ConfigError) as refused:
        join(read_site(place), task=task, quiet=True)
    assert f"the task {task} has parameters = 10, observations = 1, actions = one of 5" in str(refused.value)
    assert "agreed on parameters = 10, observations = 4, actions = one of 2" in str(refused.value)
    about = (place / "site.toml").read_text()
    older = [line for line in about.splitlines() if not line.startswith(("observations = ", "actions = "))]
    (place / "site.toml").write_text("\n".join(older))
    site = read_site(place)
    assert (site.parameters, site.observations, site.actions) == (10, 0, "")
    with pytest.raises(ConfigError, match=r"has parameters = \d+; this federation agreed on parameters = 10: "):
        join(site, task="Acrobot-v1", quiet=True)


def five_ways() -> gymnasium.Env[Any, Any]:
    """One observation and five actions."""
    pole = gymnasium.make("CartPole-v1")
    seen = gymnasium.wrappers.TransformObservation(pole, lambda x: x[:1], gymnasium.spaces.Box(-9, 9, (1,)))
    return gymnasium.wrappers.TransformAction(seen, lambda action: action % 2, gymnasium.spaces.Discrete(5))


def test_an_interrupted_server_is_told_how_to_go_on():
    command = Serve(Path("my f"), out=Path("runs/b"), insecure=True, force=True)
    assert words_of(command) == ["fedpg", "serve", "my f", "--out", "runs/b", "--insecure", "--force"]
    assert words_of(Serve(Path("f"))) == ["fedpg", "serve", "f"]
    shown = Serve(Path("f"), dashboard=True, dashboard_address="[::1]:80", log_json=Path("log"))
    words = ["--dashboard-address", "[::1]:80", "--log-json", "log", "--dashboard"]
    assert words_of(shown) == ["fedpg", "serve", "f", *words]


@pytest.mark.parametrize("words", [["federation"], ["federation", "--help"]])
def test_the_commands_of_a_federation_are_listed(words: list[str], capsys: pytest.CaptureFixture[str]):
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "fedpg federation create" in said
    assert "fedpg federation demo" in said
    assert "fedpg train" not in said


def test_a_key_that_others_can_read_is_refused(tmp_path: Path):
    made = federation(tmp_path / "f", agents=3)
    path = made.folder / "sites" / "site-0" / "site.key"
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_site_key(path)


@pytest.mark.parametrize("address", ["0.0.0.0:8443", "[::]:8443", "[::0]:1"])
def test_sites_cannot_reach_every_address_of_a_machine(tmp_path: Path, address: str):
    with pytest.raises(ConfigError, match="listen"):
        create(tmp_path / "f", make_config(**HONEST), address)
    assert list(tmp_path.iterdir()) == []


def test_a_federation_that_cannot_be_made_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    config = make_config(**HONEST)
    with pytest.raises(ConfigError, match="nonsense"):
        create(tmp_path / "f", dataclasses.replace(config, aggregator="nonsense"), "127.0.0.1:1")
    with pytest.raises(ConfigError, match="krum needs at least"):  # for so few agents
        create(
            tmp_path / "f", dataclasses.replace(config, aggregator="krum", aggregator_options=("f=7",)), "127.0.0.1:1"
        )
    with pytest.raises(StorageError, match="too long"):
        create(tmp_path / ("f" * 300), config, "127.0.0.1:1")
    write, left = folder.write_whole, [5]

    def full(path: Path, data: bytes | str) -> None:
        left[0] -= 1
        if not left[0]:
            raise StorageError("cannot write it") from OSError(errno.ENOSPC, "No space left on device")
        write(path, data)

    monkeypatch.setattr(folder, "write_whole", full)
    with pytest.raises(StorageError, match=r"No space left on device\. Nothing of it is left"):
        create(tmp_path / "f", config, "127.0.0.1:1")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "f").mkdir()  # an empty folder is as good as none
    monkeypatch.chdir(tmp_path / "f")
    assert read_federation(create(Path("."), config, "127.0.0.1:1").folder).config == config
    assert [path.name for path in tmp_path.iterdir()] == ["f"]
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o700


def test_what_cannot_be_served_leaves_no_run(tmp_path: Path):
    made = federation(tmp_path / "f", agents=3)
    _, port = split_address(made.listen)
    with socket.create_server(("127.0.0.1", port)), pytest.raises(ConfigError, match="cannot listen"):
        serve(made, made.folder / "run", quiet=True)
    assert not (made.folder / "run").exists()


def test_sites_and_agents_are_one_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["federation", "create", str(tmp_path / "f"), "--sites", "2", "--agents=7"]) == 2
    assert "--sites and --agents" in capsys.readouterr().err
    assert not (tmp_path / "f").exists()
