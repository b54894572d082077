"""Sandboxes that share the pages of a snapshot: all of them see what they would see alone."""
import json
import os

from clones import digest_of
from guests import after, guest
from lib.outcome import check
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

    def __init__(self, first, name, number, share):
        self.world, self.id, place = first.world, f"{first.id}-share{number}", first.place / f"clone{number}"
        self.log = place / "log"
        place.mkdir()
        self.srv = place / "srv"
        self.srv.mkdir(mode=0o777)
        for file in ("ask", "untouched"):
            (self.srv / file).write_bytes((first.srv / file).read_bytes())
            (self.srv / file).chmod(0o777)
        kept, first.srv = first.srv, self.srv
        bundle = first.write_bundle(place / "bundle")
        first.srv = kept
        self.log.touch()
        self.world.launch("restore", "--detach", "--snapshot", name, "--bundle", bundle, "--changed-files", "accept", "--swap-dir",
                          self.world.swap, "--share", share, self.id, log=self.log)

    def lines(self):
        return self.log.read_text(errors="replace").splitlines()

    def wish(self, line):
        with open(self.srv / "ask", "a") as asked:
            asked.write(f"{line}\n")

    def ask(self, line, wanted, patience=30):
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
        one.ask("ways", "ways ok")
        other.ask("ways", "ways ok")
        one.sleep()
        one.ask("ways", "ways ok")
        one.ask("sum", "sum ok")
        other.sleep()
        other.ask("sum", "sum ok")
        shown = [clone.stats()["shown_pages"] for clone in (one, other)]
        check(all(count > 100 for count in shown) if share != "none" else shown == [0, 0], f"with --share {share} {shown} pages were shown")
        one.kill()
        other.kill()
    check(digest_of(image) == before and digest_of(image.parent / "shared/domain.img") == before, "the snapshot's pages have changed")


def generations(world):
    """Clones of clones, each of which has slept, share and see the same."""
    container, name, _ = original(world)
    container.world.share = "snapshot"
    for turn in range(max(world.cycles // 10, 2)):
        container.restore(name)
        with open(container.srv / "ask", "a") as asked:
            asked.write("sum\n")
        after(container, "its sum", lambda turn=turn: container.said().splitlines().count("sum ok") == turn + 1)
        for _ in range(4):
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
    other.ask("page 5", "page ok")
    one.ask(f"secret {word}", "secret ok")
    other.ask("sum", "sum ok")
    check(word.encode() not in image.read_bytes(), "the snapshot has what a clone wrote")
    one.sleep()
    third = Clone(container, name, 2, "snapshot")
    third.ask("sum", "sum ok")


def offset_of(image, page):
    """Where the image has a page of the program's."""
    wanted, content = stamp(page).to_bytes(8, "little"), image.read_bytes()
    place = next(at for at in range(0, len(content), PAGE) if content.startswith(wanted, at))
    return place


def lost(world):
    """A page that is damaged, or cut off, ends those that touch it with a sentence that names it; others go on."""
    # More than a first restore brings without knowing what is needed.
    container, name, image = original(world, 10240)
    place = offset_of(image, 1500)
    before, beside = (Clone(container, name, number, "snapshot") for number in range(2))
    before.ask("page 1", "page ok")
    with flipped(image, place + 100):
        touches = Clone(container, name, 2, "snapshot")
        touches.ask("page 3", "page ok")
        touches.wish("page 1500")
        ended(touches, str(place // PAGE))
    beside.ask("sum", "sum ok")
    late = Clone(container, name, 3, "snapshot")
    late.ask("page 3", "page ok")
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
    ("shared-generations", generations, ()),
    ("shared-secret", secret, ()),
    ("shared-lost", lost, ()),
    ("shared-refused", refused, ()),
]
