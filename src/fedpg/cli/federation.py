"""`fedpg federation create`, `fedpg federation demo`, `fedpg serve` and `fedpg join`."""

import contextlib
import dataclasses
import os
import shlex
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from fedpg.cli.arguments import draw_curve, on_signal
from fedpg.cli.dashboard import warn_plain
from fedpg.cli.train import train_defaults
from fedpg.config import Config, refuse_idle_attack, validate
from fedpg.errors import ConfigError
from fedpg.extras import need
from fedpg.presets import make_config, refuse_idle, renamed


@dataclass(frozen=True)
class Create:
    """Make the folder of a federation: a CA, the server's certificate, a key per site, and the settings.

    Examples:
      fedpg federation create my-federation --sites 5 --address fl.example.org:8443
      fedpg federation create my-federation --sites 5 --task my_package.my_module:make_environment
      fedpg federation create trial --sites 3 --trajectories 500
    """

    folder: Annotated[Path, tyro.conf.Positional]
    """The new folder."""
    config: Annotated[Config, tyro.conf.arg(name="")]
    sites: int | None = None
    """How many sites there are: the number of agents, by another name."""
    address: str = "127.0.0.1:8443"
    """host:port by which the sites reach the server. By default this machine only."""
    deadline: float = 60.0
    """Seconds that a round waits for replies."""
    quorum: int = 0
    """Replies that a round needs; 0: more than half of the sites, and more than twice as many as may lie by alpha."""
    seed: int = 0
    """The seed of the run."""


def create_defaults(arguments: list[str]) -> Create:
    given = {word.partition("=")[0] for word in arguments}
    if {"--sites", "--agents"} <= given:
        raise ConfigError("--sites and --agents are one number by two names: give one of them")
    return Create(folder=tyro.MISSING, config=train_defaults([a for a in arguments if a != "--resume"]).config)


@dataclass(frozen=True)
class Serve:
    """Run the server of a federation: wait for a quorum of its sites, train with them, write the run folder.

    Killed or interrupted, it goes on from its checkpoint when it is started again.

    Examples:
      fedpg serve my-federation
      fedpg serve my-federation --out my-federation/run-2 --start-from my-federation/run
      fedpg serve my-federation --dashboard --log-json server.log
    """

    folder: Annotated[Path, tyro.conf.Positional]
    """The folder that `fedpg federation create` made."""
    out: Path | None = None
    """The run folder; by default `run` in the federation's."""
    start_from: Path | None = None
    """Begin a new run from a policy instead of a random one: a run folder, or a policy file."""
    insecure: bool = False
    """Without TLS: only on this machine, unless --force is given."""
    force: bool = False
    """Allow --insecure where other machines can reach it."""
    quiet: bool = False
    """No table, only the summary."""
    dashboard: bool = False
    """Show the run on a web page of this machine (and its numbers to Prometheus, at /metrics), by a process of its
    own that cannot slow or stop it."""
    dashboard_address: str | None = None
    """host:port of that page, by default 127.0.0.1:8000, or a free port if that is taken; where other machines can
    reach it, the page asks for a token."""
    dashboard_token: str | None = None
    """That token; by default a new one, which is printed."""
    log_json: Path | None = None
    """Append what happens to this file, one JSON object per line: time, level, event, site."""


@dataclass(frozen=True)
class Join:
    """Be a site of a federation: answer each round with a gradient from this site's own environment.

    Keeps the environment and the compiled code between rounds, and connects again by itself. When the run is over, it
    saves the policy and ends.

    Examples:
      fedpg join site-0 --task my_package.my_module:make_environment
      fedpg join site-0 --policy our-policy.safetensors
      fedpg join site-0 --wait
    """

    folder: Annotated[Path, tyro.conf.Positional]
    """The folder that this site was handed."""
    task: str | None = None
    """This site's own task: `package.module:factory`, or a Gymnasium id; by default that of the federation."""
    insecure: bool = False
    """Without TLS, for a server with --insecure: only on this machine, unless --force is given."""
    force: bool = False
    """Allow --insecure to another machine."""
    quiet: bool = False
    """Say only what went wrong."""
    share_errors: bool = False
    """Send the server the text of an error of this site's task, which may quote its data; by default the server is
    told the kind of the error only, and the text is printed here."""
    policy: Path | None = None
    """Where to save the policy when the run is over; by default `policy.safetensors` in the folder."""
    wait: bool = False
    """When the run is over, wait for the next one instead of ending."""
    log_json: Path | None = None
    """Append what it says to this file, one JSON object per line: time, level, event, site."""


@dataclass(frozen=True)
class Demo:
    """A server and its sites on this machine, secured as between machines: ten sites, three of them Byzantine.

    Examples:
      fedpg federation demo --out runs/ten-sites
      fedpg federation demo --sites 4 --byzantine 1 --attack random-noise
    """

    sites: int = 10
    """How many site processes there are."""
    byzantine: int = 3
    """How many of them are Byzantine."""
    attack: str = "sign-flipping"
    """What those do."""
    trajectories: int = 1000
    """How far to train, in trajectories as the paper counts them."""
    task: str = "CartPole-v1"
    """The task of the server and of all sites."""
    seed: int = 0
    """The seed of the run."""
    out: Path | None = None
    """The folder of the demo's federation; by default a new one under `runs/`."""
    quiet: bool = False
    """No table, only the summary."""
    dashboard: bool = False
    """Show the run on a web page of this machine."""


def run_create(command: Create) -> int:
    need_flower()
    from fedpg.sites.folder import create
    from fedpg.sites.gathering import about_quorum

    task, note = renamed(command.config.task)
    if note:
        print(f"fedpg: {note}", file=sys.stderr)
    agents = command.config.agents if command.sites is None else command.sites
    config = validate(dataclasses.replace(command.config, task=task, agents=agents))
    refuse_idle_attack(config)
    refuse_idle(config)
    made = create(command.folder, config, command.address, command.deadline, command.quorum, command.seed)
    folder = shlex.quote(str(command.folder))
    if text := about_quorum(command.quorum, config):
        print(f"fedpg: warning: {text}", file=sys.stderr)
    print(f"{command.folder}: a federation of {agents} sites, the server at {made.address}.")
    print(f"  1. hand {folder}/sites/site-0 ... to the sites, one each; read {folder}/README.md")
    print("  2. at each site:    fedpg join site-0 --task package.module:factory")
    print(f"  3. at the server:   fedpg serve {folder}")
    return 0


def run_serve(command: Serve) -> int:
    need_flower()
    from fedpg.serving.serve import serve
    from fedpg.sites.folder import read_federation
    from fedpg.sites.journal import Journal
    from fedpg.summary import print_summary

    federation = read_federation(command.folder)
    warn_insecure(command.insecure)
    out = command.out or command.folder / "run"
    journal = None if command.log_json is None else Journal(command.log_json)
    stop = threading.Event()
    shown = command.dashboard or command.dashboard_address is not None or command.dashboard_token is not None
    with contextlib.ExitStack() as held:
        if shown:
            show(held, out, command.dashboard_address, command.dashboard_token)
        with on_signal(stop, "stopping; a round that still waits for replies is done again when you go on"):
            run = serve(
                federation,
                out,
                command.insecure,
                command.force,
                command.quiet,
                stop,
                journal=journal,
                start_from=command.start_from,
            )
        draw_curve(out, [run], run.config.title)
        print_summary([run], out)
    if not run.finished:
        print(f"Interrupted. Go on with: {shlex.join(words_of(command))}", file=sys.stderr)
        return 130
    return 0


def show(held: contextlib.ExitStack, run: Path, address: str | None, token: str | None = None) -> None:
    """Start a page beside a run, and say where it is."""
    from fedpg.dashboard.beside import Beside
    from fedpg.dashboard.web import is_loopback
    from fedpg.sites.folder import split_address

    def warn(text: str) -> None:
        print(f"fedpg: {text}", file=sys.stderr, flush=True)

    host, port = ("127.0.0.1", None) if address is None else split_address(address)
    page = held.enter_context(Beside(run, host, port, token, warn))
    print(f"dashboard: {page.address}", flush=True)
    if not is_loopback(host):
        warn_plain()


def words_of(command: Serve) -> list[str]:
    """The command line that does the same again."""
    words = ["fedpg", "serve", str(command.folder)]
    for name in ("out", "dashboard_address", "dashboard_token", "log_json"):
        value = getattr(command, name)
        words += [] if value is None else [f"--{name.replace('_', '-')}", str(value)]
    return words + [f"--{name}" for name in ("insecure", "force", "quiet", "dashboard") if getattr(command, name)]


def run_join(command: Join) -> int:
    need_flower()
    from fedpg.serving.join import join
    from fedpg.sites.folder import read_site
    from fedpg.sites.journal import Journal

    site = read_site(command.folder)
    warn_insecure(command.insecure)
    journal = None if command.log_json is None else Journal(command.log_json)
    stop = threading.Event()
    with on_signal(stop, "leaving after this round"):
        join(
            site,
            command.task,
            command.insecure,
            command.force,
            command.quiet,
            stop,
            command.share_errors,
            command.policy,
            command.wait,
            journal,
        )
    return 0


def run_demo(command: Demo) -> int:
    need_flower()
    from fedpg.serving.demo import demo, new_folder
    from fedpg.summary import print_summary

    attack: dict[str, Any] = {"attack": command.attack} if command.byzantine else {}
    config = make_config(
        command.task, agents=command.sites, byzantine=command.byzantine, trajectories=command.trajectories, **attack
    )
    stop = threading.Event()
    folder = command.out or new_folder()
    with contextlib.ExitStack() as held:
        if command.dashboard:
            show(held, folder / "run", None)
        with on_signal(stop, "stopping after this round"):
            run = demo(config, command.seed, folder, command.quiet, stop)
        draw_curve(folder / "run", [run], run.config.title)
        print_summary([run], folder / "run")
    return 0 if run.finished else 130


def need_flower() -> None:
    """Flower is an extra: most users never leave one machine."""
    need("flwr")
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")


def warn_insecure(insecure: bool) -> None:
    if insecure:
        print(
            "fedpg: warning: --insecure: no TLS. Whoever is on the way can read and change every gradient.",
            file=sys.stderr,
        )
