"""Snapshots that are put on others (`checkpoint --parent`): what is the same is written once."""
import os
import subprocess

from lib.outcome import Failure, check
from refusals import flipped, places_of, places_of_pages
from world import Held

# More than one may have files below it.
CHAIN = 12
BELOW_MAX = 8
CODECS = ("none", "lz4", "none", "zstd")


def files_below(path):
    return sorted(file.name for file in path.iterdir() if file.name.startswith("below."))


def on(container, parent, leave=True, codec="none"):
    """A snapshot of it on another one; result: its name, and how many pages it has of its own, and leaves to others."""
    words = ("--parent", parent, *(() if codec == "none" else ("--codec", codec)))
    name, figures = container.checkpoint(leave=leave, more=words)
    left, pages = figures["image"]["left_pages"], figures["image"]["head"]["pages"]
    below = figures["manifest"]["files"].get("below", [])
    check(len(files_below(container.world.snapshots / name)) == 2 * len(below), f"{name} has {files_below(container.world.snapshots / name)}")
    check(len(below) <= BELOW_MAX, f"{name} has pages in {len(below)} other files")
    return name, pages - left, left


def chain(world):
    """Each on the one before, of which some are packed; all are restored in any order, while those before are removed."""
    container = world.add(Held(world, "Memory")).begin()
    container.call("step")
    name, figures = container.checkpoint(leave=True)
    names, asked = [name], {name: container.asked}
    pages = figures["image"]["head"]["pages"]
    for turn in range(CHAIN):
        container.call("some" if turn % 4 else "step")
        name, own, left = on(container, names[-1], codec=CODECS[turn % len(CODECS)])
        check(turn % 4 == 0 or own < pages // 4 or turn >= BELOW_MAX, f"of {pages} pages {own} were written again")
        check(left > pages // 3, f"of {pages} pages {left} were left to others")
        names.append(name)
        asked[name] = container.asked
    container.delete(force=True)
    for turn, name in enumerate([*names[1::2], *names[::2]]):
        world.dormouse("snapshot", "verify", name)
        container.asked = asked[name]
        container.restore(name)
        container.call("step")
        container.walk()
        container.delete(force=True)
        world.dormouse("snapshot", "remove", name)
        check(turn < 2 or not world.left_overs(), f"{world.left_overs()} is left")
    check(not world.names(), f"there are {world.names()}")


def clones(world):
    """Of what began with a snapshot, the pages that it never read are left to that without being read; clones of such clones."""
    container = world.add(Held(world, "Memory")).begin()
    container.call("step")
    base, _ = container.checkpoint()
    container.delete()
    parent = base
    for turn in range(world.rounds):
        asked = container.asked
        container.restore(parent)
        container.call("some")
        name, own, left = on(container, parent, leave=turn == 1)
        check(own < left, f"{own} pages were written, and {left} left to {parent}")
        container.delete(force=True)
        container.asked = asked + 1
        container.restore(name)
        container.call("step")
        world.dormouse("hibernate", container.id)
        container.call("step")
        container.walk()
        # On the first one, with which it did not begin.
        other, own, left = on(container, base)
        world.dormouse("snapshot", "verify", other)
        world.dormouse("snapshot", "remove", other)
        container.delete(force=True)
        container.asked = asked + 1
        world.dormouse("snapshot", "verify", name)
        parent = name
    world.dormouse("snapshot", "remove", base)
    container.restore(parent)
    container.call("step")


def asleep(world):
    """A sleeper, and one that is written while it changes its memory."""
    container = world.add(Held(world, "Memory")).begin()
    container.call("step")
    parent, _ = container.checkpoint(leave=True)
    for turn in range(world.rounds):
        container.call("some")
        world.dormouse("hibernate", container.id)
        parent, own, left = on(container, parent, leave=turn == 0)
        check(own < left, f"{own} pages were written, and {left} left")
        # Nothing has changed since.
        same, own, left = on(container, parent, codec="lz4") if turn == 0 else (None, 0, 0)
        if same:
            check(own == 0, f"{own} pages of a sleeper were written again")
            hidden = [file for file in os.listdir(world.snapshots / same) if file.startswith(".")]
            check(not hidden, f"there is {hidden}")
            world.dormouse("snapshot", "verify", same)
            asked = container.asked
            container.delete(force=True)
            container.restore(same)
            container.call("step")
            container.delete(force=True)
            container.asked = asked
            container.restore(parent)
        if turn:
            container.delete()
            container.restore(parent)
    container.call("step")
    container.walk()


def damage(world):
    """Damage in files of others is found, by `verify` and at the restore, or ends the sandbox; a parent that is damaged is none."""
    container = world.add(Held(world, "Memory")).begin()
    container.call("step")
    base, _ = container.checkpoint(leave=True)
    container.call("some")
    name, _, _ = on(container, base, leave=False)
    container.delete()
    path, asked = world.snapshots / name, container.asked
    for place in places_of(path / "below.0.table"):
        with flipped(path / "below.0.table", place):
            said = world.refused("snapshot", "verify", name)
            check("below.0.table" in said, f"byte {place} of a table was flipped: {said!r}")
            world.refused("restore", "--detach", "--snapshot", name, "--bundle", container.bundle, f"{container.id}-never")
            world.refused("snapshot", "verify", base)
    ends = {"refused": 0, "ended": 0, "untouched": 0}
    for place in places_of_pages(world.snapshots / base)[::2]:
        with flipped(path / "below.0.img", place):
            said = world.dormouse("snapshot", "verify", name, code=None)
            check(said.returncode == 0 or "page" in said.stderr, f"verify says {said.stderr!r}")
            try:
                container.restore(name)
                container.call("step", patience=5)
                ends["untouched"] += 1
            except (Failure, OSError) as why:
                check("are wrong" not in str(why), f"byte {place} was flipped: {why}")
                ends["ended"] += 1
            world.dormouse("delete", "--force", container.id, code=None)
            world.check_gone(container.id)
            container.asked = asked
    world.notes.append(", ".join(f"{count} {end}" for end, count in ends.items()))
    container.restore(name)
    container.call("step")
    with flipped(world.snapshots / base / "pages.table", 100):
        world.refused("checkpoint", "--name", "never", "--parent", base, container.id, says=(base, "pages.table"))
    container.call("step")
    check(world.names() == {base, name} and not world.left_overs(), f"there are {world.names()} and {world.left_overs()}")


def refused(world):
    """Parents that are missing, elsewhere, or not this host's; the container goes on."""
    container = world.add(Held(world, "Plain")).begin()
    container.call("step")
    base, _ = container.checkpoint(leave=True)
    other = world.directory / "other"
    other.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", other], check=True)
    try:
        for leave in ((), ("--leave-running",)):
            world.refused("checkpoint", "--name", "never", "--parent", "nobody", *leave, container.id, says=("nobody",))
            world.refused("checkpoint", "--name", "never", "--parent", "../outside", *leave, container.id)
            world.refused("checkpoint", "--image-path", other / "never", "--parent", base, *leave, container.id, says=(base, "file system"))
            with flipped(world.snapshots / base / "manifest.json", 300):
                world.refused("checkpoint", "--name", "never", "--parent", base, *leave, container.id, says=(base,))
            container.call("step")
        check(not os.listdir(other), f"there is {os.listdir(other)}")
        # One that has none of its pages, and one at a path.
        stranger = world.add(Held(world, "Memory")).begin()
        stranger.call("step")
        _, own, left = on(stranger, base)
        check(own > left, f"{own} pages were written, and {left} left to a stranger's")
        world.dormouse("checkpoint", "--leave-running", "--image-path", other / "whole", container.id)
        world.dormouse("checkpoint", "--leave-running", "--image-path", other / "part", "--parent", other / "whole", container.id)
        world.dormouse("snapshot", "verify", "--image-path", other / "part")
        world.dormouse("snapshot", "verify", "--image-path", other / "part")
        container.call("step")
    finally:
        subprocess.run(["umount", "--lazy", other], check=True)
    check(not world.left_overs(), f"{world.left_overs()} is left")


CASES = [
    ("parents-chain", chain, ()),
    ("parents-clones", clones, ()),
    ("parents-asleep", asleep, ()),
    ("parents-damage", damage, ()),
    ("parents-refused", refused, ()),
]
