"""Tasks, and what they wait for."""
import ctypes
import mmap
import os
import select
import signal
import struct
import threading
import time

from calls import CLOCK_REALTIME, Timer, called


class Plain:
    """A list that grows, and nothing else."""

    def __init__(self):
        self.list = []

    def step(self):
        self.list.append(len(self.list))
        assert self.list == list(range(len(self.list))), self.list
        return len(self.list)

    def status(self):
        return open("/proc/self/status").read()


class Memory:
    """Megabytes of pages, each with a pattern of its own, that are looked at as a whole."""

    PAGES = 3072

    def __init__(self):
        self.map = mmap.mmap(-1, self.PAGES * 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.turn = [0] * self.PAGES
        self.step()
        for page in range(self.PAGES):
            self._write(page)

    def _pattern(self, page):
        return struct.pack("<QQ", page, self.turn[page]) * 256

    def _write(self, page):
        self.map[page * 4096:(page + 1) * 4096] = self._pattern(page)

    def _wrong(self):
        return [page for page in range(self.PAGES) if self.turn[page] and self.map[page * 4096:(page + 1) * 4096] != self._pattern(page)]

    def step(self):
        wrong = self._wrong()
        assert not wrong, f"pages {wrong[:10]} of {len(wrong)} are wrong"
        for page in range(len(self.turn) % 7, self.PAGES, 3):
            self.turn[page] += 1
            self._write(page)
        return self.PAGES

    def some(self):
        """Looks at a few pages, and writes to them."""
        for page in range(0, self.PAGES, 64):
            assert not self.turn[page] or self.map[page * 4096:(page + 1) * 4096] == self._pattern(page), f"page {page} is wrong"
            self.turn[page] += 1
            self._write(page)
        return self.PAGES // 64


class Moving:
    """Numbers that are written all the time, page after page, in memory of several kinds. Each is what the one before it in the same
    place says: a page of another moment than the rest is found when it is its turn again. Memory comes and goes meanwhile."""

    PAGES = 4096
    KEPT = 32
    PART = 32 * 4096

    def __init__(self):
        size = self.PAGES * 4096
        self.own = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.shared = mmap.mmap(-1, size, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
        self.file = os.memfd_create("moving")
        os.truncate(self.file, size)
        self.parts, self.number, self.wrong = [], 0, None
        threading.Thread(target=self._move, daemon=True).start()

    def _move(self):
        try:
            while True:
                self._write(self.number)
                self.number += 1
        except Exception as why:
            self.wrong = repr(why)

    def _write(self, number):
        at = number % self.PAGES * 4096
        before = struct.pack("<Q", max(number - self.PAGES + 1, 0))
        now = struct.pack("<Q", number + 1)
        found = [self.own[at:at + 8], self.shared[at + 8:at + 16], os.pread(self.file, 8, at + 16)]
        assert found == [before] * 3, f"page {number % self.PAGES} in round {number // self.PAGES}: {found} instead of {before}"
        self.own[at:at + 8] = now
        self.shared[at + 8:at + 16] = now
        os.pwrite(self.file, now, at + 16)
        if number % 16 == 0:
            self._change_parts(now)

    def _change_parts(self, now):
        part = mmap.mmap(-1, self.PART, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        assert part[:] == bytes(self.PART), "new memory is not empty"
        part[:] = now * (self.PART // 8)
        self.parts.append((now, part))
        if len(self.parts) > self.KEPT:
            now, part = self.parts.pop(0)
            # What goes without a look here may be looked at where it was restored.
            assert os.urandom(1)[0] % 2 or part[:] == now * (self.PART // 8), "memory has changed by itself"
            part.close()

    def step(self):
        """Waits until every page has had its turn again."""
        end = self.number + 2 * self.PAGES
        while self.number < end and not self.wrong:
            time.sleep(0.01)
        assert not self.wrong, self.wrong
        return self.number


class Waiters:
    """Threads in sleeps, on futexes, in epoll with an eventfd, a timerfd and a signalfd."""

    def __init__(self):
        # Inherited by all: signals come by the descriptor.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
        self.counts, self.tids = [0] * 4, [0] * 4
        self.condition, self.epoch, self.woken = threading.Condition(), 0, 0
        self.event, self.timer = os.eventfd(0, os.EFD_NONBLOCK), Timer()
        mask = (ctypes.c_ulong * 16)(1 << (signal.SIGUSR1 - 1))
        self.signals = called("signalfd", -1, mask, os.O_NONBLOCK)
        self.seen = {"event": 0, "timer": 0, "signal": 0}
        for number in range(4):
            threading.Thread(target=self._count, args=(number,), daemon=True).start()
        for target in (self._wait, self._poll):
            threading.Thread(target=target, daemon=True).start()
        self.timer.arm(0.05, every=0.05)

    def _count(self, number):
        self.tids[number] = threading.get_native_id()
        while True:
            self.counts[number] += 1
            time.sleep(0.005)

    def _wait(self):
        while True:
            with self.condition:
                self.condition.wait_for(lambda: self.epoch > self.woken)
                self.woken = self.epoch

    def _poll(self):
        poll = select.epoll()
        names = {self.event: "event", self.timer.fd: "timer", self.signals: "signal"}
        for file in names:
            poll.register(file, select.EPOLLIN | select.EPOLLET)
        while True:
            for file, _ in poll.poll():
                data = os.read(file, 128)
                self.seen[names[file]] += int.from_bytes(data[:8], "little") if file != self.signals else 1

    def step(self):
        before, seen = list(self.counts), dict(self.seen)
        with self.condition:
            self.epoch += 1
            self.condition.notify_all()
        os.eventfd_write(self.event, 3)
        os.kill(os.getpid(), signal.SIGUSR1)
        end = time.monotonic() + 5
        while time.monotonic() < end:
            if (all(now > then for now, then in zip(self.counts, before)) and self.woken == self.epoch
                    and self.seen["event"] == seen["event"] + 3 and self.seen["signal"] == seen["signal"] + 1
                    and self.seen["timer"] > seen["timer"]):
                return self.tids
            time.sleep(0.01)
        raise AssertionError(f"counts {before} {self.counts}, epoch {self.epoch} {self.woken}, descriptors {seen} {self.seen}")


class Clocks:
    """Monotonic time that is looked at all the time, and timers that are due while nothing runs."""

    def __init__(self):
        self.last, self.back, self.fired = time.monotonic(), 0.0, 0
        self.timers = [Timer(), Timer(CLOCK_REALTIME)]
        self.slept = 0
        signal.signal(signal.SIGALRM, self._alarm)
        threading.Thread(target=self._look, daemon=True).start()

    def _alarm(self, *_):
        self.fired += 1

    def _look(self):
        while True:
            now = time.monotonic()
            self.back = max(self.back, self.last - now)
            self.last = now
            time.sleep(0.0005)

    def arm(self, seconds):
        self.fired, self.slept = 0, 0
        signal.setitimer(signal.ITIMER_REAL, seconds)
        self.timers[0].arm(seconds)
        self.timers[1].arm(time.time() + seconds, absolute=True)
        self.armed = time.monotonic()
        threading.Thread(target=self._sleep, args=(seconds,), daemon=True).start()
        return self.armed

    def _sleep(self, seconds):
        time.sleep(seconds)
        self.slept += 1

    def fired_once(self, seconds):
        """Each timer, once, and none before its time."""
        end = time.monotonic() + seconds + 5
        times = [0, 0]
        while time.monotonic() < end:
            for number, timer in enumerate(self.timers):
                times[number] += timer.fired()
            if times == [1, 1] and self.fired and self.slept:
                break
            time.sleep(0.01)
        passed = time.monotonic() - self.armed
        time.sleep(0.2)
        times = [before + timer.fired() for before, timer in zip(times, self.timers)]
        assert times == [1, 1] and self.fired == 1 and self.slept == 1, f"timerfd {times}, alarm {self.fired}, sleep {self.slept}"
        assert self.back <= 0, f"monotonic time stepped back by {self.back} s"
        return passed

    def nap(self, seconds):
        before = time.monotonic()
        time.sleep(seconds)
        assert time.monotonic() - before >= seconds, f"a sleep of {seconds} s took {time.monotonic() - before} s"

    def now(self):
        assert self.back <= 0, f"monotonic time stepped back by {self.back} s"
        return [time.monotonic(), time.time(), time.clock_gettime(time.CLOCK_BOOTTIME)]

    def step(self):
        return self.now()


class Randomness:
    """Numbers that clones must not have in common, and such that they have."""

    def __init__(self):
        self.equal = os.urandom(8).hex()

    def step(self):
        texts = {name: open(f"/proc/sys/kernel/random/{name}").read().strip() for name in ("boot_id", "uuid")}
        return {"getrandom": os.getrandom(32).hex(), "urandom": open("/dev/urandom", "rb").read(16).hex(), **texts, "kept": self.equal}
