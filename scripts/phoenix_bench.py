"""Sleepers of scripts/bench-phoenix: where they are, what they are asked, and what people would use instead of a home in memory."""

import contextlib
import json
import re
import subprocess
import time
from pathlib import Path

from asked import Python
from control_groups import ProcessorTime
from lib.command import run
from lib.outcome import Failure
from lib.tree import DORMOUSE, TOP
from measure import pss_bytes
from peers import Runc, SwapFile
from sleepers import Dormouse, make_root

PYTHON = "/usr/bin/python3"
SERVER = TOP / "test/guest/servers/answer.py"
PAGE = 4096
SWAP_BYTES = 1 << 30
REQUESTS = 5
BASE_NAME = "/memfd:dormouse-base"

LINPACK = r"""
import array, ctypes, http.server, json, operator, random, sys, time
engine, library = sys.argv[2:4]
if engine == "numpy":
    import numpy
elif engine == "c":
    native = ctypes.CDLL(library)


def make(n):
    global size, matrix, vector
    size, source = n, random.Random(n)
    if engine == "numpy":
        drawn = numpy.random.RandomState(n)
        matrix, vector = drawn.rand(n, n), drawn.rand(n)
        return
    matrix, vector = (array.array("d", bytes(8 * length)) for length in (n * n, n))
    for numbers in (vector, matrix):
        for at in range(len(numbers)):
            numbers[at] = source.random()


def product():
    if engine == "numpy":
        return float((matrix @ vector).sum())
    out = array.array("d", bytes(8 * size))
    if engine == "c":
        native.product(*(ctypes.c_void_p(numbers.buffer_info()[0]) for numbers in (matrix, vector, out)), ctypes.c_long(size))
    else:
        rows = memoryview(matrix)
        for row in range(size):
            out[row] = sum(map(operator.mul, rows[row * size:(row + 1) * size], vector))
    return sum(out)


class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        _, what, number = self.path.split("/")
        if what == "make":
            make(int(number))
        body = json.dumps({"sum": product()}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


make(1)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Answer).serve_forever()
"""
PRODUCT = """
void product(const double *matrix, const double *vector, double *out, long size) {
    for (long row = 0; row < size; row++) {
        double sum = 0;
        for (long column = 0; column < size; column++) sum += matrix[row * size + column] * vector[column];
        out[row] = sum;
    }
}
"""


class Served(Python):
    """The web server in python3, from the host's own files."""

    def command(self, port):
        return [PYTHON, SERVER, port]


class Linpack:
    """A web server with a random matrix, which a request multiplies by a vector. Only the first of a size makes the matrix."""

    name = "linpack"
    # What a product of a size has to be, the same in every sandbox of an engine.
    sums: dict[int, bytes] = {}

    def __init__(self, place, engine):
        self.engine, self.words, self.sums = engine, f"linpack, {engine}", {}
        self.size = 1
        self.script, self.library = place.directory / "linpack.py", place.directory / "linpack.so"
        self.script.write_text(LINPACK)
        if engine == "c" and not self.library.exists():
            source = place.directory / "linpack.c"
            source.write_text(PRODUCT)
            run("cc", "-O3", "-march=native", "-ffast-math", "-shared", "-fPIC", "-o", self.library, source)

    def command(self, port):
        return [PYTHON, self.script, port, self.engine, self.library]

    def request(self, number):
        return b"GET /run/%d HTTP/1.0\r\n\r\n" % number

    def is_loading(self, answer):
        return False

    def is_answer(self, answer, number):
        head, _, body = answer.partition(b"\r\n\r\n")
        return b" 200 " in head.partition(b"\r\n")[0] and self.sums.setdefault(self.size, body) == body

    def of_size(self, size):
        """The same server, asked of another matrix."""
        self.size = size
        return self

    def fill_in(self, sandbox, size):
        """Has a sandbox make its matrix."""
        self.size = size
        answer = sandbox.exchange(b"GET /make/%d HTTP/1.0\r\n\r\n" % size)
        if not self.is_answer(answer, 0):
            raise Failure(f"linpack of {size} answered {answer[-100:]!r}")


def engines():
    """What multiplies here: numpy where it is installed, else C; and plain Python."""
    has_numpy = subprocess.run([PYTHON, "-c", "import numpy"], capture_output=True).returncode == 0
    return ("numpy" if has_numpy else "c", "python")


class Place:
    """Where a run keeps its files, and all that it has begun. The sandboxes see a copy-on-write view of the host."""

    platform = "auto"

    def __init__(self, directory):
        self.directory = Path(directory)
        self.state, self.snapshots, self.swap = (self.directory / name for name in ("state", "snapshots", "swap"))
        for made in (self.state, self.snapshots, self.swap):
            made.mkdir(mode=0o700)
        self.begun, self.devices, self.device = [], [], None

    def dormouse(self, *words):
        return run(DORMOUSE, "--root", self.state, *words, patience=120)

    def root(self, workload, name):
        """The root of a sandbox, which is the host's, or of a container (`name`)."""
        if not name:
            return Path("/")
        path = self.directory / f"root-{name}"
        if not path.exists():
            make_root(path, workload)
        return path

    def begin(self, sleeper, requests=REQUESTS):
        """Starts a sleeper, and asks it some requests, each with another input."""
        self.begun.append(sleeper)
        sleeper.launch_and_wait()
        for _ in range(requests):
            sleeper.timed_request()
        return sleeper

    def end(self, *sleepers):
        for sleeper in sleepers:
            sleeper.close()
            self.begun.remove(sleeper)

    def reclaim(self, sleeper):
        self.device.reclaim(sleeper)

    def bases(self):
        return json.loads(self.dormouse("snapshot", "bases", "--json"))

    def release(self):
        """Ends the keepers of all bases."""
        for base in self.bases():
            self.dormouse("snapshot", "release", base["digest"])

    def clear(self):
        """Ends all that was begun, whatever state it is in."""
        for sleeper in self.begun:
            with contextlib.suppress(Exception):
                sleeper.close()
        self.begun = []
        with contextlib.suppress(Failure, OSError, ValueError):
            self.release()


class Sandbox(Dormouse):
    """A sandbox of `do`: a clone of a base with its pages shared, or (`base` is none) a start of its own."""

    def __init__(self, place, workload, *options, base=None):
        super().__init__(place, workload, "")
        self.base, self.words = base, options

    def launch(self):
        self.make_groups()
        words = [DORMOUSE, "--root", self.place.state, "do", "--id", self.id, "--swap-dir", self.place.swap]
        if self.base:
            words += ["--from", self.base.name, "--share", "snapshot", "--port", f"{self.base.port}={self.port}", *self.words]
        else:
            words += ["--memory", "512M", *self.words, "--", *self.workload.command(self.port)]
        with open(self.output, "ab") as log:
            self.process = subprocess.Popen([str(word) for word in words], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            preexec_fn=self.enter, start_new_session=True)

    def make_groups(self):
        super().make_groups()
        self.processor_time = ProcessorTime(self.cgroup)

    def enter(self):
        super().enter()
        self.processor_time.enter()

    def end(self):
        try:
            super().end()
        finally:
            self.processor_time.remove()

    def exchange(self, request):
        answer = super().exchange(request)
        if not answer:
            raise ConnectionError(f"no answer: {self.log()}")
        return answer

    def cost_bytes(self):
        """What its memory takes asleep without the base."""
        return sum(own for own, _ in mapped(self.pids()).values())


class Base:
    """A snapshot of a server that is held in memory."""

    def __init__(self, place, workload, size=0):
        self.place = place
        first = place.begin(Sandbox(place, workload))
        if size:
            workload.fill_in(first, size)
        self.name, self.port = first.id, first.port
        place.dormouse("checkpoint", "--name", self.name, self.name)
        place.end(first)
        place.dormouse("snapshot", "hold", self.name)
        # What the first clone records is no part of the figures.
        clone = place.begin(Sandbox(place, workload, "--home", "memory", base=self))
        place.end(clone)

    def held(self):
        return next(base for base in self.place.bases() if base["name"] == self.name)

    def drop(self):
        self.place.dormouse("snapshot", "release", self.name)
        self.place.dormouse("snapshot", "remove", self.name)


def keeper_pids(place):
    """The processes that hold the bases of this run."""
    found, bases = [], str(place.state / ".bases")
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "comm").read_text().strip() == "dormouse-base" and any(str(fd.readlink()) == bases for fd in (process / "fd").iterdir()):
                found.append(int(process.name))
    return found


def file_bytes(pids):
    """What of the proportional set sizes of processes is files', as the program's own is."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            total += int(re.search(r"^Pss_File:\s+(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.M)[1]) * 1024
    return total


def mapped(pids):
    """The proportional set sizes of processes by their kind, as (of their own, of mappings of a base)."""
    kinds: dict[str, tuple[int, int]] = {}
    for pid in pids:
        try:
            name = Path(f"/proc/{pid}/comm").read_text().strip()
            text = Path(f"/proc/{pid}/smaps").read_text()
        except OSError:
            continue
        # A stub is a program in memory without a name of its own.
        kind = "stubs" if name.startswith("memfd:") else {"dormouse": "front end", "dormouse-vmm": "VMM"}.get(name, name.removeprefix("dormouse-"))
        own, of_base = kinds.get(kind, (0, 0))
        is_base = False
        for line in text.splitlines():
            if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
                is_base = BASE_NAME in line
            elif line.startswith("Pss:"):
                size = int(line.split()[1]) * 1024
                own, of_base = (own, of_base + size) if is_base else (own + size, of_base)
        kinds[kind] = own, of_base
    return kinds


class Frozen(Runc):
    """A container in the freezer, its memory reclaimed to a device of its own."""

    def __init__(self, place, device):
        super().__init__(place, Python(), "frozen")
        self.device = device

    def sleep(self):
        self.place.device = self.device
        return super().sleep()

    def cost_bytes(self):
        return pss_bytes(self.pids()) + self.device.used_bytes()


class Zram(SwapFile):
    """A compressed block device in memory for swap, made for this run."""

    CONTROL = Path("/sys/class/zram-control")

    def __init__(self, place, algorithm):
        self.how, self.name = "", f"zram, {algorithm}"
        if not self.CONTROL.exists():
            raise Failure("this kernel has no zram that devices can be added to; load the module zram")
        self.number = int((self.CONTROL / "hot_add").read_text())
        # It is removed at the end, whatever becomes of it here.
        place.devices.append(self)
        self.path, self.block = Path(f"/dev/zram{self.number}"), Path(f"/sys/block/zram{self.number}")
        known = (self.block / "comp_algorithm").read_text().replace("[", "").replace("]", "").split()
        if algorithm not in known:
            raise Failure(f"this kernel's zram has no {algorithm}, only {', '.join(known)}")
        (self.block / "comp_algorithm").write_text(algorithm)
        (self.block / "disksize").write_text(str(SWAP_BYTES))
        run("mkswap", self.path)

    def turn_on(self):
        run("swapon", "--priority", "100", self.path)

    def turn_off(self):
        run("swapoff", self.path)

    def used_bytes(self):
        return int((self.block / "mm_stat").read_text().split()[2])

    def remove(self):
        subprocess.run(["swapoff", f"/dev/zram{self.number}"], capture_output=True)
        for _ in range(50):
            try:
                (self.CONTROL / "hot_remove").write_text(str(self.number))
                return
            except OSError:
                # Whoever looks at new devices (udev) has it open.
                time.sleep(0.1)


class Zswap(SwapFile):
    """Compressed memory in front of a swap file."""

    PARAMETERS = Path("/sys/module/zswap/parameters")

    def __init__(self, place):
        if not self.PARAMETERS.exists():
            raise Failure("this kernel has no zswap")
        self.before = {name: (self.PARAMETERS / name).read_text().strip() for name in ("compressor", "enabled", "shrinker_enabled")}
        self.path = place.directory / "zswap"
        place.devices.append(self)
        self.compressor = self.best()
        self.name = f"zswap, {self.compressor}"
        super().__init__(self.path, SWAP_BYTES)
        self.turn_off()

    def best(self):
        """The compressor that is usual for it, if this kernel has it, else the one that is set."""
        for compressor in ("lz4", "zstd"):
            try:
                self.set("compressor", compressor)
            except OSError:
                continue
            self.set("compressor", self.before["compressor"])
            return compressor
        return self.before["compressor"]

    def set(self, name, value):
        (self.PARAMETERS / name).write_text(value)

    def turn_on(self):
        self.set("compressor", self.compressor)
        self.set("shrinker_enabled", "N")
        self.set("enabled", "Y")
        run("swapon", "--priority", "100", self.path)

    def turn_off(self):
        subprocess.run(["swapoff", str(self.path)], capture_output=True)
        for name, value in self.before.items():
            self.set(name, value)

    def used_bytes(self):
        return int(re.search(r"^Zswap:\s+(\d+)", Path("/proc/meminfo").read_text(), re.M)[1]) * 1024

    def remove(self):
        self.turn_off()
        super().remove()
