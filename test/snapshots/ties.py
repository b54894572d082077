"""What a program has in common with the host: locks, watches, ports, connections, and clocks."""
import contextlib
import fcntl
import os
import socket
import sqlite3
import struct
import threading
import time

from lib.network import free_port
from lib.outcome import Failure, check
from lib.waiting import comes, until
from world import ANSWER_SECONDS, Held

IN_CREATE, IN_Q_OVERFLOW = 0x100, 0x4000


def taken(srv, name, keep=None):
    """Whether this process cannot have a program's lock; a lock that it gets goes into `keep`, or away."""
    file = open(srv / name, "r+b", buffering=0)
    try:
        if name == "flock":
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        else:
            # An open file's lock: F_OFD_SETLK.
            fcntl.fcntl(file, 37, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0))
    except BlockingIOError:
        return True
    finally:
        file.close() if keep is None else keep.append(file)
    return False


NAMES = ("process", "open", "flock")


def locks(world):
    container = world.add(Held(world, "Locks")).begin()
    container.call("step")
    free = [name for name in NAMES if not taken(container.srv, name)]
    check(not free, f"before any snapshot the host can take the locks {free}")
    container.checkpoint(leave=True)
    free = [name for name in NAMES if not taken(container.srv, name)]
    check(not free, f"after a checkpoint that left it running the host can take the locks {free}")
    for turn in range(world.rounds):
        name, _ = container.checkpoint()
        container.delete()
        held = [name for name in NAMES if taken(container.srv, name)]
        check(not held, f"the locks {held} are taken though their owner has ended")
        if turn == 0:
            for lock in NAMES:
                refused_while_taken(world, container, name, lock)
        container.restore(name)
        container.call("step")
        free = [name for name in NAMES if not taken(container.srv, name)]
        check(not free, f"after {turn + 1} restores the host can take the locks {free}")
    container.call("let_go")
    held = [name for name in NAMES if taken(container.srv, name)]
    check(not held, f"the locks {held} are taken though they were let go")


def refused_while_taken(world, container, name, lock):
    keep = []
    try:
        check(not taken(container.srv, lock, keep), f"{lock} is taken")
        said = world.refused("restore", "--detach", "--snapshot", name, "--bundle", container.bundle, f"{container.id}-locked")
        check("lock" in said, f"a lock that somebody else has is refused with {said!r}")
        world.check_gone(f"{container.id}-locked")
    finally:
        for file in keep:
            file.close()


def sqlite_from_outside(world):
    """Committed rows are there for the host, and the lock of the open transaction is."""
    container = world.add(Held(world, "Sqlite")).begin()
    container.call("step")
    for _ in range(world.rounds):
        container.cycle()
        base = sqlite3.connect(container.srv / "base", timeout=0)
        rows = [row[0] for row in base.execute("select number from rows where number < 1000 order by number")]
        check(rows == list(range(container.asked + 1)), f"the host sees rows {rows}, after {container.asked} steps")
        try:
            base.execute("begin immediate")
            check(False, "the host can begin a transaction while one is open in the container")
        except sqlite3.OperationalError as why:
            check("locked" in str(why), str(why))
        base.close()
        container.call("step")


def watches(world):
    container = world.add(Held(world, "Watches")).begin()
    check(container.call("events") == [], "there are events before anything happened")
    watched, number = container.srv / "watched", 0

    def seen(mask, name=None):
        """Whether such an event comes."""
        found = []

        def comes_in():
            found.extend(container.call("events"))
            return any(event[1] & mask and name in (None, event[2]) for event in found)
        check(comes(comes_in, ANSWER_SECONDS), f"{container.where()}: no event with mask {mask:#x} of {name}, but {found}")

    def change():
        nonlocal number
        number += 1
        (watched / f"file{number}").touch()
        seen(IN_CREATE, f"file{number}")
    change()
    container.checkpoint(leave=True)
    change()
    for _ in range(world.rounds):
        container.cycle()
        seen(IN_Q_OVERFLOW)
        change()


class Clients(threading.Thread):
    """A client after the other asks a server, and counts how each one ended."""

    def __init__(self, port, pause):
        super().__init__(daemon=True)
        self.port, self.pause, self.ends, self.done = port, pause, {}, False

    def run(self):
        while not self.done:
            end = self.one()
            self.ends[end] = self.ends.get(end, 0) + 1
            time.sleep(self.pause)

    def one(self):
        try:
            with socket.create_connection(("127.0.0.1", self.port), 15) as client:
                client.sendall(b"x")
                answer = client.recv(100)
                return "answer" if answer == b"answer to x" else f"read {answer!r}"
        except ConnectionResetError:
            return "reset"
        except BrokenPipeError:
            return "reset"
        except ConnectionRefusedError:
            # It does not listen at the moment.
            time.sleep(0.005)
            return "refused"
        except TimeoutError:
            return "nothing in 15 s"


def load(pause):
    """A case in which four clients ask one after the other, each with a pause in between."""
    return lambda world: under_load(world, pause)


def under_load(world, pause):
    container = world.add(Held(world, "Load")).begin()
    port, _ = container.call("step")
    totals, refusals = {}, []
    for turn in range(world.rounds + 1):
        clients = [Clients(port, pause) for _ in range(4)]
        for client in clients:
            client.start()
        time.sleep(0.2)
        if turn == 0:
            name = written(container, refusals, leave=True)
            allowed = {"answer"}
        else:
            name = written(container, refusals, leave=False)
            container.delete()
            container.restore(name)
            allowed = {"answer", "reset", "refused", "read b''"}
        before = sum(client.ends.get("answer", 0) for client in clients)
        until("answers to new clients", lambda: sum(client.ends.get("answer", 0) for client in clients) > before + 20, ANSWER_SECONDS)
        for client in clients:
            client.done = True
        for client in clients:
            client.join(20)
        ends = {end: sum(client.ends.get(end, 0) for client in clients) for client in clients for end in client.ends}
        check(set(ends) <= allowed, f"turn {turn}: clients ended with {ends}")
        totals = {end: totals.get(end, 0) + ends.get(end, 0) for end in {*totals, *ends}}
        check(container.call("step")[0] == port, "it listens at another port")
    told = ", ".join(f"{count} {end}" for end, count in sorted(totals.items()))
    check(not refusals, f"{len(refusals)} checkpoints were refused under load, the last one with {refusals[-1:]}; clients: {told}")
    world.notes.append(told)


def written(container, refusals, leave):
    """A snapshot of a container under load. Each refusal is noted, which fails the case in the end, and it is tried again."""
    for _ in range(20):
        try:
            return container.checkpoint(f"{container.id}.load{len(refusals)}{leave}", leave)[0]
        except Failure as why:
            refusals.append(str(why))
    raise Failure(f"no checkpoint of 20 under load was made: {refusals[-1]}")


def connection(world):
    """A connection to the outside is reset in the restored container, and stays in one that goes on."""
    container = world.add(Held(world, "Outside")).begin()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        def serve():
            # Until the listener is closed.
            with contextlib.suppress(OSError):
                while True:
                    client, _ = listener.accept()
                    client.recv(10)
                    client.sendall(b"welcome")
                    kept.append(client)
        kept = []
        threading.Thread(target=serve, daemon=True).start()
        port = listener.getsockname()[1]
        for _ in range(world.rounds):
            check(container.call("connect", port) == "welcome", "another greeting")
            for more in ((), ("--leave-running",)):
                world.refused("checkpoint", "--established", "refuse", "--name", "refused", *more, container.id,
                              says=(f"127.0.0.1 port {port}",))
            check("refused" not in world.names(), "a snapshot that was refused is listed")
            container.checkpoint(leave=True)
            kept[-1].sendall(b"more")
            check(container.call("state") == "read b'more'", "a connection of a container that goes on has other bytes")
            container.cycle()
            said = container.call("state")
            check(said == "ConnectionResetError", f"after the restore a connection to the host gives {said!r}")


def pairs(topic):
    """A case of connections between the program's own sockets: a snapshot, which nothing refuses, has them with all unread bytes. It is
    restored more than once, and what comes of it is written again."""
    def case(world):
        container = world.add(Held(world, topic)).begin()
        container.call("step")
        for _ in range(2):
            container.checkpoint(leave=True)
            container.call("step")
        world.dormouse("checkpoint", "--established", "refuse", "--leave-running", "--name", "unconnected", container.id)
        container.call("step")
        for _ in range(world.rounds):
            name, _ = container.checkpoint()
            asked = container.asked
            container.delete()
            for turn in range(2):
                container.restore(name)
                container.asked = asked
                container.call("step")
                # The second one is written by itself.
                container.call("step")
                if turn == 0:
                    container.delete(force=True)
            world.dormouse("snapshot", "remove", name)
    return case


def closing(world):
    """Bytes unread in a restored container count for the other end when the connection is closed."""
    container = world.add(Held(world, "Closing")).begin()
    container.checkpoint(leave=True)
    container.call("close", False)
    for _ in range(world.rounds):
        container.cycle()
        container.call("close", True)


def datagrams(world):
    """A bound port answers the host after the restore, and nobody else has it."""
    container = world.add(Held(world, "Udp")).begin()
    # There is no connection that would be lost.
    world.dormouse("checkpoint", "--established", "refuse", "--leave-running", "--name", "unconnected", container.id)
    port = container.call("step")
    for turn in range(world.rounds + 1):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.settimeout(5)
            client.sendto(b"host", ("127.0.0.1", port))
            check(client.recv(100) == b"%d host" % (2 * turn + 2), "another answer")
        container.cycle()
        check(container.call("step") == port, "it has another port")


def clocks(world):
    container = world.add(Held(world, "Clocks")).begin()
    container.call("now")
    container.checkpoint(leave=True)
    last, _, _ = container.call("now")
    for _ in range(world.rounds):
        container.call("arm", 0.3)
        name, _ = container.checkpoint()
        container.delete()
        # Due on the host's clock while there is no container.
        time.sleep(0.5)
        container.restore(name)
        now, real, _ = container.call("now")
        check(now >= last, f"monotonic time stepped back from {last} to {now}")
        check(abs(real - time.time()) < 5, f"real time is {real}, and the host's {time.time()}")
        last = now
        passed = container.call("fired_once", 0.3)
        check(passed >= 0.3, f"a timer of 0.3 s fired after {passed} s")
    # One that left its container running is restored too: later, from an earlier moment.
    container.call("arm", 0.2)
    container.checkpoint(leave=True)
    container.call("fired_once", 0.2)


def port_in_use(world):
    container = world.add(Held(world, "Plain")).begin()
    container.call("step")
    name, _ = container.checkpoint()
    container.delete()
    other = f"{container.id}-second"
    with socket.create_server(("127.0.0.1", container.port)):
        said = world.refused("restore", "--detach", "--snapshot", name, "--bundle", container.bundle, other)
        check(str(container.port) in said, f"a port in use is refused with {said!r}")
        world.check_gone(other)
    container.restore(name)
    container.call("step")
    said = world.refused("restore", "--detach", "--snapshot", name, "--bundle", container.bundle, other)
    check(str(container.port) in said, f"a port that another clone has is refused with {said!r}")
    world.check_gone(other)
    container.call("step")
    container.delete(force=True)
    # Of its own accord it would have the port that it had.
    elsewhere = free_port()
    container.restore(name, "--port", f"{container.port}={elsewhere}")
    container.port, container.asked = elsewhere, 1
    container.call("step")


def written_to(world):
    """Files of volumes that were open for writing or in shared mappings are told, and whoever changes one is noticed."""
    for topic, wanted in (("Open", {"/srv/kept", "/srv/log"}), ("Mapped", {"/srv/shared"})):
        container = world.add(Held(world, topic)).begin()
        container.call("step")
        name, figures = container.checkpoint()
        listed = set(figures["manifest"]["container"].get("written", ()))
        check(wanted <= listed and "/srv/gone" not in listed and "/srv/held.py" not in listed, f"{topic} writes to {listed}")
        shown = world.dormouse("snapshot", "inspect", name).stdout
        check(all(path in shown for path in wanted), f"inspect shows {shown!r}")
        container.delete()
        for path in wanted:
            file = container.srv / path.rpartition("/")[2]
            was = file.stat()
            os.utime(file, ns=(was.st_atime_ns, was.st_mtime_ns + 1000))
            said = world.refused("restore", "--detach", "--snapshot", name, "--bundle", container.bundle, "none")
            check(file.name in said, f"a change of {path} is refused with {said!r}")
            os.utime(file, ns=(was.st_atime_ns, was.st_mtime_ns))
        container.restore(name)
        container.call("step")


CASES = [
    ("written-to", written_to, ()),
    ("locks", locks, ()),
    ("sqlite-from-outside", sqlite_from_outside, ()),
    ("watches", watches, ()),
    ("load", load(0), ()),
    ("light-load", load(0.02), ()),
    ("connection-to-the-host", connection, ()),
    ("connection-of-its-own", pairs("OwnTcp"), ()),
    ("connections-full", pairs("Full"), ()),
    ("connections-with-questions", pairs("Echo"), ()),
    ("connections-half-closed", pairs("Halves"), ()),
    ("connections-closed", closing, ()),
    ("connections-to-redis", pairs("Redis"), ("redis-server",)),
    ("datagrams", datagrams, ()),
    ("clocks", clocks, ()),
    ("port-in-use", port_in_use, ()),
]
