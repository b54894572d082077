"""Sandboxes whose pages stay in memory while they sleep: packed, or as differences from a snapshot that is held."""
import errno
import hashlib
import inspect
import itertools
import json
import mmap
import os
import random
import signal
import subprocess
import threading
import time
from contextlib import contextmanager
from pathlib import Path

from bases import hold, keepers, lose
from forks import end, fork
from lib.network import free_port
from lib.outcome import Skip, check
from lib.tree import DORMOUSE
from lib.waiting import comes, until
from pods import annotated
from pools import Pool
from refusals import small_disk
from sandboxes import Sandbox
from seals import new_key
from world import ANSWER_SECONDS, PYTHON, World, ask_line

PAGE = 4096
COUNT = 1500
CLONES = 50
MOVES = 60
PATIENCE = 30
NUMBERS = itertools.count()


def few(world):
    """How often these cases try, each of which tries several kinds of sandboxes."""
    return (world.rounds + 2) // 3


class Pages:
    """Pages of all kinds, and changes to them that follow from a word: here they are what they must be in a sandbox."""

    def __init__(self, seed, count, beside=0):
        self.seed, self.count, self.steps = seed, count, 0
        self.memory = mmap.mmap(-1, count * 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.beside = [hashlib.shake_128(f"{seed} {piece}".encode()).digest(1 << 20) for piece in range(beside)]
        rng = random.Random(seed)
        for page in range(count):
            self.put(page, self.content(rng, page % 6))

    def put(self, page, content):
        self.memory[page * 4096:page * 4096 + 4096] = content

    def page(self, page):
        return self.memory[page * 4096:page * 4096 + 4096]

    def content(self, rng, kind):
        number = rng.getrandbits(64)
        if kind == 0:
            return bytes(4096)
        if kind == 1:
            return number.to_bytes(8, "little") * 512
        if kind == 2:
            return (f"a line of {number}, as text is\n" * 400).encode()[:4096]
        if kind == 3:
            return b"".join((number + at * 4711).to_bytes(8, "little") for at in range(512))
        return hashlib.shake_128(str(number).encode()).digest(4096)

    def step(self, word):
        rng = random.Random(word)
        for _ in range(30):
            page, way = rng.randrange(self.count), rng.randrange(8)
            if way < 3:
                at = page * 4096 + rng.randrange(4000)
                self.memory[at:at + 8] = rng.getrandbits(64).to_bytes(8, "little")
            elif way == 3:
                self.put(page, self.page(rng.randrange(self.count)))
            else:
                self.put(page, self.content(rng, way - 4))
        self.steps += 1

    def digest(self):
        beside = hashlib.sha256()
        for piece in self.beside:
            beside.update(piece)
        return hashlib.sha256(self.memory).hexdigest() + beside.hexdigest()[:16]

    def digests(self):
        return [hashlib.sha256(self.page(page)).hexdigest()[:8] for page in range(self.count)]


SERVES = """
def answer(verb, word):
    said = {} if verb == "hello" else {"before": pages.digest()}
    if verb == "step":
        pages.step(word)
        said["after"] = pages.digest()
    elif verb == "pages":
        said["pages"] = pages.digests()
    elif verb == "drop":
        pages.beside = []
    return {**said, "steps": pages.steps}

pages = Pages(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])), backlog=64)
while True:
    client, _ = listener.accept()
    # Connections do not outlive a restore.
    with client, contextlib.suppress(OSError):
        verb, _, word = client.makefile().readline().strip().partition(" ")
        client.sendall(json.dumps(answer(verb, word)).encode() + b"\\n")
"""
PROGRAM = f"import contextlib, hashlib, json, mmap, random, socket, sys\n\n{inspect.getsource(Pages)}\n{SERVES}"


class Stamped:
    """A sandbox whose program has such pages, asked at a port, and a likeness of them."""

    def __init__(self, world, name, port, pages):
        self.world, self.id, self.port, self.pages = world, name, port, pages
        # By how often they were changed.
        self.history = {pages.steps: pages.digest()}

    def asked(self, line):
        return json.loads(ask_line(self.port, line, PATIENCE))

    def verify(self, said, found, wanted):
        if found != wanted:
            are, must = self.asked("pages")["pages"], self.pages.digests()
            wrong = [page for page, (one, other) in enumerate(zip(are, must)) if one != other]
            check(False, f"after {said['steps']} steps {self.id} has {len(wrong)} wrong pages now, {wrong[:10]}; its home is {self.home()}")

    def look(self):
        """Has all pages read."""
        said = self.asked("look")
        check(said["steps"] == self.pages.steps, f"{self.id} had {said['steps']} steps, not {self.pages.steps}")
        self.verify(said, said["before"], self.pages.digest())
        return self

    def step(self):
        """Has all pages read, some of them changed, and all read again."""
        word = f"{self.id} {self.pages.steps}"
        said, before = self.asked(f"step {word}"), self.pages.digest()
        self.pages.step(word)
        self.history[self.pages.steps] = self.pages.digest()
        check(said["steps"] == self.pages.steps, f"{self.id} had {said['steps']} steps, not {self.pages.steps}")
        self.verify(said, said["after"], self.pages.digest())
        check(said["before"] == before, f"{self.id} had wrong pages before step {self.pages.steps}, and all right ones after it")
        return self

    def sleep(self):
        self.world.dormouse("hibernate", self.id)
        return self.home()

    def sleep_in_memory(self):
        """Result: where its pages are."""
        home = self.sleep()
        check(home["home"] == "memory" and home["memory_pages"] > 0 and home["memory_bytes"] > 0 and home["disk_bytes"] == 0,
              f"asleep, {self.id} has its home at {home}")
        return home

    def home(self, *to):
        """Where its pages are, once none moves."""
        ask = ["home", self.id, "--json"]
        state = json.loads(self.world.dormouse(*ask, *to).stdout)
        deadline = time.monotonic() + PATIENCE
        while state["is_moving"]:
            check(time.monotonic() < deadline, f"pages of {self.id} move for ever: {state}")
            time.sleep(0.01)
            state = json.loads(self.world.dormouse(*ask).stdout)
        return state

    def counts(self):
        return {name: count for name, count in json.loads(self.world.dormouse("stats", "--json", self.id).stdout)["home"].items()
                if name.startswith("memory_")}

    def end(self):
        self.world.dormouse("kill", self.id, "KILL")
        until(f"the end of {self.id}", lambda: self.world.status(self.id) in ("", "stopped"), ANSWER_SECONDS)
        # One that `do` began goes by itself.
        self.world.dormouse("delete", "--force", self.id, code=None)


def likeness(pages):
    """The same pages once more."""
    other = Pages(pages.seed, 1)
    other.count, other.steps, other.beside = pages.count, pages.steps, pages.beside
    other.memory = mmap.mmap(-1, pages.count * PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    other.memory[:] = pages.memory[:]
    return other


def new_id(world):
    return f"{world.tag}-{world.directory.name.rpartition('.')[2]}-m{next(NUMBERS)}"


def put_program(container):
    (container.srv / "stamped.py").write_text(PROGRAM)


def contained(world, *options, seed="one", **more):
    """A container with stamped pages; result: also what answers."""
    container = world.container(PYTHON, "/srv/stamped.py", "{port}", seed, COUNT, 0, **more)
    put_program(container)
    container.begin(*options)
    return container, Stamped(world, container.id, container.port, Pages(seed, COUNT)).look()


def done(world, *options, seed="one", beside=0):
    """A sandbox of `do` with stamped pages."""
    port = free_port()
    sandbox = world.add(Sandbox(world, (PYTHON, "-c", PROGRAM, port, seed, COUNT, beside), *options, root=False))
    sandbox.begin()
    return Stamped(world, sandbox.id, port, Pages(seed, COUNT, beside)).look()


def begin_held(world, by_do=False):
    """A snapshot that is held, the container that it is of, which has ended, and what answered; or of a sandbox of `do`."""
    container, first = (None, done(world)) if by_do else contained(world)
    first.step()
    name = f"{first.id}.first"
    world.dormouse("checkpoint", "--name", name, first.id)
    if container:
        container.delete()
    world.dormouse("snapshot", "hold", name)
    return container, name, first


def of_snapshot(first, name, *options, container=None):
    """A clone, by `do` or as a container."""
    world, port, new = first.world, free_port(), new_id(first.world)
    words = ("--port", f"{first.port}={port}", "--swap-dir", world.swap, "--changed-files", "accept", *options)
    if container is None:
        said = world.dormouse("do", "--from", name, "--detach", "--id", new, *words).stdout.split()
        check(said == [new, f"{first.port}={port}"], f"do --from says {said}")
    else:
        world.launch("restore", "--detach", "--snapshot", name, "--bundle", container.bundle, *words, new, log=container.log)
    return Stamped(world, new, port, likeness(first.pages))


@contextmanager
def events_of(one):
    """Writes down what a sandbox tells; result: what gives the events so far."""
    log = one.world.directory / f"{one.id}.events"
    with open(log, "wb") as output, subprocess.Popen(
            [str(DORMOUSE), "events", one.id], stdin=subprocess.DEVNULL, stdout=output, env={**os.environ, **one.world.environment}) as command:
        try:
            until("a first event", lambda: b"\n" in log.read_bytes(), ANSWER_SECONDS)
            yield lambda: [json.loads(line) for line in log.read_text().split("\n")[:-1]]
        finally:
            command.kill()


@contextmanager
def own_disk(world, size):
    """What sleeps on a disk does so on one of so many bytes."""
    kept = world.swap
    with small_disk(world, size) as world.swap:
        try:
            yield world.swap
        finally:
            world.swap = kept


def moves_in(events):
    return [event["moved"] for event in events() if "moved" in event]


def bytes_in(disk):
    found = os.statvfs(disk)
    return (found.f_blocks - found.f_bfree) * found.f_frsize


@contextmanager
def filled_up(disk):
    """A disk on which no page has room."""
    filler = disk / "filler"
    with open(filler, "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(PAGE))
        except OSError as why:
            check(why.errno == errno.ENOSPC, why)
    try:
        yield
    finally:
        filler.unlink()


def clones(world):
    """Clones are asked and sleep in turn; what they have in common with their snapshot takes no memory of theirs, and nothing a disk's."""
    container, name, first = begin_held(world)
    for share in ("none", "snapshot"):
        for of_bundle in (None, container):
            one = of_snapshot(first, name, "--share", share, "--home", "memory", container=of_bundle)
            one.look()
            for _ in range(4 * few(world)):
                home = one.step().sleep_in_memory()
                check(home["memory_bytes"] * 2 < home["memory_pages"] * PAGE, f"with --share {share} it has {home}")
            counts = one.counts()
            check(counts["memory_xor_pages"] > 0 and counts["memory_xor_pages"] + counts["memory_elsewhere_pages"]
                  + counts["memory_packed_pages"] > 30, f"with --share {share} it counts {counts}")
            world.notes.append(f"{home['memory_pages']} pages in {home['memory_bytes'] >> 10} KiB")
            one.look()
            world.dormouse("hibernate", one.id)
            world.dormouse("wake", one.id)
            one.look().end()
            world.check_gone(one.id)


def without_a_disk(world):
    """One that sleeps in memory wakes without the snapshot's files, the page cache, and room on the disk; and sleeps again."""
    container, name, first = begin_held(world)
    with own_disk(world, 64 << 20) as disk:
        ones = [of_snapshot(first, name, "--share", share, "--home", "memory", container=of_bundle)
                for share in ("none", "snapshot") for of_bundle in (None, container)]
        ones.append(done(world, "--home", "memory"))
        for one in ones:
            one.step().sleep_in_memory()
        lose(world, name)
        Path("/proc/sys/vm/drop_caches").write_text("3\n")
        with filled_up(disk):
            for _ in range(few(world)):
                for one in ones:
                    one.step()
                for one in ones:
                    one.sleep_in_memory()
                Path("/proc/sys/vm/drop_caches").write_text("3\n")
        for one in ones:
            one.step().sleep_in_memory()
            one.look()
            one.end()


def plain(world):
    """A sandbox that begins with no snapshot sleeps some hundred times, and nothing goes to its swap directory."""
    with own_disk(world, 256 << 20) as disk:
        one = done(world, "--home", "memory")
        before = bytes_in(disk)
        for sleep in range(6 * (world.cycles // 2)):
            one.sleep_in_memory()
            check(bytes_in(disk) == before, f"at sleep {sleep} the disk has {bytes_in(disk) - before} bytes more")
            if sleep % 5:
                one.step()
            else:
                check(one.asked("hello")["steps"] == one.pages.steps, "it has begun anew")
        counts = one.counts()
        check(counts["memory_same_pages"] == counts["memory_xor_pages"] == counts["memory_elsewhere_pages"] == 0, f"it counts {counts}")


def on_a_base(world):
    """Another start of a program is kept as differences from a snapshot that is held, also once that is released, or its keeper gone."""
    name = begin_held(world)[1]
    container, inside = contained(world, "--home", "memory", "--base", name)
    ones = [done(world, "--home", "memory", "--base", name), done(world, "--home", "memory", "--base", name, seed="two"), inside]
    for turn in range(2 * few(world)):
        homes = [one.step().sleep_in_memory() for one in ones]
        for one, home in zip(ones, homes):
            counts = one.counts()
            check(counts["memory_xor_pages"] + counts["memory_elsewhere_pages"] > 100, f"at turn {turn} {one.id} counts {counts}")
            check(home["memory_bytes"] < home["memory_pages"] * PAGE, f"{one.id} has {home}")
        if turn == 1:
            world.notes.append("; ".join(f"{home['memory_pages']} pages in {home['memory_bytes'] >> 10} KiB" for home in homes))
            (keeper,) = keepers(world)
            os.kill(keeper, signal.SIGKILL)
            until("it to be gone", lambda: not keepers(world), ANSWER_SECONDS)
        if turn == 3:
            hold(world, name)
            ones.append(done(world, "--home", "memory", "--base", name))
            world.dormouse("snapshot", "release", name)
            world.dormouse("snapshot", "remove", name)
            until("its keeper to be gone", lambda: not keepers(world), ANSWER_SECONDS)
    for one in ones:
        one.look()
    container.close()


class Asking(threading.Thread):
    """Asks a sandbox now and then, so often at most."""

    def __init__(self, one, verb, pause, most=1 << 30):
        super().__init__(daemon=True)
        self.one, self.verb, self.pause, self.most = one, verb, pause, most
        self.times, self.over, self.failure = 0, threading.Event(), None

    def run(self):
        rng = random.Random(self.one.id)
        try:
            while self.times < self.most and not self.over.wait(rng.uniform(0, self.pause)):
                self.verb()
                self.times += 1
        except Exception as failure:
            self.failure = failure

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, kind, *_):
        self.over.set()
        self.join(2 * PATIENCE)
        if self.failure and kind is None:
            raise self.failure


def moved_by_order(world):
    """Pages move again and again while it sleeps, and while it wakes; on a full disk they stay where they are."""
    container, name, first = begin_held(world)
    with own_disk(world, 128 << 20) as disk:
        ones = [of_snapshot(first, name, "--share", "snapshot", "--home", "memory"),
                of_snapshot(first, name, "--share", "none", "--home", "memory", container=container),
                done(world, "--home", "memory"), done(world)]
        for one in ones:
            rng = random.Random(one.id)
            one.step().sleep()
            for _ in range(few(world)):
                for _ in range(2):
                    there = one.home("disk")
                    check(there["home"] == "disk" and there["memory_pages"] == 0 and there["disk_bytes"] > 0, f"{one.id} has {there}")
                    back = one.home("memory")
                    check(back["home"] == "memory" and back["memory_pages"] > 0 and back["disk_bytes"] == 0, f"{one.id} has {back}")
                one.step().sleep_in_memory()
                one.home("disk")
                home = one.step().sleep()
                check(home["home"] == "disk" and home["memory_pages"] == 0 and home["disk_bytes"] > 0, f"ordered to the disk, it has {home}")
                check(one.home("memory")["disk_bytes"] == 0, "some pages stay on the disk")
            asleep = 0
            with Asking(one, one.step, 0.15) as asking:
                for _ in range(MOVES):
                    asleep += world.dormouse("hibernate", one.id, code=None).returncode == 0
                    for _ in range(rng.randrange(3)):
                        one.home(rng.choice(("disk", "memory")))
                    # Nothing else does so if it has been asked before it slept.
                    if rng.randrange(2) or not asleep:
                        world.dormouse("wake", one.id, code=None)
                world.dormouse("wake", one.id, code=None)
            check(asleep > MOVES // 8 and asking.times > MOVES // 8, f"it slept {asleep} times, and was asked {asking.times} times")
            world.notes.append(f"{asleep} sleeps and {asking.times} requests")
            one.look()
            one.home("memory")
            one.sleep_in_memory()
            with filled_up(disk):
                why = world.refused("home", one.id, "disk", says=("cannot move the pages", one.id, "No space left"))
                one.step()
                one.home("memory")
                one.sleep_in_memory()
                one.step()
            check(len(why) < 300, why)
            one.sleep_in_memory()
            check(one.home("disk")["memory_pages"] == 0, f"with room again, it has {one.home()}")
            one.step()
            # Room for other ones.
            one.end()


def ordered_at_once(world):
    """Of orders that come at once one is the last: all pages are where it says, and content is right."""
    one = done(world, "--home", "memory")
    one.step().sleep_in_memory()
    rng = random.Random(1)
    for turn in range(5 * few(world)):
        orders = [subprocess.Popen([str(DORMOUSE), "home", one.id, rng.choice(("disk", "memory"))], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env={**os.environ, **world.environment}) for _ in range(5)]
        said = [(order.communicate(timeout=PATIENCE)[1], order.returncode) for order in orders]
        check(all(code == 0 for _, code in said), f"orders say {said}")
        home = one.home()
        check(home["memory_pages" if home["home"] == "disk" else "disk_bytes"] == 0, f"after orders at once {turn} it has {home}")
        if turn % 3 == 2:
            one.step().sleep()
    one.look()


def to_disk(events):
    return [told for told in moves_in(events) if told["to"] == "disk"]


def demoted(world):
    """Pages go to the disk after a time asleep, and the next sleep begins in memory; of one that wakes before none does."""
    container, name, first = begin_held(world)
    ones = [of_snapshot(first, name, "--home", "memory,disk:200ms"), of_snapshot(first, name, "--home", "memory,disk:200ms", container=container),
            done(world, "--home", "memory,disk:200ms")]
    for one in ones:
        with events_of(one) as events:
            for turn in range(1, 2 * few(world)):
                one.step().sleep()
                # What stayed on the disk comes to memory before.
                until("its move", lambda: len(to_disk(events)) == turn, PATIENCE)
                told = to_disk(events)[-1]
                check(told["why"] == "time" and told["moved_pages"] > 0 and told["left_bytes"] == 0, f"it tells {told}")
                home = one.home()
                check(home["home"] == "memory" and home["memory_pages"] == 0 and home["disk_bytes"] > 0, f"moved, it has {home}")
        one.look().end()
    one = done(world, "--home", "memory,disk:3s")
    with events_of(one) as events:
        slowest = 0.0
        for _ in range(few(world)):
            since = time.monotonic()
            one.step().sleep_in_memory()
            one.step()
            # A machine that is busy may be slower than that.
            slowest = max(slowest, time.monotonic() - since)
            time.sleep(1)
            check(not to_disk(events) or slowest > 3, f"one that woke before has {to_disk(events)}")
        time.sleep(3)
        check(not to_disk(events) or slowest > 3, f"awake, it has {to_disk(events)}")
        one.sleep_in_memory()
        until("its move", lambda: any(told["why"] == "time" and told["moved_pages"] > 0 for told in to_disk(events)), PATIENCE)
    one.look()


# Reads pages of a file that have no room together in its control group, so that it waits for memory most of the time.
THRASH = """
import mmap, os, random, sys
file = os.open(sys.argv[1], os.O_RDONLY)
pages = mmap.mmap(file, 0, prot=mmap.PROT_READ)
pages.madvise(mmap.MADV_RANDOM)
while True:
    pages[random.randrange(len(pages))]
"""
MEMORY_GROUPS = Path("/sys/fs/cgroup/memory")


@contextmanager
def short_of_memory(place):
    """Tasks of the host wait for memory: four that have a group of 16 MiB to themselves, for as long as this lasts, and 30 s at most."""
    group, big = MEMORY_GROUPS / f"dormouse-test-{os.getpid()}", place / "big"
    group.mkdir()
    tasks: list[subprocess.Popen[bytes]] = []
    try:
        (group / "memory.limit_in_bytes").write_text(str(16 << 20))
        with open(big, "wb") as file:
            os.truncate(big, 0)
            for _ in range(128):
                file.write(os.urandom(1 << 20))
            file.flush()
            os.fsync(file.fileno())
            # What is in the page cache is charged to who wrote it.
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        enter = 'echo $$ > "$1/cgroup.procs" && exec timeout 30 "$2" -c "$3" "$4"'
        tasks = [subprocess.Popen(["/bin/sh", "-c", enter, "sh", group, PYTHON, THRASH, big]) for _ in range(4)]
        yield
    finally:
        for task in tasks:
            task.terminate()
            task.wait()
        until("an empty group", lambda: not (group / "cgroup.procs").read_text().strip(), PATIENCE)
        group.rmdir()
        big.unlink()


def pressed(world):
    """Where tasks of the host wait for memory, sleepers that look for that go to the disk, and no others."""
    if not Path("/proc/pressure/memory").exists() or not (MEMORY_GROUPS / "memory.limit_in_bytes").exists():
        raise Skip("this host has no /proc/pressure/memory, or no memory groups of version 1")
    looks, other = (done(world, "--home", "memory", *more) for more in (("--memory-pressure", "3"), ()))
    with events_of(looks) as events:
        for one in (looks, other):
            one.step().sleep_in_memory()
        with short_of_memory(world.swap):
            until("its move", lambda: to_disk(events), 30)
        told = to_disk(events)[-1]
        check(told["why"] == "pressure" and told["moved_pages"] > 0, f"it tells {told}")
    check(other.home()["memory_pages"] > 0, f"one that does not look has {other.home()}")
    for one in (looks, other):
        one.step().look()


def refused_in_words(world):
    """What cannot be is refused in words, and leaves nothing."""
    container, _ = contained(world)
    name, _ = container.checkpoint(leave=True)
    held, _ = container.checkpoint()
    container.delete()
    before, new = world.ids(), f"{container.id}-x"
    hold(world, held)
    from_it = ("restore", "--detach", "--bundle", container.bundle, "--swap-dir", world.swap, "--port", f"{container.port}={free_port()}")
    do = ("do", "--swap-dir", world.swap, "--id", new)
    run = ("run", "--detach", "--bundle", container.bundle, "--swap-dir", world.swap)
    for home in ("memory", "memory,disk:1s"):
        world.refused(*from_it, "--snapshot", name, "--home", home, new, says=(name, "not held", "snapshot hold"))
        world.refused(*do, "--from", name, "--home", home, says=(name, "not held", "snapshot hold"))
        for words in ((*do, "--home", home, "--encrypt", "on", "--", "/bin/true"), (*run, "--home", home, "--encrypt", "on", new),
                      (*from_it, "--snapshot", held, "--home", home, "--encrypt", "on", new)):
            world.refused(*words, says=("encrypted", "--home"))
    with Pool(world, name, 1, "--home", "memory") as pool:
        until("its end", lambda: pool.command.poll() is not None or "not held" in pool.log.read_text(), PATIENCE)
        check("not held" in pool.log.read_text() and pool.log.read_text().count("\n") == 1, f"a pool says {pool.log.read_text()!r}")
    for base, says in (("nobody", "there is none"), (name, "not held")):
        world.refused(*do, "--home", "memory", "--base", base, "--", "/bin/true", says=(base, says))
        world.refused(*run, "--home", "memory", "--base", base, new, says=(base, says))
        world.refused(*from_it, "--snapshot", held, "--home", "memory", "--base", base, new, says=(base, says))
    for option, values in (("--home", ("ram", "memory,disk", "memory,disk:", "disk:5s", "memory,memory", "", "Memory")),
                           ("--memory-pressure", ("0", "101", "x", "-1", ""))):
        for value in values:
            said = world.dormouse("do", f"{option}={value}", "--", "/bin/true", code=None)
            words = said.stderr.splitlines()
            check(said.returncode > 0 and option in words[0] and "panicked" not in said.stderr, f"{option}={value} says {said.stderr!r}")
            check(value in words[0] and ("give" in words[0] or "time" in words[0]), f"{option}={value} says {words[0]!r}")
    check(world.ids() == before, f"there are {world.ids() - before}")
    world.check_gone(new)
    key = new_key(world)
    sealed = done(world, "--encrypt", "on")
    sealed.sleep()
    for _ in range(2):
        world.refused("home", sealed.id, "memory", says=(sealed.id, "encrypted"))
        sealed.step()
    world.dormouse("checkpoint", "--name", "sealed", "--key-file", key, "--leave-running", sealed.id, code=None)
    world.refused("home", "nobody", says=("nobody",))
    world.refused("home", "nobody", "disk", says=("nobody",))
    world.refused("home", new, "memory", says=(new,))
    check("possible values" in world.dormouse("home", sealed.id, "ram", code=None).stderr, "it goes to ram")


def generations_in_memory(world):
    """Clones of clones, each of which sleeps in memory: by checkpoints, held each, and by forks; all see the same."""
    for by_do in (False, True):
        container, name, one = begin_held(world, by_do)
        first, sleeps, turn = name, 0, 0
        while sleeps < (world.cycles // 2):
            turn += 1
            options = ("--share", "snapshot" if turn % 2 else "none", "--home", "memory", *(("--base", first) if turn % 3 == 2 else ()))
            one = of_snapshot(one, name, *options, container=container).look()
            # Changes to files of a sandbox of `do` are built on 32 snapshots at most.
            for _ in range(max(5, world.cycles // 48)):
                one.sleep_in_memory()
                one.step()
                sleeps += 1
            if turn % 2:
                one.sleep_in_memory()
            forked(one)
            one.look()
            if turn % 3:
                # Most of its pages are away, or all.
                one.sleep_in_memory()
                if turn % 3 == 1:
                    one.asked("hello")
            last, name = name, f"{by_do}{turn}"
            world.dormouse("checkpoint", "--name", name, one.id)
            comes(lambda: world.status(one.id) in ("", "stopped"), ANSWER_SECONDS)
            world.dormouse("delete", "--force", one.id, code=None)
            world.dormouse("snapshot", "verify", name)
            if last != first:
                world.dormouse("snapshot", "release", last)
                world.dormouse("snapshot", "remove", last)
            world.dormouse("snapshot", "hold", name)
        for each in (first, name):
            world.dormouse("snapshot", "release", each)
        world.notes.append(f"{turn} generations, {sleeps} sleeps")


def forked(one):
    """A clone of one that may sleep has the same pages, and goes on alone."""
    port = free_port()
    (clone,) = fork(one.world, one.id, "--port", f"{one.port}={port}")
    twin = Stamped(one.world, clone, port, likeness(one.pages)).look()
    for _ in range(2):
        twin.sleep()
        twin.step()
    twin.look()
    end(one.world, [clone])


def written_from_memory(world):
    """Snapshots of sleepers in memory, and of one that woke and has most of its pages away, are whole; programs go on meanwhile."""
    ones = []
    for by_do, share in ((False, "none"), (False, "snapshot"), (True, "snapshot")):
        container, name, first = begin_held(world, by_do)
        ones.append((of_snapshot(first, name, "--share", share, "--home", "memory", container=container).look(), container))
        world.dormouse("snapshot", "release", name)
    container, one = contained(world, "--home", "memory", seed="two")
    ones += [(one, container), (done(world, "--home", "memory", seed="three"), None)]
    for one, container in ones:
        for turn in range(few(world)):
            home = one.step().sleep_in_memory()
            written = [f"{one.id}.asleep{turn}", f"{one.id}.awake{turn}"]
            world.dormouse("checkpoint", "--leave-running", "--name", written[0], one.id)
            check(one.home() == home, f"written, it has {one.home()} instead of {home}")
            # Most of its pages stay away.
            world.dormouse("wake", one.id)
            check(one.asked("hello")["steps"] == one.pages.steps, "it has begun anew")
            away = one.home()["memory_pages"]
            world.dormouse("checkpoint", "--leave-running", "--name", written[1], one.id)
            one.look()
            for snapshot in written:
                check_written(one, snapshot, container)
            one.step().sleep_in_memory()
            written = [f"{one.id}.asked{turn}{number}" for number in range(2)]
            with Asking(one, one.step, 0.02) as asking:
                for snapshot in written:
                    world.dormouse("checkpoint", "--leave-running", "--name", snapshot, one.id)
                    world.dormouse("hibernate", one.id, code=None)
                    world.dormouse("wake", one.id, code=None)
                until("a request", lambda: asking.times > 1 or asking.failure, PATIENCE)
            for snapshot in written:
                check_written(one, snapshot, container, is_asked=True)
            one.look()
        world.notes.append(f"{away} pages away")
        # With its end.
        one.step().sleep_in_memory()
        if container:
            one.asked("hello")
        world.dormouse("checkpoint", "--name", f"{one.id}.last", one.id)
        check_written(one, f"{one.id}.last", container)


def check_written(one, snapshot, container, is_asked=False):
    """What begins with a snapshot has the pages that its first one had at one moment, also once it has slept."""
    one.world.dormouse("snapshot", "verify", snapshot)
    clone = of_snapshot(one, snapshot, container=container)
    steps = clone.asked("hello")["steps"]
    check(is_asked or steps == one.pages.steps, f"it had {steps} steps of {one.pages.steps}")
    for how in ("has", "has slept, and has"):
        check(clone.asked("look")["before"] == one.history.get(steps), f"what begins with the snapshot {how} wrong pages after {steps} steps")
        clone.sleep()
    clone.end()


def many_at_once(world):
    """Fifty clones fall asleep at once, and are asked at once."""
    _, name, first = begin_held(world)
    many = [of_snapshot(first, name, "--share", "snapshot" if number % 2 else "none", "--home", "memory") for number in range(CLONES)]
    World.restored += len(many)

    def together(verb):
        asking = [Asking(one, verb(one), 0, most=1) for one in many]
        for each in asking:
            each.start()
        for each in asking:
            each.join(2 * PATIENCE)
            check(each.times == 1 and not each.failure, f"{each.one.id}: {each.failure or 'it takes too long'}")
    together(lambda one: one.step)
    for _ in range(few(world)):
        commands = [subprocess.Popen([str(DORMOUSE), "hibernate", one.id], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                     stderr=subprocess.PIPE, env={**os.environ, **world.environment}) for one in many]
        said = [(command.communicate(timeout=2 * PATIENCE)[1], command.returncode) for command in commands]
        check(all(code == 0 for _, code in said), f"hibernate says {[words for words, code in said if code][:3]}")
        homes = [one.home() for one in many]
        check(all(home["home"] == "memory" and home["memory_pages"] > 0 and home["disk_bytes"] == 0 for home in homes), f"there are {homes[:3]}")
        together(lambda one: one.step)
    together(lambda one: one.look)
    world.notes.append(f"{sum(home['memory_bytes'] for home in homes) // CLONES >> 10} KiB each")


def without_room(world):
    """Pages that find no room beside themselves are on the disk, which is told; once there is room they are in memory again."""
    one = done(world, "--memory", "400M", "--home", "memory", beside=280)
    with events_of(one) as events:
        def without():
            """What was told of it: many pages go to the disk first, and some of them may have found room."""
            return [event.get("error") or event["moved"] for event in events() if "error" in event or event.get("moved", {}).get("why") == "no-room"]
        one.sleep()
        told = until("word of that", without, PATIENCE)[0]
        home = one.home()
        check(home["home"] == "memory" and home["disk_bytes"] > 100 << 20, f"without room it has {home}, and tells {told}")
        why = world.refused("home", one.id, "memory", says=("cannot move the pages", one.id))
        one.step()
        for _ in range(few(world)):
            home = one.sleep()
            check(home["disk_bytes"] > 100 << 20, f"without room it has {home}")
            one.step()
        one.asked("drop")
        one.pages.beside = []
        one.look().sleep()
        home = one.home("memory")
        check(home["home"] == "memory" and home["memory_pages"] > 1000 and home["disk_bytes"] == 0, f"with room it has {home}")
        one.step().sleep_in_memory()
        one.look()
    world.notes += [f"told: {told}", why]


def lifted(world):
    """Many pages go to the disk first, and then to memory, which is told; one that wakes meanwhile has all of them."""
    one = done(world, "--home", "memory", beside=40)
    with events_of(one) as events:
        for _ in range(2):
            one.step().sleep()
            until("all pages to be in memory", lambda: one.home()["disk_bytes"] == 0, PATIENCE)
            check(one.home()["memory_pages"] > 10000, f"it has {one.home()}")
            until("its event", lambda: moves_in(events), PATIENCE)
            told = moves_in(events)[-1]
            check((told["to"], told["why"]) == ("memory", "many"), f"it tells {told}")
            check(told["moved_pages"] > 10000 and told["left_bytes"] > 40 << 20, f"it tells {told}")
        one.look()
        check(not [event for event in events() if "error" in event], f"it tells {events()}")
    for pause in (0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.5):
        one = done(world, "--home", "memory", beside=40)
        one.step().sleep()
        time.sleep(pause)
        one.step().sleep()
        one.step()
        one.home("disk")
        one.step().sleep()
        back = one.home("memory")
        check(back["home"] == "memory" and back["disk_bytes"] == 0, f"ordered to memory, it has {back}")
        one.step().look().end()


def by_settings(world):
    """Who writes a bundle keeps nothing in memory unless the node says so, or allows it."""
    settings = world.directory / "config.toml"

    def run_with(home, node):
        container = world.container(PYTHON, "/srv/stamped.py", "{port}", "one", COUNT, 0)
        put_program(container)
        annotated(container.write_bundle(), {"dev.dormouse.home": home} if home else {})
        settings.write_text(node)
        settings.chmod(0o600)
        words = (DORMOUSE, "--config", settings, "run", "--detach", "--bundle", container.bundle, "--swap-dir", world.swap, container.id)
        with open(container.log, "ab") as log:
            code = subprocess.run([str(word) for word in words], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                  env={**os.environ, **world.environment}, timeout=60).returncode
        return container, code

    def is_refused(home, node, says):
        container, code = run_with(home, node)
        said = container.said()
        check(code > 0 and said.count("\n") == 0 and says in said and "panicked" not in said, f"{home!r} with {node!r} ends with {code}: {said!r}")
        world.check_gone(container.id)

    def has(home, node, wanted):
        container, code = run_with(home, node)
        check(code == 0, f"{home!r} with {node!r} ends with {code}: {container.said()!r}")
        one = Stamped(world, container.id, container.port, Pages("one", COUNT)).look()
        found = one.sleep()
        in_memory = found["memory_pages"] > 0 and found["disk_bytes"] == 0
        check(found["home"] == wanted and in_memory == (wanted == "memory"), f"{home!r} with {node!r} has {found}")
        one.step()
        container.delete(force=True)
    for home in ("memory", "memory,disk:5s"):
        is_refused(home, "", "home")
        is_refused(home, 'allow = ["swap-dir"]\n', "home")
        has(home, 'allow = ["home"]\n', "memory")
        has(home, 'home = "memory"\n', "memory")
    is_refused("memory", 'home = "memory,disk:5s"\n', "home")
    is_refused("ram", 'allow = ["home"]\n', "ram")
    is_refused("", 'home = "ram"\n', "ram")
    has("", 'home = "memory"\n', "memory")
    has("disk", 'home = "memory"\n', "disk")
    has("disk", "", "disk")
    has("", "", "disk")


CASES = [
    ("home-clone", clones, ()),
    ("home-lost-disk", without_a_disk, ()),
    ("home-plain", plain, ()),
    ("home-base", on_a_base, ()),
    ("home-moves", moved_by_order, ()),
    ("home-orders", ordered_at_once, ()),
    ("home-demoted", demoted, ()),
    ("home-pressed", pressed, ("timeout",)),
    ("home-refused", refused_in_words, ()),
    ("home-generations", generations_in_memory, ()),
    ("home-checkpoint", written_from_memory, ()),
    ("home-many", many_at_once, ()),
    ("home-no-room", without_room, ()),
    ("home-lifted", lifted, ()),
    ("home-settings", by_settings, ()),
]
