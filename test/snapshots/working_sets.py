"""The working set that the first restore of a snapshot records, and later ones bring first."""
import contextlib
import json
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor

from commands import clone, snapshot_of
from lib.command import finish
from lib.outcome import check
from lib.waiting import comes, until
from refusals import flipped
from sandboxes import Sandbox, shell
from sandboxes import clone as clone_of_sandbox
from world import Held

# It is recorded for three seconds.
PATIENCE = 20


class Recorded:
    """A snapshot of a program with much memory, and containers that begin with it, one after the other."""

    def __init__(self, world):
        self.world, self.container = world, world.add(Held(world, "Memory")).begin()
        self.container.call("step")
        self.name, _ = self.container.checkpoint(leave=True)
        self.file = world.snapshots / self.name / "ws"
        self.asked = self.container.asked

    def begin_anew(self):
        """The container begins with the snapshot, which knows as many questions as then."""
        self.container.delete(force=True)
        self.container.restore(self.name)
        self.container.asked = self.asked

    def record(self):
        """Restores it, and waits for what that records."""
        self.begin_anew()
        self.container.call("some")
        return self.written()

    def written(self):
        until("a working set", self.file.exists, PATIENCE)
        return self.pages()

    def pages(self):
        """How many pages it has, by the command."""
        return json.loads(self.world.dormouse("snapshot", "inspect", "--json", self.name).stdout)["working_set_pages"]

    def use(self):
        """Restores it, and looks at all of its memory."""
        self.begin_anew()
        for verb in ("some", "step", "some", "step"):
            self.container.call(verb)


def recorded(world):
    """The first restore records part of the memory, the second one uses that, and a third; none writes it again."""
    snapshot = Recorded(world)
    check(snapshot.pages() is None, "it has a working set before any restore")
    pages = snapshot.record()
    head = json.loads((world.snapshots / snapshot.name / "manifest.json").read_text())["snapshot"]["head"]
    check(48 <= pages < head["pages"] / 2, f"it has {pages} of {head['pages']} pages")
    found = snapshot.file.stat()
    check(found.st_mode & 0o777 == 0o600, f"its mode is {found.st_mode & 0o777:o}")
    world.dormouse("snapshot", "verify", snapshot.name)
    for _ in range(2):
        snapshot.use()
    name, _ = snapshot.container.checkpoint()
    snapshot.container.delete()
    snapshot.container.restore(name)
    snapshot.container.call("step")
    check(snapshot.file.stat().st_ino == found.st_ino, "it was written again")
    check("working set" not in snapshot.container.said(), f"something is said of it: {snapshot.container.said()!r}")
    world.notes.append(f"{pages} of {head['pages']} pages")
    world.dormouse("snapshot", "remove", snapshot.name)
    check(not snapshot.file.parent.exists(), "its directory is there still")
    check(not world.left_overs(), f"the store has {world.left_overs()}")


def flips(world):
    """One that was changed is not used, which is said, and it is recorded anew."""
    snapshot = Recorded(world)
    snapshot.record()
    size = snapshot.file.stat().st_size
    for position in (0, 9, 13, size // 2, size - 1):
        with flipped(snapshot.file, position):
            world.refused("snapshot", "verify", snapshot.name, says=("working set",))
            check(snapshot.pages() is None, "it counts")
    before = snapshot.file.read_bytes()
    snapshot.file.write_bytes(before[:20] + bytes([before[20] ^ 1]) + before[21:])
    snapshot.use()
    said = snapshot.container.said()
    check(said.count("the working set of snapshot") == 1 and "recorded anew" in said, f"the log has {said!r}")
    until("another working set", lambda: snapshot.pages() is not None, PATIENCE)
    world.dormouse("snapshot", "verify", snapshot.name)
    snapshot.use()
    check(snapshot.container.said() == said, "it is complained about once more")


def strangers(world):
    """One of another snapshot is not used, nor one that is longer than any."""
    snapshot, other = Recorded(world), Recorded(world)
    other.record()
    shutil.copy(other.file, snapshot.file)
    snapshot.use()
    check("another snapshot" in snapshot.container.said(), f"the log has {snapshot.container.said()!r}")
    until("its own working set", lambda: snapshot.pages() is not None, PATIENCE)
    snapshot.file.write_bytes(bytes(1 << 20))
    snapshot.use()
    check("working set" in snapshot.container.said(), f"the log has {snapshot.container.said()!r}")


@contextlib.contextmanager
def read_only(place):
    """A directory that nobody can write to, in this process's own mounts."""
    finish("mount", "--bind", place, place)
    finish("mount", "-o", "remount,bind,ro", place)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=False)


def read_only_store(world):
    """Where no file can be made none is recorded, and one that is there is used."""
    snapshot = Recorded(world)
    with read_only(world.snapshots):
        snapshot.use()
        check(not comes(snapshot.file.exists, 5), "there is a working set")
        check("working set" not in snapshot.container.said(), f"the log has {snapshot.container.said()!r}")
    snapshot.record()
    with read_only(world.snapshots):
        snapshot.use()


def of_clone(world):
    """That of a command's clone is told when the command has ended."""
    name, _, nonce = snapshot_of(world)
    for _ in range(2):
        check(clone(world, name, "/bin/cat", "/memory/now").stdout.split()[0] == nonce, "another nonce")
        until("a working set", (world.snapshots / name / "ws").exists, PATIENCE)
        world.dormouse("snapshot", "verify", name)


def of_sandbox(world):
    """That of a sandbox of `do`: recorded by clones that begin at once, which hold the snapshot, one of them wins, and used by later ones."""
    sandbox = shell(world)
    name, _ = sandbox.checkpoint(leave=True)
    file = world.snapshots / name / "ws"
    command = ("/bin/sh", "-c", "cat /kept/file")
    with ThreadPoolExecutor(4) as pool:
        for done in pool.map(lambda _: clone_of_sandbox(world, name, *command), range(4)):
            check(done.stdout == "mine\n", f"a clone says {done.stdout!r}")
    until("a working set", file.exists, PATIENCE)
    world.dormouse("snapshot", "verify", name)
    pages = json.loads(world.dormouse("snapshot", "inspect", "--json", name).stdout)["working_set_pages"]
    check(pages, f"it has {pages} pages")
    before = file.stat().st_ino
    done = clone_of_sandbox(world, name, *command)
    check(done.stdout == "mine\n" and not done.stderr, f"a clone says {done.stdout!r} and {done.stderr!r}")
    other = world.add(Sandbox(world, ())).spawn("--from", name)
    check(other.line("one") == "1 one", "a clone does not go on")
    check(file.stat().st_ino == before, "it was written again")
    # One that goes on for long records it meanwhile.
    file.unlink()
    last = world.add(Sandbox(world, ())).spawn("--from", name)
    check(last.line("one") == "1 one", "a clone does not go on")
    until("a working set of a clone that runs", file.exists, PATIENCE)
    for one in (other, last):
        check(one.line("quit") == "2 quit" and one.process.wait(20) == 6, "the clone's status is another")
    check(not (file.parent / ".ws").exists(), "what was being written is there still")
    world.notes.append(f"{pages} pages")
    world.dormouse("snapshot", "remove", name)
    until("the snapshot to go", lambda: not world.left_overs(), PATIENCE)


CASES = [
    ("working-set", recorded, ()),
    ("flipped-working-set", flips, ()),
    ("working-set-of-another", strangers, ()),
    ("working-set-read-only", read_only_store, ()),
    ("working-set-of-clone", of_clone, ()),
    ("working-set-of-sandbox", of_sandbox, ("busybox",)),
]
