"""Clones of a sandbox that runs: each goes on in the background, from one moment."""
import json
import os
import random
import shutil
import subprocess
import time
from pathlib import Path

from commands import check_nothing_left, layers
from guests import after
from lib.outcome import check
from lib.tree import DORMOUSE
from lib.waiting import until
from sandboxes import Sandbox, clone
from templates import Untouched
from world import ANSWER_SECONDS, HERE, PYTHON, Container, ask_line

# The first port of clones, below those of programs. The run's network is its own.
BASE = 8000
# Changes files, and then counts in one.
COUNTER = """
echo mine >/kept/file; rm /kept/gone; mv /kept/moved /kept/here
n=0; while :; do n=$((n + 1)); echo $n >/kept/.now; mv /kept/.now /kept/now; sleep 0.02; done
"""
LOOK = "cat /kept/file /kept/here/within; ls /kept"
SEEN = "mine\nstays\naway\nfile\nhere\nnow\n"


class Asked(Container):
    """A container whose program answers lines at a port."""

    def __init__(self, world, **more):
        super().__init__(world, (PYTHON, "/srv/asked.py", "{port}"), **more)
        shutil.copy(HERE / "inside/asked.py", self.srv)

    def asked(self, line, port=None):
        return json.loads(ask_line(port or self.port, line))


def fork(world, name, *more):
    """Result: the clones' names."""
    return world.dormouse("fork", "--swap-dir", world.swap, *more, name).stdout.split()


def end(world, names):
    for name in names:
        world.dormouse("kill", name, "KILL")
    until("the clones to be gone", lambda: not set(names) & world.ids(), ANSWER_SECONDS)


def is_mounted():
    return any("/.fork " in line for line in Path("/proc/self/mounts").read_text().splitlines())


def counts(world, name):
    return int(world.dormouse("exec", name, "/bin/cat", "/kept/now").stdout)


def counts_on(world, name):
    first = counts(world, name)
    until(f"{name} to count on", lambda: counts(world, name) > first, ANSWER_SECONDS)


def of_do(world):
    """Files are those of the moment, each clone's are its own, and clones of clones have them as well."""
    before = layers()
    sandbox = world.add(Sandbox(world, ("/bin/sh", "-c", COUNTER))).begin()

    def inside(name, words, code=0):
        return world.dormouse("exec", name, "/bin/sh", "-c", words, code=code).stdout
    until("its first count", lambda: world.dormouse("exec", sandbox.id, "/bin/cat", "/kept/now", code=None).returncode == 0, ANSWER_SECONDS)
    least = counts(world, sandbox.id)
    names = fork(world, sandbox.id, "--count", 3)
    check(names == [f"{sandbox.id}-{number}" for number in (1, 2, 3)] and set(names) < world.ids(), f"it has made {names}")
    for name in names:
        first = counts(world, name)
        check(first >= least, f"{name} counts {first}, and before there was {least}")
        counts_on(world, name)
        found = inside(name, LOOK)
        check(found == SEEN, f"{name} sees {found!r}")
        inside(name, f"echo {name} >/kept/own; echo {name} >/kept/file")
    check(inside(sandbox.id, LOOK) == SEEN, "a clone has written to the one that it was made from")
    again = fork(world, names[0])
    check(again == [f"{names[0]}-1"], f"the next one is {again}")
    check(inside(again[0], "cat /kept/own /kept/file") == f"{names[0]}\n" * 2, "a clone of a clone has other files")
    inside(again[0], "echo last >/kept/own")
    check(inside(names[0], "cat /kept/own") == f"{names[0]}\n", "a clone of a clone has written to that")
    world.dormouse("hibernate", names[1])
    check(inside(names[1], "cat /kept/own") == f"{names[1]}\n", "a clone that has slept has other files")
    world.dormouse("checkpoint", "--leave-running", "--name", "kept", again[0])
    end(world, [*names, *again])
    found = clone(world, "kept", "/bin/sh", "-c", "cat /kept/own /kept/file").stdout
    check(found == f"last\n{names[0]}\n", f"what begins with a clone's snapshot sees {found!r}")
    counts_on(world, sandbox.id)
    check(not is_mounted(), "the place in memory is seen outside")
    sandbox.close()
    check_nothing_left(world, before)


def of_container(world):
    """Each clone has the memory of the moment, randomness and ports of its own, and what it writes is its own."""
    container = world.add(Asked(world)).begin()
    nonce = container.asked("hello")["nonce"]
    for share in ("none", "snapshot"):
        names = fork(world, container.id, "--count", 4, "--port", f"{container.port}={BASE}", "--share", share)
        ports = [BASE + number for number in range(4)]
        before = container.asked("hello")
        said = [container.asked("hello", port) for port in ports]
        check({one["nonce"] for one in said} == {nonce}, "a clone has begun anew")
        check({one["asked"] for one in said} == {before["asked"]}, f"clones have counted {[one['asked'] for one in said]}")
        for source in ("getrandom", "boot_id"):
            check(len({one[source] for one in [*said, before]}) == 5, f"clones have {source} in common")
        word = f"only-one-{os.urandom(8).hex()}"
        container.asked(f"fill {word}", ports[0])
        check(container.asked(f"find {word}", ports[0])["found"], "it has forgotten what it was told")
        world.dormouse("hibernate", names[0])
        found = [container.asked(f"find {word}", port)["found"] for port in [*ports, container.port]]
        check(found == [True, False, False, False, False], f"what one clone has written is in {found}")
        shown = [json.loads(world.dormouse("stats", "--json", name).stdout)["shown_pages"] for name in names]
        check(all(count == 0 for count in shown) if share == "none" else all(count > 50 for count in shown), f"{shown} pages were shown")
        if share == "snapshot":
            # They need nothing of the one that they were made from.
            container.delete(force=True)
            check(container.asked("hello", ports[1])["nonce"] == nonce, "a clone has gone with the first one")
        end(world, names)
        for name in names:
            world.check_gone(name)


def untouched(world):
    """Pages are reached in every way in clones of a sandbox whose memory was partly shown, and partly stored."""
    container = world.add(Untouched(world))
    # In memory of its own: each clone has what was answered before, and adds to that.
    container.command = ("/bin/sh", "-c", f"{container.command[2]} >/tmp/answers")

    def answers(name):
        return world.dormouse("exec", name, "/bin/cat", "/tmp/answers", code=None).stdout.splitlines()

    def all_say(line, wanted):
        names = [container.id, *clones]
        before = [answers(name).count(wanted) for name in names]
        with open(container.srv / "ask", "a") as asked:
            asked.write(f"{line}\n")
        until(f"answers of all to {line!r}",
              lambda: [answers(name).count(wanted) for name in names] == [count + 1 for count in before], 60)
    clones: list[str] = []
    container.write_bundle()
    Container.begin(container)
    after(container, "the beginning", lambda: answers(container.id) == ["ready"])
    clones += fork(world, container.id, "--count", 2)
    all_say("ways", "ways ok")
    world.dormouse("hibernate", clones[0])
    clones += fork(world, container.id)
    all_say("sum", "sum ok")
    world.dormouse("hibernate", container.id)
    clones += fork(world, container.id)
    all_say("free", "free ok")
    for name in clones:
        world.dormouse("hibernate", name)
        world.dormouse("wake", name)
    all_say("reuse", "reuse ok")
    all_say("sum", "sum ok")
    wrong = [line for name in (container.id, *clones) for line in answers(name) if line.startswith(("sum:", "page"))]
    check(not wrong, f"it says {wrong[:3]}")
    end(world, clones)


def refused(world):
    """What cannot be is refused in words; of clones that cannot all begin none stays, and the sandbox goes on."""
    container = world.add(Asked(world, memory=300 << 20)).begin()
    nonce, port = container.asked("hello")["nonce"], container.port
    others = world.ids()
    world.refused("fork", "nobody", says=("nobody",))
    for count in ("0", "1001", "x"):
        done = world.dormouse("fork", "--count", count, container.id, code=None)
        check(done.returncode != 0 and "--count" in done.stderr, f"--count {count} says {done.stderr!r}")
    world.refused("fork", "--share", "friends", container.id, says=("friends",))
    world.refused("fork", "--name", "a/b", container.id, says=("a/b",))
    world.refused("fork", "--count", 3, "--port", f"{port}=65534", container.id, says=("65534",))
    # The third one's port is taken, and without ports the first one's is.
    with subprocess.Popen(
            [PYTHON, "-c", f"import socket, sys; s = socket.create_server(('127.0.0.1', {BASE + 2})); print(flush=True); sys.stdin.read()"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        holder.stdout.readline()
        world.refused("fork", "--count", 6, "--port", f"{port}={BASE}", container.id, says=(str(BASE + 2),))
        holder.stdin.close()
    world.refused("fork", container.id, says=(str(port),))
    check(world.ids() == others, f"there are {world.ids()}")
    # Its memory once more is above its limit.
    container.asked("grow 250")
    world.refused("fork", "--port", f"{port}={BASE}", container.id, says=("needed once more", "limit"))
    container.asked("grow 0")
    check(container.asked("hello")["nonce"] == nonce, "it does not go on")
    world.dormouse("pause", container.id)
    world.refused("fork", "--port", f"{port}={BASE}", container.id, says=("paused",))
    world.dormouse("resume", container.id)
    names = fork(world, container.id, "--port", f"{port}={BASE}")
    # Its files go with it.
    world.refused("fork", "--port", f"{BASE}={BASE + 1}", names[0], says=("a clone",))
    end(world, names)
    sealed = world.add(Asked(world)).begin("--encrypt", "on")
    sealed.asked("hello")
    world.refused("fork", "--port", f"{sealed.port}={BASE}", sealed.id, says=("encrypt",))


def killed(world):
    """A command that is killed at whatever moment leaves all clones, or none; nothing is left when they have ended."""
    before = layers()
    container = world.add(Asked(world)).begin()
    nonce, rng, whole = container.asked("hello")["nonce"], random.Random(os.getpid()), 0
    for _ in range(10):
        command = subprocess.Popen([str(word) for word in (DORMOUSE, "fork", "--swap-dir", world.swap, "--count", 4, "--port",
                                                           f"{container.port}={BASE}", container.id)],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, **world.environment})
        time.sleep(rng.uniform(0, 0.2))
        command.kill()
        command.wait()
        until("all clones, or none", lambda: len(world.ids()) in (1, 5), ANSWER_SECONDS)
        time.sleep(0.1)
        names = world.ids() - {container.id}
        check(len(names) in (0, 4), f"it has left {names}")
        whole += bool(names)
        end(world, names)
        check(container.asked("hello")["nonce"] == nonce, "it does not go on")
    names = fork(world, container.id, "--count", 2, "--port", f"{container.port}={BASE}")
    end(world, names)
    container.delete(force=True)
    check_nothing_left(world, before)
    world.notes.append(f"{whole} of 10 were made")


CASES = [
    ("fork-sandbox", of_do, ("busybox",)),
    ("fork-container", of_container, ()),
    ("fork-untouched", untouched, ()),
    ("fork-refused", refused, ()),
    ("fork-killed", killed, ()),
]
