"""Where a case runs: natively or in a sandbox, with the programs it started, which all end with it."""
import itertools
import os
import signal
import subprocess
import time
from pathlib import Path

from lib.network import is_served
from lib.outcome import Failure, check
from lib.tree import DORMOUSE, SEARCH, TOP
from lib.waiting import until

INSIDE = TOP / "test/net/inside"
DNS_ADDRESS = "127.0.0.53"
# Words that the sandbox's kernel or VMM prints when it broke.
BROKEN = ("the kernel gave up", "cannot run the sandbox", "panicked at", "vCPU ")
PYTHON = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"}

_ports = itertools.count(20001)


def new_port():
    """A port nobody used before in this run."""
    return next(_ports)


def tail(path, lines=6):
    try:
        return " | ".join(Path(path).read_text(errors="replace").strip().splitlines()[-lines:])
    except OSError:
        return ""


class Program:
    """A program that runs, with what it writes in files."""

    def __init__(self, words, stem, stdin=None):
        self.words, self.out_path, self.err_path = words, f"{stem}.out", f"{stem}.err"
        with open(self.out_path, "wb") as out, open(self.err_path, "wb") as err:
            self.process = subprocess.Popen(
                words, stdin=stdin or subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True,
                env=os.environ | {"PATH": SEARCH} | PYTHON,
            )

    def remarks(self):
        return tail(self.err_path) or tail(self.out_path)

    def wait(self, timeout):
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise Failure(f"{self.words[-1]} still ran after {timeout} s: {self.remarks()}") from None

    def end(self):
        """SIGTERM, and SIGKILL for who doesn't hear it."""
        for number, patience in ((signal.SIGTERM, 3), (signal.SIGKILL, 5)):
            if self.process.poll() is not None:
                break
            try:
                os.killpg(self.process.pid, number)
                self.process.wait(patience)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                pass


class Side:
    """One side of the comparison, for one case."""

    def __init__(self, name, options, directory):
        self.name, self.full = name, options.full
        self.top, self.programs, self.notes = directory, [], []
        self.dir = directory / f"{name}-{time.monotonic_ns()}"
        self.dir.mkdir()
        self.prefix = []
        if name == "sandbox":
            dormouse = str(DORMOUSE)
            taken = [f"--env={name}" for name in PYTHON]
            self.prefix = [dormouse, "do", f"--platform={options.platform}", *taken, "--"]

    def note(self, text):
        """Adds a remark to the case's line."""
        self.notes.append(text)

    def _launch(self, words, stdin=None):
        program = Program([str(word) for word in words], self.dir / str(len(self.programs)), stdin)
        self.programs.append(program)
        return program

    def launch(self, *words, stdin=None):
        """Starts a program on this side."""
        return self._launch([*self.prefix, *words], stdin)

    def outside(self, *words, stdin=None):
        """Starts a program natively, whatever the side."""
        return self._launch(words, stdin)

    def serve(self, port, *words):
        """Starts a server on this side, and waits until it can be connected to."""
        return self.until_served(self.launch(*words), port)

    def until_served(self, server, port, patience=20):
        def serves():
            check(server.process.poll() is None, f"{server.words[-1]} ended: {server.remarks()}")
            return is_served(port)
        try:
            until(f"a listener at port {port}", serves, patience)
        except Failure as why:
            raise Failure(f"{why}: {server.remarks()}") from None
        return server

    def run(self, *words, timeout=60, code=0, stdin=None):
        """Runs a program on this side to its end; result: what it wrote to standard output."""
        return self._finished(self.launch(*words, stdin=stdin), timeout, code)

    def run_outside(self, *words, timeout=60, code=0, stdin=None):
        return self._finished(self.outside(*words, stdin=stdin), timeout, code)

    def _finished(self, program, timeout, code):
        ended = program.wait(timeout)
        check(ended == code, f"{' '.join(program.words[-4:])} ended with {ended}: {program.remarks()}")
        return Path(program.out_path).read_text(errors="replace")

    def finish(self):
        """Ends the servers, and looks whether the sandbox stayed sound."""
        self.end()
        for program in self.programs:
            text = Path(program.err_path).read_text(errors="replace")
            broken = [line for line in text.splitlines() if any(word in line for word in BROKEN)]
            check(not broken or self.name == "native", f"the sandbox broke: {' | '.join(broken[:3])}")

    def end(self):
        for program in self.programs:
            program.end()

    def everything_written(self):
        texts = []
        for program in self.programs:
            for path in (program.out_path, program.err_path):
                if text := tail(path, 40):
                    texts.append(f"--- {Path(path).name} of {' '.join(program.words)}\n" + text.replace(" | ", "\n"))
        return "\n".join(texts)

    def file(self, name, size):
        """A file of bytes that do not repeat, made once a run; result: its path and SHA-256."""
        path = self.top / f"{name}-{size}"
        if not path.exists():
            stream = f"openssl enc -aes-128-ctr -nosalt -K {size:032x} -iv 0 </dev/zero 2>/dev/null | head -c {size}"
            subprocess.run(["sh", "-c", f"{stream} >{path}"], check=True)
        digest = self.top / f"{name}-{size}.sha256"
        if not digest.exists():
            digest.write_text(subprocess.run(["sha256sum", path], check=True, capture_output=True, text=True).stdout[:64])
        return path, digest.read_text()
