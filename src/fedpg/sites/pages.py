"""What the files of a federation's folder say to people."""

HEAD = """\
# A federation of fedpg.
#   address   how the sites reach the server
#   listen    where the server listens
#   sites     their names, and `numbers` those of their agents, for life
#   removed   names that were taken off; no new site gets one of them
#   deadline  seconds that a round waits for replies
#   quorum    replies that a round needs; 0: more than half, and more than twice as many as may lie by alpha
# [settings] are those of `fedpg train`. Those that concern the agents must be the same in every site.toml.
# Sites come and go by `fedpg federation add-site` and `remove-site`, which write this file anew.
"""
SITE_HEAD = "# A site of a fedpg federation. The settings must be those of the server.\n"

PAGE = """\
# This federation

{sites} sites, one server at {address} (it listens at {listen}).

1. **Hand out the folders.** `sites/site-0` goes to the first organisation, `sites/site-1` to the next, and so on, over
   a channel that you trust: each holds that site's private key. Delete them here afterwards; the server does not need
   them. What it needs is `federation.toml`, `ca.crt`, `server.crt`, `server.key` and `keys/`.
2. **Put `ca.key` away**, off this machine. Whoever has it can pretend to be the server. It is needed again for
   `fedpg federation renew`, which renews the server's certificate.
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
