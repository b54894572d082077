"""Several containers from one snapshot."""
import hashlib
import json
import os
import subprocess

from lib.outcome import check
from lib.tree import DORMOUSE
from lib.waiting import until
from world import ANSWER_SECONDS, PYTHON, World

CLONES = 50
PATIENCE = 60


def digest_of(file):
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


class Clone:
    """A container of a snapshot of `alone.py`, with what it says in a file of its own."""

    def __init__(self, world, first, name, number):
        self.world, self.id, self.log = world, f"{first.id}-clone{number}", first.place / f"clone{number}.log"
        self.words = ("restore", "--detach", "--snapshot", name, "--bundle", first.bundle, "--swap-dir", world.swap, self.id)

    def launch(self):
        self.log.touch()
        self.world.launch(*self.words, log=self.log)
        return self

    def begin(self):
        """Begins it beside others; result: the command."""
        with open(self.log, "ab") as output:
            return subprocess.Popen([str(word) for word in (DORMOUSE, *self.words)], stdin=subprocess.DEVNULL, stdout=output,
                                    stderr=output, env={**os.environ, **self.world.environment})

    def lines(self):
        """What it said so far. The last line may be on its way."""
        return [json.loads(line) for line in self.log.read_text().split("\n")[:-1] if line]

    def next(self, count=3):
        """What it says after some more lines."""
        before = len(self.lines())
        until(f"{count} lines of {self.id}", lambda: len(self.lines()) >= before + count, ANSWER_SECONDS)
        return self.lines()[-1]


def original(world, pause=0.05):
    container = world.container(PYTHON, "-u", "/srv/alone.py", str(pause))
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
    clones = [Clone(world, container, name, number).launch() for number in range(2)]
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
    clone = Clone(world, container, name, 0).launch()
    world.dormouse("snapshot", "remove", name)
    check(not (world.snapshots / name).exists(), "its files are there")
    clone.next()
    world.dormouse("checkpoint", "--name", "again", clone.id)
    world.dormouse("delete", clone.id)
    again = Clone(world, container, "again", 1).launch()
    check(again.next()["nonce"] == clone.lines()[-1]["nonce"], "it has begun anew")
    world.dormouse("snapshot", "verify", "again")


def many(world):
    """Fifty that begin at once, all with numbers of their own."""
    container = original(world, pause=0.5)
    name, _ = container.checkpoint()
    container.delete()
    clones = [Clone(world, container, name, number) for number in range(CLONES)]
    for clone, command in [(clone, clone.begin()) for clone in clones]:
        code = command.wait(PATIENCE)
        World.restored += code == 0
        check(code == 0, f"restore of one of {CLONES} at once ended with {code}: {clone.log.read_text()[-300:]}")
    for clone in clones:
        until(f"lines of {clone.id}", lambda: len(clone.lines()) >= 3, PATIENCE)
    words = [clone.lines()[-1] for clone in clones]
    for source in ("getrandom", "boot_id", "uuid"):
        check(len({said[source] for said in words}) == len(clones), f"clones have {source} in common")
    check(len({(said["nonce"], said["digest"]) for said in words}) == 1, "clones have other memory")
    for clone in clones:
        counts = [said["count"] for said in clone.lines()]
        check(counts == list(range(counts[0], counts[0] + len(counts))), f"a clone counts {counts}")


def one_id(world):
    """Of two restores with one id at once one is refused, and the other goes on."""
    container = original(world)
    name, _ = container.checkpoint()
    container.delete()
    for turn in range(world.rounds):
        pair = [Clone(world, container, name, turn) for _ in range(2)]
        pair[1].log = pair[1].log.with_suffix(".second")
        codes = [command.wait(PATIENCE) for command in [clone.begin() for clone in pair]]
        check(sorted(code == 0 for code in codes) == [False, True], f"two restores with one id ended with {codes}")
        winner, loser = pair[codes.index(0)], pair[1 - codes.index(0)]
        said = loser.log.read_text().strip()
        check(said.startswith("dormouse: ") and winner.id in said and "\n" not in said, f"the second restore is refused with {said!r}")
        winner.next()
        check(world.status(winner.id) == "running", f"it is {world.status(winner.id)}")
        world.dormouse("delete", "--force", winner.id)
        world.check_gone(winner.id)


def hibernated_clone(world):
    """A clone sleeps and wakes, and a container that sleeps is written."""
    container = original(world)
    container.world.dormouse("hibernate", container.id)
    name, _ = container.checkpoint()
    container.delete()
    clone = Clone(world, container, name, 0).launch()
    before = clone.next()
    world.dormouse("hibernate", clone.id)
    world.dormouse("wake", clone.id)
    after = clone.next()
    check(before["nonce"] == after["nonce"] and before["digest"] == after["digest"], "it has other memory")
    world.dormouse("snapshot", "verify", name)


CASES = [
    ("two-clones", two_at_once, ()),
    ("fifty-at-once", many, ()),
    ("one-id", one_id, ()),
    ("removed-meanwhile", removed_meanwhile, ()),
    ("hibernated-clone", hibernated_clone, ()),
]
