"""Memory and messages that processes have in common."""
import ctypes
import fcntl
import mmap
import os
import select
import signal
import struct
import time

from calls import called, libc

IPC_PRIVATE, IPC_CREAT, IPC_NOWAIT, IPC_STAT = 0, 0o1000, 0o4000, 2
SEMAPHORES, GETVAL, SETVAL = 3, 12, 16


class Forks:
    """A tree of seven processes, each of which counts in memory they share, and a pipe from each to its parent."""

    def __init__(self):
        self.shared = mmap.mmap(-1, 4096)
        self.read, write = os.pipe()
        self.put(0, 12345)
        self.children = [self._fork(1 + number, 2, write) for number in range(2)]
        os.close(write)

    def put(self, slot, value):
        self.shared[slot * 8:slot * 8 + 8] = value.to_bytes(8, "little")

    def get(self, slot):
        return int.from_bytes(self.shared[slot * 8:slot * 8 + 8], "little")

    def _fork(self, slot, depth, write):
        pid = os.fork()
        if pid:
            return pid
        private = 0
        if depth:
            for number in range(2):
                self._fork(slot * 2 + 1 + number, depth - 1, write)
        while True:
            private += 1
            self.put(slot, private)
            self.put(100 + slot, os.getpid())
            if self.get(200 + slot):
                self.put(200 + slot, 0)
                os.write(write, bytes([slot]))
            time.sleep(0.005)

    SLOTS = (1, 2, 3, 4, 5, 6)

    def step(self):
        before = [self.get(slot) for slot in self.SLOTS]
        for slot in self.SLOTS:
            self.put(200 + slot, 1)
        told, end = set(), time.monotonic() + 5
        while len(told) < len(self.SLOTS) and time.monotonic() < end:
            if select.select([self.read], [], [], 0.1)[0]:
                told |= set(os.read(self.read, 64))
        assert told == set(self.SLOTS), f"only {told} write to the pipe"
        now = [self.get(slot) for slot in self.SLOTS]
        assert all(later >= then for later, then in zip(now, before)) and self.get(0) == 12345, f"{before} {now}"
        for child in self.children:
            assert os.waitpid(child, os.WNOHANG) == (0, 0), f"{child} has ended"
        return [self.get(100 + slot) for slot in self.SLOTS]

    def last(self):
        """A child ends, and its parent is told."""
        os.kill(self.children[0], signal.SIGTERM)
        pid, status = os.waitpid(self.children[0], 0)
        assert pid == self.children[0] and os.WTERMSIG(status) == signal.SIGTERM, status
        self.children = self.children[1:]


class SystemV:
    """A segment, a set of semaphores with somebody waiting at one, and a queue with messages."""

    def __init__(self):
        self.segment = called("shmget", IPC_PRIVATE, 65536, IPC_CREAT | 0o600)
        self.address = called("shmat", self.segment, None, 0)
        self.set = called("semget", IPC_PRIVATE, 2, IPC_CREAT | 0o600)
        self.queue = called("msgget", IPC_PRIVATE, IPC_CREAT | 0o600)
        self.turn = 0
        ctypes.memset(self.address, 7, 65536)
        self.send(b"first")
        self.child = os.fork()
        if not self.child:
            while True:
                # Waits for one, and says that it has it.
                self.operate(0, -1)
                self.operate(1, 1)

    def operate(self, number, change):
        called("semop", self.set, struct.pack("<Hhh", number, change, 0), 1)

    def send(self, text):
        called("msgsnd", self.queue, struct.pack("<q", 1) + text, len(text), IPC_NOWAIT)

    def receive(self):
        buffer = ctypes.create_string_buffer(256)
        count = called("msgrcv", self.queue, buffer, 128, 0, IPC_NOWAIT)
        return buffer.raw[8:8 + count]

    def step(self):
        text = ctypes.string_at(self.address, 65536)
        assert text == bytes([7]) * 65535 + bytes([7 if not self.turn else self.turn]), "the segment has other bytes"
        self.turn += 1
        ctypes.memset(self.address + 65535, self.turn, 1)
        message = self.receive()
        assert message == (b"first" if self.turn == 1 else b"of turn %d" % (self.turn - 1)), message
        self.send(b"of turn %d" % self.turn)
        assert libc.semctl(self.set, 0, GETVAL) == 0
        self.operate(0, 1)
        self.operate(1, -1)
        assert os.waitpid(self.child, os.WNOHANG) == (0, 0), "who waited has ended"
        return [self.segment, self.set, self.queue]


class PosixQueues:
    """A message queue with messages of several priorities, which somebody else waits at too."""

    def __init__(self):
        attributes = (ctypes.c_long * 8)(0, 8, 64)
        self.queue = called("mq_open", b"/snapshots", os.O_RDWR | os.O_CREAT, 0o600, attributes)
        self.turn = 0
        for priority in (1, 5, 3):
            called("mq_send", self.queue, b"priority %d" % priority, 10, priority)

    def _receive(self):
        buffer, priority = ctypes.create_string_buffer(64), ctypes.c_uint()
        count = called("mq_receive", self.queue, buffer, 64, ctypes.byref(priority))
        return priority.value, buffer.raw[:count]

    def step(self):
        got = [self._receive() for _ in range(3)]
        assert got == [(number, b"priority %d" % number) for number in (5, 3, 1)], got
        for number in (3, 1, 5):
            called("mq_send", self.queue, b"priority %d" % number, 10, number)
        again = called("mq_open", b"/snapshots", os.O_RDWR, 0, None)
        os.close(again)


class Memfd:
    """A file of memory with seals, mapped and as a descriptor."""

    def __init__(self):
        self.file = os.memfd_create("sealed", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
        self.open = os.memfd_create("open", os.MFD_ALLOW_SEALING)
        self.text = os.urandom(40000)
        os.write(self.file, self.text)
        self.seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
        fcntl.fcntl(self.file, fcntl.F_ADD_SEALS, self.seals)
        os.ftruncate(self.open, 8192)
        self.map = mmap.mmap(self.open, 8192)
        self.turn = 0

    def step(self):
        assert os.pread(self.file, 50000, 0) == self.text, "other bytes"
        assert fcntl.fcntl(self.file, fcntl.F_GET_SEALS) == self.seals, "other seals"
        for change in (lambda: os.pwrite(self.file, b"x", 0), lambda: os.ftruncate(self.file, 1)):
            try:
                change()
            except PermissionError:
                continue
            raise AssertionError("a sealed file was changed")
        assert self.map[:8] == self.turn.to_bytes(8, "little") == os.pread(self.open, 8, 0), "file and mapping differ"
        self.turn += 1
        self.map[:8] = self.turn.to_bytes(8, "little")
        assert os.pread(self.open, 8, 0) == self.map[:8], "what is written to the mapping is not in the file"
        assert os.readlink(f"/proc/self/fd/{self.file}") == "/memfd:sealed (deleted)"


class Pipes:
    """A full pipe with somebody who waits to write on, and one half read."""

    def __init__(self):
        self.full = os.pipe()
        self.half = os.pipe()
        os.write(self.half[1], bytes(range(200)) * 2)
        self.taken = 0
        self.child = os.fork()
        if not self.child:
            number = 0
            while True:
                os.write(self.full[1], number.to_bytes(8, "little") * 512)
                number += 1
        self.next = 0
        time.sleep(0.1)

    def step(self):
        for _ in range(20):
            block = b""
            while len(block) < 4096:
                block += os.read(self.full[0], 4096 - len(block))
            assert block == self.next.to_bytes(8, "little") * 512, f"block {self.next} is another one"
            self.next += 1
        got = os.read(self.half[0], 10)
        assert got == bytes((self.taken + number) % 200 for number in range(10)), got
        os.write(self.half[1], bytes((self.taken + 400 + number) % 200 for number in range(10)))
        self.taken += 10
