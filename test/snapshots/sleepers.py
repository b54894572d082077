"""Snapshots of containers that sleep, their memory packed or sealed, and of those that begin as such."""
import json

from lib.outcome import check
from lib.waiting import until
from world import Held

PATIENCE = 30


def stats(world, container):
    return json.loads(world.dormouse("stats", "--json", container.id).stdout)


def packed(codec):
    """A case in which a container is written while its stored memory is packed."""
    def case(world):
        options = ("--codec", codec, "--settle", "100ms")
        container = world.add(Held(world, "Memory")).begin(*options)
        container.call("step")
        for _ in range(world.rounds):
            world.dormouse("hibernate", container.id)
            until("packed pages", lambda: stats(world, container)["home"]["packed_pages"] > 100, PATIENCE)
            container.cycle(*options)
            container.call("step")
    return case


def image(codec):
    """A case in which the pages of snapshots are packed: made, restored, slept on, made again from there, and left running."""
    def case(world):
        words = ("--codec", codec)
        container = world.add(Held(world, "Memory")).begin()
        container.call("step")
        for turn in range(world.rounds):
            name, figures = container.checkpoint(more=words, leave=turn == 1)
            said, of_pages = figures["manifest"]["files"], figures["manifest"]["head"]["pages"] * 4096
            check(said.get("packed", {}).get("codec") == codec, f"it is packed by {said.get('packed')}")
            check(0 < said["pages_bytes"] < of_pages, f"{of_pages} bytes are packed to {said['pages_bytes']}")
            taken = (world.snapshots / name / "pages.img").stat().st_size
            check(taken == said["pages_bytes"], f"the file has {taken} bytes, not {said['pages_bytes']}")
            world.dormouse("snapshot", "verify", name)
            if turn == 1:
                container.call("step")
            container.delete(force=True)
            asked = container.asked
            container.restore(name)
            container.asked = asked - (turn == 1)
            container.call("step")
            world.dormouse("hibernate", container.id)
            container.call("step")
            # What it recorded is there for the next one.
            container.delete(force=True)
            container.asked = asked - (turn == 1)
            container.restore(name)
            container.call("step")
            world.notes.append(f"{said['pages_bytes'] * 100 // of_pages} %")
            world.dormouse("snapshot", "remove", name)
    return case


def sealed(world):
    """Of sealed memory there is no snapshot, awake or asleep; a container that begins with a snapshot may have its memory sealed."""
    container = world.add(Held(world, "Memory")).begin("--encrypt", "on")

    def refused():
        for more in ((), ("--leave-running",)):
            world.refused("checkpoint", "--name", "sealed", *more, container.id, says=(container.id,))
        check(not world.names() and not world.left_overs(), f"there are {world.names()} and {world.left_overs()}")
        container.call("step")
    container.call("step")
    refused()
    world.dormouse("hibernate", container.id)
    refused()
    container = world.add(Held(world, "Memory")).begin()
    container.call("step")
    for _ in range(world.rounds):
        name, _ = container.checkpoint()
        for more in (("--encrypt", "on"), ()):
            container.delete(force=True)
            asked = container.asked
            container.restore(name, *more)
            container.call("step")
            world.dormouse("hibernate", container.id)
            container.call("step")
            if more:
                world.refused("checkpoint", "--name", "sealed", container.id, says=(container.id,))
                container.asked = asked
        world.dormouse("snapshot", "remove", name)


CASES = [
    ("packed-lz4", packed("lz4"), ()),
    ("packed-zstd", packed("zstd"), ()),
    ("packed-image-lz4", image("lz4"), ()),
    ("packed-image-zstd", image("zstd:3"), ()),
    ("packed-image-canned", image("deflate-canned"), ()),
    ("sealed", sealed, ()),
]
