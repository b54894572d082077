"""The gateway of test/faas, as tests and benchmarks run it: its configuration, its start and its end."""

import json
import os
import signal
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path

from functions import CLASSES, SOURCES
from lib.outcome import Failure
from lib.tree import DORMOUSE, TOP
from lib.waiting import comes
from sleepers import PATIENCE, answer_of

FAAS = Path(os.environ.get("FAAS") or TOP / "target/release/faas")
FIRST_PORT = 24000


@contextmanager
def bound_root():
    """This host's root file system at a path of its own: runc takes no other. In mounts of this process's own.

    The path is in no directory that is removed with all that is in it.
    """
    root = Path(tempfile.mkdtemp(prefix="faas-root-"))
    subprocess.run(["mount", "--bind", "/", root], check=True)
    try:
        yield root
    finally:
        subprocess.run(["umount", "-l", root], check=True)
        root.rmdir()


def text_of(value):
    """A value as TOML writes it: as JSON does, for words, numbers and lists of them."""
    return json.dumps(value, default=str)


class Gateway:
    """A gateway and its functions: `commands` by their names, with `{port}` in them."""

    def __init__(self, directory, port, backend, budget_bytes, commands, **more):
        self.directory, self.port = Path(directory), port
        self.directory.mkdir()
        settings = {"listen": f"127.0.0.1:{port}", "backend": backend, "budget": str(budget_bytes),
                    "directory": self.directory / "containers", "show": [path for path in (SOURCES, CLASSES) if path.exists()],
                    "ports": [FIRST_PORT, FIRST_PORT + len(commands) - 1], **more}
        if backend == "dormouse":
            settings["runtime"] = DORMOUSE
        lines = [f"{name} = {text_of(value)}" for name, value in settings.items()]
        for name, command in commands.items():
            lines += ["[[function]]", f"name = {text_of(name)}", f"command = {text_of([str(word) for word in command])}"]
        self.config = self.directory / "faas.toml"
        self.config.write_text("\n".join(lines) + "\n")
        self.log = self.directory / "faas.log"
        self.process = None

    def __enter__(self):
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen([str(FAAS), str(self.config)], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        comes(lambda: self.listens() or self.process.poll() is not None, PATIENCE, 0.005)
        if not self.listens():
            self.process.kill()
            raise Failure(f"the gateway does not start: {self.said()}")
        return self

    def listens(self):
        return "listening on" in self.log.read_text()

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Ends it, and its functions with it; result: its exit code."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise Failure(f"the gateway does not end: {self.said()}") from None

    def said(self):
        return " | ".join(self.log.read_text(errors="replace").strip().splitlines()[-3:])

    def get(self, path):
        """The whole answer to a request."""
        return answer_of(("127.0.0.1", self.port), f"GET {path} HTTP/1.0\r\n\r\n".encode())

    def stats(self):
        return json.loads(self.get("/-/stats").partition(b"\r\n\r\n")[2])

    def memory_groups(self):
        """The memory control groups of its functions."""
        name = f"faas-{self.process.pid}-*"
        return [*Path("/sys/fs/cgroup/memory").glob(name), *Path("/sys/fs/cgroup").glob(name)]
