"""What is refused, in one sentence, with nothing left behind."""
import json
import os
import subprocess
from contextlib import contextmanager

from lib.command import finish
from lib.outcome import Failure, check
from lib.waiting import comes, until
from world import FILES, Held


class Refusals:
    """A snapshot of a container that has ended, and commands that must not make anything of it."""

    def __init__(self, world, topic="Memory", words=(), **more):
        self.world, self.container = world, world.add(Held(world, topic, **more)).begin()
        self.container.call("step")
        self.name, _ = self.container.checkpoint(more=words)
        self.container.delete()
        self.path = world.snapshots / self.name
        self.tried = 0

    def restore(self, *more, says=(), bundle=None, name=None):
        """Restores with a new id, which is refused and leaves nothing."""
        self.tried += 1
        new = f"{self.container.id}-refused{self.tried}"
        source = (f"--snapshot={self.name if name is None else name}",) if "--image-path" not in more else ()
        said = self.world.refused("restore", "--detach", *source, "--bundle", bundle or self.container.bundle, "--swap-dir", self.world.swap,
                                  *more, new, says=says)
        self.world.check_gone(new)
        return said

    def still_good(self):
        """The snapshot is as before all this: it is restored, and its program goes on."""
        self.container.restore(self.name)
        self.container.call("step")


def unknown(world):
    refusals = Refusals(world)
    for words in (("inspect", "nobody"), ("verify", "nobody"), ("remove", "nobody")):
        world.refused("snapshot", *words, says=("nobody",))
    refusals.restore(name="nobody", says=("nobody",))
    refusals.restore("--image-path", world.directory / "nowhere", says=("nowhere",))
    for name in ("../outside", "a/b", ".key", "..", ""):
        refusals.restore(name=name)
    world.refused("checkpoint", "no-container", says=("no-container",))
    refusals.still_good()


def names(world):
    """Names and places that are taken, or no names; the container goes on."""
    container = world.add(Held(world, "Plain")).begin()
    container.call("step")
    container.checkpoint("first", leave=True)
    before = {file.name: file.read_bytes() for file in (world.snapshots / "first").iterdir() if file.name != "kernel.img"}
    full = world.directory / "full"
    full.mkdir()
    (full / "file").write_text("kept")
    for leave in ((), ("--leave-running",)):
        world.refused("checkpoint", "--name", "first", *leave, container.id, says=("first",))
        world.refused("checkpoint", "--image-path", full, *leave, container.id, says=("full",))
        world.refused("checkpoint", "--image-path", full / "file", *leave, container.id)
        for name in ("../outside", "a/b", ".key", "..", ""):
            world.refused("checkpoint", f"--name={name}", *leave, container.id)
        container.call("step")
    after = {file.name: file.read_bytes() for file in (world.snapshots / "first").iterdir() if file.name != "kernel.img"}
    check(before == after, "the snapshot with that name has changed")
    check(os.listdir(full) == ["file"] and (full / "file").read_text() == "kept", f"the full directory has {os.listdir(full)}")
    check(world.names() == {"first"} and not world.left_overs(), f"there are {world.names()} and {world.left_overs()}")
    check(not (world.directory / "outside").exists(), "there is a snapshot outside")
    other = f"{container.id}-other"
    said = world.refused("restore", "--detach", "--snapshot", "first", "--bundle", container.bundle, container.id)
    check(container.id in said, f"an id in use is refused with {said!r}")
    check(world.status(container.id) == "running", "the container with that id is gone")
    check(other not in world.ids(), "there is another container")
    container.call("step")


def states(world):
    """A container that does not run cannot be written, and is afterwards as before."""
    container = world.add(Held(world, "Plain"))
    container.write_bundle()
    world.launch("create", "--bundle", container.bundle, "--swap-dir", world.swap, container.id, log=container.log)

    def refused(status):
        for leave in ((), ("--leave-running",)):
            world.refused("checkpoint", *leave, container.id, says=(container.id,))
            check(world.status(container.id) == status, f"it was {status}, and is {world.status(container.id)}")
        check(not world.names() and not world.left_overs(), f"there are {world.names()} and {world.left_overs()}")
    refused("created")
    world.dormouse("start", container.id)
    container.call("step")
    world.dormouse("pause", container.id)
    refused("paused")
    world.dormouse("resume", container.id)
    container.call("step")
    world.dormouse("kill", container.id, "KILL")
    until("its end", lambda: world.status(container.id) == "stopped", 10)
    refused("stopped")
    world.dormouse("delete", container.id)


@contextmanager
def flipped(file, position):
    """A file with a byte that is another one for a while."""
    with open(file, "r+b", buffering=0) as opened:
        before = os.pread(opened.fileno(), 1, position)
        os.pwrite(opened.fileno(), bytes([before[0] ^ 0x10]), position)
        try:
            yield
        finally:
            os.pwrite(opened.fileno(), before, position)


def places_of(file):
    """Where bytes are flipped: first and last, the middle, and within the parts of a sparse file that are there."""
    size = file.stat().st_size
    found = {0, size // 3, size // 2, size - 1}
    with open(file, "rb") as opened:
        position = 0
        while len(found) < 8:
            try:
                position = os.lseek(opened.fileno(), position, os.SEEK_DATA)
            except OSError:
                break
            found.add(position + 100)
            position = os.lseek(opened.fileno(), position, os.SEEK_HOLE)
    return sorted(place for place in found if 0 <= place < size)


def places_of_pages(path):
    """A byte of some pages that the table has: eight bytes magic, version, number of pages, and rows of 24 bytes that begin with a place."""
    table = (path / "pages.table").read_bytes()
    count = int.from_bytes(table[12:16], "little")
    rows = sorted({0, count // 7, count // 3, count // 2, count * 3 // 4, count - 1})
    return [int.from_bytes(table[16 + 24 * row:20 + 24 * row], "little") * 4096 + row % 4096 for row in rows]


def flips(world):
    """A flipped byte is found at the restore, wherever it is, but for those of pages."""
    refusals = Refusals(world)
    tried = 0
    for name in ("manifest.json", "pages.table", "kernel.img"):
        for place in places_of(refusals.path / name):
            with flipped(refusals.path / name, place):
                try:
                    refusals.restore()
                    world.refused("snapshot", "verify", refusals.name)
                except Failure as why:
                    raise Failure(f"byte {place} of {name} was flipped: {why}") from None
            tried += 1
    world.dormouse("snapshot", "verify", refusals.name)
    world.notes.append(f"{tried} places")
    refusals.still_good()


def pages(world):
    """A flipped byte of a page is found by `verify`, which names the page, and no program sees it."""
    refusals = Refusals(world)
    flip_each(world, refusals, places_of_pages(refusals.path), names_page=True)


def packed_pages(codec):
    """The same of packed pages, but that `verify` finds that the file is another before it unpacks any."""
    def case(world):
        refusals = Refusals(world, words=("--codec", codec))
        size = (refusals.path / "pages.img").stat().st_size
        flip_each(world, refusals, [0, 1, *(size * part // 7 for part in range(1, 7))], names_page=False)
    return case


def flip_each(world, refusals, places, names_page):
    container, ends = refusals.container, {"refused": 0, "ended": 0, "untouched": 0}
    for place in places:
        with flipped(refusals.path / "pages.img", place):
            try:
                said = world.refused("snapshot", "verify", refusals.name)
            except Failure as why:
                raise Failure(f"byte {place} of {(refusals.path / 'pages.img').stat().st_size} was flipped: {why}") from None
            of_page = "page" in said and any(letter.isdigit() for letter in said.split("page", 1)[1])
            check(of_page if names_page else "pages.img" in said, f"verify says {said!r}")
            asked = container.asked
            try:
                container.restore(refusals.name)
            except Failure:
                ends["refused"] += 1
                world.dormouse("delete", "--force", container.id, code=None)
                world.check_gone(container.id)
                continue
            try:
                container.call("step", patience=5)
                ends["untouched"] += 1
            except (Failure, OSError) as why:
                check("are wrong" not in str(why) and "Error" not in str(why), f"byte {place} was flipped: {why}")
                check(comes(lambda: world.status(container.id) == "stopped", 5),
                      f"byte {place} was flipped: no answer ({why}), and the container is {world.status(container.id)}; it said "
                      f"{container.said()[-200:]!r}")
                ends["ended"] += 1
            container.asked = asked
            container.delete(force=True)
            world.check_gone(container.id)
    world.dormouse("snapshot", "verify", refusals.name)
    world.notes.append(", ".join(f"{count} {end}" for end, count in ends.items()))
    refusals.still_good()


def truncated(world):
    refusals = Refusals(world)
    for name in FILES:
        file = refusals.path / name
        whole, size = world.directory / "whole", file.stat().st_size
        finish("cp", "--sparse=always", "--preserve=all", file, whole)
        for length in (0, size // 2, size - 1):
            os.truncate(file, length)
            try:
                refusals.restore()
                world.refused("snapshot", "verify", refusals.name)
            except Failure as why:
                raise Failure(f"{name} has {length} bytes instead of {size}: {why}") from None
            finish("cp", "--sparse=always", "--preserve=all", whole, file)
        file.rename(world.directory / "away")
        try:
            refusals.restore()
        except Failure as why:
            raise Failure(f"{name} is missing: {why}") from None
        (world.directory / "away").rename(file)
        whole.unlink()
    refusals.still_good()


def strangers(world):
    """A snapshot of another host's, one that others may write, and one that is a link."""
    refusals = Refusals(world)
    key = world.snapshots / ".key"
    own = key.read_bytes()
    key.write_bytes(os.urandom(32))
    refusals.restore()
    key.write_bytes(own)
    for place, mode in ((refusals.path, 0o777), (refusals.path / "manifest.json", 0o666), (refusals.path / "pages.img", 0o622)):
        kept = place.stat().st_mode
        place.chmod(mode)
        refusals.restore()
        place.chmod(kept)
    for place in (refusals.path, refusals.path / "kernel.img"):
        os.chown(place, 65534, 65534)
        refusals.restore()
        os.chown(place, 0, 0)
    for file in (refusals.path / "manifest.json", refusals.path / "pages.img"):
        moved = world.directory / "moved"
        file.rename(moved)
        file.symlink_to(moved)
        refusals.restore()
        file.unlink()
        moved.rename(file)
    (world.snapshots / "linked").symlink_to(refusals.path)
    refusals.restore(name="linked")
    (world.snapshots / "linked").unlink()
    refusals.still_good()


def mounts(world):
    refusals = Refusals(world)
    bare = refusals.container.write_bundle(world.directory / "bare", mounts=())
    refusals.restore(bundle=bare, says=("/srv",))
    moved = refusals.container.write_bundle(world.directory / "moved", mounts=("/mnt",))
    refusals.restore(bundle=moved, says=("/srv",))
    other = refusals.container.write_bundle(world.directory / "kind")
    spec = json.loads((other / "config.json").read_text())
    for mount in spec["mounts"]:
        if mount["destination"] == "/srv":
            mount.update({"type": "tmpfs", "source": "tmpfs", "options": []})
    (other / "config.json").write_text(json.dumps(spec))
    refusals.restore(bundle=other, says=("/srv",))
    refusals.restore(bundle=world.directory / "no-bundle")
    refusals.still_good()


def memory(world):
    """A limit below what is in use is refused with both sizes."""
    refusals = Refusals(world)
    small = refusals.container.write_bundle(world.directory / "small", memory=16 << 20)
    said = refusals.restore(bundle=small)
    check(sum(letter.isdigit() for letter in said) >= 2, f"it is refused with {said!r}")
    refusals.still_good()


def changed_file(world):
    """A file that programs have mapped is shorter than it was, or gone: refused, or the program has what it had."""
    ends = []
    for change in ("shorter", "gone"):
        refusals = Refusals(world, "Mapped")
        container = refusals.container
        file = container.srv / "private"
        kept = container.srv / "kept"
        file.rename(kept)
        if change == "shorter":
            file.write_bytes(kept.read_bytes()[:4096])
        try:
            container.restore(refusals.name)
        except Failure:
            said = container.said().splitlines()[-1]
            check("private" in said, f"{change}: it is refused with {said!r}")
            world.check_gone(container.id)
            kept.rename(file)
            container.restore(refusals.name)
            ends.append(f"{change}: refused")
        else:
            ends.append(f"{change}: goes on")
            kept.rename(file)
        container.call("step")
        container.delete(force=True)
    world.notes.append(", ".join(ends))


@contextmanager
def small_disk(world, size):
    """A file system of so many bytes, in this process's own mounts."""
    place = world.directory / "disk"
    place.mkdir(exist_ok=True)
    finish("mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "tmpfs", place)
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=False)


def disk_full(world):
    """A disk that is full at several moments: the container goes on as if nobody had asked."""
    container = world.add(Held(world, "Memory")).begin()
    container.call("step")
    for size in (64 << 10, 1 << 20, 8 << 20, 16 << 20):
        with small_disk(world, size) as disk:
            for leave in ((), ("--leave-running",)):
                try:
                    world.refused("checkpoint", "--image-path", disk / "image", *leave, container.id)
                    check(os.listdir(disk) == [], f"the disk has {os.listdir(disk)}")
                    check(world.status(container.id) == "running", f"the container is {world.status(container.id)}")
                    container.call("step")
                except Failure as why:
                    raise Failure(f"a disk of {size} bytes, {' '.join(leave) or 'to end'}: {why}") from None
    with small_disk(world, 1 << 20) as disk:
        finish("mount", "-o", "remount,ro", disk)
        world.refused("checkpoint", "--image-path", disk / "image", container.id)
        container.call("step")
    image = world.directory / "image"
    world.dormouse("checkpoint", "--image-path", image, container.id)
    container.delete()
    container.generation += 1
    world.launch("restore", "--detach", "--image-path", image, "--bundle", container.bundle, container.id, log=container.log)
    container.call("step")


CASES = [
    ("unknown", unknown, ()),
    ("names-and-places", names, ()),
    ("states", states, ()),
    ("flipped-bytes", flips, ()),
    ("flipped-pages", pages, ()),
    ("flipped-packed-pages", packed_pages("zstd"), ()),
    ("truncated", truncated, ()),
    ("strangers", strangers, ()),
    ("missing-mounts", mounts, ()),
    ("memory-limit", memory, ()),
    ("changed-file", changed_file, ()),
    ("disk-full", disk_full, ()),
]
