"""How the tests compile: in a hurry, and once for all processes. Imported before anything of the package.

Most of their time would go into optimising code that runs once: a round is compiled in a second instead of seven. With
OPTIMISED=1 in the environment they compile as users do; `make test-kernels` runs those that rest on it again so.
"""

import atexit
import os
import shutil
import tempfile

HASTY = (
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
    "--xla_cpu_use_fusion_emitters=false",
    "--xla_cpu_parallel_codegen_split_count=1",  # pytest's workers have all cores already
)
CACHE = "JAX_COMPILATION_CACHE_DIR"

# In the environment, so that pytest's workers and every process that a test starts have it from us.
flags = os.environ.get("XLA_FLAGS", "").split()
if not os.environ.get("OPTIMISED"):
    os.environ["XLA_FLAGS"] = " ".join([*flags, *(flag for flag in HASTY if flag not in flags)])
if CACHE not in os.environ:
    os.environ[CACHE] = tempfile.mkdtemp(prefix="fedpg-tests-")
    atexit.register(shutil.rmtree, os.environ[CACHE], ignore_errors=True)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
