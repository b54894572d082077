"""Snapshots that are held in memory: what begins with one has its pages from there, whatever becomes of the files."""
import json
import os
import signal
import socket
import struct
import subprocess
from pathlib import Path

from forks import BASE, end
from lib.outcome import check
from lib.tree import DORMOUSE
from lib.waiting import until
from pools import Pool
from pools import original as asked_original
from sandboxes import Sandbox
from templates import Clone, Untouched, original
from world import ANSWER_SECONDS, FILES, PYTHON

# A keeper has its heap, and the pages of the program that it runs.
KEEPER_KB_MAX = 1536
NOBODY = 65534


def held(world):
    """What is held, by digest."""
    return {one["digest"]: one for one in json.loads(world.dormouse("snapshot", "bases", "--json").stdout)}


def only(world):
    found = list(held(world).values())
    check(len(found) == 1, f"{found} is held")
    return found[0]


def hold(world, name):
    said = world.dormouse("snapshot", "hold", name).stdout
    check(f"{name} is held:" in said, f"hold says {said!r}")
    return only(world)


def keepers(world):
    """The processes that hold bases of this case."""
    place, found = str(world.state / ".bases"), []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "comm").read_text().strip() == "dormouse-base" and any(os.readlink(fd) == place for fd in (process / "fd").iterdir()):
                found.append(int(process.name))
        except OSError:
            pass
    return found


def sockets(world):
    return [path for path in (world.state / ".bases").iterdir() if path.suffix != ".lock"]


def lose(world, name):
    """The snapshot's files give no page any more."""
    for file in (world.snapshots / name).glob("*.img"):
        if file.name not in ("kernel.img", "orphans.img"):
            os.truncate(file, 0)


def uncache(world, name):
    for file in FILES:
        with open(world.snapshots / name / file, "rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def used(world):
    """Sandboxes have all pages from memory, alone and shared, awake and after sleeps, also once it is released; they are counted."""
    container, name, _ = original(world)
    one = hold(world, name)
    check(one["pages_bytes"] > 8 << 20 and one["sandboxes"] == 0 and not one["is_former"], f"it shows {one}")
    uncache(world, name)
    clones = [Clone(container, name, number, share) for number, share in enumerate(("none", "snapshot", "none", "snapshot", "apart"))]
    # A domain has a file of its own.
    check(only(world)["sandboxes"] == 4, f"with four that use it, it shows {only(world)}")
    clones.pop().kill()
    lose(world, name)
    for clone in clones:
        clone.answers("ways", "ways ok")
    shown = [clone.stats()["shown_pages"] for clone in clones]
    check(shown[0] == shown[2] == 0 and min(shown[1], shown[3]) > 100, f"{shown} pages were shown")
    for clone in clones:
        clone.sleep()
        clone.answers("sum", "sum ok")
    clones.pop().kill()
    check(only(world)["sandboxes"] == 3, f"with three that use it, it shows {only(world)}")
    world.dormouse("snapshot", "release", name)
    check(not held(world) and not keepers(world), "it is held after its release")
    for clone in clones:
        clone.answers("reuse" if clone is clones[0] else "sum", "reuse ok" if clone is clones[0] else "sum ok")
        clone.sleep()
        clone.answers("ways", "ways ok")
        clone.kill()


def packed(world):
    """Snapshots that are packed, or have pages of others, are held as any other, and shared."""
    container = world.add(Untouched(world)).begin()
    first, _ = container.checkpoint(leave=True)
    names = [container.checkpoint(leave=True, more=more)[0] for more in (
        ("--codec", "lz4"), ("--parent", first), ("--parent", first, "--codec", "zstd"))]
    container.delete(force=True)
    world.dormouse("snapshot", "remove", first)
    clones = []
    for number, name in enumerate(names):
        world.dormouse("snapshot", "hold", name)
        clones.append([Clone(container, name, f"{number}{share}", share) for share in ("none", "snapshot")])
    check([one["sandboxes"] for one in held(world).values()] == [2] * len(names), f"it shows {held(world)}")
    for name in names:
        # Some files are those of several.
        lose(world, name)
    for name, of_name in zip(names, clones, strict=True):
        for clone in of_name:
            clone.answers("ways", "ways ok")
            clone.sleep()
            clone.answers("sum", "sum ok")
        shown = [clone.stats()["shown_pages"] for clone in of_name]
        check(shown[0] == 0 and shown[1] > 100, f"of {name} {shown} pages were shown")
        for clone in of_name:
            clone.kill()
        world.dormouse("snapshot", "release", name)


def killed(world):
    """A keeper that is killed leaves clones and files alone, and another one takes its place; holding twice is holding once."""
    container, name, _ = original(world)
    surroundings = {**os.environ, **world.environment}
    words = (str(DORMOUSE), "snapshot", "hold", name)
    commands = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=surroundings) for _ in range(4)]
    said = sorted(command.communicate(timeout=ANSWER_SECONDS)[0].split(":")[0] for command in commands)
    check(said == [f"{name} is held", *[f"{name} is held already"] * 3], f"holds at once say {said}")
    check([command.returncode for command in commands] == [0] * 4, "a hold has failed")
    (keeper,) = keepers(world)
    status = dict(line.split(":", 1) for line in Path(f"/proc/{keeper}/status").read_text().splitlines())
    rss = int(status["VmRSS"].split()[0])
    world.notes.append(f"a keeper has {rss} kB")
    check(rss <= KEEPER_KB_MAX and status["Threads"].strip() == "1", f"a keeper has {rss} kB and {status['Threads']} threads")
    groups = Path(f"/proc/{keeper}/cgroup").read_text()
    check(groups == Path("/proc/self/cgroup").read_text(), f"a keeper is in {groups}")
    check(os.getsid(keeper) == keeper, "a keeper is in another's session")
    clone = Clone(container, name, 0, "snapshot")
    os.kill(keeper, signal.SIGKILL)
    until("it to be gone", lambda: not keepers(world), ANSWER_SECONDS)
    check(not held(world) and len(sockets(world)) == 1, "one that was killed holds it")
    world.refused("snapshot", "release", name, says=("it is not held",))
    # From the disk.
    other = Clone(container, name, 1, "snapshot")
    hold(world, name)
    third = Clone(container, name, 2, "snapshot")
    check(only(world)["sandboxes"] == 2, f"it shows {only(world)}")
    for one in (clone, other, third):
        one.answers("ways", "ways ok")
        one.sleep()
        one.answers("sum", "sum ok")
        one.kill()
    world.dormouse("snapshot", "release", name)
    # Commands that are killed at any moment leave nothing, or a keeper that is whole.
    for turn in range(10):
        command = subprocess.Popen(words, stdout=subprocess.DEVNULL, env=surroundings)
        try:
            command.wait(turn * 0.004)
        except subprocess.TimeoutExpired:
            command.kill()
            command.wait()
        world.dormouse("snapshot", "hold", name)
        one = Clone(container, name, f"k{turn}", "snapshot")
        one.answers("sum", "sum ok")
        one.kill()
        world.dormouse("snapshot", "release", name)
        until("its keeper to be gone", lambda: not keepers(world), ANSWER_SECONDS)


def removed(world):
    """A snapshot that is held can be removed; its base stays until it is released, by name or digest, beside that of another one of this name."""
    container, name, _ = original(world)
    former = hold(world, name)["digest"]
    clone = Clone(container, name, 0, "snapshot")
    world.dormouse("snapshot", "remove", name)
    check(only(world)["is_former"] and not world.left_overs(), f"it shows {only(world)}")
    check("another snapshot has the name" in world.dormouse("snapshot", "bases").stdout, "it is not said that it is a former one")
    clone.answers("ways", "ways ok")
    other = world.add(Untouched(world)).begin()
    other.checkpoint(name)
    other.delete()
    world.dormouse("snapshot", "hold", name)
    check(len(held(world)) == 2 and held(world)[former]["is_former"], f"it shows {held(world)}")
    # The one that has the name comes first.
    world.dormouse("snapshot", "release", name)
    check(set(held(world)) == {former}, f"it shows {held(world)}")
    world.refused("snapshot", "release", former[:4], says=("it is not held",))
    world.dormouse("snapshot", "release", former[:16])
    check(not held(world), f"it shows {held(world)}")
    clone.sleep()
    clone.answers("sum", "sum ok")
    clone.kill()
    hold(world, name)
    world.dormouse("snapshot", "remove", name)
    world.dormouse("snapshot", "release", name)
    check(not held(world) and not world.left_overs(), "it is held after its release")


def refused(world):
    """Refusals say why, and leave what is held alone."""
    container = world.add(Untouched(world)).begin()
    key = world.directory / "key"
    key.write_bytes(os.urandom(32))
    key.chmod(0o600)
    sealed, _ = container.checkpoint(leave=True, more=("--key-file", key))
    name, _ = container.checkpoint()
    container.delete()
    world.refused("snapshot", "hold", sealed, says=("its content is sealed",))
    world.refused("snapshot", "hold", "nothing", says=("there is none",))
    world.refused("snapshot", "release", name, says=("it is not held",))
    check(not held(world) and not keepers(world), "something is held")
    # A page that is damaged is named, and nothing is held.
    pages = world.snapshots / name / "pages.img"
    with open(pages, "r+b") as file:
        # Some page that has content.
        at = os.lseek(file.fileno(), 0, os.SEEK_DATA)
        was = os.pread(file.fileno(), 1, at)
        os.pwrite(file.fileno(), bytes([was[0] ^ 1]), at)
        world.refused("snapshot", "hold", name, says=("page", "damaged"))
        os.pwrite(file.fileno(), was, at)
    until("its keeper to be gone", lambda: not keepers(world), ANSWER_SECONDS)
    check(not held(world), "something is held")
    hold(world, name)
    world.refused("restore", "--snapshot", name, "--bundle", container.bundle, "--prefetch", "reap", "other", says=("its pages are held in memory",))
    # What is recorded and verified is the snapshot's own.
    world.dormouse("snapshot", "verify", name)
    world.dormouse("snapshot", "record", name, "--changed-files", "accept", "--together", "--", "/bin/sleep", "0.3")
    check(only(world)["sandboxes"] == 0, f"it shows {only(world)}")
    world.dormouse("snapshot", "release", name)


ASK = """
import socket, sys
client = socket.socket(socket.AF_UNIX)
client.settimeout(5)
try:
    client.connect(sys.argv[1])
    client.send(b"t")
    print(len(socket.recv_fds(client, 4096, 8)[1]), "files")
except OSError as why:
    print(type(why).__name__)
"""


def strangers(world):
    """Who is another user gets nothing of a base, and who says nothing, or nonsense, keeps nobody waiting for long."""
    _, name, _ = original(world)
    hold(world, name)
    (place,) = sockets(world)

    def files_of(user):
        return subprocess.run((PYTHON, "-c", ASK, place), stdout=subprocess.PIPE, text=True, user=user, group=user, extra_groups=[],
                              check=True, timeout=30).stdout.strip()
    check(files_of(0) == "3 files", f"its user gets {files_of(0)}")
    check(files_of(NOBODY) == "PermissionError", f"another user gets {files_of(NOBODY)}")
    # Even where the host's files would let it in.
    ways_in = [world.state, place.parent]
    for way in ways_in:
        way.chmod(0o755)
    place.chmod(0o777)
    check(files_of(NOBODY) in ("0 files", "ConnectionResetError", "BrokenPipeError"), f"another user gets {files_of(NOBODY)}")
    for way in ways_in:
        way.chmod(0o700)
    silent = []
    for turn in range(60):
        client = socket.socket(socket.AF_UNIX)
        client.connect(str(place))
        if turn % 3 == 1:
            client.send(os.urandom(64).replace(b"r", b"x").replace(b"t", b"x"))
        if turn % 3 == 2:
            # It takes nothing of the answer.
            client.send(b"t")
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))
        silent.append(client)
    until("an answer", lambda: bool(held(world)), ANSWER_SECONDS)
    # The files are sealed, and open for reading only.
    client = socket.socket(socket.AF_UNIX)
    client.connect(str(place))
    client.send(b"t")
    _, files, _, _ = socket.recv_fds(client, 4096, 8)
    check(len(files) == 3, f"there are {len(files)} files")
    for file in files:
        for attempt in (lambda file=file: os.pwrite(file, b"x", 0), lambda file=file: os.ftruncate(file, 0)):
            try:
                attempt()
            except OSError:
                continue
            check(False, "a file of a base was changed")
        for flags in (os.O_RDWR, os.O_WRONLY):
            try:
                again = os.open(f"/proc/self/fd/{file}", flags)
                os.pwrite(again, b"x", 0)
            except OSError:
                continue
            check(False, "a file of a base was changed")
        os.close(file)
    for client in silent:
        client.close()
    (keeper,) = keepers(world)
    until("no descriptor to be left", lambda: len(os.listdir(f"/proc/{keeper}/fd")) < 12, ANSWER_SECONDS)
    world.dormouse("snapshot", "release", name)


def ways(world):
    """Clones of a pool, and sandboxes of `do` with their files, have their pages from there and are counted."""
    container, name, nonce = asked_original(world)
    hold(world, name)
    with Pool(world, name, 2, "--port", f"{container.port}={BASE}", "--share", "snapshot") as pool:
        pool.filled()
        check(only(world)["sandboxes"] == 2, f"it shows {only(world)}")
        lose(world, name)
        one, ports = world.dormouse("do", "--from", name, "--detach").stdout.split()
        check(container.asked("hello", int(ports.split("=")[1]))["nonce"] == nonce, "it does not answer")
        pool.filled()
        check(only(world)["sandboxes"] == 3, f"it shows {only(world)}")
        end(world, [one])
    until("all to be gone", lambda: only(world)["sandboxes"] == 0, ANSWER_SECONDS)
    world.dormouse("snapshot", "release", name)
    sandbox = world.add(Sandbox(world, ("/bin/sh", "-c", "echo mine >/kept/file; while :; do sleep 1; done"))).begin()
    until("its file", lambda: world.dormouse("exec", sandbox.id, "/bin/cat", "/kept/file", code=None).returncode == 0, ANSWER_SECONDS)
    name, _ = sandbox.checkpoint()
    sandbox.close()
    hold(world, name)
    for share in ("none", "snapshot"):
        one = world.dormouse("do", "--from", name, "--share", share, "--detach").stdout.strip()
        check(only(world)["sandboxes"] == 1, f"it shows {only(world)}")
        check(world.dormouse("exec", one, "/bin/cat", "/kept/file").stdout == "mine\n", "it has another file")
        # A clone of it is of another image.
        if share == "snapshot":
            (fork,) = world.dormouse("fork", "--swap-dir", world.swap, one).stdout.split()
            check(only(world)["sandboxes"] == 1, f"with a fork, it shows {only(world)}")
            end(world, [fork])
        # A snapshot on the one that it began with.
        end(world, [one])
    world.dormouse("snapshot", "release", name)


def grown(world):
    """A snapshot on the one that is held is right, of a clone that has touched some of its pages."""
    container, name, _ = original(world)
    hold(world, name)
    container.restore(name, "--share", "snapshot")
    until("its answer", lambda: asked_sum(container), ANSWER_SECONDS)
    after, figures = container.checkpoint(more=("--parent", name))
    left = figures["image"]["left_pages"]
    check(left > figures["image"]["head"]["pages"] // 2, f"{left} pages were left to the parent")
    container.delete()
    world.dormouse("snapshot", "verify", after)
    world.dormouse("snapshot", "hold", after)
    clone = Clone(container, after, 0, "snapshot")
    for one in (name, after):
        lose(world, one)
    clone.answers("sum", "sum ok")
    clone.kill()
    for one in (name, after):
        world.dormouse("snapshot", "release", one)


def asked_sum(container):
    with open(container.srv / "ask", "a") as asked:
        asked.write("sum\n")
    until("a sum", lambda: "sum ok" in container.said(), ANSWER_SECONDS)
    return True


CASES = [
    ("base-used", used, ()),
    ("base-packed", packed, ()),
    ("base-killed", killed, ()),
    ("base-removed", removed, ()),
    ("base-refused", refused, ()),
    ("base-strangers", strangers, ()),
    ("base-ways", ways, ()),
    ("base-grown", grown, ()),
]
