"""Commands that are killed at any moment."""
import os
import random
import signal
import subprocess
import time

from lib.command import finish
from lib.outcome import Failure, check
from lib.tree import DORMOUSE
from lib.waiting import comes
from world import Held

TIMES = 20


def killed(world, after, *words):
    """Runs a command that is killed after so many seconds; result: whether it was faster than that."""
    command = subprocess.Popen([str(word) for word in (DORMOUSE, *words)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL, env={**os.environ, **world.environment})
    try:
        command.wait(after)
        return True
    except subprocess.TimeoutExpired:
        command.send_signal(signal.SIGKILL)
        command.wait()
        return False


def check_whole(world, before):
    """Snapshots that are listed are whole. Result: those that were not there before."""
    names = world.names()
    check(before <= names, f"snapshots {before - names} are gone")
    for name in names - before:
        world.dormouse("snapshot", "verify", name)
    return names - before


def settled(world, container):
    """The container's status once nobody works on it: those who were killed had helpers."""
    comes(lambda: world.status(container.id) in ("running", "stopped"), 5)
    return world.status(container.id)


def goes_on(container):
    try:
        container.call("step", patience=20)
    except Failure:
        return False
    return True


def checkpoints(leave):
    def case(world):
        rng = random.Random(os.getpid())
        container = world.add(Held(world, "Memory")).begin()
        container.call("step")
        begin = time.monotonic()
        container.checkpoint("whole", leave=True)
        takes, ended, finished = time.monotonic() - begin, 0, 0
        for turn in range(TIMES):
            before = world.names()
            after = rng.uniform(0, takes * 1.1)
            finished += killed(world, after, "checkpoint", "--name", f"turn{turn}", *(["--leave-running"] if leave else []), container.id)
            try:
                new = check_whole(world, before)
                # Whoever ends it does so once the snapshot is whole, maybe a moment after the command was killed.
                time.sleep(0.05)
                status = settled(world, container)
                new = check_whole(world, before)
                check(status == "running" or (status == "stopped" and not leave and new), f"it is {status!r}, and snapshots are {new}")
                if status == "running" and new and not leave and not goes_on(container):
                    # It was about to end.
                    check(comes(lambda: world.status(container.id) == "stopped", 20), "it neither answers nor ends")
                    status = "stopped"
                if status == "stopped":
                    ended += 1
                    container.delete()
                    container.restore(new.pop())
                container.call("step", patience=20)
            except Failure as why:
                raise Failure(f"turn {turn}, killed after {after * 1000:.1f} ms of about {takes * 1000:.0f}: {why}") from None
        container.checkpoint("last", leave=True)
        check(not world.left_overs(), f"beside the snapshots is {world.left_overs()}")
        container.call("step")
        container.delete(force=True)
        world.check_gone(container.id)
        world.notes.append(f"{finished} of {TIMES} were faster" + ("" if leave else f", {ended} had ended"))
    return case


def restores(world):
    rng = random.Random(os.getpid())
    container = world.add(Held(world, "Memory")).begin()
    container.call("step")
    name, _ = container.checkpoint()
    container.delete()
    begin = time.monotonic()
    container.restore(name)
    takes = time.monotonic() - begin
    container.delete(force=True)
    there, vanished = 0, []
    for turn in range(TIMES):
        new, after = f"{container.id}-turn{turn}", rng.uniform(0, takes * 1.1)
        killed(world, after, "restore", "--detach", "--snapshot", name, "--bundle", container.bundle, "--swap-dir", world.swap, new)
        try:
            if new in world.ids():
                there += 1
                world.dormouse("delete", "--force", new)
                try:
                    world.check_gone(new)
                except Failure as why:
                    raise Failure(f"after its deletion, {why}") from None
            else:
                vanished.append(new)
        except Failure as why:
            raise Failure(f"turn {turn}, killed after {after * 1000:.1f} ms of about {takes * 1000:.0f}: {why}") from None
    world.dormouse("snapshot", "verify", name)
    container.restore(name)
    container.call("step")
    # What a restore leaves that did not get as far as a container goes when the next one comes.
    for new in vanished:
        try:
            world.check_gone(new, with_groups=False)
        except Failure as why:
            raise Failure(f"after a whole restore, {why}; it was killed before there was a container") from None
    world.notes.append(f"{there} of {TIMES} had a container")


def restore_before_its_record(world):
    """A restore that has made control groups is killed before it says so in its state: the next one removes them."""
    container = world.add(Held(world, "Plain")).begin()
    container.call("step")
    name, _ = container.checkpoint()
    container.delete()
    new = f"{container.id}-early"
    renames = "rename,renameat,renameat2"
    finish("strace", "-o", world.directory / "calls", "-e", f"trace={renames}", "-e", f"inject={renames}:signal=KILL:when=2", DORMOUSE,
           "restore", "--detach", "--snapshot", name, "--bundle", container.bundle, new, code=None, environment=world.environment)
    check(new not in world.ids(), "it came further than its state")
    container.restore(name)
    container.call("step")
    world.check_gone(new, with_groups=False)


CASES = [
    ("checkpoint-is-killed", checkpoints(leave=False), ()),
    ("checkpoint-left-running-is-killed", checkpoints(leave=True), ()),
    ("restore-is-killed", restores, ()),
    ("restore-is-killed-early", restore_before_its_record, ("strace",)),
]
