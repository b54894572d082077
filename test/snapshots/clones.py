"""Several containers from one snapshot."""
import hashlib
import json

from lib.outcome import check
from lib.waiting import until
from world import ANSWER_SECONDS, PYTHON


def digest_of(file):
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


class Clone:
    """A container of a snapshot of `alone.py`, with what it says in a file of its own."""

    def __init__(self, world, first, name, number, *more):
        self.world, self.id, self.log = world, f"{first.id}-clone{number}", first.place / f"clone{number}.log"
        self.log.touch()
        world.launch("restore", "--detach", "--snapshot", name, "--bundle", first.bundle, "--swap-dir", world.swap, *more, self.id,
                     log=self.log)

    def lines(self):
        """What it said so far. The last line may be on its way."""
        return [json.loads(line) for line in self.log.read_text().split("\n")[:-1] if line]

    def next(self, count=3):
        """What it says after some more lines."""
        before = len(self.lines())
        until(f"{count} lines of {self.id}", lambda: len(self.lines()) >= before + count, ANSWER_SECONDS)
        return self.lines()[-1]


def original(world):
    container = world.container(PYTHON, "-u", "/srv/alone.py")
    from shutil import copy

    from world import HERE
    copy(HERE / "inside/alone.py", container.srv)
    container.begin()
    until("lines", lambda: len(container.said().splitlines()) > 3, ANSWER_SECONDS)
    return container


def two_at_once(world):
    container = original(world)
    name, _ = container.checkpoint(leave=True)
    kept = json.loads(container.said().splitlines()[1])
    image, before = world.snapshots / name / "pages.img", digest_of(world.snapshots / name / "pages.img")
    clones = [Clone(world, container, name, number) for number in range(2)]
    words = [clone.next() for clone in clones] + [kept]
    check(len({said["nonce"] for said in words}) == 1, "a clone has begun anew")
    for source in ("getrandom", "boot_id", "uuid"):
        found = {said[source] for clone in clones for said in clone.lines()} if source == "boot_id" else {said[source] for said in words}
        check(len(found) == (2 if source == "boot_id" else 3), f"clones have {source} in common: {found}")
        check(kept[source] not in {said[source] for clone in clones for said in clone.lines()}, f"{source} is the first container's")
    for clone in clones:
        counts = [said["count"] for said in clone.lines()]
        check(counts == list(range(counts[0], counts[0] + len(counts))), f"a clone counts {counts}")
    secret = "only-one-clone-knows-this"
    world.dormouse("exec", clones[0].id, "/bin/sh", "-c", f"echo {secret} >/tmp/secret")
    until("the first clone's new memory", lambda: clones[0].next(1)["digest"] != kept["digest"], ANSWER_SECONDS)
    check(clones[1].next()["digest"] == kept["digest"], "what one clone writes is in the other one's memory")
    check(not world.dormouse("exec", clones[1].id, "/bin/ls", "/tmp").stdout.strip(), "a clone has the other one's files")
    check(digest_of(image) == before, "a clone has written to the snapshot")
    check(secret.encode() not in image.read_bytes(), "a clone's secret is in the snapshot")
    world.dormouse("snapshot", "verify", name)
    first = json.loads(container.said().splitlines()[-1])
    check(first["digest"] == kept["digest"], "what a clone writes is in the first container's memory")
    for clone in clones:
        world.dormouse("delete", "--force", clone.id)
        world.check_gone(clone.id)


def removed_meanwhile(world):
    """Clones go on when their snapshot is removed, and can be written again."""
    container = original(world)
    name, _ = container.checkpoint()
    container.delete()
    clone = Clone(world, container, name, 0)
    world.dormouse("snapshot", "remove", name)
    check(not (world.snapshots / name).exists(), "its files are there")
    clone.next()
    world.dormouse("checkpoint", "--name", "again", clone.id)
    world.dormouse("delete", clone.id)
    again = Clone(world, container, "again", 1)
    check(again.next()["nonce"] == clone.lines()[-1]["nonce"], "it has begun anew")
    world.dormouse("snapshot", "verify", "again")


def many(world):
    """Eight at once, all with numbers of their own."""
    container = original(world)
    name, _ = container.checkpoint()
    container.delete()
    clones = [Clone(world, container, name, number) for number in range(8)]
    words = [clone.next() for clone in clones]
    for source in ("getrandom", "boot_id", "uuid"):
        check(len({said[source] for said in words}) == len(clones), f"clones have {source} in common")
    check(len({(said["nonce"], said["digest"]) for said in words}) == 1, "clones have other memory")


def hibernated_clone(world):
    """A clone sleeps and wakes, and a container that sleeps is written."""
    container = original(world)
    container.world.dormouse("hibernate", container.id)
    name, _ = container.checkpoint()
    container.delete()
    clone = Clone(world, container, name, 0)
    before = clone.next()
    world.dormouse("hibernate", clone.id)
    world.dormouse("wake", clone.id)
    after = clone.next()
    check(before["nonce"] == after["nonce"] and before["digest"] == after["digest"], "it has other memory")
    world.dormouse("snapshot", "verify", name)


CASES = [
    ("two-clones", two_at_once, ()),
    ("eight-clones", many, ()),
    ("removed-meanwhile", removed_meanwhile, ()),
    ("hibernated-clone", hibernated_clone, ()),
]
