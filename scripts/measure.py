"""What the figures are taken with: turns and ratios, what a tree of processes or a cgroup uses, and their end."""

import ctypes
import os
import re
import signal
import statistics
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


def switches(pids):
    """How often all threads of the processes have given up a processor so far."""
    total = 0
    for pid in pids:
        for status in Path(f"/proc/{pid}/task").glob("*/status"):
            try:
                total += sum(map(int, re.findall(r"ctxt_switches:\s+(\d+)", status.read_text())))
            except OSError:
                pass
    return total


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


def charge_bytes_of(directory):
    """Everything charged to a memory cgroup: pages of processes, of files read first in it, and of the kernel for it."""
    current = directory / "memory.current"
    if current.exists():
        return int(current.read_text())
    # memory.usage_in_bytes also counts what each CPU has set aside for it, up to 256 KiB, and is not exact for that reason
    # (the kernel's cgroup-v1/memory.rst, section 5.5).
    stat = dict(line.split() for line in (directory / "memory.stat").read_text().splitlines())
    kernel = int((directory / "memory.kmem.usage_in_bytes").read_text())
    return int(stat["total_rss"]) + int(stat["total_cache"]) + kernel


class MemoryCgroup:
    """A memory cgroup of our own for the processes started with `enter` as their `preexec_fn`; v1 or v2, else nothing.

    In version 2 the processes are one level below (`entrance`), so that sandboxes make theirs beside them, inside of ours.
    """

    HIERARCHIES = (("/sys/fs/cgroup/memory", "memory.usage_in_bytes"), ("/sys/fs/cgroup", "memory.current"))

    def __init__(self, name):
        self.path = self.entrance = None
        for top, counter in self.HIERARCHIES:
            path = Path(top) / f"dormouse-{name}-{os.getpid()}"
            try:
                path.mkdir()
            except OSError:
                continue
            if (path / counter).exists():
                self.path = self.entrance = path
                if counter == "memory.current":
                    self.entrance = path / "caller"
                    self.entrance.mkdir()
                    (path / "cgroup.subtree_control").write_text("+memory")
                return
            path.rmdir()

    def enter(self):
        if self.path:
            (self.entrance / "cgroup.procs").write_text("0")

    def pids(self):
        """The processes in it, and in the groups that they made below it."""
        return [int(pid) for group in self.path.rglob("cgroup.procs") for pid in group.read_text().split()]

    def charge_bytes(self):
        return charge_bytes_of(self.path) if self.path else None

    def remove(self):
        """The processes in it have ended."""
        for _ in range(100):
            try:
                if self.path:
                    if self.entrance != self.path and self.entrance.exists():
                        self.entrance.rmdir()
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


def ratio(results, figure, above, below):
    """The median of what `above` took in each turn over what `below` took in it."""
    pairs = zip(results[above].get(figure, []), results[below].get(figure, [])) if below in results else ()
    ratios = [a / b for a, b in pairs if a is not None and b]
    return f"{statistics.median(ratios):.2f}" if ratios else "–"


def in_turns(runners, results, seconds, least, most, measure):
    """At least `least` and at most `most` turns, for about `seconds`."""
    start, turns = time.monotonic(), 0
    while turns < least or (turns < most and (time.monotonic() - start) * (turns + 1) / turns < seconds):
        for name, words in runners.items():
            for figure, value in measure(words).items():
                results[name].setdefault(figure, []).append(value)
        turns += 1
