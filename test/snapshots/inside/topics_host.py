"""Whatever a host has in its own way: processors, memory and its limits, and how calls are made on it."""
import ctypes
import mmap
import os

from calls import libc
from topics_tasks import Memory


class Heap(Memory):
    """As much memory as large servers have: 1 GB, each page with a pattern of its own."""

    PAGES = 1 << 18

    def step(self):
        if not self.turn[0]:
            # Before the pages are written.
            self.turn = [1] * self.PAGES
            return
        wrong = self._wrong()
        assert not wrong, f"pages {wrong[:10]} of {len(wrong)} are wrong"
        for page in range(0, self.PAGES, 1000):
            self.turn[page] += 1
            self._write(page)


class Growing:
    """Memory that is kept, and how much more there may be."""

    def __init__(self):
        self.first = os.urandom(1 << 20)
        self.kept = []

    def grow(self, megabytes):
        self.kept += [bytearray(self.first) for _ in range(megabytes)]

    def step(self):
        assert all(block == self.first for block in self.kept), "memory has changed"

    def fits(self, megabytes):
        """Whether a child can use so much. One that cannot is killed, and nobody else."""
        child = os.fork()
        if not child:
            with open("/proc/self/oom_score_adj", "w") as score:
                score.write("1000")
            try:
                block = mmap.mmap(-1, megabytes << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
                for at in range(0, megabytes << 20, 4096):
                    block[at] = 1
            except (MemoryError, OSError):
                os._exit(1)
            os._exit(0)
        return os.waitpid(child, 0)[1] == 0

    def limit(self):
        with open("/proc/meminfo") as rows:
            return int(rows.readline().split()[1]) * 1024


class Busy:
    """A process bound to each processor, all of which have to get on."""

    def __init__(self):
        self.cpus = sorted(os.sched_getaffinity(0))
        self.children = [self._begin(cpu) for cpu in self.cpus]

    def _begin(self, cpu):
        read, write = os.pipe()
        child = os.fork()
        if not child:
            os.sched_setaffinity(0, {cpu})
            while True:
                sum(range(10000))
                os.write(write, b"x")
        os.close(write)
        return read, child

    def step(self):
        for read, child in self.children:
            # The pipe is full, so one of them was written just now.
            for _ in range(2):
                assert os.read(read, 1 << 20).strip(b"x") == b""
            assert os.waitpid(child, os.WNOHANG) == (0, 0), "a process has ended"
            assert len(os.sched_getaffinity(child)) == 1, f"it may use {os.sched_getaffinity(child)}"
        return [sorted(os.sched_getaffinity(0)), os.cpu_count()]


class Patched:
    """Calls that were made so often that they are patched in this process's memory, and such that become so later."""

    NAMES = ("getppid", "getuid", "geteuid", "getgid", "getegid", "getpgrp", "getpid", "sched_yield")
    OFTEN = 500

    def __init__(self):
        self.results, self.turn = {}, 0
        self._call(self.NAMES[0])
        self.is_patched = self._text(self.NAMES[0]) != self._of_file(self.NAMES[0])

    def _call(self, name):
        found = {getattr(libc, name)() for _ in range(self.OFTEN)}
        wanted = self.results.setdefault(name, min(found))
        assert found == {wanted}, f"{name} gave {wanted}, and gives {found}"

    def _address(self, name):
        return ctypes.cast(getattr(libc, name), ctypes.c_void_p).value

    def _text(self, name):
        return ctypes.string_at(self._address(name), 16)

    def _of_file(self, name):
        address = self._address(name)
        with open("/proc/self/maps") as rows:
            for row in rows:
                span, _, offset, _, _, *path = row.split(maxsplit=5)
                begin, end = (int(part, 16) for part in span.split("-"))
                if begin <= address < end:
                    with open(path[0].strip(), "rb") as file:
                        return os.pread(file.fileno(), 16, address - begin + int(offset, 16))
        raise AssertionError(f"{name} is in no mapping")

    def step(self):
        self.turn += 1
        for name in self.NAMES[:self.turn + 1]:
            self._call(name)
            assert (self._text(name) != self._of_file(name)) == self.is_patched, f"{name} is patched, or is not"
        return self.is_patched
