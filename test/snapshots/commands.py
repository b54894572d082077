"""`do --from`: commands that begin with a snapshot and take it with them."""
import json
import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

from lib.outcome import check
from lib.tree import DORMOUSE
from lib.waiting import until
from world import ANSWER_SECONDS, Container

LAYERS = Path(os.environ.get("DORMOUSE_LAYERS") or "/var/lib/dormouse")
# Says who it is, and answers lines; `quit` ends it.
FIRST = """
read nonce </proc/sys/kernel/random/uuid
echo begun
n=0; while :; do n=$((n + 1)); echo "$nonce $n" >/memory/.now; /bin/busybox mv /memory/.now /memory/now; sleep 0.05; done &
while :; do
    if read word; then echo "$nonce 0 $word"; [ "$word" != quit ] || exit 5; else sleep 0.1; fi
done
"""
KILLS = 12


class Rooted(Container):
    """A container with a root of its own, which it may write to."""

    def write_bundle(self, bundle=None, mounts=("/memory",), memory=None):
        bundle = super().write_bundle(bundle, (), memory)
        root = bundle / "root"
        for name in ("bin", "proc", "dev", "tmp", "kept", *(path.strip("/") for path in mounts)):
            (root / name).mkdir(parents=True, exist_ok=True)
        shutil.copy("/bin/busybox", root / "bin")
        for name in ("sh", "cat", "ls", "sleep"):
            (root / "bin" / name).exists() or (root / "bin" / name).symlink_to("busybox")
        (root / "kept/file").write_text("the bundle's\n")
        if not (root / "kept/other").exists():
            (root / "kept/one").write_text("two names\n")
            (root / "kept/other").hardlink_to(root / "kept/one")
        spec = json.loads((bundle / "config.json").read_text())
        spec["root"] = {"path": "root", "readonly": False}
        spec["mounts"] += [{"destination": path, "type": "tmpfs", "source": "tmpfs"} for path in mounts]
        (bundle / "config.json").write_text(json.dumps(spec))
        return bundle


def snapshot_of(world):
    """A snapshot's name, its bundle's root, and the nonce in it."""
    container = world.add(Rooted(world, ("/bin/sh", "-c", FIRST))).begin()
    until("its first words", lambda: container.said(), ANSWER_SECONDS)
    time.sleep(0.2)
    nonce = world.dormouse("exec", container.id, "/bin/cat", "/memory/now").stdout.split()[0]
    name, _ = container.checkpoint()
    container.delete()
    return name, container.bundle / "root", nonce


def check_nothing_left(world, before):
    until("the clones to be gone", lambda: not world.ids(), ANSWER_SECONDS)
    until("their layers to be gone", lambda: layers() <= before, ANSWER_SECONDS)


def layers():
    return {path.name for path in LAYERS.iterdir() if not path.name.startswith(".")} if LAYERS.exists() else set()


def clone(world, name, *command, **more):
    return world.dormouse("do", "--from", name, "--swap-dir", world.swap, "--", *command, **more)


def further(world):
    """The command's status, streams and files are its own, and the programs of the snapshot go on beside it."""
    name, root, nonce = snapshot_of(world)
    before = layers()
    script = ("cat; read n1 c1 </memory/now; sleep 0.5; read n2 c2 </memory/now; echo $n1 $n2 $((c2 > c1));"
              " echo mine >/kept/file; cat /kept/file; echo apart >&2; exit 7")
    done = world.dormouse("do", "--from", name, "--", "/bin/sh", "-c", script, code=7, stdin="in\n")
    check(done.stdout == f"in\n{nonce} {nonce} 1\nmine\n", f"it says {done.stdout!r}")
    check(done.stderr == "apart\n", f"it complains {done.stderr!r}")
    check((root / "kept/file").read_text() == "the bundle's\n", "it has written to the bundle")
    check(clone(world, name, "/bin/cat", "/kept/file").stdout == "the bundle's\n", "another clone sees what it has written")
    done = world.dormouse("do", "--from", name, "--env", "A=b", "--cwd", "/kept", "--", "/bin/sh", "-c", "echo $A; cat file")
    check(done.stdout == "b\nthe bundle's\n", f"with a variable and a directory it says {done.stdout!r}")
    said = clone(world, name, "/bin/nothing", code=127).stderr
    check(said.startswith("dormouse: ") and "/bin/nothing" in said, f"a program that is not there: {said!r}")
    full = world.dormouse("do", "--from", name, "--disk", "1M", "--", "/bin/sh", "-c", "cat /bin/busybox /bin/busybox >/kept/big", code=1)
    check("No space left" in full.stderr, f"a full view: {full.stderr!r}")
    # A file of two names gets another number once it is written to.
    words = clone(world, name, "/bin/sh", "-c", "exec 3</kept/one; echo more >>/kept/other; sleep 0.1; read x <&3; cat /kept/one /proc/self/fd/3")
    check(words.stdout.splitlines()[0] == "two names", f"a file of two names is {words.stdout!r}")
    check_nothing_left(world, before)


def first(world):
    """Without a command its first process goes on with the streams."""
    name, _, nonce = snapshot_of(world)
    before = layers()
    done = world.dormouse("do", "--from", name, code=5, stdin="one\nquit\n")
    words = [line.split() for line in done.stdout.splitlines()]
    check([word[0] for word in words] == [nonce, nonce] and [word[2] for word in words] == ["one", "quit"], f"it says {done.stdout!r}")
    check_nothing_left(world, before)


def at_once(world):
    """Six, each with files of its own."""
    name, root, _ = snapshot_of(world)
    before = layers()
    words = [str(word) for word in (DORMOUSE, "do", "--from", name, "--", "/bin/sh", "-c")]
    running = [subprocess.Popen([*words, f"echo {number} >/kept/file; sleep 1; cat /kept/file"], stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, env={**os.environ, **world.environment}, text=True) for number in range(6)]
    said = [one.communicate(timeout=60)[0] for one in running]
    check(said == [f"{number}\n" for number in range(6)], f"they say {said}")
    check((root / "kept/file").read_text() == "the bundle's\n", "they have written to the bundle")
    check_nothing_left(world, before)


def killed(world):
    """Nothing is left of a clone whose command was killed, at whatever moment."""
    name, _, _ = snapshot_of(world)
    before, rng = layers(), random.Random(os.getpid())
    for number in range(KILLS):
        words = ("/bin/sh", "-c", "echo x >/kept/file; sleep 60") if number % 2 else ()
        command = subprocess.Popen([str(word) for word in (DORMOUSE, "do", "--from", name, "--", *words)], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, **world.environment})
        time.sleep(rng.uniform(0, 0.3))
        command.send_signal(signal.SIGKILL)
        command.wait()
    check_nothing_left(world, before)
    check(clone(world, name, "/bin/cat", "/kept/file").stdout == "the bundle's\n", "the snapshot is not what it was")


def refused(world):
    name, _, _ = snapshot_of(world)
    before = layers()
    world.refused("do", "--from", "nothing", "--", "/bin/ls", says=("nothing", "there is none"))
    world.refused("do", "--from", "../" + name, "--", "/bin/ls", says=("name",))
    for words in (("--memory", "1G"), ("--rootfs", "/"), ("--net", "none"), ("--volume", "/srv:/srv")):
        done = world.dormouse("do", "--from", name, *words, "--", "/bin/ls", code=125)
        check("--from" in done.stderr and words[0] in done.stderr, f"{words[0]} is refused with {done.stderr!r}")
    world.refused("do", "--from", name, "--env", "A=b", says=("--env", "command"))
    world.refused("do", "--from", name, "--tty", "--", "/bin/ls", says=("--tty",))
    check("--from" in world.dormouse("do", "--port", "1=2", "/bin/ls", code=125).stderr, "a port without a snapshot is accepted")
    # Another container of that name is let alone.
    other = world.add(Rooted(world, ("/bin/sleep", "100"))).begin()
    world.refused("do", "--from", name, "--id", other.id, "--", "/bin/ls", says=(other.id,))
    check(world.status(other.id) == "running", "a container has gone with a clone that was refused its name")
    other.delete(force=True)
    check_nothing_left(world, before)


def ended(world):
    """A clone is not written, since its files go with it; and when it ends its command does, and says why."""
    name, _, _ = snapshot_of(world)
    before, own = layers(), f"{world.tag}-clone"
    script = "echo begun >&2; sleep 100"
    words = [str(word) for word in (DORMOUSE, "do", "--from", name, "--id", own, "--", "/bin/sh", "-c", script)]
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, env={**os.environ, **world.environment},
                          text=True) as command:
        # The clone runs some time before its command does.
        check(command.stderr.readline() == "begun\n", "the command does not begin")
        world.refused("checkpoint", own, says=("files end with it",))
        check(command.poll() is None, "the clone has ended")
        world.dormouse("kill", own, "KILL")
        _, said = command.communicate(timeout=ANSWER_SECONDS)
        check(command.returncode == 137 and "first process" in said, f"it ends with {command.returncode}: {said!r}")
    check_nothing_left(world, before)


CASES = [
    ("do-from-command", further, ("busybox",)),
    ("do-from-first", first, ("busybox",)),
    ("do-from-at-once", at_once, ("busybox",)),
    ("do-from-killed", killed, ("busybox",)),
    ("do-from-refused", refused, ("busybox",)),
    ("do-from-ended", ended, ("busybox",)),
]
