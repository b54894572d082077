"""What the figures are taken with: the memory of a tree of processes, what a cgroup is charged, and their end."""

import ctypes
import os
import re
import signal
import time
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans():
    """Makes processes whose parents end ours, so that none escapes `descendants`."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(of=None):
    """The processes below `of` (this one), without it."""
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                parents[int(entry)] = int(Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                pass
    top = of or os.getpid()
    found, grown = {top}, True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        found, grown = found | more, bool(more)
    return found - {top}


def pss_bytes(pids):
    """What the processes use, shared pages split among those that share them."""
    total = 0
    for pid in pids:
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
            total += int(re.search(r"^Pss:\s+(\d+)", rollup, re.M)[1]) * 1024
        except (OSError, TypeError):
            pass
    return total


def settled_pss_bytes():
    """The PSS of everything below this process once it has stopped moving."""
    last, same = -1, 0
    for _ in range(40):
        time.sleep(0.2)
        now = pss_bytes(descendants())
        same = same + 1 if abs(now - last) <= max(now // 200, 4096) else 0
        last = now
        if same >= 3:
            break
    return last


class MemoryCgroup:
    """A memory cgroup of our own for the processes started with `enter` as their `preexec_fn`; v1 or v2, else nothing."""

    HIERARCHIES = (("/sys/fs/cgroup/memory", "memory.usage_in_bytes"), ("/sys/fs/cgroup", "memory.current"))

    def __init__(self, name):
        self.path = self.counter = None
        for top, counter in self.HIERARCHIES:
            path = Path(top) / f"dormouse-{name}-{os.getpid()}"
            try:
                path.mkdir()
            except OSError:
                continue
            if (path / counter).exists():
                self.path, self.counter = path, counter
                return
            path.rmdir()

    def enter(self):
        if self.path:
            (self.path / "cgroup.procs").write_text("0")

    def charge_bytes(self):
        """Everything charged: pages of processes, of files read first in it, and of the kernel on their behalf."""
        return int((self.path / self.counter).read_text()) if self.path else None

    def remove(self):
        """The processes in it have ended."""
        for _ in range(100):
            try:
                if self.path:
                    self.path.rmdir()
                return
            except OSError:
                time.sleep(0.05)


def end_descendants():
    """Ends everything below this process, gently first."""
    for number, seconds in ((signal.SIGTERM, 2), (signal.SIGKILL, 5)):
        for pid in descendants():
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass
        until = time.monotonic() + seconds
        while descendants() and time.monotonic() < until:
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                pass
            time.sleep(0.02)
