"""Control groups of a benchmark's own that count processor time and slow down reads, of version 1 or 2; and how fast reads
are."""

import mmap
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from disk import DEPTH
from lib.outcome import Failure

TOP = Path("/sys/fs/cgroup")
# As the VMM reads (`disk.BLOCKS`).
PIECE_BYTES = 512 << 10


class ProcessorTime:
    """Processor time of all that is and was in a sandbox's groups, threads that have ended included."""

    def __init__(self, cgroup):
        """`cgroup`: the sandbox's memory cgroup."""
        self.own = None
        if (TOP / "cpuacct").is_dir():
            self.own = TOP / "cpuacct" / cgroup.path.name
            self.own.mkdir()
        self.path = self.own or cgroup.path

    def enter(self):
        if self.own:
            (self.own / "cgroup.procs").write_text("0")

    def used_ns(self):
        usage = self.path / "cpuacct.usage"
        if usage.exists():
            return int(usage.read_text())
        return int((self.path / "cpu.stat").read_text().split()[1]) * 1000

    def remove(self):
        if self.own:
            remove(self.own)


def remove(group):
    """Removes a group whose processes are ending."""
    for _ in range(100):
        try:
            group.rmdir()
            return
        except OSError:
            time.sleep(0.05)


def disk_of(directory):
    """The numbers of the whole disk that holds a directory, as the block-I/O controllers name it."""
    number = os.stat(directory).st_dev
    device = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve()
    if not device.exists():
        raise Failure(f"cannot slow down reads of {directory}: it is not on a disk of its own; run where target/ is on one")
    if (device / "partition").exists():
        device = device.parent
    return (device / "dev").read_text().strip()


class SlowReads:
    """A group whose processes together read so many bytes a second from the disk of a directory."""

    def __init__(self, name, directory, bytes_per_second):
        self.rate, self.disk = bytes_per_second, disk_of(directory)
        old = TOP / "blkio"
        self.is_old = old.is_dir()
        self.path = (old if self.is_old else TOP) / f"dormouse-{name}-{os.getpid()}"
        try:
            if not self.is_old:
                (TOP / "cgroup.subtree_control").write_text("+io")
            self.path.mkdir()
            if self.is_old:
                (self.path / "blkio.throttle.read_bps_device").write_text(f"{self.disk} {self.rate}")
            else:
                self.limit(self.path)
        except OSError as error:
            raise Failure(f"cannot slow down reads by control groups: {error}; the kernel needs CONFIG_BLK_DEV_THROTTLING"
                          ) from None

    def limit(self, group):
        (group / "io.max").write_text(f"{self.disk} rbps={self.rate}")

    def enter(self):
        (self.path / "cgroup.procs").write_text("0")

    def take_in(self, cgroup):
        """Slows down this process, which is in a sandbox's memory cgroup. A group of version 2 is for every controller."""
        if self.is_old:
            self.enter()
        else:
            self.limit(cgroup.path)

    def must_hold(self, pids):
        """Fails if one of a sandbox's processes reads as fast as it likes. In version 2 its own group is limited."""
        if not self.is_old:
            return
        inside = {int(pid) for group in self.path.rglob("cgroup.procs") for pid in group.read_text().split()}
        if outside := set(pids) - inside:
            raise Failure(f"processes {outside} are not in the group that slows down reads")

    def remove(self):
        remove(self.path)


def write_file(file, size):
    with open(file, "wb") as out:
        for _ in range(0, size, 1 << 20):
            out.write(os.urandom(1 << 20))
        os.fsync(out.fileno())


def read_every(file, first, step, size):
    """Reads every so many pieces of a file, past the page cache."""
    descriptor, room = os.open(file, os.O_RDONLY | os.O_DIRECT), mmap.mmap(-1, PIECE_BYTES)
    try:
        for at in range(first * PIECE_BYTES, size, step * PIECE_BYTES):
            os.preadv(descriptor, [room], at)
    finally:
        os.close(descriptor)
        room.close()


def read_rate(file, size):
    """Bytes a second of a read from the beginning, some pieces at a time, as the VMM reads."""
    with ThreadPoolExecutor(DEPTH) as readers:
        # The threads are there before the clock runs.
        list(readers.map(time.sleep, [0.02] * DEPTH))
        begin = time.perf_counter()
        list(readers.map(lambda first: read_every(file, first, DEPTH, size), range(DEPTH)))
        return size / (time.perf_counter() - begin)


def rates_of(file, sizes, enter):
    """What a process that has entered a group reads a second, for reads of these sizes after a rest."""
    receiver, sender = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            enter()
            for size in sizes:
                time.sleep(0.5)
                os.write(sender, b"%d\n" % read_rate(file, size))
        finally:
            os._exit(0)
    os.close(sender)
    with open(receiver) as said:
        found = [int(line) for line in said]
    os.waitpid(child, 0)
    if len(found) != len(sizes):
        raise Failure(f"cannot read {file} to see how fast that is")
    return found
