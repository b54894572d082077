"""Clones that are ready for whoever wants one."""
import json
import os
import subprocess
import time

from commands import check_nothing_left, layers
from forks import BASE, Asked, end
from lib.outcome import check
from lib.tree import DORMOUSE
from lib.waiting import until
from sandboxes import Sandbox
from world import ANSWER_SECONDS, PYTHON


class Pool:
    """The command that keeps a snapshot's clones."""

    def __init__(self, world, name, size, *more):
        self.world, self.name, self.size = world, name, size
        self.log = world.directory / "pool.log"
        with open(self.log, "ab") as output:
            self.command = subprocess.Popen([str(word) for word in (DORMOUSE, "pool", name, "--size", size, "--swap-dir", world.swap, *more)],
                                            stdin=subprocess.DEVNULL, stdout=output, stderr=output, env={**os.environ, **world.environment})

    def shown(self):
        return json.loads(self.world.dormouse("pool", "--json", self.name).stdout)

    def is_full(self):
        done = self.world.dormouse("pool", "--json", self.name, code=None)
        return done.returncode == 0 and len(json.loads(done.stdout)["ready"]) == self.size

    def filled(self):
        until(f"{self.size} clones; it says {self.log.read_text()[-300:]!r}", self.is_full, ANSWER_SECONDS)
        return self.shown()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()

    def kill(self):
        self.command.kill()
        self.command.wait()


def launched(world, *words):
    return subprocess.Popen([str(word) for word in (DORMOUSE, *words)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            text=True, env={**os.environ, **world.environment})


def original(world):
    container = world.add(Asked(world)).begin()
    nonce = container.asked("hello")["nonce"]
    name, _ = container.checkpoint()
    container.delete()
    return container, name, nonce


def taken(world):
    """Clones that are ready sleep; who takes one has it alone, and another comes; those that were taken outlive the pool."""
    before = layers()
    container, name, nonce = original(world)
    with Pool(world, name, 3, "--port", f"{container.port}={BASE}", "--share", "snapshot") as pool:
        shown = pool.filled()
        check(shown["memory_bytes"] > 0 and shown["taken"] == 0, f"it shows {shown}")
        for one in shown["ready"]:
            state = json.loads(world.dormouse("state", one).stdout)
            check(state.get("sandboxState", state.get("sandbox_state")) in (None, "hibernated"), f"a clone that is ready is {state}")
            check(json.loads(world.dormouse("stats", "--json", one).stdout)["hibernations"] == 1, "a clone that is ready is awake")
        mine = []
        for _ in range(4):
            one, ports = world.dormouse("do", "--from", name, "--detach").stdout.split()
            check(one in pool.filled()["ready"] or one not in pool.shown()["ready"], "one that was taken is ready again")
            old, new = map(int, ports.split("="))
            said = container.asked("hello", new)
            check(old == container.port and said["nonce"] == nonce and said["asked"] == 2, f"it says {said}")
            mine.append((one, new))
        check(len(set(mine)) == 4 and len({port for _, port in mine}) == 4, f"they are {mine}")
        container.asked("fill apart", mine[0][1])
        check(not container.asked("find apart", mine[1][1])["found"], "what one has written is in another")
        shown = pool.filled()
        check(shown["taken"] == 4 and shown["missed"] == 0, f"it shows {shown}")
        # A command looks for the program's port where it was, so it gets a clone of its own.
        done = world.dormouse("do", "--from", name, "--", "/bin/true", code=0)
        check(pool.shown()["taken"] == 4, f"a command has got a clone with another port: {done}")
        until("only those to be left", lambda: world.ids() == {one for one, _ in mine} | set(pool.shown()["ready"]), ANSWER_SECONDS)
        # Whoever wants something else gets no clone of it.
        one = world.dormouse("do", "--from", name, "--detach", "--port", f"{container.port}={BASE + 500}", "--swap-dir",
                             world.swap).stdout.split()
        check(one[1] == f"{container.port}={BASE + 500}" and pool.shown()["taken"] == 4, f"it has got {one}")
        end(world, [one[0]])
        # A number that is free is given again.
        end(world, [mine[0][0]])
        one, ports = world.dormouse("do", "--from", name, "--detach").stdout.split()
        check(container.asked("hello", int(ports.split("=")[1]))["nonce"] == nonce, "it does not answer")
        mine[0] = (one, 0)
        pool.filled()
    until("what was ready to be gone", lambda: world.ids() == {one for one, _ in mine}, ANSWER_SECONDS)
    check(container.asked("hello", mine[1][1])["nonce"] == nonce, "one that was taken has gone with the pool")
    # Another pool finds their ports in use, and takes others.
    with Pool(world, name, 2, "--port", f"{container.port}={BASE}") as pool:
        pool.filled()
        one, ports = world.dormouse("do", "--from", name, "--detach").stdout.split()
        check(container.asked("hello", int(ports.split("=")[1]))["nonce"] == nonce, "it does not answer")
        mine.append((one, 0))
    end(world, [one for one, _ in mine])
    check_nothing_left(world, before)


def of_do(world):
    """Many want one at once, more than are ready: each gets one of its own, and all end with whoever has taken them."""
    before = layers()
    sandbox = world.add(Sandbox(world, ("/bin/sh", "-c", "echo mine >/kept/file; while :; do sleep 1; done"))).begin()
    until("its file", lambda: world.dormouse("exec", sandbox.id, "/bin/cat", "/kept/file", code=None).returncode == 0, ANSWER_SECONDS)
    name, _ = sandbox.checkpoint()
    sandbox.close()
    with Pool(world, name, 2) as pool:
        pool.filled()
        for _ in range(world.rounds):
            commands = [launched(world, "do", "--from", name, "--", "/bin/sh", "-c", f"echo {one} >/kept/own; sleep 0.1; cat /kept/own /kept/file")
                        for one in range(6)]
            said = [(*command.communicate(timeout=60), command.returncode) for command in commands]
            check(said == [(f"{one}\nmine\n", "", 0) for one in range(6)], f"they say {said}")
        shown = pool.filled()
        check(shown["taken"] >= world.rounds and shown["taken"] + shown["missed"] == 6 * world.rounds, f"it shows {shown}")
        # With its own streams and code, and the clone ends with it.
        done = world.dormouse("do", "--from", name, "--", "/bin/sh", "-c", "cat; echo apart >&2; exit 7", stdin="in\n", code=7)
        check((done.stdout, done.stderr) == ("in\n", "apart\n"), f"a command says {done.stdout!r} and {done.stderr!r}")
        until("its clone to be gone", lambda: world.ids() == set(pool.shown()["ready"]), ANSWER_SECONDS)
        # One in the background goes on though nobody asks it for anything, and keeps nothing open of whoever wanted it.
        with subprocess.Popen(("/bin/sh", "-c", f"exec 9>&1; exec {DORMOUSE} do --from {name} --detach"), stdout=subprocess.PIPE, text=True,
                              env={**os.environ, **world.environment}) as command:
            one = command.communicate(timeout=ANSWER_SECONDS)[0].strip()
        until("it to wake", lambda: "hibernated" not in world.dormouse("state", one).stdout, ANSWER_SECONDS)
        end(world, [one])
        shown = pool.filled()
        # Whoever has taken one is killed.
        command = launched(world, "do", "--from", name, "--", "/bin/sleep", "1000")
        until("it to be taken", lambda: pool.shown()["taken"] > shown["taken"], ANSWER_SECONDS)
        command.kill()
        command.communicate()
        pool.filled()
        until("its clone to be gone", lambda: world.ids() == set(pool.shown()["ready"]), ANSWER_SECONDS)
        # One that is ready ends, and another takes its place.
        gone = pool.shown()["ready"][0]
        world.dormouse("kill", gone, "KILL")
        until("another one", lambda: gone not in pool.shown()["ready"] and pool.is_full(), ANSWER_SECONDS)
    until("all of it to be gone", lambda: not world.ids(), ANSWER_SECONDS)
    # Without a pool they begin anew.
    check(world.dormouse("do", "--from", name, "--", "/bin/cat", "/kept/file").stdout == "mine\n", "without a pool there is no clone")
    check_nothing_left(world, before)


def refused(world):
    """A second pool, one of nothing, and what cannot sleep; whoever connects and says nothing keeps nobody waiting."""
    container, name, _ = original(world)
    world.refused("pool", "nobody", "--size", 1, says=("nobody",))
    world.refused("pool", name, says=("there is none", "--size"))
    for size in ("0", "1001"):
        done = world.dormouse("pool", name, "--size", size, code=None)
        check(done.returncode != 0 and "--size" in done.stderr, f"--size {size} says {done.stderr!r}")
    world.refused("pool", name, "--size", 9, "--port", f"{container.port}=65530", says=("65530",))
    with Pool(world, name, 1, "--port", f"{container.port}={BASE}") as pool:
        pool.filled()
        world.refused("pool", name, "--size", 1, says=("there is one",))
        place = next(path for path in (world.state / ".pools").iterdir() if not path.suffix)
        check(place.stat().st_mode & 0o077 == 0 or (world.state / ".pools").stat().st_mode & 0o077 == 0, "others may connect")
        script = ("import os, socket, sys, time\nall = [socket.socket(socket.AF_UNIX) for _ in range(3)]\n"
                  f"os.chdir({str(place.parent)!r})\n"
                  f"for one, say in zip(all, (b'', b'x' * 100000 + b'\\n', b'{{}}\\n')):\n    one.connect({place.name!r})\n"
                  "    one.setblocking(False)\n    try:\n        one.send(say)\n    except OSError:\n        pass\n"
                  "print(flush=True); sys.stdin.read()")
        with subprocess.Popen([PYTHON, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as silent:
            silent.stdout.readline()
            since = time.monotonic()
            until("an answer", lambda: not pool.shown()["missed"], ANSWER_SECONDS)
            check(time.monotonic() - since < ANSWER_SECONDS, "it waits for one that says nothing")
            silent.stdin.close()
        check(pool.filled()["taken"] == 0, "one was taken by nobody")
        pool.kill()
    until("all of it to be gone", lambda: not world.ids(), ANSWER_SECONDS)
    # A port is taken: it says so once, and goes on to the next one.
    with subprocess.Popen([PYTHON, "-c", f"import socket, sys; s = socket.create_server(('127.0.0.1', {BASE})); print(flush=True); sys.stdin.read()"],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        holder.stdout.readline()
        with Pool(world, name, 2, "--port", f"{container.port}={BASE}") as pool:
            shown = pool.filled()
            check(str(BASE) in shown["why"] and str(BASE) in pool.log.read_text(), f"it shows {shown}")
            check(pool.log.read_text().count("\n") == 1, f"it says {pool.log.read_text()!r}")
            _, ports = world.dormouse("do", "--from", name, "--detach").stdout.split()
            check(ports == f"{container.port}={BASE + 1}", f"it has got {ports}")
        holder.stdin.close()
    # No port is left.
    with Pool(world, name, 2, "--port", f"{container.port}=65534") as pool:
        pool.filled()
        world.dormouse("do", "--from", name, "--detach")
        until("it to say so", lambda: "no port is left" in pool.log.read_text(), ANSWER_SECONDS)


CASES = [
    ("pool-taken", taken, ()),
    ("pool-sandbox", of_do, ("busybox",)),
    ("pool-refused", refused, ()),
]
