"""Snapshots whose content is sealed (`checkpoint --key-file`)."""
import os
import subprocess

from lib.outcome import Failure, check
from lib.tree import DORMOUSE
from lib.waiting import until
from refusals import flipped, places_of
from world import Held

SECRET = "a-word-that-nobody-else-has-4711"
CODECS = ("none", "lz4", "zstd")


def new_key(world, name="key", mode=0o600, count=32):
    path = world.directory / name
    path.write_bytes(os.urandom(count))
    path.chmod(mode)
    return path


def begin(world, *more):
    """A program with a word in its environment, and in its memory pages that all have a pattern."""
    container = world.add(Held(world, "Memory", environment=(f"SECRET={SECRET}",))).begin(*more)
    container.call("step")
    return container


def hidden(world, name):
    """Nothing of the sandbox's memory is in any file in the clear."""
    patterns = (SECRET.encode(), b"held.py", b"\x05\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0" * 4)
    for file in (world.snapshots / name).iterdir():
        blocks = file.stat().st_blocks * 512
        check(blocks < 1 << 30, f"{file.name} takes {blocks} bytes")
        found = [pattern for pattern in patterns if pattern in file.read_bytes()] if file.name != "manifest.json" else []
        check(not found, f"{file.name} has {found} in the clear")
    text = (world.snapshots / name / "manifest.json").read_text()
    check(SECRET not in text, "the manifest has the program's environment")
    check("written" not in text, "the manifest has names of files that are open")


def sealed(world):
    """Sealed, restored, slept on, sealed again from there, and left running; of a sandbox whose memory is sealed, and of another."""
    key = new_key(world)
    for turn, codec in enumerate(CODECS):
        words = ("--key-file", key, *(() if codec == "none" else ("--codec", codec)))
        container = begin(world, *(("--encrypt", "on") if turn else ()))
        for again in range(2):
            name, figures = container.checkpoint(more=words, leave=again == 1)
            check(figures["manifest"]["files"]["packed"]["codec"] == codec.replace("none", "lz4"), f"it is {figures['manifest']['files']}")
            hidden(world, name)
            world.dormouse("snapshot", "verify", name, "--key-file", key)
            container.delete(force=again == 1)
            asked = container.asked
            container.restore(name, "--key-file", key)
            container.call("step")
            world.dormouse("hibernate", container.id)
            container.call("step")
            container.walk()
            # What it recorded is there for the next one.
            container.delete(force=True)
            container.asked = asked
            container.restore(name, "--key-file", key)
            container.call("step")
        ports = f"{container.port}={container.port + 700}"
        clone = world.dormouse("do", "--from", name, "--key-file", key, "--port", ports, "--", "/bin/echo", "hello")
        check(clone.stdout == "hello\n", f"a clone said {clone.stdout!r}")
        container.delete(force=True)
    check(not world.left_overs(), f"there are {world.left_overs()}")


def refused(world):
    """Without its key, and with another, nothing is done with it, and each refusal is one sentence; what was changed is found."""
    key, other = new_key(world), new_key(world, "other")
    container = begin(world)
    plain, _ = container.checkpoint(leave=True)
    for bad, says in ((new_key(world, "short", count=31), "32 bytes"), (new_key(world, "open", mode=0o644), "others"), ("/no/such", "/no/such")):
        world.refused("checkpoint", "--name", "never", "--key-file", bad, container.id, says=(says,))
    done = world.dormouse("checkpoint", "--name", "never", "--key-file", key, "--parent", plain, container.id, code=None)
    check(done.returncode != 0 and "--parent" in done.stderr, f"with a parent: {done}")
    container.call("step")
    name, _ = container.checkpoint(more=("--key-file", key))
    container.delete()
    path, tried = world.snapshots / name, 0

    def restore(*more, says=()):
        nonlocal tried
        tried += 1
        new = f"{container.id}-{tried}"
        world.refused("restore", "--detach", "--snapshot", name, "--bundle", container.bundle, "--swap-dir", world.swap, *more, new, says=says)
        world.check_gone(new)
    restore(says=("--key-file",))
    restore("--key-file", other, says=("another key",))
    restore("--key-file", key, "--encrypt", "off", says=("--encrypt off",))
    world.refused("snapshot", "verify", name, says=("--key-file",))
    world.refused("snapshot", "verify", name, "--key-file", other, says=("another key",))
    world.refused("snapshot", "verify", plain, "--key-file", key, says=("not sealed",))
    world.refused("do", "--from", name, "--", "true", says=("--key-file",))
    world.refused("diff", "bench", "--base", name, "--data", key, says=("sealed",))
    for file in ("kernel.img", "pages.table", "orphans.img", "manifest.json"):
        for place in places_of(path / file)[::2]:
            with flipped(path / file, place):
                try:
                    restore("--key-file", key)
                    world.refused("snapshot", "verify", name, "--key-file", key)
                except Failure as why:
                    raise Failure(f"byte {place} of {file} was flipped: {why}") from None
    size = (path / "pages.img").stat().st_size
    for part in (0, 2, 5):
        with flipped(path / "pages.img", size * part // 7):
            world.refused("snapshot", "verify", name, "--key-file", key, says=("pages.img",))
    container.restore(name, "--key-file", key)
    container.call("step")
    world.refused("checkpoint", "--name", "never", "--parent", name, container.id, says=(name, "sealed"))
    world.refused("checkpoint", "--name", "never", container.id, says=("--key-file",))
    container.call("step")
    check(world.names() == {plain, name} and not world.left_overs(), f"there are {world.names()} and {world.left_overs()}")
    # A sandbox of `do` has files that nobody seals.
    words = (DORMOUSE, "do", "--id", f"{container.id}-do", "--", "sleep", "1000")
    sandbox = subprocess.Popen(list(map(str, words)), stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, **world.environment})
    try:
        until("a sandbox", lambda: world.status(f"{container.id}-do") == "running", 30)
        world.refused("checkpoint", "--name", "never", "--key-file", key, f"{container.id}-do", says=("sealed",))
    finally:
        sandbox.terminate()
        sandbox.wait()


CASES = [
    ("sealed-image", sealed, ()),
    ("sealed-image-refused", refused, ()),
]
