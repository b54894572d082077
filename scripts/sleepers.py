"""Servers that are put to sleep and woken by a request: in Dormouse, and in what people would use instead."""

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from measure import MemoryCgroup, pss_bytes

TOP = Path(__file__).resolve().parent.parent
DORMOUSE = TOP / "target/release/dormouse"
PATIENCE = 60
CAPABILITIES = ["CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_SETGID", "CAP_SETUID", "CAP_NET_BIND_SERVICE"]


class Failure(Exception):
    """A figure could not be taken."""


def run(*words, patience=PATIENCE):
    words = [str(word) for word in words]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=patience, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise Failure(f"{' '.join(words)} still ran after {patience} s") from None
    if done.returncode != 0:
        said = " ".join((done.stderr or done.stdout).split())
        raise Failure(f"{' '.join(words)} ended with {done.returncode}: {said[-300:]}")
    return done.stdout


def drop_caches():
    """Makes the page cache cold, but for pages that a process has mapped."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3\n")


def answer_of(address, request):
    """What a server says to a client that connects, asks, and reads to the end."""
    with socket.create_connection(address, PATIENCE) as client:
        client.sendall(request)
        parts = []
        while part := client.recv(1 << 16):
            parts.append(part)
        return b"".join(parts)


def copy_with_libraries(programs, root):
    """Copies programs of this host, and the libraries they need, to where they are here."""
    files = {str(program) for program in programs}
    for program in programs:
        text = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
        files |= {word for word in text.split() if word.startswith("/")}
    for file in files:
        to = Path(root, file.lstrip("/"))
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(file, to)


def copy_python(root):
    """Copies this host's own python3 and its library."""
    python = Path("/usr/bin/python3").resolve()
    library = Path("/usr/lib", python.name)
    skip = shutil.ignore_patterns("test", "tests", "idlelib", "lib2to3", "ensurepip", "config-*", "pydoc_data")
    shutil.copytree(library, Path(root, str(library).lstrip("/")), ignore=skip)
    copy_with_libraries([str(python), *map(str, Path(library, "lib-dynload").glob("*.so"))], root)
    Path(root, "usr/bin/python3").symlink_to(python.name)


def make_root(root, workload):
    """A root file system for a workload, of this host's own files."""
    for directory in ("proc", "dev", "tmp", "etc"):
        Path(root, directory).mkdir(parents=True)
    Path(root, "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    workload.fill(root)


class Sleeper:
    """One server in a sandbox of its own. `port` is known to nobody else."""

    host = "127.0.0.1"
    next_port = 23000
    next_name = 0

    def __init__(self, place, workload, root):
        Sleeper.next_port += 1
        Sleeper.next_name += 1
        self.place, self.workload, self.port = place, workload, Sleeper.next_port
        # A root of a name is made once. Who shares one finds its files in the page cache that another has mapped.
        self.root = place.root(workload, root)
        self.id = f"bench-{os.getpid()}-{Sleeper.next_name}"
        self.asked = 0

    def start(self):
        """Starts it, and waits for its first answer; result: nanoseconds."""
        begin = time.perf_counter_ns()
        self.launch()
        while True:
            try:
                self.ask()
                return time.perf_counter_ns() - begin
            except ConnectionError:
                if time.perf_counter_ns() - begin > PATIENCE * 10**9 or not self.is_alive():
                    raise Failure(f"{self.workload.name} does not start in {type(self).__name__}: {self.log()}") from None
                time.sleep(0.001)

    def ask(self):
        """One request; result: nanoseconds from connecting to the whole answer."""
        self.asked += 1
        request = self.workload.request(self.asked)
        begin = time.perf_counter_ns()
        self.rouse()
        answer = answer_of((self.host, self.port), request)
        end = time.perf_counter_ns()
        if not self.workload.is_answer(answer, self.asked):
            raise Failure(f"{self.workload.name} in {type(self).__name__} answered {answer[:100]!r}")
        return end - begin

    def rouse(self):
        """What must be done for it to answer a request."""

    def memory(self):
        """What it uses, by the charge of its control group and by the proportional set size of all its processes."""
        return {"charge": self.charge_bytes(), "pss": pss_bytes(self.pids())}

    def cpu_ns(self):
        """Processor time that its processes have used."""
        total = 0
        for pid in self.pids():
            for stat in Path(f"/proc/{pid}/task").glob("*/schedstat"):
                try:
                    total += int(stat.read_text().split()[0])
                except OSError:
                    pass
        return total

    def log(self):
        try:
            return " | ".join(self.output.read_text(errors="replace").strip().splitlines()[-3:])
        except OSError:
            return "it said nothing"


class Dormouse(Sleeper):
    """`dormouse do`; `reap` as its option."""

    def __init__(self, place, workload, root, reap=True):
        super().__init__(place, workload, root)
        self.reap = reap
        self.slept = None
        self.output = Path(place.directory, self.id + ".log")

    def launch(self):
        self.cgroup = MemoryCgroup(self.id)
        program = self.workload.command(self.port)
        words = [DORMOUSE, "--root", self.place.state, "do", "--platform", self.place.platform, "--id", self.id,
                 "--rootfs", self.root, "--swap-dir", self.place.swap, "--cwd", "/",
                 "--reap", "on" if self.reap else "off", "--", *program]
        with open(self.output, "wb") as log:
            self.process = subprocess.Popen([str(word) for word in words], stdin=subprocess.DEVNULL, stdout=log,
                                            stderr=log, preexec_fn=self.cgroup.enter, start_new_session=True)

    def is_alive(self):
        return self.process.poll() is None

    def sleep(self):
        """Puts it to sleep; result: what `dormouse hibernate` says."""
        words = (DORMOUSE, "--root", self.place.state, "hibernate", self.id, "--json")
        for attempt in range(5):
            try:
                self.slept = json.loads(run(*words))
                return self.slept
            except Failure as failure:
                if "did not come to rest" not in str(failure) or attempt == 4:
                    raise
                time.sleep(0.2)

    def wake(self):
        """Wakes it without a request; result: what `dormouse wake` says."""
        return json.loads(run(DORMOUSE, "--root", self.place.state, "wake", self.id, "--json"))

    def pids(self):
        return [int(pid) for pid in (self.cgroup.path / "cgroup.procs").read_text().split()]

    def charge_bytes(self):
        return self.cgroup.charge_bytes()

    def end(self):
        if self.is_alive():
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.cgroup.remove()


class Runc(Sleeper):
    """runc; asleep it is frozen, and its memory reclaimed to the swap file."""

    def bundle(self):
        sets = ("bounding", "effective", "permitted", "inheritable")
        spec = {
            "ociVersion": "1.0.2",
            "process": {"user": {"uid": 0, "gid": 0}, "args": [str(word) for word in self.workload.command(self.port)],
                        "cwd": "/", "env": ["PATH=/usr/bin:/bin"], "capabilities": dict.fromkeys(sets, CAPABILITIES)},
            "root": {"path": str(self.root)}, "hostname": "bench",
            "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"},
                       {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
                       {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs"}],
            "linux": {"namespaces": [{"type": kind} for kind in ("pid", "ipc", "uts", "mount")],
                      "cgroupsPath": f"/dormouse-{self.id}"},
        }
        bundle = Path(self.place.directory, self.id)
        bundle.mkdir()
        Path(bundle, "config.json").write_text(json.dumps(spec))
        return bundle

    def launch(self):
        self.output = Path(self.place.directory, self.id + ".log")
        pid_file = Path(self.place.directory, self.id + ".pid")
        words = ["runc", "--root", self.place.state / "runc", "run", "--detach", "--pid-file", pid_file, "--bundle",
                 self.bundle(), self.id]
        with open(self.output, "wb") as log:
            done = subprocess.run([str(word) for word in words], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        if done.returncode != 0:
            raise Failure(f"runc cannot start {self.workload.name}: {self.log()}")
        self.pid = int(pid_file.read_text())
        rows = [row.split(":", 2) for row in Path(f"/proc/{self.pid}/cgroup").read_text().splitlines()]
        paths = {kind: path.lstrip("/") for _, kinds, path in rows for kind in kinds.split(",")}
        top = Path("/sys/fs/cgroup")
        if "memory" in paths:
            self.memory_dir, self.counter = top / "memory" / paths["memory"], "memory.usage_in_bytes"
            self.freeze_file = top / "freezer" / paths["freezer"] / "freezer.state"
        else:
            self.memory_dir, self.counter = top / paths[""], "memory.current"
            self.freeze_file = self.memory_dir / "cgroup.freeze"
        self.frozen = False

    def is_alive(self):
        return Path(f"/proc/{self.pid}").exists()

    def set_frozen(self, frozen):
        old = self.freeze_file.name == "freezer.state"
        self.freeze_file.write_text(("FROZEN" if frozen else "THAWED") if old else str(int(frozen)))
        self.frozen = frozen

    def sleep(self):
        self.set_frozen(True)
        if self.freeze_file.name == "freezer.state":
            while self.freeze_file.read_text().strip() != "FROZEN":
                time.sleep(0.001)
        begin = time.perf_counter_ns()
        self.place.reclaim(self)
        return {"reclaim_us": (time.perf_counter_ns() - begin) // 1000}

    def rouse(self):
        # As an activator would that has a connection: one write, and no process of its own.
        if self.frozen:
            self.set_frozen(False)

    def pids(self):
        return [int(pid) for pid in (self.memory_dir / "cgroup.procs").read_text().split()]

    def charge_bytes(self):
        return int((self.memory_dir / self.counter).read_text())

    def end(self):
        self.rouse()
        subprocess.run(["runc", "--root", self.place.state / "runc", "delete", "--force", self.id], capture_output=True)


class SwapFile:
    """A swap file of our own, and the way in which this kernel reclaims the memory of a control group."""

    def __init__(self, path, size_bytes):
        self.path = path
        with open(path, "wb") as file:
            os.fchmod(file.fileno(), 0o600)
            os.posix_fallocate(file.fileno(), 0, size_bytes)
        run("mkswap", path)
        run("swapon", "--priority", "100", path)
        self.how = ""

    def reclaim(self, sleeper):
        """Reclaims all that can be."""
        top, last = sleeper.memory_dir, -1
        for _ in range(10):
            charge = sleeper.charge_bytes()
            if last >= 0 and last - charge < 256 << 10:
                return
            last = charge
            self.once(top, charge)

    def once(self, top, charge):
        ways = ((top / "memory.reclaim", f"{charge}", "memory.reclaim"),
                (top / "memory.force_empty", "0", "memory.force_empty"))
        for file, text, how in ways:
            if file.exists():
                try:
                    file.write_text(text)
                except OSError:
                    # Not all of what was asked for: that is usual.
                    pass
                self.how = how
                return
        raise Failure("this kernel cannot reclaim a control group's memory: neither memory.reclaim nor memory.force_empty")

    def remove(self):
        subprocess.run(["swapoff", str(self.path)], capture_output=True)
        self.path.unlink(missing_ok=True)


def swap_bytes(sleeper):
    """What of its processes lies in swap."""
    total = 0
    for pid in sleeper.pids():
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
            total += int(text.partition("\nSwap:")[2].split()[0]) * 1024
        except (OSError, IndexError):
            pass
    return total
