"""The command line: the typed settings are its options. A command is a dataclass of its options and a function."""

import inspect
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tyro

from fedpg.cli.adapt import Adapt, run_adapt
from fedpg.cli.arena import Arena, run_arena
from fedpg.cli.arguments import together
from fedpg.cli.bench import Bench, run_bench
from fedpg.cli.dashboard import Dashboard, run_dashboard
from fedpg.cli.federation import (
    Create,
    Demo,
    Join,
    Serve,
    create_defaults,
    run_create,
    run_demo,
    run_join,
    run_serve,
)
from fedpg.cli.members import (
    AddSite,
    RemoveSite,
    Renew,
    Status,
    run_add_site,
    run_remove_site,
    run_renew,
    run_status,
)
from fedpg.cli.policies import Evaluate, Export, Play, run_evaluate, run_export, run_play
from fedpg.cli.report import Report, run_report
from fedpg.cli.reproduce import Reproduce, run_reproduce
from fedpg.cli.theory import Lab, Theory, run_theory, run_theory_lab
from fedpg.cli.train import Train, run_train, train_defaults
from fedpg.config import STRINGS
from fedpg.errors import ConfigError, SimulationError, unknown
from fedpg.extras import hint
from fedpg.programs import keep_compiled, wait_for_calls
from fedpg.storage import StorageError

USAGE = """\
fedpg: several agents learn one policy together, while some of them fail or lie.

  fedpg train       train a policy by a federation of agents
  fedpg evaluate    the return of a trained policy, greedy
  fedpg play        render a trained policy to a GIF
  fedpg adapt       go on alone from the common policy, in the task of one agent
  fedpg dashboard   runs on a web page: while they go on, or afterwards
  fedpg export      a policy that runs without fedpg: NumPy or ONNX, with a model card
  fedpg bench       the speed of this machine: training against the bare simulator
  fedpg arena       every attack against every defence, and each defence's worst case
  fedpg reproduce   the paper's experiments: lists them, or runs what is missing
  fedpg report      one page of figures and tables from what is stored
  fedpg theory      what the paper's theorem promises your federation, and what it asks for
  fedpg theory lab  the theorem's rates, measured where the true gradient is known

  fedpg federation create        the folder of a federation across machines: keys, certificates, settings
  fedpg federation demo          a server and ten sites on this machine, secured, three of them Byzantine
  fedpg federation status        its members, certificates and last run
  fedpg federation add-site      a new site, from the next run on
  fedpg federation remove-site   a site, or a stolen key, is out at once
  fedpg federation renew         the server's certificate before it expires, or the key of a site
  fedpg serve                    the server of a federation
  fedpg join                     a site of a federation, with an environment of its own

Examples:
  fedpg train                                                  ten honest agents learn CartPole
  fedpg train --byzantine 3 --attack sign-flipping             three of them lie
  fedpg train --task HalfCheetah-v5                            any Gymnasium task, or your own module:factory
  fedpg train --algorithm gpomdp --byzantine 3 --attack sign-flipping    what happens without a defence
  fedpg train --seeds 0:10 --out runs/ten                      ten seeds, spread over the cores
  fedpg train --out runs/ten --resume                          go on after an interruption
  fedpg evaluate runs/ten/seed-0 --episodes 100
  fedpg play runs/ten/seed-0 --out cartpole.gif
  fedpg dashboard runs                                         every run below runs/, live in a browser
  fedpg export runs/ten/seed-0 --to onnx                       a policy for any runtime, and what is known of it
  fedpg theory --agents 20 --byzantine 3 --epsilon 0.1         how many trajectories the theorem asks for
  fedpg federation create hospitals --sites 5 --address fl.example.org:8443
  fedpg reproduce figure1 --task CartPole-v1 --seeds 0:10      a figure of the paper, with its own curves beside ours
  fedpg arena --defences fedpg krum                            the worst that three liars of ten can do to two rules
  fedpg COMMAND --help                                         all options of a command, with their defaults
"""


class Command(NamedTuple):
    """A command of `fedpg`."""

    options: Any
    run: Callable[[Any], int]
    defaults: Callable[[list[str]], Any] | None = None
    """Its words -> the defaults, where some options decide those of others."""


COMMANDS: dict[str, Command] = {
    "train": Command(Train, run_train, train_defaults),
    "evaluate": Command(Evaluate, run_evaluate),
    "play": Command(Play, run_play),
    "adapt": Command(Adapt, run_adapt),
    "dashboard": Command(Dashboard, run_dashboard),
    "export": Command(Export, run_export),
    "bench": Command(Bench, run_bench),
    "theory": Command(Theory, run_theory),
    "theory lab": Command(Lab, run_theory_lab),
    "federation create": Command(Create, run_create, create_defaults),
    "federation demo": Command(Demo, run_demo),
    "federation status": Command(Status, run_status),
    "federation add-site": Command(AddSite, run_add_site),
    "federation remove-site": Command(RemoveSite, run_remove_site),
    "federation renew": Command(Renew, run_renew),
    "serve": Command(Serve, run_serve),
    "join": Command(Join, run_join),
    "reproduce": Command(Reproduce, run_reproduce),
    "arena": Command(Arena, run_arena),
    "report": Command(Report, run_report),
}


def unknown_command(words: list[str]) -> ConfigError:
    """Of those that there are; of a group, with its own."""
    group = [name for name in COMMANDS if name.startswith(f"{words[0]} ")]
    return unknown("command", " ".join(words[:2]), group) if group else unknown("command", words[0], COMMANDS)


def main(arguments: Sequence[str] | None = None) -> int:
    """The `fedpg` command; returns its exit code."""
    try:
        code = _run(list(sys.argv[1:] if arguments is None else arguments))
        sys.stdout.flush()
        return code
    except (ConfigError, SimulationError, StorageError) as error:
        print(f"fedpg: {error}", file=sys.stderr)
        if isinstance(error, ConfigError) and (what := hint(error)):
            print(f"fedpg: {what}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("fedpg: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # nobody reads what is printed any more, as after `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _run(arguments: list[str]) -> int:
    if "" not in sys.path:
        sys.path.insert(0, "")  # a user's own attack may lie in the current folder
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        return 0
    if arguments[0] == "--version":
        from fedpg import __version__

        print(f"fedpg {__version__}")
        return 0
    if arguments[0] not in COMMANDS and arguments[1:] in ([], ["-h"], ["--help"]):
        lines = [line for line in USAGE.splitlines() if line.startswith(f"  fedpg {arguments[0]} ")]
        if lines:
            print("\n".join([f"fedpg {arguments[0]}: one of", "", *lines]))
            return 0
    words = 2 if " ".join(arguments[:2]) in COMMANDS else 1
    name, rest = " ".join(arguments[:words]), together(arguments[words:], STRINGS)
    if name not in COMMANDS:
        raise unknown_command(arguments)
    command = COMMANDS[name]
    about = inspect.getdoc(command.options)
    options: dict[str, Any] = {"prog": f"fedpg {name}", "description": about, "args": rest}
    if command.defaults is not None:
        options["default"] = command.defaults(rest)
    parsed = tyro.cli(command.options, config=(tyro.conf.FlagCreatePairsOff,), **options)
    keep_compiled()
    wait_for_calls()
    return command.run(parsed)
