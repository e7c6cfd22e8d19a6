"""Whether a wheel and a source distribution hold what they need: every file of the package, and all that tests need."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
NOT_SHIPPED = ("results/runs/", "results/arena/", "results/theory/", ".gitignore")


def tracked() -> list[str]:
    """The files under version control."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return listed.stdout.splitlines()


def main(wheel: str, sdist: str) -> int:
    inside = set(zipfile.ZipFile(wheel).namelist())
    package = {name.removeprefix("src/") for name in tracked() if name.startswith("src/fedpg/")}
    with tarfile.open(sdist) as file:
        shipped = {name.partition("/")[2] for name in file.getnames()}
    wanted = {name for name in tracked() if not name.startswith(NOT_SHIPPED)}
    for what, missing in (("wheel", package - inside), ("sdist", wanted - shipped)):
        print(f"{what}: {'complete' if not missing else 'without ' + ', '.join(sorted(missing))}")
    return int(bool(package - inside or wanted - shipped))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
