"""Images made of this host's programs, since no registry is asked."""
import os
import re
import subprocess
from pathlib import Path

from lib.tree import TOP, binaries
from world import IMAGE, PAUSE, image_tar

__all__ = ["IMAGE", "INSTALLER", "PAUSE", "PYTHON", "load"]
INSTALLER = "localhost/dormouse-installer:1"
PYTHON = "/usr/bin/python3"


def python_files():
    """The host's Python: the program, what it links, and its library."""
    program = os.path.realpath(PYTHON)
    linked = re.findall(r"(/\S+) \(0x", subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout)
    ask = [program, "-c", "import sysconfig; print(sysconfig.get_path('stdlib'))"]
    library = subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip()
    return [(program, PYTHON), (Path(__file__).parent / "server.py", "/server.py"), *((path, path) for path in (library, *linked))]


def load(cluster):
    """Makes the images known to containerd."""
    tar = cluster.machine.dir / "image.tar"
    beside = [(TOP / "deploy" / name, f"/opt/dormouse/{name}") for name in ("install", "containerd-1.6.toml", "containerd-2.toml")]
    beside += [(binaries() / name, f"/opt/dormouse/bin/{name}") for name in ("dormouse", "containerd-shim-dormouse-v1")]
    whole = ((IMAGE, python_files()), (PAUSE, []), (INSTALLER, beside))
    for name, files in whole:
        image_tar(tar, name, ["/bin/sleep", "1000000"], files=files)
        cluster.ctr("image", "import", tar)
        tar.unlink()
