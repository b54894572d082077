"""Hosts that are other than the one where a snapshot was made: their clocks, processors, and limits of memory."""
import json
import os
import time

from lib.command import finish
from lib.outcome import Failure, Skip, check
from world import Held

DAY = 86400
# How far each host's clocks are ahead. Steps from one to the next are up and down by ten days; a clock cannot begin below zero.
AHEAD = (20 * DAY, 30 * DAY, 20 * DAY, 10 * DAY)


def ahead(seconds):
    """A command that begins others where monotonic time and that since the start are ahead."""
    return ("unshare", "--time", "--fork", f"--monotonic={seconds}", f"--boottime={seconds}")


def shifted_clocks(world):
    """A program does not see that its next host has run for ten days more, or less."""
    try:
        finish(*ahead(DAY), "true")
    except Failure as why:
        raise Skip(f"no time namespaces: {why}") from None
    world.by = ahead(AHEAD[0])
    container = world.add(Held(world, "Clocks")).begin()
    last = container.call("now")
    for turn in range(max(world.rounds, 3)):
        container.call("arm", 0.3)
        name, _ = container.checkpoint()
        container.delete()
        world.by = ahead(AHEAD[(turn + 1) % len(AHEAD)])
        container.restore(name)
        now = container.call("now")
        check(now[0] >= last[0] and now[2] >= last[2], f"time stepped back from {last} to {now}")
        check(now[0] - last[0] < DAY, f"monotonic time jumped from {last[0]} to {now[0]}")
        check(abs(now[1] - time.time()) < 5, f"real time is {now[1]}, and the host's {time.time()}")
        begin = time.monotonic()
        container.call("nap", 0.5)
        check(time.monotonic() - begin >= 0.5, f"a sleep of 0.5 s took {time.monotonic() - begin} s of the host's")
        check(container.call("fired_once", 0.3) >= 0.3, "a timer fired too early")
        last = container.call("now")
        world.dormouse("snapshot", "remove", name)


def processors(world):
    """The number of vCPUs is the snapshot's, however many processors the host lets it use."""
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        raise Skip("there is one processor here")
    hosts = [("taskset", "--cpu-list", allowed[0]), ("taskset", "--cpu-list", ",".join(map(str, allowed)))]
    for begun, rounds in ((0, 1), (1, max(world.rounds - 2, 1))):
        world.by = hosts[begun]
        container = world.add(Held(world, "Busy")).begin()
        has = container.call("step")
        for turn in range(rounds):
            name, _ = container.checkpoint()
            container.delete()
            world.by = hosts[(begun + turn + 1) % 2]
            container.restore(name)
            now = container.call("step")
            check(now == has, f"it had vCPUs {has}, and has {now}")
            world.dormouse("snapshot", "remove", name)
        container.close()
    world.by = ()


def memory_limits(world):
    """The limit is the new bundle's, and holds: what fits below it can be had, and what does not cannot."""
    container = world.add(Held(world, "Growing", memory=128 << 20)).begin()
    container.call("grow", 16)
    for turn in range(world.rounds):
        name, _ = container.checkpoint()
        container.delete()
        container.memory = (192 << 20, 96 << 20, 128 << 20)[turn % 3]
        container.write_bundle()
        container.restore(name)
        check(container.call("limit") == container.memory, f"the limit is {container.call('limit')}, not {container.memory}")
        container.call("step")
        check(container.call("fits", (container.memory >> 20) - 64), f"too little fits into {container.memory >> 20} MB")
        check(not container.call("fits", (container.memory >> 20) + 1), f"more fits than {container.memory >> 20} MB")
        container.call("step")
        world.dormouse("snapshot", "remove", name)
    # A bundle without one lifts it.
    name, _ = container.checkpoint()
    container.delete()
    path = container.write_bundle() / "config.json"
    spec = json.loads(path.read_text())
    del spec["linux"]["resources"]
    path.write_text(json.dumps(spec))
    container.restore(name)
    check(container.call("limit") > 1 << 30, f"without a limit it is {container.call('limit')}")
    check(container.call("fits", 300), "too little fits without a limit")
    container.call("step")


CASES = [
    ("shifted-clocks", shifted_clocks, ("unshare",)),
    ("processors", processors, ("taskset",)),
    ("memory-limits", memory_limits, ()),
]
