"""Where things are: the top of the tree, the binaries under test, and programs of the host."""
import os
import shutil
from pathlib import Path

from lib.outcome import Skip

TOP = Path(__file__).resolve().parent.parent.parent
# The command under test; a relative name is below the top of the tree.
DORMOUSE = TOP / (os.environ.get("DORMOUSE") or "target/release/dormouse")
SHIM = "containerd-shim-dormouse-v1"
# Where programs are looked for: administrators' are not on everybody's PATH.
SEARCH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


def missing(program: str) -> bool:
    """Whether the host has no such program."""
    return shutil.which(program, path=SEARCH) is None


def newest(*programs: str) -> Path:
    """The directory with these programs: DORMOUSE_BIN, or the newest build that has all of them."""
    if given := os.environ.get("DORMOUSE_BIN"):
        return Path(given)
    builds = [TOP / "target" / kind for kind in ("release", "debug")]
    whole = [build for build in builds if all((build / program).exists() for program in programs)]
    if not whole:
        raise Skip(f"no build has {' and '.join(programs)}; run `make build`")
    return max(whole, key=lambda build: (build / programs[0]).stat().st_mtime)


def binaries() -> Path:
    """The directory with the shim and `dormouse`."""
    return newest(SHIM, "dormouse")
