"""Sandboxes that share the pages of a snapshot: all of them see what they would see alone."""
import json
import os
import re
from pathlib import Path

from clones import digest_of
from guests import after, guest
from lib.outcome import check
from lib.page_list import pages_in
from lib.waiting import until
from refusals import flipped
from world import ANSWER_SECONDS, Container

PAGES = 2048
PAGE = 4096
# `stamp` of test/guest/untouched.c, of the first word of a page.
MASK = (1 << 64) - 1


def stamp(page):
    mixed = page * 0x9e3779b97f4a7c15 & MASK
    return (mixed ^ mixed >> 29) * 0x94d049bb133111eb & MASK


class Untouched(Container):
    """A container whose program is `untouched`: it answers lines that are put into a file."""

    def __init__(self, world, pages=PAGES):
        super().__init__(world, ("/bin/sh", "-c", "/usr/bin/tail ---disable-inotify -s 0.02 -n +1 -f /srv/ask | /srv/untouched "
                                 f"{pages}"))
        guest(self, "untouched")
        (self.srv / "ask").touch()

    def begin(self, *more):
        super().begin(*more)
        after(self, "the beginning", lambda: "ready" in self.said())
        return self


class Clone:
    """A container of such a one's snapshot, beside others."""

    def __init__(self, first, name, number, share, *more):
        self.world, self.id, place = first.world, f"{first.id}-share{number}", first.place / f"clone{number}"
        self.log = place / "log"
        place.mkdir()
        self.srv = place / "srv"
        self.srv.mkdir(mode=0o777)
        (self.srv / "untouched").write_bytes((first.srv / "untouched").read_bytes())
        (self.srv / "untouched").chmod(0o777)
        (self.srv / "ask").touch()
        kept, first.srv = first.srv, self.srv
        bundle = first.write_bundle(place / "bundle")
        first.srv = kept
        self.log.touch()
        self.world.launch("restore", "--detach", "--snapshot", name, "--bundle", bundle, "--changed-files", "accept", "--swap-dir",
                          self.world.swap, "--share", share, *more, self.id, log=self.log)

    def lines(self):
        # The file of a clone is shorter than the one that tail knew, until it is asked.
        return [line for line in self.log.read_text(errors="replace").splitlines() if not line.endswith(": file truncated")]

    def wish(self, line):
        with open(self.srv / "ask", "a") as asked:
            asked.write(f"{line}\n")

    def answers(self, line, wanted, patience=30):
        """The answer to a line, which has to be this one."""
        before = len(self.lines())
        self.wish(line)
        until(f"an answer of {self.id} to {line!r}", lambda: len(self.lines()) > before, patience)
        said = self.lines()[before]
        check(said == wanted, f"{self.id} answers {line!r} with {said!r}")

    def stats(self):
        return json.loads(self.world.dormouse("stats", "--json", self.id).stdout)

    def sleep(self):
        self.world.dormouse("hibernate", self.id)
        self.world.dormouse("wake", self.id)

    def kill(self):
        self.world.dormouse("delete", "--force", self.id)


def original(world, pages=PAGES):
    container = world.add(Untouched(world, pages)).begin()
    name, _ = container.checkpoint()
    container.delete()
    return container, name, world.snapshots / name / "pages.img"


def ways(world):
    """Pages that nobody has touched since the restore are reached in every way, beside another clone, before and after sleeps."""
    container, name, image = original(world)
    before = digest_of(image)
    for number, share in enumerate(("snapshot", "domain", "none")):
        one, other = (Clone(container, name, f"{number}{half}", share) for half in "ab")
        one.answers("ways", "ways ok")
        other.answers("ways", "ways ok")
        one.sleep()
        one.answers("ways", "ways ok")
        one.answers("sum", "sum ok")
        other.sleep()
        other.answers("sum", "sum ok")
        shown = [clone.stats()["shown_pages"] for clone in (one, other)]
        check(all(count > 100 for count in shown) if share != "none" else shown == [0, 0], f"with --share {share} {shown} pages were shown")
        one.kill()
        other.kill()
    of_domains = [digest_of(file) for file in (image.parent / ".shared").iterdir()]
    check(digest_of(image) == before and of_domains == [before], "the snapshot's pages have changed")


def reused(world):
    """Frames that were shown, were freed and have a new owner are that one's, whenever it sleeps meanwhile."""
    container, name, _ = original(world)
    for sleeps in range(4):
        clone = Clone(container, name, sleeps, "snapshot")
        clone.answers("free", "free ok")
        if sleeps & 1:
            clone.sleep()
        clone.answers("reuse", "reuse ok")
        if sleeps & 2:
            # It changes what is new once it has come back.
            clone.sleep()
            clone.answers("reuse", "reuse ok")
        for _ in range(2):
            clone.sleep()
            clone.answers("reused", "reused ok")
        clone.answers("sum", "sum ok")
        clone.kill()


def generations(world):
    """Clones of clones, each of which has slept, share and see the same."""
    container, name, _ = original(world)
    container.world.share = "snapshot"
    for turn in range(max(world.cycles // 10, 2)):
        container.restore(name)
        with open(container.srv / "ask", "a") as asked:
            asked.write("sum\n")
        after(container, "its sum", lambda turn=turn: container.said().splitlines().count("sum ok") == turn + 1)
        for _ in range(10):
            world.dormouse("hibernate", container.id)
            world.dormouse("wake", container.id)
        last, (name, _) = name, container.checkpoint()
        container.delete()
        world.dormouse("snapshot", "remove", last)
    check(not any(line.startswith(("sum:", "page")) for line in container.said().splitlines()), container.said()[-300:])


def secret(world):
    """What one clone writes is in no other, in no file of the snapshot, nor in what the host caches of it."""
    container, name, image = original(world)
    one, other = (Clone(container, name, number, "snapshot") for number in range(2))
    word = f"nobody-else-{os.urandom(8).hex()}"
    other.answers("page 5", "page ok")
    one.answers(f"secret {word}", "secret ok")
    other.answers("sum", "sum ok")
    check(word.encode() not in image.read_bytes(), "the snapshot has what a clone wrote")
    one.sleep()
    third = Clone(container, name, 2, "snapshot")
    third.answers("sum", "sum ok")


def recorded(world):
    """Which pages a request needs, as the kernel and the host see it; recordings add up, and a restore goes by either."""
    container, name, image = original(world)
    path = image.parent

    def record(*command, code=0):
        options = ("--together",) if command[0] == "--together" else ()
        return world.dormouse("snapshot", "record", name, "--changed-files", "accept", "--json", *options, "--", *command[len(options):],
                              code=code)

    def asked(pages):
        lines = "".join(f"page {page}\\n" for page in pages)
        mark = container.srv / "mark"
        waits = f"while [ ! -e {mark} ]; do sleep 0.02; done; rm {mark}"
        return ("/bin/sh", "-c", f"printf '{lines}mark\\n' >>{container.srv}/ask; {waits}")
    told = json.loads(record(*asked(range(100, 500, 2))).stdout)
    first = pages_in(path / "ws")
    check(200 <= len(first) == told["touched_pages"] < 1000, f"{len(first)} pages were touched, and it says {told}")
    check(told["freed_pages"] == 0, f"pages that are free in the snapshot were read: {told}")
    sees = "ok" in next(line for line in world.dormouse("doctor").stdout.splitlines() if line.startswith("capture"))
    if sees:
        fills = pages_in(path / "ws.bpf")
        check(fills == first, f"the host alone saw {len(fills - first)}, and the kernel {len(first - fills)}")
    record(*asked(range(1000, 1400, 2)))
    both = pages_in(path / "ws")
    check(both > first and len(both) > len(first) + 150, f"{len(first)} and {len(both)} pages were touched")
    done = record("/bin/sh", "-c", asked(range(1500, 1600))[2] + "; false", code=1)
    # Before it may stand that eBPF sees nothing here.
    check("its command ended with 1" in done.stderr and done.stderr.count("\n") == (1 if sees else 2), done.stderr)
    done = record("/nothing/there", code=1)
    check("/nothing/there" in done.stderr and "panicked" not in done.stderr, done.stderr)
    check(pages_in(path / "ws") == both and not world.ids(), f"there are {world.ids()}")
    # Clones that stray: of sixteen one is recorded once more.
    strayed, files = range(1650, 1950, 2), [path / name for name in ("ws", "ws.bpf") if (path / name).exists()]
    sizes = [len(pages_in(file)) for file in files]
    for number in range(16):
        clone = Clone(container, name, f"stray{number}", "snapshot")
        clone.wish("\n".join(f"page {page}" for page in strayed))
        until(f"the answers of {clone.id}", lambda: len(clone.lines()) == len(strayed), ANSWER_SECONDS)
        world.dormouse("hibernate", clone.id)
        clone.kill()
    until("the lists to grow", lambda: all(len(pages_in(file)) > size + 100 for file, size in zip(files, sizes)), ANSWER_SECONDS)
    world.refused("restore", "--snapshot", name, "--bundle", container.bundle, "--prefetch", "reap", f"{container.id}-reap", says=("--together",))
    told = json.loads(record("--together", *asked(range(100, 500, 2))).stdout)
    together = (path / "ws.reap").stat().st_size
    check(together == told["touched_pages"] * (PAGE + 4) + 4, f"of {told['touched_pages']} pages {together} bytes lie together")
    world.refused("restore", "--snapshot", name, "--bundle", container.bundle, "--prefetch", "reap", "--share", "snapshot", "--changed-files",
                  "accept", f"{container.id}-reap", says=("reap",))
    for number, by in enumerate(("bpf", "list", "reap", "host", "none") if sees else ("list", "reap", "host", "none")):
        for share in ("none", "snapshot"):
            if (by, share) == ("reap", "snapshot"):
                continue
            clone = Clone(container, name, f"{number}{share}", share, "--prefetch", by)
            clone.answers("page 100", "page ok")
            clone.answers("sum", "sum ok")
            clone.kill()
    # What is damaged there is taken from where it lies else; what is no such file is refused.
    with flipped(path / "ws.reap", 50 * PAGE + 7):
        clone = Clone(container, name, "damaged", "none", "--prefetch", "reap")
        clone.answers("sum", "sum ok")
        clone.kill()
    with flipped(path / "ws.reap", together - 1):
        world.refused("restore", "--snapshot", name, "--bundle", container.bundle, "--prefetch", "reap", "--changed-files", "accept",
                      f"{container.id}-reap")
    world.dormouse("snapshot", "verify", name)


def offset_of(image, page):
    """Where the image has a page of the program's."""
    wanted, content = stamp(page).to_bytes(8, "little"), image.read_bytes()
    return next(at for at in range(0, len(content), PAGE) if content.startswith(wanted, at))


def lost(world):
    """A page that is damaged, or cut off, ends those that touch it with a sentence that names it; others go on."""
    # More than a first restore brings without knowing what is needed.
    container, name, image = original(world, 10240)
    place = offset_of(image, 1500)
    before, beside = (Clone(container, name, number, "snapshot") for number in range(2))
    before.answers("page 1", "page ok")
    with flipped(image, place + 100):
        touches = Clone(container, name, 2, "snapshot")
        touches.answers("page 3", "page ok")
        touches.wish("page 1500")
        ended(touches, str(place // PAGE))
    beside.answers("sum", "sum ok")
    late = Clone(container, name, 3, "snapshot")
    late.answers("page 3", "page ok")
    # Its own pages that it needs to end are there by now.
    os.truncate(image, place)
    for clone in (late, beside):
        # The latter has been shown all of them.
        clone.wish("sum")
        ended(clone, "page")


def ended(clone, names):
    world = clone.world
    until(f"the end of {clone.id}", lambda: world.status(clone.id) == "stopped", ANSWER_SECONDS)
    said = clone.log.read_text(errors="replace")
    check("panicked" not in said and "SIGBUS" not in said, said[-300:])
    check(("cannot bring its memory back" in said or "are lost from page" in said) and names in said, f"it ends with {said[-300:]!r}")


def stub_maps(clone):
    """What each stub of a clone has mapped, by the names of the files; on kvm there is none."""
    mapped = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            maps = Path("/proc", pid, "maps").read_text()
            parent = re.search(r"^PPid:\s*(\d+)", Path("/proc", pid, "status").read_text(), re.MULTILINE)
            words = Path("/proc", parent[1], "cmdline").read_text() if parent else ""
        except OSError:
            continue
        if "/memfd:dormouse-orders" in maps and clone.id in words:
            mapped.append([line.split(None, 5)[5] for line in maps.splitlines() if line.count(" ") > 5])
    return mapped


def asleep(world):
    """Of a clone that sleeps the stubs map pages of the snapshot, and none of its own. It wakes to them, wherever it does."""
    container, name, image = original(world, 6144)
    one, moved, striped = (Clone(container, name, number, "snapshot") for number in range(3))
    # Of too many pieces all are given up.
    for clone, keeps in ((one, True), (moved, True), (striped, False)):
        for _ in range(2):
            clone.answers("sum", "sum ok")
            if not keeps:
                clone.answers("stripes", "stripes ok")
            clone.sleep()
        clone.answers("sum" if keeps else "stripes", "sum ok" if keeps else "stripes ok")
        world.dormouse("hibernate", clone.id)
        asleep_maps = stub_maps(clone)
        own, shown = ([sum(what in line for line in mapped) for mapped in asleep_maps] for what in ("dormouse-user", "pages.img"))
        check(not any(own), f"{clone.id} has {own} pieces of its memory mapped asleep")
        # Its other processes have few.
        check(not shown or (min(shown) > 0) == keeps, f"{clone.id} has {shown} pieces of the snapshot mapped asleep")
    world.dormouse("wake", striped.id)
    striped.answers("sum", "sum ok")
    world.dormouse("checkpoint", "--name", f"{moved.id}-on", moved.id)
    world.dormouse("wake", one.id)
    for again in (one, Clone(container, f"{moved.id}-on", 4, "none")):
        again.answers("sum", "sum ok")
        again.answers("ways", "ways ok")
        again.kill()
    late = Clone(container, name, 5, "snapshot")
    late.answers("sum", "sum ok")
    world.dormouse("hibernate", late.id)
    os.truncate(image, 0)
    world.dormouse("wake", late.id, code=None)
    late.wish("sum")
    ended(late, "page")


def refused(world):
    """What cannot be shared is refused, and goes on alone."""
    container = world.add(Untouched(world)).begin()
    packed, _ = container.checkpoint(leave=True, more=("--codec", "lz4"))
    plain, _ = container.checkpoint(leave=True)
    upon, _ = container.checkpoint(more=("--parent", plain))
    container.delete()
    for name, says in ((packed, "--codec"), (upon, "--parent")):
        words = ("restore", "--detach", "--snapshot", name, "--bundle", container.bundle, "--share", "snapshot", f"{container.id}-x")
        world.refused(*words, says=("cannot be shared", says, "--share"))
        world.check_gone(f"{container.id}-x")
    for whom in ("../x", "a/b", ""):
        done = world.dormouse("restore", "--snapshot", plain, f"--share={whom}", "x", code=None)
        check(done.returncode == 1 or done.returncode == 2, f"--share={whom} ends with {done.returncode}")
        check("domain's name" in done.stderr, f"--share={whom} is refused with {done.stderr!r}")
    container.restore(plain, "--share", "snapshot")
    world.dormouse("snapshot", "remove", plain)
    check(not world.left_overs(), f"there are {world.left_overs()}")


CASES = [
    ("shared-ways", ways, ()),
    ("shared-reused", reused, ()),
    ("shared-generations", generations, ()),
    ("shared-secret", secret, ()),
    ("shared-recorded", recorded, ()),
    ("shared-lost", lost, ()),
    ("shared-asleep", asleep, ()),
    ("shared-refused", refused, ()),
]
