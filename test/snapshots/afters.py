"""Commands that run in a container before its programs go on (`restore --after`)."""
import os
import signal
import subprocess

from lib.outcome import check
from lib.tree import DORMOUSE
from lib.waiting import comes, until
from world import PYTHON, Held

# Counts all the time, and says what signal came, and how far it was by then.
COUNTER = """
import os, signal
count = 0
file = os.open('/tmp/count', os.O_RDWR | os.O_CREAT)
def note(number, frame):
    print('signal', count, flush=True)
signal.signal(signal.SIGHUP, note)
while True:
    count += 1
    os.pwrite(file, b'%012d' % count, 0)
    if count % 2000 == 0:
        print('count', flush=True)
"""


def counter(world):
    container = world.container(PYTHON, "-u", "-c", COUNTER)
    container.begin()
    until("a count", lambda: "count" in container.said(), 30)
    return container


def goes_on(container):
    """Whether it counts for some time."""
    before = container.said().count("count")
    return comes(lambda: container.said().count("count") > before, 1)


def rests(world):
    """Nothing else of it runs while the command does, though that takes its time; a signal that it sends comes first."""
    container = counter(world)
    name, _ = container.checkpoint()
    container.delete()
    for _ in range(world.rounds):
        before = container.said()
        container.restore(name, "--after", "cat /tmp/count; echo; for i in 1 2 3 4 5 6 7; do sleep 0.1; cat /tmp/count; echo; done; "
                          "sh -c 'kill -HUP 1'; sleep 0.3; cat /tmp/count; echo; echo done $(id -u) $PWD")
        said = container.said()[len(before):].split("done", 1)
        counts = said[0].split()
        check(len(counts) == 9 and len(set(counts)) == 1, f"its counts were {counts} while a command ran")
        check(said[1].startswith(" 0 /"), f"the command said {said[1]!r}")
        until("the signal", lambda: "signal" in container.said()[len(before):], 10)
        words = container.said()[len(before):].split("done", 1)[1].split("\n")[1].split()
        check(words[0] == "signal", f"before the signal came {words}")
        check(goes_on(container), "it does not go on")
        container.delete(force=True)
        world.check_gone(container.id)
    world.dormouse("snapshot", "verify", name)


def fails(world):
    """A command that fails, or cannot be run: the container is gone, and the status is told. What the first process is asked is not lost."""
    container = world.add(Held(world, "Plain")).begin()
    container.call("step")
    name, _ = container.checkpoint()
    container.delete()
    for command, says in (("exit 7", "7"), ("kill -9 $$", "137"), ("/no/such", "127")):
        for more in (("--detach",), ()):
            container.log.touch()
            with open(container.log, "ab") as log:
                words = ("restore", *more, "--snapshot", name, "--bundle", container.bundle, "--swap-dir", world.swap, "--after", command)
                ended = subprocess.run([DORMOUSE, *map(str, words), container.id], stdin=subprocess.DEVNULL, stdout=log,
                                       stderr=subprocess.PIPE, env={**os.environ, **world.environment}, timeout=60, text=True)
            check(ended.returncode != 0 and says in ended.stderr, f"{command}: {ended.returncode} and {ended.stderr!r}")
            world.check_gone(container.id)
    container.restore(name, "--after", "true")
    container.call("step")
    world.dormouse("exec", container.id, "/bin/true")
    # What the command has left behind goes on, and rests with the others from now on.
    asked = container.asked
    container.delete(force=True)
    container.asked = asked - 1
    container.restore(name, "--after", "sleep 1000 & sleep 0.1")
    container.call("step")
    again, _ = container.checkpoint(leave=True)
    container.call("step")
    container.delete(force=True)
    container.restore(again)
    container.asked = asked
    container.call("step")
    check("sleep 1000" in world.dormouse("exec", container.id, "/bin/ps", "ax").stdout, "what the command began has ended")


def waits(world):
    """Meanwhile there is no checkpoint of it; killed, the command takes the container with it."""
    container = counter(world)
    name, _ = container.checkpoint()
    container.delete()
    for more in (("--detach",), ()):
        words = ("restore", *more, "--snapshot", name, "--bundle", container.bundle, "--swap-dir", world.swap,
                 "--after", "touch /srv/here; sleep 100")
        (container.srv / "here").unlink(missing_ok=True)
        with open(container.log, "ab") as log:
            command = subprocess.Popen([DORMOUSE, *map(str, words), container.id], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                       env={**os.environ, **world.environment})
        until("the command", lambda: (container.srv / "here").exists(), 30)
        world.refused("checkpoint", "--name", "never", container.id, says=(container.id, "not gone on"))
        world.dormouse("hibernate", container.id, code=None)
        world.dormouse("pause", container.id, code=None)
        world.dormouse("resume", container.id, code=None)
        check(not goes_on(container), "it goes on")
        command.send_signal(signal.SIGKILL)
        command.wait()
        check(comes(lambda: world.status(container.id) in ("stopped", ""), 10), f"it is {world.status(container.id)}")
        world.dormouse("delete", "--force", container.id, code=None)
        world.check_gone(container.id)
    check(not world.left_overs(), f"{world.left_overs()} is left")


CASES = [
    ("after-rests", rests, ()),
    ("after-fails", fails, ()),
    ("after-waits", waits, ()),
]
