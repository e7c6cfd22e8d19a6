"""Who belongs to a federation, by its folder; what alpha and a quorum mean when that changes."""

from pathlib import Path
from typing import Any

import pytest

from federations import HONEST, federation
from fedpg import make_config
from fedpg.cli import main
from fedpg.errors import ConfigError
from fedpg.federation.messages import settings_digest
from fedpg.sites import folder as folders
from fedpg.sites.folder import read_federation, read_site
from fedpg.sites.gathering import about_quorum, check_quorum, tolerated
from fedpg.sites.members import Roster, about_tolerance, add_site, remove_site, renew_site, roster_of, write_roster
from fedpg.storage import StorageError


def test_sites_come_and_go_and_the_others_need_nothing_new(tmp_path: Path):
    made = federation(tmp_path / "f", agents=4)
    keys = made.public_keys()
    _, name = add_site(made.folder)
    assert name == "site-4"
    remove_site(made.folder, "site-1")
    remove_site(made.folder, "site-4")
    now, name = add_site(made.folder)
    assert name == "site-5"  # a name stays with what its site did
    assert now == read_federation(made.folder)
    assert now.sites == ("site-0", "site-2", "site-3", "site-5")
    assert now.numbers == (0, 2, 3, 5)
    assert now.removed == ("site-1", "site-4")
    assert now.config.agents == 4
    assert now.public_keys()[:3] == [keys[0], keys[2], keys[3]]
    # Old and new folders of sites have settings that the server agrees with.
    for site in (read_site(made.folder / "sites" / name) for name in now.sites):
        assert settings_digest(site.config) == settings_digest(now.config)
        assert site.agent == now.numbers[now.sites.index(site.name)]
    for bad, message in (("site-1", "was removed"), ("site-0", "already"), ("../x", "letters")):
        with pytest.raises(ConfigError, match=message):
            add_site(made.folder, bad)
    for bad, message in (("site-1", "already"), ("site-9", "unknown site")):
        with pytest.raises(ConfigError, match=message):
            remove_site(made.folder, bad)


def test_a_new_run_is_to_begin_from_an_old_one_only_if_there_is_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = federation(tmp_path / "f", agents=4).folder
    serve = f"fedpg serve {folder}"

    def advised() -> str:
        assert main(["federation", "add-site", str(folder)]) == 0
        return capsys.readouterr().out.splitlines()[-1].split(":", 1)[1].strip()

    assert advised() == serve
    run = folder / "run"
    run.mkdir()
    (run / "config.json").write_text("{}")
    assert advised() == f"{serve} --out {folder}/NEW"  # that run has its sites, and was killed before its first policy
    (run / "checkpoint.safetensors").touch()
    assert advised() == f"{serve} --out {folder}/NEW --start-from {run}"


def test_a_run_keeps_the_rows_that_it_began_with(tmp_path: Path):
    made = federation(tmp_path / "f", agents=5)
    run = tmp_path / "run"
    run.mkdir()
    assert roster_of(made, run) == Roster(made.sites, made.numbers)
    write_roster(run, roster_of(made, run))
    remove_site(made.folder, "site-2")
    now, _ = add_site(made.folder)
    roster = roster_of(now, run)
    assert roster.sites == made.sites
    assert [key is None for key in roster.keys(now)] == [False, False, True, False, False]
    assert roster.later(now) == {now.public_keys()[-1]}
    assert roster.config(now).agents == 5
    old = roster.keys(now)[0]
    renew_site(made.folder, "site-0")
    assert roster.keys(read_federation(made.folder))[0] not in (old, None)
    (run / "sites.json").write_text('{"sites": ["a"]}')
    with pytest.raises(StorageError, match=r"sites\.json is damaged"):
        roster_of(now, run)


def test_what_cannot_be_written_changes_nobodys_membership(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made = federation(tmp_path / "f", agents=3)
    write = folders.write_whole

    def full(path: Path, data: Any) -> None:
        if path.name in ("federation.toml", "site.toml"):
            raise StorageError("the disk is full")
        write(path, data)

    monkeypatch.setattr(folders, "write_whole", full)
    for change in (lambda: add_site(made.folder), lambda: remove_site(made.folder, "site-0")):
        with pytest.raises(StorageError):
            change()
        assert read_federation(made.folder) == made
        assert len(made.public_keys()) == 3
    monkeypatch.undo()
    assert add_site(made.folder)[1] == "site-3"
    (made.folder / "keys" / "site-1.pub").unlink()  # by hand: nobody leaves by a lost file, and the way out is named
    with pytest.raises(StorageError, match=r"site-1\.pub.*remove-site"):
        made.public_keys()
    assert "site-1" not in remove_site(made.folder, "site-1").sites


def test_the_sites_of_a_trial_are_fixed_and_one_site_stays(tmp_path: Path):
    trial = federation(tmp_path / "t", agents=4, byzantine=1, attack="sign-flipping")
    for change in (lambda: add_site(trial.folder), lambda: remove_site(trial.folder, "site-0")):
        with pytest.raises(ConfigError, match="a trial in which the last 1 sites lie"):
            change()
    assert settings_digest(trial.config) != settings_digest(make_config(**(HONEST | {"agents": 5})))
    made = federation(tmp_path / "f", agents=2, algorithm="gpomdp", aggregator="mean", sigma="auto")
    remove_site(made.folder, "site-1")
    with pytest.raises(ConfigError, match="the only site"):
        remove_site(made.folder, "site-0")


def test_alpha_counts_of_all_rows_of_a_run_and_anew_in_the_next():
    config = make_config(**(HONEST | {"agents": 10, "alpha": 0.3}))
    assert tolerated(config) == 3
    assert about_tolerance(config, 0) == "alpha = 0.3 of 10 sites: 3 may be faulty or absent"
    assert about_tolerance(config, 2).endswith("2 removed count among those, so 1 more may be")
    assert about_tolerance(config, 4).endswith("so 0 more may be")
    assert tolerated(make_config(**(HONEST | {"agents": 8, "alpha": 0.3}))) == 2
    assert tolerated(make_config(**(HONEST | {"agents": 100, "alpha": 0.29}))) == 29


@pytest.mark.parametrize(
    ("agents", "alpha", "quorum"), [(10, 0.3, 7), (5, 0.3, 3), (3, 0.0, 2), (9, 0.45, 9), (1, 0.3, 1)]
)
def test_the_honest_outnumber_the_liars_in_a_quorum(agents: int, alpha: float, quorum: int):
    config = make_config(**(HONEST | {"agents": agents, "alpha": alpha}))
    assert check_quorum(0, config) == quorum
    assert quorum - tolerated(config) > tolerated(config)
    assert 2 * quorum > agents
    assert about_quorum(0, config) == ""


def test_a_quorum_that_liars_could_fill_is_refused_and_a_small_one_not_taken_silently(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    words = ["federation", "create", str(tmp_path / "f"), "--sites", "5"]
    assert main([*words, "--quorum", "1"]) == 2
    assert "could be lies alone: give at least 3" in capsys.readouterr().err
    assert not (tmp_path / "f").exists()
    assert main([*words, "--quorum", "2"]) == 0
    assert "a quorum of 2 of 5 sites is no safe majority" in capsys.readouterr().err


def test_a_command_of_a_group_that_does_not_exist_is_answered_with_those_that_do(capsys: pytest.CaptureFixture[str]):
    assert main(["federation", "foo"]) == 2
    said = capsys.readouterr().err
    assert all(name in said for name in ("create", "demo", "status", "add-site", "remove-site", "renew"))
    assert "train" not in said
