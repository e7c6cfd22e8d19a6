"""How many threads XLA has: two at least. Imported before anything that starts it.

XLA has a thread per core. A call-out to a simulator takes one of them, and waits there for its arguments, which another
copies. On a single core there would be no other, and a run could wait for ever (seen on HalfCheetah).
"""

import os

if hasattr(os, "sched_getaffinity") and len(os.sched_getaffinity(0)) == 1:
    os.environ.setdefault("NPROC", "2")
