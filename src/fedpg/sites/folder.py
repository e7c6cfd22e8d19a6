"""The folder of a federation: its settings and keys, and one folder to hand to each site."""

import ipaddress
import json
import os
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from fedpg.assembly import make_problem
from fedpg.config import Config, from_json, to_json
from fedpg.errors import ConfigError
from fedpg.federation.site import refuse_collusion
from fedpg.machine import versions
from fedpg.problem import Problem
from fedpg.sites.certificates import read_public_key, write_authority, write_site_key
from fedpg.sites.gathering import check_quorum
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
    """Their names; the first is agent 0."""
    deadline: float
    quorum: int
    seed: int
    config: Config

    def public_keys(self) -> list[bytes]:
        """Of the sites, by the numbers of their agents."""
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
        deadline=deadline,
        quorum=check_quorum(quorum, config.agents),
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
        _fill(part, federation, problem.policy.size, host, port)
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
    return problem


def _fill(folder: Path, federation: Federation, size: int, host: str, port: int) -> None:
    """Everything that is in the folder of a federation."""
    address, config, names = federation.address, federation.config, federation.sites
    ours = versions().get("fedpg", "")
    (folder / "keys").mkdir()
    (folder / "sites").mkdir()
    write_authority(folder, sorted({host, "localhost", "127.0.0.1"}, key=lambda name: name != host))
    for agent, name in enumerate(names):
        mine = folder / "sites" / name
        mine.mkdir()
        write_site_key(mine / "site.key", folder / "keys" / f"{name}.pub")
        write_whole(mine / "ca.crt", (folder / "ca.crt").read_bytes())
        values = {"name": name, "agent": agent, "address": address, "parameters": size, "settings": to_json(config)}
        write_whole(mine / SITE_FILE, SITE_HEAD + to_toml(values))
        write_whole(mine / "README.md", SITE_PAGE.format(name=name, address=address, task=config.task, version=ours))
    page = PAGE.format(
        folder=federation.folder, address=address, listen=federation.listen, sites=len(names), port=port, version=ours
    )
    write_whole(folder / "README.md", page)
    values = {
        "address": address,
        "listen": federation.listen,
        "sites": list(names),
        "deadline": federation.deadline,
        "quorum": federation.quorum,
        "seed": federation.seed,
        "settings": to_json(config),
    }
    write_whole(folder / FILE, HEAD + to_toml(values))


def read_federation(folder: Path) -> Federation:
    """What `create` made, and an administrator may have changed."""
    values = _read(folder / FILE, "federation: make one with fedpg federation create")
    kinds = {"address": str, "listen": str, "sites": list, "deadline": float, "quorum": int, "seed": int}
    _check(folder / FILE, values, kinds)
    config = _settings(folder / FILE, values)
    names = tuple(values["sites"])
    if len(names) != config.agents or not all(isinstance(n, str) for n in names) or len(set(names)) != len(names):
        raise ConfigError(
            f"{folder / FILE} names {len(names)} sites, and its settings have agents = {config.agents}: every agent "
            "is a site with a name of its own"
        )
    if not all(name and all(c.isalnum() or c in "-_." for c in name) and name[0] != "." for name in names):
        raise ConfigError(f"{folder / FILE}: a site's name is made of letters, digits, - _ and .")
    check_numbers(config, values["deadline"], values["quorum"], values["seed"])
    split_reachable(values["address"])
    split_address(values["listen"])
    rest = {name: values[name] for name in kinds if name != "sites"}
    return Federation(folder=folder, sites=names, config=config, **rest)


def read_site(folder: Path) -> Site:
    """The folder that was handed to a site."""
    values = _read(folder / SITE_FILE, "site's folder: the server has it under sites/")
    _check(folder / SITE_FILE, values, {"name": str, "agent": int, "address": str, "parameters": int})
    split_reachable(values["address"])
    config = _settings(folder / SITE_FILE, values)
    if not 0 <= values["agent"] < config.agents:
        raise ConfigError(f"{folder / SITE_FILE}: agent = {values['agent']}, and there are {config.agents}, from 0 on")
    return Site(folder, values["name"], values["agent"], values["address"], values["parameters"], config)


def check_numbers(config: Config, deadline: float, quorum: int, seed: int) -> None:
    check_quorum(quorum, config.agents)
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


HEAD = """\
# A federation of fedpg.
#   address   how the sites reach the server
#   listen    where the server listens
#   sites     their names; the first is agent 0
#   deadline  seconds that a round waits for replies
#   quorum    replies that a round needs
# [settings] are those of `fedpg train`. Those that concern the agents must be the same in every site.toml.
"""
SITE_HEAD = "# A site of a fedpg federation. The settings must be those of the server.\n"

PAGE = """\
# This federation

{sites} sites, one server at {address} (it listens at {listen}).

1. **Hand out the folders.** `sites/site-0` goes to the first organisation, `sites/site-1` to the next, and so on, over
   a channel that you trust: each holds that site's private key. Delete them here afterwards; the server does not need
   them. What it needs is `federation.toml`, `ca.crt`, `server.crt`, `server.key` and `keys/`.
2. **Put `ca.key` away**, off this machine. Whoever has it can pretend to be the server.
3. **At each site**: install fedpg {version} with its extra `flower`, from a wheel or a checkout that you hand out too,
   then `fedpg join site-0 --task package.module:factory`, where the factory makes that site's own Gymnasium
   environment. Its observations and actions must have the sizes of those of the server's task.
4. **Here**: open TCP port {port} to the sites, then `fedpg serve {folder}`. It waits for a quorum, trains, and writes
   the run into `run/`. Stopped or killed, it goes on from its checkpoint when it is started again.

Clocks: a site's may be 5 s ahead of the server's and 5 minutes behind; run NTP.
"""

SITE_PAGE = """\
# {name}

This folder makes you a site of the federation at {address}. `site.key` is your private key: keep it to yourself.

Install fedpg {version} with its extra `flower`: `pip install 'fedpg-{version}-py3-none-any.whl[flower]'` for a
wheel that came with this folder, or `pip install '.[flower]'` in a checkout. Then:

    fedpg join . --task package.module:factory

`factory` makes your own Gymnasium environment, with observations and actions of the sizes of {task}. What leaves this
machine is one gradient per round, with its mean return, number of steps and time; never a trajectory. If the
environment raises an error, the server is told its kind; the text stays here, unless you add `--share-errors`.
"""
