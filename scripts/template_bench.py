"""Sandboxes of `do` that begin with a snapshot, for the scripts that measure them."""
import json
import os
import random
import statistics
import subprocess
import time
import urllib.request
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
DORMOUSE = Path(os.environ.get("DORMOUSE") or TOP / "target/release/dormouse").resolve()
PYTHON = "/usr/bin/python3"


class Bench:
    def __init__(self, directory: Path, server: str) -> None:
        self.directory = directory
        self.environment = {**os.environ, "DORMOUSE_ROOT": str(directory / "state"), "DORMOUSE_SNAPSHOTS": str(directory / "snapshots")}
        (directory / "snapshots").mkdir(mode=0o700)
        self.server = directory / "server.py"
        self.server.write_text(server)
        self.port = random.randrange(20000, 30000)
        self.running: list[tuple[str, int, subprocess.Popen[bytes]]] = []

    def dormouse(self, *words: str) -> str:
        return subprocess.run([str(DORMOUSE), *words], env=self.environment, check=True, capture_output=True, text=True).stdout

    def begin(self, *words: str) -> tuple[str, int]:
        """Begins a sandbox of `do`; result: its id and its port."""
        self.port += 1
        name = f"t{self.port}"
        options = [option.format(port=self.port) for option in words]
        begun = subprocess.Popen([str(DORMOUSE), "do", "--id", name, *options], env=self.environment, stdin=subprocess.DEVNULL,
                                 stdout=subprocess.DEVNULL)
        self.running.append((name, self.port, begun))
        return name, self.port

    def snapshot(self) -> str:
        name, port = self.begin("--", PYTHON, str(self.server), "{port}")
        self.first_port = port
        answer_of(port, "work")
        self.dormouse("checkpoint", "--name", name, name)
        self.end()
        self.dormouse("snapshot", "record", name, "--port", f"{port}={port + 5000}", "--", PYTHON, "-c", REQUEST, str(port + 5000))
        return name

    def clone(self, snapshot: str, share: str, *more: str) -> int:
        return self.begin("--from", snapshot, "--port", f"{self.first_port}={{port}}", "--share", share, *more)[1]

    def end(self) -> None:
        for name, _, _ in self.running:
            subprocess.run([str(DORMOUSE), "kill", name, "KILL"], env=self.environment, capture_output=True)
        for _, _, begun in self.running:
            begun.wait()
        self.running = []

    def kill(self, names: list[str]) -> None:
        """Ends sandboxes in the background, and waits until they are gone."""
        for name in names:
            subprocess.run([str(DORMOUSE), "kill", name, "KILL"], env=self.environment, capture_output=True)
        while set(names) & set(self.dormouse("list", "--quiet").split()):
            time.sleep(0.01)

    def pool_filled(self, snapshot: str, size: int) -> None:
        """Waits until a pool has all of its clones."""
        while True:
            done = subprocess.run([str(DORMOUSE), "pool", "--json", snapshot], env=self.environment, capture_output=True)
            if done.returncode == 0 and len(json.loads(done.stdout)["ready"]) == size:
                return
            time.sleep(0.02)

    def pss(self) -> float:
        """MiB of all processes of all sandboxes, each page divided by how many show it."""
        children: dict[int, list[int]] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                except OSError:
                    continue
                children.setdefault(parent, []).append(int(entry.name))
        total, todo = 0, [begun.pid for _, _, begun in self.running]
        while todo:
            pid = todo.pop()
            todo += children.get(pid, [])
            try:
                lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            except OSError:
                continue
            total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        return total / 1024


REQUEST = '''
import sys, time, urllib.request
while True:
    try:
        sys.exit(urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/work?xyz").status != 200)
    except OSError:
        time.sleep(0.001)
'''


def answer_of(port: int, what: str, patience: float = 60) -> object:
    until = time.monotonic() + patience
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/{what}", timeout=patience) as answer:
                return json.load(answer)
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.0005)


def drop_caches() -> None:
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3")


def read_sectors(device: int) -> int:
    wanted = [str(os.major(device)), str(os.minor(device))]
    rows = (line.split() for line in Path("/proc/diskstats").read_text().splitlines())
    return next((int(row[5]) for row in rows if row[:2] == wanted), 0)


def spread(values: list[float], unit: str) -> str:
    ordered = sorted(values)
    return f"{statistics.median(ordered):8.2f} {unit} ({ordered[0]:.2f} to {ordered[-1]:.2f})"
