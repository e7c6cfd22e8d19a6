"""Who belongs to a federation: sites that come, go and get new keys, and the sites that a run began with."""

import dataclasses
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from fedpg.config import Config, validate
from fedpg.errors import ConfigError, unknown
from fedpg.sites.certificates import about_expiry, days_left, public_half, read_public_key
from fedpg.sites.folder import (
    Federation,
    check_name,
    fill_site,
    make_federated,
    read_federation,
    write_federation,
)
from fedpg.sites.gathering import check_quorum, tolerated
from fedpg.storage import StorageError, locked, write_whole

ROSTER = "sites.json"
"""In a run folder: the sites that the run began with."""
RENEW = "renew it with fedpg federation renew; sites need nothing new"


class Roster(NamedTuple):
    """The sites of a run, by its rows: K of them, to its end, whoever is removed meanwhile."""

    sites: tuple[str, ...]
    numbers: tuple[int, ...]
    """Of their agents."""

    def keys(self, federation: Federation) -> list[bytes | None]:
        """The public key of each row; None for a site that is no member any more."""
        found = dict(zip(federation.sites, federation.public_keys(), strict=True))
        return [found.get(name) for name in self.sites]

    def later(self, federation: Federation) -> set[bytes]:
        """The keys of members that this run began without."""
        found = dict(zip(federation.sites, federation.public_keys(), strict=True))
        return {key for name, key in found.items() if name not in self.sites}

    def config(self, federation: Federation) -> Config:
        """The settings of the run: K is the number of its rows."""
        return dataclasses.replace(federation.config, agents=len(self.sites))


def roster_of(federation: Federation, run: Path) -> Roster:
    """The sites that a run began with; of a new one, all members."""
    path = run / ROSTER
    if not path.exists():
        return Roster(federation.sites, federation.numbers)
    try:
        values = json.loads(path.read_text())
        names, numbers = tuple(map(str, values["sites"])), tuple(map(int, values["numbers"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StorageError(f"{path} is damaged: {error}") from error
    if not names or len(names) != len(numbers):
        raise StorageError(f"{path} is damaged: every site has a number")
    return Roster(names, numbers)


def write_roster(run: Path, roster: Roster) -> None:
    """Once, before the first round."""
    if not (run / ROSTER).exists():
        write_whole(run / ROSTER, json.dumps(roster._asdict()) + "\n")


def add_site(folder: Path, name: str | None = None) -> tuple[Federation, str]:
    """A new member, from the next run on: its key here, its folder in `sites/`, then its name in federation.toml."""
    with locked(folder):
        old = read_federation(folder)
        _refuse_trial(old)
        number = max(old.numbers) + 1
        while name is None and f"site-{number}" in (*old.sites, *old.removed):
            number += 1
        name = name or f"site-{number}"
        check_name(folder, name)
        if name in old.sites:
            raise ConfigError(
                f"{folder} has a site {name} already; to give it a new key: fedpg federation renew --site"
            )
        if name in old.removed:
            raise ConfigError(f"{name} was removed from {folder}, and its name stays with what it did: choose another")
        new = _sized(old, len(old.sites) + 1)
        new = new._replace(sites=(*old.sites, name), numbers=(*old.numbers, number))
        _make_site(new, name, number)
        write_federation(folder, new)
    return new, name


def remove_site(folder: Path, name: str) -> Federation:
    """Out at once: federation.toml first, which a running server watches, then the key."""
    with locked(folder):
        old = read_federation(folder)
        row = _row(old, name)
        _refuse_trial(old)
        if len(old.sites) == 1:
            raise ConfigError(f"{name} is the only site of {folder}: stop the server instead")
        try:
            new = _sized(old, len(old.sites) - 1)
        except ConfigError as error:
            raise ConfigError(
                f"without {name} the settings cannot work: {error}. To shut out a stolen key, give the site a new one: "
                f"fedpg federation renew {folder} --site {name}"
            ) from error
        new = new._replace(
            sites=old.sites[:row] + old.sites[row + 1 :],
            numbers=old.numbers[:row] + old.numbers[row + 1 :],
            removed=(*old.removed, name),
        )
        write_federation(folder, new)
        (folder / "keys" / f"{name}.pub").unlink(missing_ok=True)
        shutil.rmtree(folder / "sites" / name, ignore_errors=True)
    return new


def renew_site(folder: Path, name: str) -> Federation:
    """A new key, and a new folder with the settings of now, for a member; the old key is out at once."""
    with locked(folder):
        federation = read_federation(folder)
        _make_site(federation, name, federation.numbers[_row(federation, name)])
        os.utime(folder / "federation.toml")  # a running server looks at that file
    return federation


def _row(federation: Federation, name: str) -> int:
    if name not in federation.sites:
        if name in federation.removed:
            raise ConfigError(f"{name} was removed from {federation.folder} already")
        raise unknown("site", name, federation.sites)
    return federation.sites.index(name)


def _sized(federation: Federation, agents: int) -> Federation:
    """The same federation with another K, if its settings can work so."""
    config = validate(dataclasses.replace(federation.config, agents=agents))
    make_federated(config)
    check_quorum(federation.quorum, config)
    return federation._replace(config=config)


def _refuse_trial(federation: Federation) -> None:
    config = federation.config
    if config.byzantine or config.vary:
        what = f"the last {config.byzantine} sites lie" if config.byzantine else "tasks vary from agent to agent"
        raise ConfigError(
            f"{federation.folder} is a trial in which {what}: its sites are fixed, since with others it would be "
            "another trial. Make a new one with fedpg federation create"
        )


def _make_site(federation: Federation, name: str, number: int) -> None:
    """`sites/NAME`, made beside it and moved there whole, and then its public key."""
    folder = federation.folder
    part, mine = folder / "sites" / f".{name}.part", folder / "sites" / name
    shutil.rmtree(part, ignore_errors=True)  # of one that was killed
    part.parent.mkdir(exist_ok=True)
    try:
        fill_site(part, federation, name, number, make_federated(federation.config), folder)
        public = public_half(part / "site.key")
        shutil.rmtree(mine, ignore_errors=True)
        os.replace(part, mine)
    except OSError as error:
        raise StorageError(f"cannot make {mine}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    write_whole(folder / "keys" / f"{name}.pub", public)
    read_public_key(folder / "keys" / f"{name}.pub")


def about_tolerance(config: Config, removed: int) -> str:
    """What alpha means for a run of K sites of which some were removed: its rows stay, and count among the faulty."""
    f = tolerated(config)
    text = f"alpha = {config.alpha:g} of {config.agents} sites: {f} may be faulty or absent"
    if removed:
        text += (
            f"; {removed} removed count{'s' if removed == 1 else ''} among those, so {max(0, f - removed)} more may be"
        )
    return text


def refuse_expired(folder: Path) -> None:
    """A server whose certificate has expired would be trusted by nobody."""
    for name, mend in (("ca.crt", "make the federation anew"), ("server.crt", RENEW)):
        if days_left(folder / name) <= 0:
            raise ConfigError(about_expiry(folder / name, mend))


def warn_of_expiry(folder: Path, say: Callable[[str], None]) -> None:
    """Of the server's certificate and of the authority's."""
    for name, mend in (("ca.crt", "plan to make the federation anew"), ("server.crt", RENEW)):
        if text := about_expiry(folder / name, mend):
            say(f"warning: {text}")
