"""Snapshots of scripts/bench-store, and what people would keep them in instead of the store of chunks."""

import json
import os
import random
import shutil
import subprocess
import time
from pathlib import Path

import functions
from lib.command import finish, run
from lib.outcome import Failure
from lib.tree import DORMOUSE
from phoenix_bench import Sandbox
from sleepers import drop_caches

FUNCTIONS = "json,template,image,matmul,video,predict,train,node-json,node-image,node-crypto,java-json,java-words"
RELEASES = (1, 2, 3)
REQUESTS = 3
FILES = ("kernel.img", "pages.img")
PORTS = "ports.json"
PIECE = 1 << 20
PATIENCE = 600
LONG_MATCHES = ("zstd", "-q", "-3", "--long=27")


def dormouse(snapshots, *words):
    return finish(DORMOUSE, *words, patience=PATIENCE, environment={"DORMOUSE_SNAPSHOTS": str(snapshots)}).stdout


def disk_bytes(directory):
    """What files take up on the disk, each once."""
    rows = (os.lstat(file) for file in Path(directory).rglob("*"))
    return sum({row.st_ino: row.st_blocks * 512 for row in rows}.values())


def names_in(snapshots):
    """The snapshots, smallest first, as the paper's Config-1 has them."""
    found = [path.name for path in snapshots.iterdir() if (path / "manifest.json").exists()]
    return sorted(found, key=lambda name: (disk_bytes(snapshots / name), name))


def copy_of(snapshots, to):
    """Another directory with the same snapshots, whose files are not copied: `snapshot store` takes names away, and changes none."""
    shutil.rmtree(to, ignore_errors=True)
    run("cp", "-al", snapshots, to)
    return to


class Released:
    """A release of a function: its sources with one line changed."""

    def __init__(self, function, release, place):
        self.function, self.release = function, release
        self.name, self.words = function.name, function.words
        self.sources = place.directory / f"release-{release}"
        if self.sources.exists():
            return
        shutil.copytree(functions.SOURCES, self.sources)
        for path in self.sources.rglob("serve.py"):
            path.write_text(path.read_text().replace('"""\n', f'"""\nRELEASE = "1.{release}"\n', 1))
        for path in self.sources.rglob("*.js"):
            path.write_text(path.read_text() + f'\nexports.release = "1.{release}";\n')

    def command(self, port):
        words = [str(word).replace(str(functions.SOURCES), str(self.sources)) for word in self.function.command(port)]
        return [words[0], f"-Drelease=1.{self.release}", *words[1:]] if words[0] == "java" else words

    def request(self, number):
        return self.function.request(number)

    def is_loading(self, answer):
        return self.function.is_loading(answer)

    def is_answer(self, answer, number):
        return self.function.is_answer(answer, number)


def make(place, chosen, plain, packed):
    """A snapshot of each release of each function, plain and as `checkpoint --codec zstd` makes it, and the ports that they have."""
    ports = {}
    for release in RELEASES:
        for function in chosen:
            server = place.begin(Sandbox(place, Released(function, release, place)), REQUESTS)
            name = f"{function.name}-{release}"
            dormouse(plain, "--root", place.state, "checkpoint", "--leave-running", "--name", name, server.id)
            dormouse(packed, "--root", place.state, "checkpoint", "--codec", "zstd", "--name", name, server.id)
            ports[name] = server.port
            place.end(server)
    (place.directory / PORTS).write_text(json.dumps(ports))


class Many:
    """A thousand snapshots of forty kinds: programs that have loaded other modules, each taken again and again."""

    KINDS = ("argparse ast asyncio base64 bdb bz2 calendar cmd codecs concurrent.futures configparser csv ctypes datetime decimal "
             "difflib email.message fractions ftplib gzip html.parser http.client imaplib inspect json logging lzma mailbox mimetypes "
             "optparse pdb pickle plistlib pprint random sqlite3 ssl statistics tarfile unittest").split()
    COUNT, BLOCK, PICKED = 1000, 100, 5

    def __init__(self, place, snapshots):
        self.place, self.snapshots, self.chance = place, snapshots, random.Random(40)
        self.snapshots.mkdir(mode=0o700)

    def begin(self, kind):
        name = f"many-{kind.replace('.', '-')}"
        code = f"import {kind}\nprint('ready', flush=True)\nwhile True: input()"
        words = ("--root", self.place.state, "do", "--id", name, "--memory", "256M", "--", "/usr/bin/python3", "-c", code)
        process = subprocess.Popen([str(word) for word in (DORMOUSE, *words)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if process.stdout.readline().strip() != "ready":
            raise Failure(f"a program with {kind} does not begin")
        return name, process

    def timed(self, *words):
        begin = time.perf_counter()
        dormouse(self.snapshots, "--root", self.place.state, *words)
        return time.perf_counter() - begin

    def run(self, figures, told):
        begun = []
        try:
            for kind in self.KINDS:
                begun.append(self.begin(kind))
            self.measure(figures, [name for name, _ in begun], told)
        finally:
            for _, process in begun:
                process.kill()
                process.wait()

    def measure(self, figures, kinds, told):
        names = []
        for first in range(0, self.COUNT, self.BLOCK):
            for number in range(first, first + self.BLOCK):
                kind = kinds[number % len(kinds)]
                names.append(f"{kind}-{number}")
                took = self.timed("checkpoint", "--leave-running", "--store", "--name", names[-1], kind)
                figures.add("many", "making and storing one", str(first + self.BLOCK), took=took)
            for _ in range(self.PICKED):
                figures.add("many", "listing all", str(len(names)), took=self.timed("snapshot", "list"))
                figures.add("many", "retrieving one", str(len(names)), took=self.timed("store", "retrieve", self.chance.choice(names)))
            figures.add("many", "collecting", str(len(names)), took=self.timed("store", "gc"))
            told(f"many, {len(names)} snapshots take {disk_bytes(self.snapshots) / 1e6:.0f} MB")
        self.chance.shuffle(names)
        for first in range(0, self.COUNT, self.BLOCK):
            for name in names[first:first + self.BLOCK]:
                figures.add("many", "removing one", str(self.COUNT - first), took=self.timed("snapshot", "remove", name))
            figures.add("many", "collecting, while they go", str(self.COUNT - first), took=self.timed("store", "gc", "--grace", "1ms"))
        self.timed("store", "gc", "--grace", "1ms")
        left = sum(1 for _ in (self.snapshots / ".chunks/dblocks").iterdir())
        if left:
            raise Failure(f"{left} dblocks are left, and no snapshot")


class Clone(Sandbox):
    """A sandbox of `do --from` whose snapshot is in any directory."""

    def __init__(self, place, workload, name, port, snapshots):
        super().__init__(place, workload)
        self.snapshot, self.first_port, self.snapshots = name, port, snapshots
        # Inputs that the snapshot's server did not have.
        self.asked = 100 + self.port

    def launch(self):
        self.make_groups()
        words = [DORMOUSE, "--root", self.place.state, "do", "--id", self.id, "--swap-dir", self.place.swap, "--from", self.snapshot,
                 "--port", f"{self.first_port}={self.port}"]
        with open(self.output, "ab") as log:
            self.process = subprocess.Popen([str(word) for word in words], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            env={**os.environ, "DORMOUSE_SNAPSHOTS": str(self.snapshots)}, preexec_fn=self.enter,
                                            start_new_session=True)


def data_of(path):
    """The parts of a sparse file that are not holes."""
    with open(path, "rb") as file:
        at, end = 0, os.fstat(file.fileno()).st_size
        while at < end:
            try:
                at = os.lseek(file.fileno(), at, os.SEEK_DATA)
            except OSError:
                return
            hole = os.lseek(file.fileno(), at, os.SEEK_HOLE)
            while at < hole:
                piece = os.pread(file.fileno(), min(PIECE, hole - at), at)
                yield piece
                at += len(piece)


def squeeze(snapshots, name, to):
    """One file with the data of a snapshot's, for programs that would read gigabytes of holes."""
    with open(to / name, "wb") as out:
        for file in FILES:
            for piece in data_of(snapshots / name / file):
                out.write(piece)
    return to / name


class Keeper:
    """A program that keeps snapshots, in a directory of its own."""

    name: str
    directory: Path

    def put(self, name, file):
        """Stores a snapshot, whose data are in a file without holes as well."""
        raise NotImplementedError

    def get(self, name, seen):
        """Brings a snapshot back by what is seen of the directory; result: its bytes, and more figures."""
        raise NotImplementedError

    def bytes(self):
        return disk_bytes(self.directory)


class Store(Keeper):
    """Our store of chunks, in a directory of snapshots."""

    def __init__(self, directory, snapshots, codec):
        self.name, self.codec = f"dormouse, {codec}", codec
        self.directory = copy_of(snapshots, directory / f"store-{codec}")

    def put(self, name, file):
        dormouse(self.directory, "snapshot", "store", "--codec", self.codec, name)

    def get(self, name, seen):
        said = json.loads(dormouse(seen / self.directory.name, "store", "retrieve", "--json", name))
        return said["bytes"], {"took": said["us"] / 1e6, "read": said["read_bytes"], "reads": said["reads"], "dblocks": said["dblocks"]}


def output_bytes(*words, environment):
    """How many bytes a program writes."""
    with subprocess.Popen([str(word) for word in words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          env={**os.environ, **environment}) as process:
        size = 0
        while piece := process.stdout.read(PIECE):
            size += len(piece)
        said = process.stderr.read().decode(errors="replace").strip()
    if process.returncode != 0:
        raise Failure(f"{words[0]} ended with {process.returncode}: {said[-300:]}")
    return size


class Borg(Keeper):
    """Borg with the chunks that it has by default."""

    def __init__(self, directory, compression):
        self.name, self.compression = f"borg, {compression}", compression
        self.directory = directory / f"borg-{compression}"
        # Its cache of chunks counts as time and not as space: it can be made anew.
        own = directory / f"borg-{compression}.own"
        for path in (self.directory, own):
            shutil.rmtree(path, ignore_errors=True)
        self.environment = {"BORG_BASE_DIR": str(own), "BORG_RELOCATED_REPO_ACCESS_IS_OK": "yes",
                            "BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK": "yes"}
        self.borg("init", "--encryption", "none", self.directory)

    def borg(self, *words):
        finish("borg", *words, patience=PATIENCE, environment=self.environment)

    def put(self, name, file):
        self.borg("create", "--compression", self.compression, f"{self.directory}::{name}", file)

    def get(self, name, seen):
        begin = time.perf_counter()
        size = output_bytes("borg", "extract", "--bypass-lock", "--stdout", f"{seen / self.directory.name}::{name}", environment=self.environment)
        return size, {"took": time.perf_counter() - begin}


class Casync(Keeper):
    """Casync with the chunks that it has by default."""

    name = "casync"

    def __init__(self, directory):
        self.directory = directory / "casync"
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir()

    def put(self, name, file):
        run("casync", "make", f"--store={self.directory / 'store.castr'}", self.directory / f"{name}.caibx", file, patience=PATIENCE)


def long_zstd_bytes(snapshots, name):
    """A sparse tar of a snapshot, packed with matches as far as 128 MiB back."""
    with (subprocess.Popen(["tar", "-C", str(snapshots), "-cS", name], stdout=subprocess.PIPE) as tar,
          subprocess.Popen([*LONG_MATCHES, "-c"], stdin=tar.stdout, stdout=subprocess.PIPE) as packer):
        tar.stdout.close()
        size = 0
        while piece := packer.stdout.read(PIECE):
            size += len(piece)
    if tar.returncode or packer.returncode:
        raise Failure(f"tar ended with {tar.returncode}, and zstd with {packer.returncode}")
    return size


def read_cold(file, size):
    """Reads the beginning of a file from one end to the other; result: seconds."""
    drop_caches()
    room, left, begin = bytearray(PIECE), size, time.perf_counter()
    with open(file, "rb", buffering=0) as opened:
        while left > 0:
            count = opened.readinto(memoryview(room)[:min(PIECE, left)])
            if not count:
                raise Failure(f"{file} ends {left} bytes too early")
            left -= count
    return time.perf_counter() - begin
