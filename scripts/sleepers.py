"""Servers that are put to sleep and woken by a request: what they have in common, and those in Dormouse."""

import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

from lib.command import run
from lib.outcome import Failure
from lib.tree import DORMOUSE
from measure import MemoryCgroup, pss_bytes

PATIENCE = 60
CGROUPS = []
CAPABILITIES = ["CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_SETGID", "CAP_SETUID", "CAP_NET_BIND_SERVICE"]


class Loading(ConnectionError):
    """It answers, but only that it is not ready."""


def own_cgroup(name):
    """A memory cgroup of a sandbox's own."""
    cgroup = MemoryCgroup(name)
    CGROUPS.append(cgroup)
    if cgroup.path is None:
        raise Failure(f"cannot make a memory cgroup for {name}: no memory controller in /sys/fs/cgroup; enable one")
    return cgroup


def remove_cgroups():
    """Removes what is left of them; nothing runs in them any more."""
    for cgroup in CGROUPS:
        if cgroup.path and cgroup.path.exists():
            cgroup.remove()


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


def reap(pids):
    """Collects those of the processes that became ours when their parents ended: dead ones hold their control groups."""
    until = time.monotonic() + 10
    for pid in pids:
        try:
            while os.waitpid(pid, os.WNOHANG) == (0, 0) and time.monotonic() < until:
                time.sleep(0.005)
        except ChildProcessError:
            pass


def write_bundle(sleeper, linux):
    sets = ("bounding", "effective", "permitted", "inheritable")
    words = [str(word) for word in sleeper.workload.command(sleeper.port)]
    spec = {
        "ociVersion": "1.0.2",
        "process": {"user": {"uid": 0, "gid": 0}, "args": words, "cwd": "/", "env": ["PATH=/usr/bin:/bin"],
                    "capabilities": dict.fromkeys(sets, CAPABILITIES)},
        "root": {"path": str(sleeper.root)}, "hostname": "bench",
        "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"},
                   {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
                   {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs"}],
        "linux": {"namespaces": [{"type": kind} for kind in ("pid", "ipc", "uts", "mount")], **linux},
    }
    bundle = Path(sleeper.place.directory, sleeper.id)
    bundle.mkdir()
    Path(bundle, "config.json").write_text(json.dumps(spec))
    return bundle


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
        self.started = False
        self.output = Path(place.directory, self.id + ".log")

    def launch(self):
        """Starts its program."""
        raise NotImplementedError

    def sleep(self):
        """Puts it to sleep."""
        raise NotImplementedError

    def end(self):
        """Ends what `launch` started."""
        raise NotImplementedError

    def is_alive(self):
        raise NotImplementedError

    def pids(self):
        """All its processes."""
        raise NotImplementedError

    def charge_bytes(self):
        """The charge of its control group."""
        raise NotImplementedError

    def launch_and_wait(self):
        """Starts it, and waits for its first answer; result: nanoseconds."""
        begin = time.perf_counter_ns()
        self.started = True
        self.launch()
        return self.first_answer(begin)

    def close(self):
        if self.started:
            self.end()
            self.started = False

    def first_answer(self, begin):
        """Asks until it answers; result: nanoseconds since `begin`."""
        while True:
            try:
                self.timed_request()
                return time.perf_counter_ns() - begin
            except ConnectionError:
                if time.perf_counter_ns() - begin > PATIENCE * 10**9 or not self.is_alive():
                    raise Failure(f"{self.workload.name} does not start in {type(self).__name__}: {self.log()}") from None
                time.sleep(0.001)

    def timed_request(self):
        """One request; result: nanoseconds from connecting to the whole answer."""
        self.asked += 1
        request = self.workload.request(self.asked)
        begin = time.perf_counter_ns()
        self.rouse()
        answer = self.exchange(request)
        end = time.perf_counter_ns()
        if self.workload.is_loading(answer):
            raise Loading
        if not self.workload.is_answer(answer, self.asked):
            raise Failure(f"{self.workload.name} in {type(self).__name__} answered {answer[:100]!r}")
        return end - begin

    def exchange(self, request):
        """Any request; result: the whole answer."""
        return answer_of((self.host, self.port), request)

    def rouse(self):
        """What must be done for it to answer a request."""

    def memory(self):
        """What it uses, by the charge of its control group and by the proportional set size of all its processes."""
        return {"charge": self.charge_bytes(), "pss": pss_bytes(self.pids())}

    def memory_by_process(self):
        """The proportional set sizes of its processes, by their names."""
        found = {}
        for pid in self.pids():
            name = Path(f"/proc/{pid}/comm").read_text().strip()
            found[name] = found.get(name, 0) + pss_bytes([pid])
        return found

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


class Events:
    """What `dormouse events` says of a sandbox from now on, while it is open."""

    def __init__(self, sleeper):
        words = [DORMOUSE, "--root", sleeper.place.state, "events", sleeper.id]
        self.id = sleeper.id
        self.process = subprocess.Popen([str(word) for word in words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        text=True)
        self.timer = threading.Timer(PATIENCE, self.process.kill)

    def __enter__(self):
        self.timer.start()
        # The first line is what the sandbox is now.
        self.process.stdout.readline()
        return self

    def __exit__(self, *_):
        self.timer.cancel()
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def next_with(self, figures):
        """The next event that has such figures: `hibernated` or `woken`."""
        for line in self.process.stdout:
            event = json.loads(line)
            if figures in event:
                return event
        raise Failure(f"no event of {self.id} told what {figures} is")


class Dormouse(Sleeper):
    """`dormouse do`; `reap`, `share` (of files' pages) and `memory` as its options, `more` by their names."""

    process = None

    def __init__(self, place, workload, root, reap="on", share=False, memory="2G", more=()):
        super().__init__(place, workload, root)
        options = {"--reap": reap, "--share-files": "on" if share else "off", "--memory": memory} | dict(more)
        self.options = [word for pair in options.items() for word in pair]

    def enter(self):
        """Done by the process that becomes the front end."""
        self.cgroup.enter()

    def make_groups(self):
        self.cgroup = own_cgroup(self.id)

    def launch(self):
        self.make_groups()
        program = self.workload.command(self.port)
        words = [DORMOUSE, "--root", self.place.state, "do", "--platform", self.place.platform, "--id", self.id,
                 "--rootfs", self.root, "--swap-dir", self.place.swap, "--cwd", "/",
                 *self.options, "--", *program]
        with open(self.output, "ab") as log:
            self.process = subprocess.Popen([str(word) for word in words], stdin=subprocess.DEVNULL, stdout=log,
                                            stderr=log, preexec_fn=self.enter, start_new_session=True)

    def is_alive(self):
        return self.process is not None and self.process.poll() is None

    def sleep(self):
        """Puts it to sleep; result: what `dormouse hibernate` says."""
        words = (DORMOUSE, "--root", self.place.state, "hibernate", self.id, "--json")
        for attempt in range(5):
            try:
                return json.loads(run(*words))
            except Failure as failure:
                if "did not come to rest" not in str(failure) or attempt == 4:
                    raise
                time.sleep(0.2)

    def wake(self):
        """Wakes it without a request; result: what `dormouse wake` says."""
        return json.loads(run(DORMOUSE, "--root", self.place.state, "wake", self.id, "--json"))

    def stats(self):
        """What `dormouse stats` says; does not wake it."""
        return json.loads(run(DORMOUSE, "--root", self.place.state, "stats", self.id, "--json"))

    def memory_by_class(self):
        return self.stats()["memory"]

    def pids(self):
        return self.cgroup.pids()

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


class Container(Dormouse):
    """`dormouse run` with a bundle; asleep after a signal to its leash."""

    def launch(self):
        pid_file = Path(self.place.directory, self.id + ".pid")
        words = [DORMOUSE, "--root", self.place.state, "run", "--platform", self.place.platform, "--detach", "--pid-file",
                 pid_file, "--bundle", write_bundle(self, {}), self.id]
        with open(self.output, "ab") as log:
            done = subprocess.run([str(word) for word in words], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        if done.returncode != 0:
            raise Failure(f"dormouse run cannot start {self.workload.name}: {self.log()}")
        self.pid = int(pid_file.read_text())

    def is_alive(self):
        return Path(f"/proc/{self.pid}").exists()

    def sleep(self):
        """Stops its leash; result: nanoseconds until it was hibernated, and what `dormouse events` says of it."""
        with Events(self) as events:
            begin = time.time_ns()
            os.kill(self.pid, signal.SIGSTOP)
            event = events.next_with("hibernated")
        return event["time_us"] * 1000 - begin, event["hibernated"]

    def end(self):
        words = [DORMOUSE, "--root", self.place.state, "delete", "--force", self.id]
        subprocess.run([str(word) for word in words], capture_output=True, timeout=PATIENCE)
