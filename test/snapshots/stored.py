"""Snapshots in the store of chunks (`snapshot store`): used as any other, and what they have in common is there once."""
import json
import os
import random
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from clones import digest_of
from lib.command import finish
from lib.outcome import Failure, check
from lib.tree import DORMOUSE
from templates import Clone, Untouched, original

FILES = ("kernel.img", "pages.img")


def figures(world):
    return json.loads(world.dormouse("store", "stats", "--json").stdout)


def put(world, name, *more):
    """Stores a snapshot. Result: what it came to."""
    place = world.snapshots / name
    said = json.loads(world.dormouse("snapshot", "store", "--json", *more, name).stdout)
    left = [file for file in FILES if (place / file).exists()]
    check(not left and (place / "recipe").exists(), f"{name} is stored, and has {left}")
    return said


def collect(world):
    """Finds out what nobody needs, and removes it a little later."""
    world.dormouse("store", "gc", "--grace", "1ms")
    time.sleep(0.01)
    return json.loads(world.dormouse("store", "gc", "--grace", "1ms", "--json").stdout)


def dblocks(world):
    return sorted((world.snapshots / ".chunks/dblocks").iterdir())


class Room:
    """What a file system has left, which a file of zeros takes away."""

    def __init__(self, place):
        self.ballast = place / "ballast"
        self.place = place

    def leave(self, left):
        """Leaves so many bytes; all there are, for `None`."""
        self.ballast.unlink(missing_ok=True)
        if left is not None:
            status = os.statvfs(self.place)
            with open(self.ballast, "wb") as file:
                os.posix_fallocate(file.fileno(), 0, max(status.f_bavail * status.f_frsize - left, 1))


@contextmanager
def full_disk(place, size):
    """A small file system in memory at a directory that is made."""
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    finish("mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "tmpfs", place)
    try:
        yield Room(place)
    finally:
        finish("umount", "--lazy", place)


def used(world):
    """Snapshots that are stored are restored, cloned, verified, held and listed, beside others and after those are gone."""
    container = world.add(Untouched(world)).begin()
    first, _ = container.checkpoint(leave=True)
    second, _ = container.checkpoint(leave=True)
    container.delete(force=True)
    before = [digest_of(world.snapshots / name / "pages.img") for name in (first, second)]
    one, other = put(world, first, "--codec", "lz4"), put(world, second)
    check(before[0] != before[1] or one["bytes"] > 8 << 20, f"{first} has {one}")
    check(other["shared_bytes"] > other["bytes"] * 9 // 10, f"of {second} the store had {other}")
    check(put(world, second)["was_there"], "it is stored twice")
    found = figures(world)
    check(found["snapshots"] == 2 and found["bytes"] < found["snapshot_bytes"] * 6 // 10, f"the store has {found}")
    check("is whole" in world.dormouse("store", "verify").stdout, "the store is not whole")
    for name in (first, second):
        world.dormouse("snapshot", "verify", name)
    check(first in world.dormouse("snapshot", "list").stdout, "it is not listed")
    clones = [Clone(container, name, f"{name[-3:]}{share}", share) for name in (first, second) for share in ("none", "snapshot")]
    for clone in clones:
        clone.answers("ways", "ways ok")
        clone.sleep()
        clone.answers("sum", "sum ok")
    # What goes meanwhile is in their memory.
    world.dormouse("snapshot", "remove", first)
    gone = collect(world)
    world.dormouse("snapshot", "hold", second)
    held = Clone(container, second, "held", "snapshot", "--home", "memory")
    held.answers("sum", "sum ok")
    world.dormouse("snapshot", "release", second)
    for clone in (*clones, held):
        clone.sleep()
        clone.answers("sum", "sum ok")
        clone.kill()
    world.dormouse("snapshot", "remove", second)
    last = collect(world)
    check(not dblocks(world), f"{dblocks(world)} are left after {gone} and {last}")


def taken(world):
    """`checkpoint --store` puts a snapshot into the store at once, and the list says how much of it others have."""
    container = world.add(Untouched(world, 2048)).begin()
    names = []
    for number, words in enumerate((("--codec", "zstd"), (), ("--codec", "lz4"))):
        name, _ = container.checkpoint(leave=number < 2, more=("--store", *words))
        names.append(name)
        check(not (world.snapshots / name / "pages.img").exists(), f"{name} has pages of its own")
    listed = {one["name"]: one for one in json.loads(world.dormouse("snapshot", "list", "--json").stdout)}
    check(all(listed[name]["is_stored"] for name in names), f"the list has {listed}")
    check(listed[names[1]]["below_bytes"] > 4 << 20 > listed[names[1]]["disk_bytes"], f"{names[1]} has {listed[names[1]]}")
    world.dormouse("snapshot", "remove", names[0])
    world.dormouse("snapshot", "remove", names[1])
    alone = next(one for one in json.loads(world.dormouse("snapshot", "list", "--json").stdout) if one["name"] == names[2])
    check(alone["below_bytes"] == 0 and alone["disk_bytes"] > 4 << 20, f"alone it has {alone}")
    clone = Clone(container, names[2], "alone", "none")
    clone.answers("sum", "sum ok")
    clone.kill()
    world.refused("checkpoint", "--store", "--codec", "deflate-fixed", "none", says=("lz4",))
    world.dormouse("checkpoint", "--share-domain", "a", "none", code=1)


def near(world):
    """Programs that were started twice have most of their own memory as differences from each other's."""
    names = []
    for _ in range(2):
        container = world.add(Untouched(world, 1024)).begin()
        names.append(container.checkpoint()[0])
    put(world, names[0])
    of = put(world, names[1])
    check(of["near_bytes"] > of["bytes"] // 50 and of["stored_bytes"] < of["bytes"] // 4, f"of another start the store has {of}")
    check(all(of["regions"][region]["shared_bytes"] > 0 for region in ("executable", "file")), f"it has {of['regions']}")
    check("is whole" in world.dormouse("store", "verify").stdout, "the store is not whole")
    world.dormouse("snapshot", "remove", names[0])
    collect(world)
    world.dormouse("snapshot", "verify", names[1])
    clone = Clone(container, names[1], "near", "none")
    clone.answers("sum", "sum ok")
    clone.kill()
    world.dormouse("snapshot", "remove", names[1])
    collect(world)
    check(not dblocks(world), f"{dblocks(world)} are left")


def moved(world):
    """Removed in any order, what others need stays, wherever it moves."""
    container = world.add(Untouched(world, 1024)).begin()
    names = []
    for _ in range(6):
        names.append(container.checkpoint(leave=True)[0])
        put(world, names[-1])
    container.delete(force=True)
    chance = random.Random(3)
    while names:
        world.dormouse("snapshot", "remove", names.pop(chance.randrange(len(names))))
        collect(world)
        for name in names:
            world.dormouse("snapshot", "verify", name)
        if names:
            clone = Clone(container, names[0], len(names), "none")
            clone.answers("sum", "sum ok")
            clone.kill()
    check(not dblocks(world) and figures(world)["snapshots"] == 0, f"{dblocks(world)} are left")


def damaged(world):
    """Chunks that are damaged or gone are told, whoever needs them, and stand for no others."""
    container, name, _ = original(world)
    put(world, name)
    whole = dblocks(world)
    path = max(whole, key=lambda path: path.stat().st_size)
    good = path.read_bytes()
    restore = ("restore", "--detach", "--snapshot", name, "--bundle", container.bundle, f"{container.id}-x")
    for bad in (good[:1000] + bytes([good[1000] ^ 1]) + good[1001:], good[:-10], b""):
        path.write_bytes(bad)
        for words in (restore, ("store", "verify"), ("snapshot", "verify", name), ("snapshot", "hold", name)):
            done = world.dormouse(*words, code=None)
            check(done.returncode != 0 and "panicked" not in done.stderr, f"{words[0]} ends with {done.returncode}: {done.stderr}")
            check("damaged" in done.stderr and len(done.stderr.splitlines()) == 1, f"{words[0]} says {done.stderr!r}")
    path.unlink()
    done = world.dormouse(*restore, code=None)
    check(done.returncode != 0 and "is not there" in done.stderr, f"without a dblock restore says {done.stderr!r}")
    path.write_bytes(good)
    (world.snapshots / ".chunks/index").write_bytes(b"none")
    recipe = world.snapshots / name / "recipe"
    kept = recipe.read_bytes()
    recipe.write_bytes(kept[:-1])
    done = world.dormouse(*restore, code=None)
    check(done.returncode != 0 and "recipe" in done.stderr, f"with a bad recipe restore says {done.stderr!r}")
    recipe.write_bytes(kept)
    world.dormouse("store", "verify")
    container.restore(name)


def killed(world):
    """Whenever it is killed, a snapshot is there as it was, or in the store."""
    container, name, _ = original(world)
    chance = random.Random(5)
    for number in range(12):
        words = ("snapshot", "store", name) if number % 3 else ("store", "gc", "--grace", "1ms")
        with subprocess.Popen([DORMOUSE, *words], env={**os.environ, **world.environment}, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL) as storing:
            time.sleep(chance.random() * 0.06)
            storing.kill()
        world.dormouse("snapshot", "verify", name)
    put(world, name)
    world.dormouse("store", "verify")
    clone = Clone(container, name, 0, "none")
    clone.answers("sum", "sum ok")
    clone.kill()
    world.dormouse("snapshot", "remove", name)
    collect(world)
    check(not dblocks(world), f"{dblocks(world)} are left")


def full(world):
    """On a disk that is full at any moment a snapshot stays as it was, and what the store has stays."""
    container = world.add(Untouched(world, 2048)).begin()
    names = [container.checkpoint(leave=True)[0] for _ in range(2)]
    container.delete(force=True)
    with full_disk(world.snapshots / ".chunks", "48M") as room:
        put(world, names[0])
        for left in (0, 4096, 200 << 10, 2 << 20):
            room.leave(left)
            done = world.dormouse("snapshot", "store", "--share-domain", "other", names[1], code=None)
            check(done.returncode != 0 and "No space left" in done.stderr, f"with {left} bytes left it ends with {done.returncode}: {done.stderr!r}")
            done = world.dormouse("store", "gc", "--grace", "1ms", code=None)
            check("panicked" not in done.stderr, done.stderr)
            room.leave(None)
            for name in names:
                world.dormouse("snapshot", "verify", name)
            world.dormouse("store", "verify")
        put(world, names[1], "--share-domain", "other")
        clone = Clone(container, names[1], "full", "none")
        clone.answers("sum", "sum ok")
        clone.kill()
        for name in names:
            world.dormouse("snapshot", "remove", name)
        collect(world)
        check(not dblocks(world), f"{dblocks(world)} are left")


def many(world):
    """Fifty at once make, store, restore, verify, remove and collect snapshots; whoever comes second to the store tries again."""
    container = world.add(Untouched(world, 512)).begin()
    first = container.checkpoint(leave=True)[0]
    put(world, first)

    def again(*words):
        for _ in range(400):
            done = world.dormouse(*words, code=None)
            if "somebody else writes" not in done.stderr:
                return done
            time.sleep(0.05)
        raise Failure(f"{words} is never let in")

    taking = threading.Lock()

    def work(number):
        chance = random.Random(number)
        kind = number % 5
        if kind == 0:
            with taking:
                name, _ = container.checkpoint(f"many-{number}", leave=True)
            check(again("snapshot", "store", name).returncode == 0, f"{name} is not stored")
            world.dormouse("snapshot", "verify", name)
            if chance.random() < 0.7:
                world.dormouse("snapshot", "remove", name)
        elif kind == 1:
            check(again("store", "gc", "--grace", "10m").returncode == 0, "it does not collect")
        elif kind == 2:
            world.dormouse("snapshot", "verify", first)
        elif kind == 3:
            done = world.dormouse("snapshot", "list", "--json")
            check(first in done.stdout, "the list lacks it")
        else:
            with taking:
                clone = Clone(container, first, f"many{number}", "none")
            clone.answers("sum", "sum ok")
            clone.kill()

    with ThreadPoolExecutor(8) as hands:
        for done in [hands.submit(work, number) for number in range(50)]:
            done.result()
    world.dormouse("store", "verify")
    for name in sorted(name for name in world.names() if name == first or name.startswith("many-")):
        world.dormouse("snapshot", "verify", name)
        world.dormouse("snapshot", "remove", name)
    collect(world)
    check(not dblocks(world), f"{dblocks(world)} are left")


def refused(world):
    """What has nothing in common with others is refused, and domains have nothing in common."""
    container = world.add(Untouched(world, 1024)).begin()
    key = container.place / "key"
    key.write_bytes(bytes(range(32)))
    key.chmod(0o600)
    sealed, _ = container.checkpoint(leave=True, more=("--key-file", key))
    packed, _ = container.checkpoint(leave=True, more=("--codec", "lz4"))
    names = [container.checkpoint(leave=True)[0] for _ in range(3)]
    world.refused("snapshot", "store", sealed, says=("sealed",))
    world.refused("snapshot", "store", packed, says=("packed", "--codec"))
    world.refused("snapshot", "store", "nothing", says=("nothing",))
    world.refused("snapshot", "store", "--codec", "deflate-fixed", names[0], says=("lz4",))
    one, other, again = (put(world, name, "--share-domain", domain) for name, domain in zip(names, ("a", "b", "a"), strict=True))
    # A page may come twice in one.
    check(other["stored_bytes"] > one["stored_bytes"] * 9 // 10, f"domain b has {other} of {one}")
    check(again["stored_bytes"] < one["stored_bytes"] // 10, f"domain a has {again}")
    world.refused("checkpoint", "--name", "on", "--leave-running", "--parent", names[0], container.id, says=("store", "--parent"))


def analysed(world):
    """What snapshots consist of, and have in common, is told of plain and of stored ones alike."""
    container = world.add(Untouched(world)).begin()
    names = [container.checkpoint(leave=True)[0] for _ in range(2)]
    packed, _ = container.checkpoint(leave=True, more=("--codec", "lz4"))
    key = container.place / "key"
    key.write_bytes(bytes(range(32)))
    key.chmod(0o600)
    sealed, _ = container.checkpoint(leave=True, more=("--key-file", key))
    container.delete(force=True)
    svg = container.place / "figures.svg"
    found = json.loads(world.dormouse("store", "analyse", "--json", "--svg", svg, *names).stdout)
    check(svg.read_text().startswith("<svg ") and svg.read_text().count("<polyline") == 2 * len(found["regions"]), "there is no chart")
    check([one["name"] for one in found["snapshots"]] == names and not found["left_out"], f"it is of {found['snapshots']}")
    for one in found["snapshots"]:
        touched = one["elsewhere_bytes"] + sum(size for region, size in one["region_bytes"].items() if region != "kernel")
        check(one["untouched_bytes"] + touched == one["memory_bytes"], f"the parts of {one} are not its memory")
    for region in found["regions"]:
        sizes, wanted = region["sizes"], sum(one["region_bytes"][region["region"]] for one in found["snapshots"])
        for size in sizes:
            parts = [size[name] for name in ("kept_bytes", "index_bytes", "entry_bytes", "recipe_bytes")]
            check(size["bytes"] == wanted and sum(parts) == size["total_bytes"], f"{size} does not add up to {wanted}")
            check(size["bytes"] == size["zero_bytes"] + size["repeated_bytes"] + size["kept_bytes"], f"{size} does not add up")
            check(size["runs"] >= len(names), f"{size} has less than one run for each snapshot")
        least = [size["zero_bytes"] + size["repeated_bytes"] for size in sizes]
        check(least == sorted(least, reverse=True), f"larger chunks of {region['region']} have more in common")
        best = min(sizes, key=lambda size: size["total_bytes"])
        check(region["best_chunk_bytes"] == best["chunk_bytes"], f"{region['best_chunk_bytes']} is no better than {best}")
    pages = [region["sizes"][-1] for region in found["regions"] if region["region"] != "kernel"]
    repeated, filled = (sum(size[name] for size in pages) for name in ("repeated_bytes", "bytes"))
    check(repeated > filled * 4 // 10, f"of two of one server {repeated} of {filled} bytes are repeated")
    put(world, names[0])
    again = json.loads(world.dormouse("store", "analyse", "--json", *names).stdout)
    check(again == found, f"of a stored one it is {again}")
    everything = json.loads(world.dormouse("store", "analyse", "--json").stdout)
    check({*names} <= {one["name"] for one in everything["snapshots"]}, "not all are analysed")
    check(all(any(f" {name}:" in why for why in everything["left_out"]) for name in (packed, sealed)), f"left out are {everything['left_out']}")
    brought = json.loads(world.dormouse("store", "retrieve", "--json", names[0]).stdout)
    check(brought["bytes"] > 8 << 20 and brought["dblocks"] > 0 < brought["us"], f"retrieving says {brought}")
    for words, says in ((("nothing",), "nothing"), (("a/b",), "a/b"), ((packed,), "packed"), ((sealed,), "sealed"), ((names[0], names[0]), "twice"),
                        (("--svg", container.place / "no/x", names[0]), "--svg")):
        world.refused("store", "analyse", *words, says=(says,))
    world.refused("store", "retrieve", names[1], says=("snapshot store",))


CASES = [
    ("store-analysed", analysed, ()),
    ("store-used", used, ()),
    ("store-taken", taken, ()),
    ("store-near", near, ()),
    ("store-moved", moved, ()),
    ("store-damaged", damaged, ()),
    ("store-killed", killed, ()),
    ("store-full", full, ()),
    ("store-many", many, ()),
    ("store-refused", refused, ()),
]
