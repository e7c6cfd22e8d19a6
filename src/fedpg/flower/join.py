"""A site of a federation: its own environment, its key, and the warm node that answers for them."""

import dataclasses
import os
import ssl
import sys
import threading
import time
from pathlib import Path

import jax

from fedpg.agents import make_problem
from fedpg.config import ConfigError, renamed
from fedpg.environments import Environment, Pool
from fedpg.federation.messages import largest
from fedpg.federation.site import make_responder
from fedpg.flower.certificates import read_site_key
from fedpg.flower.folder import Site, refuse_open, split_address
from fedpg.flower.warm import Address, run_site
from fedpg.storage import StorageError


def join(
    site: Site,
    task: str | None = None,
    insecure: bool = False,
    force: bool = False,
    quiet: bool = False,
    stop: threading.Event | None = None,
    share_errors: bool = False,
) -> None:
    """Answer the rounds of a federation until `stop`; the text of an error leaves the site with `share_errors` only."""
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
        print(f"{time.strftime('%H:%M:%S')} {site.name}: {text}", file=sys.stderr, flush=True)

    def say(text: str) -> None:
        if not quiet:
            print(f"{time.strftime('%H:%M:%S')} {site.name}: {text}", flush=True)

    keep_compiled(site.folder / "compiled")
    config = site.config
    say("compiling, a few seconds")
    # The shape of the policy is the federation's; the environment is this site's own.
    mine = dataclasses.replace(config, task=renamed(task or config.task)[0])
    problem = make_problem(mine)
    say(f"the task is {mine.task}, simulated by {_simulator(problem.environment)}")
    if problem.policy.size != site.parameters:
        raise ConfigError(
            f"the task {mine.task} has {problem.environment.observations} observations and the actions "
            f"{problem.environment.actions}, which make a policy of {problem.policy.size} parameters; this "
            f"federation's has {site.parameters}: every site's task must have the sizes of the server's, {config.task}"
        )
    responder = make_responder(problem, site.agent)
    address = Address(site.address, certificates, key)
    stop = stop or threading.Event()
    run_site(address, responder, say, stop, largest(site.parameters), warn, share_errors)
    say("left")


def keep_compiled(folder: Path) -> None:
    """Keep compiled programs in a folder, unless the user has chosen one: a site that restarts is back at once."""
    if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


def _simulator(environment: Environment | Pool) -> str:
    return environment.simulator if isinstance(environment, Pool) else "JAX"
