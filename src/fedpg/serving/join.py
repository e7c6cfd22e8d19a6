"""A site of a federation: its own environment, its key, and the warm node that answers for them."""

import dataclasses
import ssl
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from fedpg.assembly import make_problem
from fedpg.errors import ConfigError
from fedpg.federation.messages import decode_end, largest
from fedpg.federation.site import Site as Agent
from fedpg.flower.warm import Address, run_site
from fedpg.presets import renamed
from fedpg.problem import Problem
from fedpg.programs import keep_compiled
from fedpg.sites.certificates import about_expiry, read_site_key
from fedpg.sites.folder import Site, refuse_open, sizes_of, split_address
from fedpg.sites.journal import Journal
from fedpg.storage import StorageError
from fedpg.training.checkpoint import save_policy


def join(
    site: Site,
    task: str | None = None,
    insecure: bool = False,
    force: bool = False,
    quiet: bool = False,
    stop: threading.Event | None = None,
    share_errors: bool = False,
    policy: Path | None = None,
    wait: bool = False,
    journal: Journal | None = None,
) -> None:
    """Answer the rounds of a federation until the run is over, or `stop`; with `wait`, also those of the next run.

    The policy of a run that is over is saved as `policy`, by default in the site's folder. The text of an error leaves
    the site with `share_errors` only.
    """
    refuse_open(split_address(site.address)[0], insecure, force)
    key = read_site_key(site.folder / "site.key")
    try:
        certificates = None if insecure else (site.folder / "ca.crt").read_bytes()
    except OSError as error:
        raise StorageError(f"cannot read {site.folder / 'ca.crt'}: {error.strerror or error}") from error
    if certificates is not None:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=certificates.decode("ascii"))
        except (ssl.SSLError, ValueError) as error:
            raise StorageError(f"{site.folder / 'ca.crt'} is no certificate: {error}. Get the folder again") from error

    def warn(text: str) -> None:
        if journal is not None:
            journal.write("warning", "said", site.name, text=text)
        print(f"{time.strftime('%H:%M:%S')} {site.name}: {text}", file=sys.stderr, flush=True)

    def say(text: str) -> None:
        if journal is not None:
            journal.write("info", "said", site.name, text=text)
        if not quiet:
            print(f"{time.strftime('%H:%M:%S')} {site.name}: {text}", flush=True)

    keep_compiled(site.folder / "compiled")
    config = site.config
    say("compiling, a few seconds")
    # The shape of the policy is the federation's; the environment is this site's own.
    mine = dataclasses.replace(config, task=renamed(task or config.task)[0])
    if task is not None:
        mine = dataclasses.replace(mine, vary=())  # this site has its own, and nobody varies that
    problem = make_problem(mine)
    say(f"the task is {mine.task}, simulated by {problem.task.simulator or 'JAX'}")
    refuse_other_sizes(site, problem, mine.task)
    responder = Agent(problem, site.agent)
    address = Address(site.address, certificates, key)
    stop = stop or threading.Event()
    file = policy or site.folder / "policy.safetensors"

    def over(values: Mapping[str, Any]) -> str:
        end = decode_end(values, mine, site.parameters)
        responder.memories.clear()  # what it remembers is of this run
        text = f"the run is over after {end.rounds} rounds, with a return of {end.test_return:.1f} at the server"
        try:
            save_policy(file, mine, problem.policy, jnp.asarray(end.theta))
            text += f"; its policy is in {file}"
        except StorageError as error:
            warn(str(error))
        if not wait:
            stop.set()
        return f"{text}; waiting for the next run" if wait else text

    size = largest(site.parameters, len(problem.algorithm.broadcast))
    if certificates is not None and (text := about_expiry(site.folder / "ca.crt", "ask whoever runs the server")):
        warn(f"warning: {text}")
    run_site(address, responder, say, stop, size, warn, share_errors, over)
    say("left")


def refuse_other_sizes(site: Site, problem: Problem, task: str) -> None:
    """Refuse a task with other observations or actions than the server's, also where as many parameters come of it."""
    agreed = {name: getattr(site, name) for name in sizes_of(problem) if getattr(site, name)}  # older folders lack some
    mine = {name: size for name, size in sizes_of(problem).items() if name in agreed}
    if mine != agreed:
        has, wanted = (", ".join(f"{name} = {size}" for name, size in sizes.items()) for sizes in (mine, agreed))
        raise ConfigError(
            f"the task {task} has {has}; this federation agreed on {wanted}: every site's task must have the sizes of "
            f"the server's, {site.config.task}. Give a task that has them (--task package.module:factory), or wrap it"
        )
