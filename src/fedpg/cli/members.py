"""`fedpg federation add-site`, `remove-site`, `renew` and `status`: a federation over the years."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from fedpg.cli.federation import need_flower
from fedpg.errors import ConfigError

if TYPE_CHECKING:
    from fedpg.sites.folder import Federation


@dataclass(frozen=True)
class AddSite:
    """Add a site to a federation: its key, and a folder to hand to it.

    The other sites need nothing new. A run that has begun goes on with the sites it began with; the next one, in
    another run folder, has the new site too, and can begin from the policy of this one.

    Examples:
      fedpg federation add-site my-federation
      fedpg federation add-site my-federation ward-7
      fedpg serve my-federation --out my-federation/run-2 --start-from my-federation/run
    """

    folder: Annotated[Path, tyro.conf.Positional]
    """The folder that `fedpg federation create` made."""
    name: Annotated[str | None, tyro.conf.Positional] = None
    """The name of the site; by default the next number, as in `site-5`."""


@dataclass(frozen=True)
class RemoveSite:
    """Remove a site from a federation: its key is refused at once, also by a server that is running.

    The run goes on. The site's place in it stays empty to its end, and counts among those that may be faulty by alpha.

    Example:
      fedpg federation remove-site my-federation site-3
    """

    folder: Annotated[Path, tyro.conf.Positional]
    """The folder that `fedpg federation create` made."""
    name: Annotated[str, tyro.conf.Positional]
    """The name of the site."""


@dataclass(frozen=True)
class Renew:
    """Renew the server's certificate, or the key of a site.

    The certificate is signed by the federation's own authority, so the sites need nothing new; a running server takes
    it at once. With --site, that site gets a new key and a new folder, and its old key is refused at once; its place in
    the run stays its own.

    Examples:
      fedpg federation renew my-federation
      fedpg federation renew my-federation --ca-key /media/safe/ca.key
      fedpg federation renew my-federation --site site-3
    """

    folder: Annotated[Path, tyro.conf.Positional]
    """The folder that `fedpg federation create` made."""
    ca_key: Path | None = None
    """Where the key of the authority is, if it was put away; by default `ca.key` in the folder."""
    site: str | None = None
    """Instead: a new key for this site."""


@dataclass(frozen=True)
class Status:
    """Show a federation: its members, certificates and last run, whether the server runs or not.

    Examples:
      fedpg federation status my-federation
      fedpg federation status my-federation --run my-federation/run-2
    """

    folder: Annotated[Path, tyro.conf.Positional]
    """The folder that `fedpg federation create` made."""
    run: Path | None = None
    """The run folder; by default the newest in the federation's folder."""


def run_add_site(command: AddSite) -> int:
    need_flower()
    from fedpg.sites.members import add_site
    from fedpg.sites.status import newest_run
    from fedpg.training.checkpoint import FILE
    from fedpg.training.start import POLICY

    made, name = add_site(command.folder, command.name)
    folder = shlex.quote(str(command.folder))
    print(f"{name} is a member of {command.folder}, from the next run on: {_from_now_on(made)}")
    print(f"  1. hand {folder}/sites/{name} to it over a channel that you trust, and delete it here")
    print(f"  2. at the site:     fedpg join {name} --task package.module:factory")
    run, more = newest_run(command.folder), ""
    if run is not None:  # it goes on without the new site, so that needs another; which may begin from what is learnt
        more = f" --out {folder}/NEW"
        if any((run / kept).exists() for kept in (FILE, POLICY)):
            more += f" --start-from {shlex.quote(str(run))}"
    print(f"  3. at the server:   fedpg serve {folder}{more}")
    return 0


def run_remove_site(command: RemoveSite) -> int:
    need_flower()
    from fedpg.sites.members import about_tolerance, remove_site, roster_of
    from fedpg.sites.status import newest_run

    made = remove_site(command.folder, command.name)
    print(f"{command.name} is removed from {command.folder}: its key is refused from now on.")
    run = newest_run(command.folder)
    if run is not None:
        roster = roster_of(made, run)
        if command.name in roster.sites:
            gone = sum(name not in made.sites for name in roster.sites)
            print(f"  {run} goes on without it: {about_tolerance(roster.config(made), gone)}")
    print(f"  a new run counts anew: {_from_now_on(made)}")
    return 0


def run_renew(command: Renew) -> int:
    need_flower()
    from fedpg.sites.certificates import days_left, renew_server
    from fedpg.sites.folder import hosts_of, read_federation, split_reachable
    from fedpg.sites.members import renew_site

    if command.site is not None:
        if command.ca_key is not None:
            raise ConfigError("--ca-key signs the server's certificate; a site's key needs no signature: leave it out")
        renew_site(command.folder, command.site)
        print(f"{command.site} has a new key, and its old one is refused from now on.")
        print(f"  hand {shlex.quote(str(command.folder))}/sites/{command.site} to it, and delete it here")
        return 0
    federation = read_federation(command.folder)
    renew_server(command.folder, hosts_of(split_reachable(federation.address)[0]), command.ca_key)
    days = days_left(command.folder / "server.crt")
    print(f"{command.folder / 'server.crt'} is valid for {days:.0f} days. Sites need nothing new.")
    return 0


def run_status(command: Status) -> int:
    need_flower()
    from fedpg.sites.folder import read_federation
    from fedpg.sites.status import print_status

    print_status(read_federation(command.folder), command.run)
    return 0


def _from_now_on(federation: "Federation") -> str:
    from fedpg.sites.gathering import check_quorum
    from fedpg.sites.members import about_tolerance

    config = federation.config
    return f"{about_tolerance(config, 0)}, and a round needs {check_quorum(federation.quorum, config)} replies"
