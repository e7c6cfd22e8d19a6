"""The folder of a federation: its settings and keys, and one folder to hand to each site."""

import dataclasses
import ipaddress
import json
import os
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from gymnasium import spaces

from fedpg.aggregators import check_rule
from fedpg.assembly import make_problem
from fedpg.config import Config, from_json, to_json
from fedpg.errors import ConfigError
from fedpg.federation.site import refuse_collusion
from fedpg.machine import versions
from fedpg.problem import Problem
from fedpg.sites.certificates import public_half, read_public_key, write_authority, write_site_key
from fedpg.sites.gathering import check_quorum
from fedpg.sites.pages import HEAD, PAGE, SITE_HEAD, SITE_PAGE
from fedpg.storage import StorageError, write_whole

FILE = "federation.toml"
SITE_FILE = "site.toml"
LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
"""A part of a host's name, between two dots."""


class Federation(NamedTuple):
    """What federation.toml says."""

    folder: Path
    address: str
    """host:port by which the sites reach the server."""
    listen: str
    """host:port at which the server listens."""
    sites: tuple[str, ...]
    """Their names."""
    numbers: tuple[int, ...]
    """Of their agents: 0, 1, ..., until a site is removed; each keeps its own."""
    removed: tuple[str, ...]
    """Sites that were taken off."""
    deadline: float
    quorum: int
    """As it was given: 0 stands for what `check_quorum` makes of it."""
    seed: int
    config: Config

    def public_keys(self) -> list[bytes]:
        """Of the sites, in their order."""
        paths = [self.folder / "keys" / f"{name}.pub" for name in self.sites]
        known: dict[bytes, Path] = {}
        for path in paths:
            first = known.setdefault(read_public_key(path), path)
            if first != path:
                raise ConfigError(f"{first} and {path} are the same key: every site needs one of its own")
        return list(known)


class Site(NamedTuple):
    """What site.toml says."""

    folder: Path
    name: str
    agent: int
    address: str
    parameters: int
    """D: of the policy that all share."""
    observations: int
    """F: the size of an observation of every site's task; 0 in a folder from before this was written there."""
    actions: str
    """The same of actions, as `sizes_of` has it; "" in such a folder."""
    config: Config


def create(
    folder: Path, config: Config, address: str, deadline: float = 60.0, quorum: int = 0, seed: int = 0
) -> Federation:
    """Make the folder: CA, certificates, keys, settings, and `sites/NAME` to hand out."""
    host, port = split_reachable(address)
    check_numbers(config, deadline, quorum, seed)
    problem = make_federated(config)  # settings that cannot work are refused before there are keys
    names = tuple(f"site-{agent}" for agent in range(config.agents))
    federation = Federation(
        folder=folder,
        address=address,
        listen=f"{_listen(host)}:{port}",
        sites=names,
        numbers=tuple(range(len(names))),
        removed=(),
        deadline=deadline,
        quorum=quorum,
        seed=seed,
        config=config,
    )
    place = folder.absolute()
    part = place.with_name(f".{place.name}.part")  # beside it, until it is complete
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise StorageError(f"{folder} exists already: a federation needs a new folder")
        shutil.rmtree(part, ignore_errors=True)  # of one that was killed
        part.mkdir(parents=True, mode=0o700)
        _fill(part, federation, problem, host, port)
        if not folder.exists():
            os.replace(part, folder)
        else:  # an empty one, which may be where somebody stands
            folder.chmod(0o700)
            for path in sorted(part.iterdir(), key=lambda path: path.name == FILE):  # that last: then it is complete
                os.replace(path, folder / path.name)
    except (OSError, StorageError) as error:
        cause = error.__cause__ if isinstance(error, StorageError) else error
        if not isinstance(cause, OSError):
            raise
        raise StorageError(f"cannot make {folder}: {cause.strerror or cause}. Nothing of it is left") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return federation


def make_federated(config: Config) -> Problem:
    """The problem of a federation's server, or an error for settings that cannot work in one."""
    problem = make_problem(config)
    refuse_collusion(problem)
    check_rule(problem.aggregator, config.agents, problem.policy.size, problem.task.observations)
    return problem


def sizes_of(problem: Problem) -> dict[str, Any]:
    """What the tasks of all sites have in common, whoever simulates them."""
    actions = problem.task.actions
    kind = f"one of {actions.n}" if isinstance(actions, spaces.Discrete) else f"a box of {(actions.shape or (0,))[0]}"
    return {"parameters": problem.policy.size, "observations": problem.task.observations, "actions": kind}


def _fill(folder: Path, federation: Federation, problem: Problem, host: str, port: int) -> None:
    """Everything that is in the folder of a federation."""
    address, names = federation.address, federation.sites
    ours = versions().get("fedpg", "")
    (folder / "keys").mkdir()
    (folder / "sites").mkdir()
    write_authority(folder, hosts_of(host))
    for number, name in zip(federation.numbers, names, strict=True):
        fill_site(folder / "sites" / name, federation, name, number, problem, folder)
        write_whole(folder / "keys" / f"{name}.pub", public_half(folder / "sites" / name / "site.key"))
    page = PAGE.format(
        folder=federation.folder, address=address, listen=federation.listen, sites=len(names), port=port, version=ours
    )
    write_whole(folder / "README.md", page)
    write_federation(folder, federation)


def fill_site(mine: Path, federation: Federation, name: str, number: int, problem: Problem, folder: Path) -> None:
    """The folder to hand to a site, with a new private key; `folder` has the certificate of the authority."""
    mine.mkdir()
    write_site_key(mine / "site.key")
    write_whole(mine / "ca.crt", (folder / "ca.crt").read_bytes())
    config = federation.config
    # An agent's number is below that of all agents, also at a site that came after others had left.
    config = dataclasses.replace(config, agents=max(config.agents, number + 1))
    about = {"name": name, "agent": number, "address": federation.address} | sizes_of(problem)
    write_whole(mine / SITE_FILE, SITE_HEAD + to_toml(about | {"settings": to_json(config)}))
    page = SITE_PAGE.format(
        name=name, address=federation.address, task=config.task, version=versions().get("fedpg", "")
    )
    write_whole(mine / "README.md", page)


def write_federation(folder: Path, federation: Federation) -> None:
    """federation.toml, in one step: who is in it is a member."""
    names = ("address", "listen", "sites", "numbers", "removed", "deadline", "quorum", "seed")
    values = {name: getattr(federation, name) for name in names}
    write_whole(folder / FILE, HEAD + to_toml(values | {"settings": to_json(federation.config)}))


def read_federation(folder: Path) -> Federation:
    """What `create` made, and an administrator may have changed."""
    values = _read(folder / FILE, "federation: make one with fedpg federation create")
    kinds = {"address": str, "listen": str, "sites": list, "deadline": float, "quorum": int, "seed": int}
    # Federations from before sites could come and go have neither.
    values = {"numbers": list(range(len(values.get("sites") or []))), "removed": []} | values
    kinds |= {"numbers": list, "removed": list}
    _check(folder / FILE, values, kinds)
    config = _settings(folder / FILE, values)
    names, removed, numbers = (tuple(values[name]) for name in ("sites", "removed", "numbers"))
    if len(names) != config.agents or not all(isinstance(n, str) for n in names) or len(set(names)) != len(names):
        raise ConfigError(
            f"{folder / FILE} names {len(names)} sites, and its settings have agents = {config.agents}: every agent "
            "is a site with a name of its own"
        )
    check_name(folder / FILE, *names)
    good = len(numbers) == len(names) == len(set(numbers)) and all(type(n) is int and 0 <= n < 2**31 for n in numbers)
    if not good or (config.byzantine and numbers != tuple(range(len(names)))):
        raise ConfigError(
            f"{folder / FILE}: numbers has one whole number of its own for each of the {len(names)} sites"
        )
    check_numbers(config, values["deadline"], values["quorum"], values["seed"])
    split_reachable(values["address"])
    split_address(values["listen"])
    rest = {name: values[name] for name in kinds if kinds[name] is not list}
    return Federation(folder=folder, sites=names, numbers=numbers, removed=removed, config=config, **rest)


def hosts_of(host: str) -> list[str]:
    """The names and addresses in a server's certificate, that of its address first."""
    return sorted({host, "localhost", "127.0.0.1"}, key=lambda name: (name != host, name))


def read_site(folder: Path) -> Site:
    """The folder that was handed to a site."""
    values: dict[str, Any] = {"observations": 0, "actions": ""}  # folders from before these were written have neither
    values |= _read(folder / SITE_FILE, "site's folder: the server has it under sites/")
    kinds: dict[str, type] = {"name": str, "agent": int, "address": str}
    kinds |= {"parameters": int, "observations": int, "actions": str}
    _check(folder / SITE_FILE, values, kinds)
    split_reachable(values["address"])
    config = _settings(folder / SITE_FILE, values)
    if not 0 <= values["agent"] < config.agents:
        raise ConfigError(f"{folder / SITE_FILE}: agent = {values['agent']}, and there are {config.agents}, from 0 on")
    return Site(folder=folder, config=config, **{name: values[name] for name in kinds})


def check_name(where: Path, *names: str) -> None:
    if not all(name and all(c.isalnum() or c in "-_." for c in name) and name[0] != "." for name in names):
        raise ConfigError(f"{where}: a site's name is made of letters, digits, - _ and .")


def check_numbers(config: Config, deadline: float, quorum: int, seed: int) -> None:
    check_quorum(quorum, config)
    if not 1 <= deadline <= 86_400:
        raise ConfigError(f"deadline must be from 1 s to a day, not {deadline}")
    if not 0 <= seed < 2**32:
        raise ConfigError(f"seed must be from 0 to 2^32 - 1, not {seed}")


def split_address(address: str) -> tuple[str, int]:
    """host:port as its parts."""
    host, _, port = address.rpartition(":")
    if not host or not re.fullmatch("[0-9]{1,5}", port) or not 0 < int(port) < 65_536:
        raise ConfigError(f"an address is host:port, like fl.example.org:8443, not {address!r}")
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    try:
        good = (ipaddress.ip_address(host).version == 6) == bracketed
    except ValueError:
        good = not bracketed and len(host) < 254 and all(LABEL.fullmatch(label) for label in host.split("."))
    if not good:
        raise ConfigError(
            f"an address is host:port, like fl.example.org:8443, 10.0.0.1:8443 or [::1]:8443, and {host!r} is no host: "
            "no http://, no path, and a name in other letters as DNS has it (xn--...)"
        )
    return host, int(port)


def split_reachable(address: str) -> tuple[str, int]:
    """The same, of an address by which sites reach the server."""
    host, port = split_address(address)
    if re.fullmatch(r"[0.]+|[0:]+", host):
        raise ConfigError(
            f"{address} is every address of a machine, by which sites cannot reach the server: give its name, or one "
            "address. Where it listens is `listen` in federation.toml"
        )
    return host, port


def _listen(host: str) -> str:
    """Where a server listens that is reached by this host: at this machine only, if the host is that."""
    four, six = ("127.0.0.1", "[::1]") if is_loopback(host) else ("0.0.0.0", "[::]")
    return six if ":" in host else four


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach that host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def refuse_open(host: str, insecure: bool, force: bool) -> None:
    """Without TLS anybody on the way can read and change gradients: only on this machine, unless it is forced."""
    if insecure and not force and not is_loopback(host):
        raise ConfigError(
            f"--insecure sends everything unencrypted, and {host} can be reached from other machines: leave it out, "
            "or, in a network that you trust, add --force"
        )


def to_toml(values: dict[str, Any]) -> str:
    """Plain values, and plain tables of them, as TOML: whose strings, numbers and lists are JSON's."""
    lines = [f"{name} = {json.dumps(value)}" for name, value in values.items() if not isinstance(value, dict)]
    for name, table in values.items():
        if isinstance(table, dict):
            lines += ["", f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def _read(path: Path, what: str) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise StorageError(f"{path.parent} is no {what}") from None
    except (OSError, ValueError) as error:
        raise StorageError(f"{path} cannot be read: {error}") from error


def _check(path: Path, values: dict[str, Any], kinds: dict[str, type]) -> None:
    for name, kind in kinds.items():
        good = type(values.get(name)) is kind or (kind is float and type(values.get(name)) is int)
        if not good:
            raise ConfigError(f"{path}: {name} must be a {kind.__name__}, not {values.get(name)!r}")
    odd = set(values) - set(kinds) - {"settings"}
    if odd:
        raise ConfigError(f"{path}: unknown {', '.join(sorted(odd))}; it has {', '.join(kinds)} and [settings]")


def _settings(path: Path, values: dict[str, Any]) -> Config:
    if not isinstance(values.get("settings"), dict):
        raise ConfigError(f"{path} has no [settings]")
    return from_json(values["settings"])
