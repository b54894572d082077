"""Snapshots that travel to other hosts (`store push` and `pull`, `snapshot export` and `import`): whole, sealed by a key that is known or trusted,
and whatever is wrong with what comes is told."""
import hashlib
import io
import json
import os
import random
import shutil
import subprocess
import tarfile
import time
from pathlib import Path

from clones import digest_of
from lib.outcome import check
from lib.tree import DORMOUSE
from lib.waiting import until
from refusals import small_disk
from sandboxes import LOOK, SEEN, SHELL, Sandbox
from templates import Clone, Untouched, original

REF = "org.opencontainers.image.ref.name"
NUMBER = "dev.dormouse.dblock"
TRAILER_BYTES = 40


class OtherHost:
    """Commands inside use the snapshots and the key of another host."""

    def __init__(self, world, name="other"):
        self.world, self.mine, self.theirs = world, world.snapshots, world.directory / f"snapshots-{name}"
        self.theirs.mkdir(mode=0o700, exist_ok=True)

    def __enter__(self):
        self.use(self.theirs)
        return self

    def __exit__(self, *_):
        self.use(self.mine)

    def use(self, snapshots):
        self.world.snapshots, self.world.environment["DORMOUSE_SNAPSHOTS"] = snapshots, str(snapshots)


def size(directory):
    """Bytes of the blobs of a layout."""
    return sum(path.stat().st_size for path in (directory / "blobs/sha256").iterdir())


def copied(layout, name):
    """A copy of a layout as tools make it: its blobs, and what says which they are."""
    copy = layout.parent / name
    copy.mkdir()
    for part in ("oci-layout", "index.json"):
        shutil.copy(layout / part, copy)
    shutil.copytree(layout / "blobs", copy / "blobs")
    return copy


def blob(layout, descriptor):
    return layout / "blobs/sha256" / descriptor["digest"].removeprefix("sha256:")


def manifest_of(layout, name):
    entries = json.loads((layout / "index.json").read_text())["manifests"]
    entry = next(entry for entry in entries if entry.get("annotations", {}).get(REF) == name)
    return json.loads(blob(layout, entry).read_text())


def put_blob(layout, content):
    """Adds a blob; result: what an index says of it."""
    digest = hashlib.sha256(content).hexdigest()
    (layout / "blobs/sha256" / digest).write_bytes(content)
    return {"digest": f"sha256:{digest}", "size": len(content)}


def set_manifest(layout, name, manifest):
    """Gives a snapshot another manifest, with the right digest."""
    index = json.loads((layout / "index.json").read_text())
    for entry in index["manifests"]:
        if entry["annotations"][REF] == name:
            entry.update(put_blob(layout, json.dumps(manifest).encode()))
    (layout / "index.json").write_text(json.dumps(index))


def with_text(tar, change):
    """The tar file of small files, with another manifest of the snapshot, which is its first entry."""
    with tarfile.open(fileobj=io.BytesIO(tar)) as old:
        first = old.next()
        text = json.loads(old.extractfile(first).read())
    change(text["snapshot"])
    out, entry, content = io.BytesIO(), tarfile.TarInfo("manifest.json"), json.dumps(text).encode()
    entry.size = len(content)
    with tarfile.open(fileobj=out, mode="w") as new:
        new.addfile(entry, io.BytesIO(content))
    return out.getvalue()[:512 + -(-len(content) // 512) * 512] + tar[512 + -(-first.size // 512) * 512:]


def by_zstd(dblock):
    """A dblock that says it is packed by zstd: its trailer ends with a CRC-32C."""
    trailer = bytearray(dblock[-TRAILER_BYTES:-4])
    trailer[14:16] = (2, 3)
    checksum = 0xffff_ffff
    for byte in trailer:
        checksum ^= byte
        for _ in range(8):
            checksum = checksum >> 1 ^ (0x82f6_3b78 if checksum & 1 else 0)
    return dblock[:-TRAILER_BYTES] + bytes(trailer) + (checksum ^ 0xffff_ffff).to_bytes(4, "little")


def pushed(world):
    """A snapshot that was pushed comes to another host, which has to trust it, and goes on there; one like it adds little."""
    container = world.add(Untouched(world)).begin()
    first, second = (container.checkpoint(leave=True)[0] for _ in range(2))
    container.delete(force=True)
    world.dormouse("snapshot", "store", first)
    layout = world.directory / "layout"
    world.dormouse("store", "push", layout, first)
    before, files = size(layout), {file: digest_of(world.snapshots / second / file) for file in ("pages.img", "pages.table")}
    again = world.dormouse("store", "push", layout, first).stdout
    check("already" in again and size(layout) == before, f"pushed again it says {again!r}")
    world.dormouse("store", "push", layout, second)
    check(size(layout) < before * 3 // 2, f"{size(layout) - before} bytes came to {before}")
    manifest = manifest_of(layout, first)
    check(manifest["annotations"]["org.criu.checkpoint.engine.name"] == "dormouse", f"it says {manifest['annotations']}")
    for descriptor in (manifest["config"], *manifest["layers"]):
        content = blob(layout, descriptor).read_bytes()
        check((f"sha256:{hashlib.sha256(content).hexdigest()}", len(content)) == (descriptor["digest"], descriptor["size"]), "a blob is another")
    # This host knows it by its own key.
    world.refused("store", "pull", layout, first, says=("already",))
    world.dormouse("snapshot", "remove", second)
    world.dormouse("store", "pull", layout, second)
    world.dormouse("snapshot", "verify", second)
    check(files == {file: digest_of(world.snapshots / second / file) for file in files}, "files are other than before")
    with OtherHost(world):
        world.refused("store", "pull", layout, says=("--trust",))
        check(not world.names() and not world.left_overs(), f"{world.left_overs()} are left")
        world.dormouse("store", "pull", "--trust", layout, second)
        world.dormouse("store", "pull", "--trust", "--store", layout, first)
        check(world.names() == {first, second} and (world.snapshots / first / "recipe").exists(), f"{world.names()} came")
        check(files == {file: digest_of(world.snapshots / second / file) for file in files}, "files are other there")
        world.refused("store", "pull", "--trust", layout, says=("already",))
        for number, name in enumerate((first, second)):
            world.dormouse("snapshot", "verify", name)
            clones = [Clone(container, name, f"{number}{share}", share) for share in ("none", "snapshot")]
            for clone in clones:
                clone.answers("ways", "ways ok")
                clone.sleep()
                clone.answers("sum", "sum ok")
                clone.kill()
        world.refused("restore", "--detach", "--snapshot", second, f"{container.id}-none", says=("on another host", "--bundle"))
        container.restore(second)
        # It was sealed anew, and its working set with it.
        third, _ = container.checkpoint()
        world.dormouse("store", "push", layout, third)
        container.delete()


def copies(world):
    """Of a layout that was copied the blobs are enough: for pulling, and for pushing more, which finds what they have."""
    container = world.add(Untouched(world, 1024)).begin()
    first, second = (container.checkpoint(leave=True)[0] for _ in range(2))
    container.delete(force=True)
    layout = world.directory / "layout"
    world.dormouse("store", "push", layout, first)
    copy = copied(layout, "copy")
    with OtherHost(world):
        world.dormouse("store", "pull", "--trust", copy)
        world.dormouse("snapshot", "verify", first)
    before = size(copy)
    world.dormouse("store", "push", copy, second)
    check(size(copy) < before * 3 // 2, f"{size(copy) - before} bytes came to {before}")
    with OtherHost(world):
        world.dormouse("store", "pull", "--trust", copied(copy, "again"), second)
        world.dormouse("snapshot", "verify", second)
        # Their store's numbers are others.
        world.dormouse("store", "push", layout, second)
        world.dormouse("store", "push", world.directory / "third", second)
    third = world.directory / "third"
    index = json.loads((third / "index.json").read_text())
    index["manifests"] += json.loads((copy / "index.json").read_text())["manifests"][:1]
    (third / "index.json").write_text(json.dumps(index))
    for path in (copy / "blobs/sha256").iterdir():
        shutil.copy(path, third / "blobs/sha256")
    shutil.rmtree(third / ".dormouse")
    more, _ = world.add(Untouched(world, 1024)).begin().checkpoint()
    world.dormouse("store", "push", third, more)
    with OtherHost(world, "fresh"):
        world.dormouse("store", "pull", "--trust", third)
        check(world.names() == {first, second, more}, f"{world.names()} came")
        for name in world.names():
            world.dormouse("snapshot", "verify", name)


def exported(world):
    """One file has a snapshot, the same one each time, with the changes to files of a sandbox of `do`, packed and sealed ones too."""
    seen = world.directory / "seen\x1b[2J"
    seen.mkdir()
    sandbox = world.add(Sandbox(world, ("/bin/sh", "-c", SHELL), "--volume", f"{seen}:/tmp")).begin()
    check(sandbox.line() == "ready", "it does not begin")
    plain, _ = sandbox.checkpoint(leave=True)
    packed, _ = sandbox.checkpoint(name="packed", more=("--codec", "zstd"))
    sandbox.close()
    file, twin = world.directory / "plain.tar", world.directory / "twin.tar"
    world.dormouse("snapshot", "export", plain, file)
    time.sleep(1.1)
    world.dormouse("store", "export", plain, twin)
    check(digest_of(file) == digest_of(twin), "the files differ")
    world.refused("snapshot", "export", plain, file, says=("there is a file",))
    with tarfile.open(file) as tar:
        names = tar.getnames()
        check("index.json" in names and {(member.mtime, member.uid) for member in tar} == {(0, 0)}, f"it has {names}")
    world.dormouse("snapshot", "export", "--codec", "none", packed, world.directory / "packed.tar")
    world.refused("snapshot", "import", file, says=("already",))
    with OtherHost(world):
        world.refused("snapshot", "import", file, says=("--trust",))
        said = world.dormouse("snapshot", "import", "--trust", file).stdout
        for words in (f"reads {sandbox.root} ", f"reads and changes {world.directory}/seen\\u{{1b}}[2J "):
            check(words in said, f"{said!r} does not tell of {words!r}")
        world.dormouse("store", "import", "--trust", "--name", "named", "--store", file)
        world.refused("snapshot", "import", "--trust", "--store", world.directory / "packed.tar", says=("packed",))
        world.dormouse("snapshot", "import", "--trust", world.directory / "packed.tar")
        for name in (plain, "named", packed):
            world.dormouse("snapshot", "verify", name)
            seen = world.dormouse("do", "--from", name, "--", "/bin/sh", "-c", LOOK).stdout
            check(seen == SEEN, f"{name} shows {seen!r}")
        world.dormouse("snapshot", "export", "named", world.directory / "there.tar")
        check(not world.left_overs() - {".chunks"}, f"{world.left_overs()} are left")
    check({path.name for path in world.directory.iterdir() if path.name.startswith(".")} == set(), "an export left something")


def sealed(world):
    """Snapshots that are sealed travel as they are, and such on a parent do not."""
    container = world.add(Untouched(world, 512)).begin()
    key = container.place / "key"
    key.write_bytes(bytes(range(32)))
    key.chmod(0o600)
    name, _ = container.checkpoint(leave=True, more=("--key-file", key))
    base, _ = container.checkpoint(leave=True)
    child, _ = container.checkpoint(more=("--parent", base))
    container.delete()
    layout = world.directory / "layout"
    world.refused("store", "push", layout, child, says=("--parent",))
    world.dormouse("store", "push", layout, name)
    with OtherHost(world):
        world.refused("store", "pull", "--trust", "--store", layout, says=("sealed",))
        world.dormouse("store", "pull", "--trust", layout)
        world.dormouse("snapshot", "verify", "--key-file", key, name)
        world.refused("snapshot", "verify", name, says=("--key-file",))


def hostile(world):
    """Whatever is wrong with what comes is told in one sentence, and nothing of it stays."""
    _, name, _ = original(world, 512)
    layout, made = world.directory / "layout", iter(range(1000))
    world.dormouse("store", "push", layout, name)

    def refused(change, *says, words=("store", "pull", "--trust")):
        copy = copied(layout, f"bad{next(made)}")
        change(copy)
        with OtherHost(world):
            world.refused(*words, copy, says=says)
            check(not world.names() and not world.left_overs(), f"{world.left_overs()} are left of {says}")
        shutil.rmtree(copy)

    def with_manifest(change):
        def set_one(copy):
            manifest = manifest_of(copy, name)
            change(copy, manifest)
            set_manifest(copy, name, manifest)
        return set_one

    def with_files(change):
        """Changes the tar file of small files."""
        def repack(copy, manifest):
            path = blob(copy, manifest["layers"][0])
            manifest["layers"][0].update(put_blob(copy, change(path.read_bytes())))
        return with_manifest(repack)

    def with_member(member, content=b""):
        def add(tar):
            out = io.BytesIO()
            with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as new:
                member.size = len(content)
                new.addfile(member, io.BytesIO(content))
            end = tar.rstrip(b"\0")
            return end + bytes(-len(end) % 512) + out.getvalue()
        return with_files(add)

    def member(path, **values):
        found = tarfile.TarInfo(path)
        for key, value in values.items():
            setattr(found, key, value)
        return found

    good = manifest_of(layout, name)
    dblock = next(layer for layer in good["layers"] if NUMBER in layer.get("annotations", {}))
    secret = world.directory / "secret"
    secret.write_text("kept")

    def replace(copy, content):
        blob(copy, dblock).write_bytes(content)

    whole = blob(layout, dblock).read_bytes()
    refused(lambda copy: replace(copy, whole[:-1] + bytes([whole[-1] ^ 1])), "digest says")
    refused(lambda copy: replace(copy, whole[:-1]), "bytes instead of")
    refused(lambda copy: blob(copy, dblock).unlink(), "cannot be read")

    def link(copy):
        path = blob(copy, dblock)
        path.unlink()
        path.symlink_to(blob(layout, dblock))
    refused(link, "cannot be read")

    def fifo(copy):
        path = blob(copy, dblock)
        path.unlink()
        os.mkfifo(path)
    refused(fifo, "cannot be read")

    def linked_directory(copy):
        shutil.move(copy / "blobs/sha256", copy / "elsewhere")
        (copy / "blobs/sha256").symlink_to(copy / "elsewhere")
    refused(linked_directory, "no OCI image layout")
    refused(lambda copy: (copy / "oci-layout").unlink(), "no OCI image layout")
    refused(lambda copy: (copy / "oci-layout").write_text('{"imageLayoutVersion":"9"}'), "no OCI image layout")
    refused(lambda copy: (copy / "index.json").write_text("{"), "index.json is damaged")
    refused(lambda copy: (copy / "index.json").write_text('{"manifests":[' + ",".join(["{}"] * 20000) + "]}"), "more than")
    refused(lambda copy: (copy / "index.json").write_text("[" * (5 << 20)), "larger than")
    refused(with_manifest(lambda _, manifest: manifest["layers"][1].update(digest="sha256:../../../secret")), "hexadecimal")
    refused(with_manifest(lambda _, manifest: manifest["layers"][1].update(size=1 << 60)), "no dblock")
    refused(with_manifest(lambda _, manifest: manifest["layers"][1]["annotations"].update({NUMBER: "0"})), "no dblock")
    refused(with_manifest(lambda _, manifest: manifest["layers"].append(manifest["layers"][1])), "no dblock")
    refused(with_manifest(lambda _, manifest: manifest["layers"].extend([manifest["layers"][1]] * 30000)), "larger than")
    refused(with_manifest(lambda _, manifest: manifest["layers"].pop()), "dblock")
    refused(with_manifest(lambda _, manifest: manifest["layers"].__delitem__(slice(1))), "first layer")
    refused(with_manifest(lambda copy, manifest: manifest["config"].update(put_blob(copy, b'{"kind":"dormouse snapshot","version":9}'))),
            "version 9")
    refused(with_files(lambda tar: tar[:700]), "cut off")
    refused(with_files(lambda tar: tar[2048:]), "cannot pull")
    refused(with_files(lambda tar: tar.replace(b"DORMRCPE", b"DORMXXXX")), "recipe")
    # Anybody may write it, but for those that trust it.
    changed = with_files(lambda tar: tar.replace(b'"hostname": "sleeper"', b'"hostname": "sleepes"'))
    refused(changed, "--trust", words=("store", "pull"))
    refused(with_files(lambda tar: tar.replace(b'"memory_bytes": ', b'"memory_bytes":-')), "manifest is damaged")
    refused(with_files(lambda tar: with_text(tar, lambda text: text["head"].update(pages=1 << 45))), "bytes of memory")
    refused(with_files(lambda tar: with_text(tar, lambda text: text["head"].update(pages=1, taken_bytes=0))), "recipe was changed")
    refused(with_files(lambda tar: with_text(tar, lambda text: text.update({"a\x1b[2J": 1}))), "a\\u{1b}[2J")

    def packed_by_zstd(copy, manifest):
        layer = next(layer for layer in manifest["layers"] if layer["digest"] == dblock["digest"])
        layer.update(put_blob(copy, by_zstd(whole)))
    refused(with_manifest(packed_by_zstd), "--codec lz4")
    for path in ("../secret", "/etc/passwd", "layer/../x", "layer/x", "kernel.img", "manifest.json", "recipe/x", ".key"):
        refused(with_member(member(path)), "cannot pull")
    refused(with_member(member("ws", type=tarfile.SYMTYPE, linkname=str(secret))), "cannot pull")
    refused(with_member(member("pages.table"), b"again"), "cannot pull")
    refused(with_member(member("ws"), b"no working set"), "working set")
    image = {"mediaType": "application/vnd.oci.image.manifest.v1+json", "annotations": {REF: name}, **put_blob(layout, b"{}")}
    other = copied(layout, "other")
    (other / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [image]}))
    world.refused("store", "push", other, name, says=("no snapshot",))
    with OtherHost(world):
        world.refused("store", "pull", "--trust", other, name, says=("no snapshot",))
    check(secret.read_text() == "kept", "something was written elsewhere")
    file, bad = world.directory / "good.tar", world.directory / "bad.tar"
    world.dormouse("snapshot", "export", name, file)
    content = file.read_bytes()
    chance = random.Random(11)
    with OtherHost(world):
        for cut in (0, 100, 512, 4096, len(content) // 2, len(content) - 2048):
            bad.write_bytes(content[:cut])
            world.refused("snapshot", "import", "--trust", bad, says=("cannot import",))
            check(not world.names() and not world.left_overs(), f"{world.left_overs()} are left of {cut} bytes")
        for _ in range(20):
            at = chance.randrange(len(content))
            bad.write_bytes(content[:at] + bytes([content[at] ^ (1 << chance.randrange(8))]) + content[at + 1:])
            done = world.dormouse("snapshot", "import", "--trust", "--name", "one", bad, code=None)
            check("panicked" not in done.stderr and len(done.stderr.splitlines()) <= 1, f"byte {at}: {done.stderr!r}")
            if done.returncode == 0:
                world.dormouse("snapshot", "verify", "one")
                world.dormouse("snapshot", "remove", "one")
            check(not world.names() and not world.left_overs(), f"{world.left_overs()} are left of byte {at}")
        bad.write_bytes(content)
        world.dormouse("snapshot", "import", "--trust", bad)
        world.dormouse("snapshot", "verify", name)
    for trick in ("link", "device"):
        with tarfile.open(bad, "w") as tar:
            tar.addfile(member("oci-layout", type=tarfile.SYMTYPE if trick == "link" else tarfile.CHRTYPE, linkname="/etc/passwd"))
        world.refused("snapshot", "import", bad, says=("links or devices",))


def tricks(world):
    """The changes to files that come lead nowhere else, whatever their names and links are."""
    sandbox = world.add(Sandbox(world, ("/bin/sh", "-c", SHELL))).begin()
    check(sandbox.line() == "ready", "it does not begin")
    name, _ = sandbox.checkpoint()
    sandbox.close()
    layout, secret = world.directory / "layout", world.directory / "secret"
    world.dormouse("store", "push", layout, name)
    secret.write_text("kept")
    secret.chmod(0o600)
    manifest = manifest_of(layout, name)
    tar = blob(layout, manifest["layers"][0]).read_bytes().rstrip(b"\0")
    tar += bytes(-len(tar) % 512)
    time_of = {"mtime": "1.000000000"}

    def elsewhere(text):
        """The changes to files are said to lie elsewhere on the host."""
        text["files"]["layer"]["views"][0]["directories"] = ["../../../secret"]

    def refused(content, *says):
        copy = copied(layout, "bad")
        manifest["layers"][0].update(put_blob(copy, content))
        set_manifest(copy, name, manifest)
        with OtherHost(world):
            world.refused("store", "pull", "--trust", copy, says=says)
            check(not world.names() and not world.left_overs(), f"{world.left_overs()} are left of {says}")
        kept = (secret.read_text(), secret.stat().st_mode & 0o7777, secret.stat().st_nlink)
        check(kept == ("kept", 0o600, 1), f"a file elsewhere is {kept} after {says}")
        shutil.rmtree(copy)
    refused(with_text(tar, elsewhere), "lie elsewhere")
    refused(with_text(tar, lambda text: text["container"].pop("command")), "of no sandbox of dormouse do")
    for says, *way in (
            ("not there", ("layer/x", tarfile.SYMTYPE, str(world.directory)), ("layer/x/secret", tarfile.REGTYPE, "")),
            ("not there", ("layer/x", tarfile.SYMTYPE, str(world.directory)), ("layer/y", tarfile.LNKTYPE, "layer/x/secret")),
            ("not there", ("layer/y", tarfile.LNKTYPE, str(secret))),
            ("not there", ("layer/y", tarfile.LNKTYPE, "../secret")),
            ("a device", ("layer/x", tarfile.CHRTYPE, "")),
            ("leads elsewhere", ("layer/0/../../../secret", tarfile.REGTYPE, "")),
            ("leads elsewhere", ("layer//secret", tarfile.REGTYPE, "")),
            ("exists", ("layer/0", tarfile.REGTYPE, "")),
            ("layer was changed", ("layer/new", tarfile.REGTYPE, ""))):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as new:
            for path, kind, target in way:
                entry = tarfile.TarInfo(path)
                entry.type, entry.linkname, entry.mode, entry.pax_headers = kind, target, 0o4777, time_of
                entry.devmajor, entry.devminor = 1, 3
                new.addfile(entry)
        refused(tar + out.getvalue(), says)


def prepared(world):
    """A layout, or what is beside an exported file, that somebody has prepared makes nobody write or remove anything else."""
    _, first, _ = original(world, 512)
    _, second, _ = original(world, 512)
    layout, secret = world.directory / "layout", world.directory / "secret"
    world.refused("store", "push", "--codec", "zstd", layout, first, says=("none or lz4",))
    world.dormouse("store", "push", layout, first)
    secret.write_text("kept")
    store, number = layout / ".dormouse", max(int(layer["annotations"][NUMBER]) for layer in manifest_of(layout, first)["layers"][1:])
    shutil.rmtree(store)
    (store / "dblocks").mkdir(parents=True, mode=0o700)
    for path in ("index", "index.new", *(f"dblocks/{number + more:08x}.new" for more in range(-number, 20))):
        (store / path).symlink_to(secret)
    (layout / ".index.json").hardlink_to(secret)
    (layout / "blobs/sha256/.new-files").symlink_to(secret)
    world.dormouse("store", "push", layout, second)
    # A number so high that few would be left is another's; and some tools leave out of the index what is a snapshot.
    manifest = manifest_of(layout, first)
    manifest["layers"][1]["annotations"][NUMBER] = str((1 << 22) - 1)
    set_manifest(layout, first, manifest)
    index = json.loads((layout / "index.json").read_text())
    for entry in index["manifests"]:
        entry.pop("artifactType", None)
    (layout / "index.json").write_text(json.dumps(index))
    world.dormouse("store", "push", layout, second, first)
    with OtherHost(world):
        world.dormouse("store", "pull", "--trust", layout)
        world.dormouse("snapshot", "verify", second)
    for name, make in (("lock", Path.symlink_to), ("lock", Path.hardlink_to)):
        (store / name).unlink()
        make(store / name, secret)
        world.refused("store", "push", layout, second, says=("lock",))
    shutil.rmtree(store)
    away = world.directory / "away"
    away.mkdir(mode=0o700)
    store.symlink_to(away)
    world.refused("store", "push", layout, second, says=("symbolic link",))
    check(not any(away.iterdir()), "something was made elsewhere")
    # Another directory with a name as exports have it stays.
    for name in (".file.tar.0123456789ab", ".file.tar.ba9876543210"):
        (world.directory / name).mkdir(mode=0o700)
    (world.directory / ".file.tar.0123456789ab/theirs").write_text("kept")
    (world.directory / ".file.tar.ba9876543210/archive").write_text("an export's")
    world.dormouse("snapshot", "export", first, world.directory / "file.tar")
    left = {path.name for path in world.directory.iterdir() if path.name.startswith(".")}
    check(left == {".file.tar.0123456789ab"}, f"{left} are left")
    check((world.directory / ".file.tar.0123456789ab/theirs").exists(), "what was another's is gone")
    check(secret.read_text() == "kept" and secret.stat().st_mode & 0o777 == 0o644, "something was written elsewhere")


def killed(world):
    """Whenever a command is killed, a snapshot has come or has not, and what it left goes."""
    container, name, _ = original(world, 1024)
    layout, chance = world.directory / "layout", random.Random(7)

    def kill(*words):
        with subprocess.Popen([str(word) for word in (DORMOUSE, *words)], env={**os.environ, **world.environment}, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL) as command:
            time.sleep(chance.random() * 0.15)
            command.kill()
    for _ in range(12):
        kill("store", "push", layout, name)
    world.dormouse("store", "push", layout, name)
    left = [path.name for path in (layout / "blobs/sha256").iterdir() if path.name.startswith(".")]
    check(not left, f"{left} are left in the layout")
    file = world.directory / "file.tar"
    for _ in range(6):
        kill("snapshot", "export", name, file)
        file.unlink(missing_ok=True)
    world.dormouse("snapshot", "export", name, file)
    left = [path.name for path in world.directory.iterdir() if path.name.startswith(".")]
    check(not left, f"{left} are left beside the file")
    with OtherHost(world):
        for number in range(16):
            kill(*(("store", "pull", "--trust", layout) if number % 2 else ("snapshot", "import", "--trust", file)))
            if world.names():
                world.dormouse("snapshot", "verify", name)
                world.dormouse("snapshot", "remove", name)
        world.dormouse("store", "pull", "--trust", layout)
        world.dormouse("snapshot", "verify", name)
        until("nothing else", lambda: not world.left_overs(), 2)
        container.restore(name)


def disk_full(world):
    """A disk that is full where something comes or goes: it is told, and nothing but what was there stays."""
    _, name, _ = original(world)
    layout = world.directory / "layout"
    world.dormouse("store", "push", layout, name)
    for size in ("1m", "4m", "9m"):
        with small_disk(world, size) as disk:
            world.refused("store", "push", disk / "layout", name, says=("No space left",))
            world.refused("snapshot", "export", name, disk / "file.tar", says=("No space left",))
            check({path.name for path in disk.iterdir()} == {"layout"}, f"{list(disk.iterdir())} are left")
            with OtherHost(world) as other:
                other.use(disk / "snapshots")
                world.refused("store", "pull", "--trust", layout, says=("No space left",))
                check(not world.names() and not world.left_overs(), f"{world.left_overs()} are left")
    world.dormouse("snapshot", "verify", name)


CASES = [
    ("moved-pushed", pushed, ()),
    ("moved-copies", copies, ()),
    ("moved-exported", exported, ("busybox",)),
    ("moved-sealed", sealed, ()),
    ("moved-hostile", hostile, ()),
    ("moved-tricks", tricks, ("busybox",)),
    ("moved-prepared", prepared, ()),
    ("moved-disk-full", disk_full, ()),
    ("moved-killed", killed, ()),
]
