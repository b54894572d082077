"""A machine in the machine: processes, mounts, network and a host name of its own, and directories of its own in the places
where a node keeps its state."""
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

from programs import CACHE

ADDRESS = "10.99.0.1"
# What kubelet sets on its host, as it wants it. Its own files are shown to it instead.
SYSCTLS = {
    "vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
}
# Written to by the installer, and by nobody else: the host's with a layer above.
LAYERED = ("/etc", "/opt", "/usr/local")
PRIVATE = ("/var/lib", "/var/log")
NAMESPACES = ("--mount", "--uts", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private")
INSIDE = "DORMOUSE_NODE_DIRECTORY"


def mount(*words):
    subprocess.run(["mount", *map(str, words)], check=True)


class Machine:
    """The program runs twice: outside it makes the directory, starts itself in the namespaces and cleans up; inside it works."""

    def __init__(self, keep):
        self.keep = keep
        inside = os.environ.pop(INSIDE, None)
        self.is_inside = inside is not None
        CACHE.mkdir(parents=True, exist_ok=True)
        self.dir = Path(inside or tempfile.mkdtemp(prefix="node.", dir=CACHE))
        self.group = f"dormouse-{self.dir.name}"

    def run(self, work):
        """Result: the exit status."""
        return self.begin(work) if self.is_inside else self.outside()

    def outside(self):
        words = ["unshare", *NAMESPACES, sys.executable, *sys.argv]
        # An end of this one by SIGTERM or SIGINT is told to those inside, and the directories go all the same.
        child = subprocess.Popen(words, env=os.environ | {INSIDE: str(self.dir)})
        try:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, lambda *_: child.terminate())
            return child.wait()
        finally:
            child.kill()
            child.wait()
            self.remove_groups()
            if self.keep:
                print(f"the node's directory: {self.dir}")
            else:
                shutil.rmtree(self.dir, ignore_errors=True)

    def begin(self, work):
        """Prepares the machine, and works in a child: this is process 1, which reaps."""
        self.make_places()
        self.make_network()
        self.make_groups()
        worker = os.fork()
        if worker == 0:
            status = 1
            try:
                status = work()
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: os.kill(worker, signal.SIGINT))
        while True:
            pid, status = os.wait()
            if pid == worker:
                return os.waitstatus_to_exitcode(status) % 256

    def make_places(self):
        mount("-t", "tmpfs", "-o", "mode=755", "run", "/run")
        for place in ("/run/netns", "/run/lock", "/run/containerd"):
            Path(place).mkdir()
        for place in LAYERED:
            layer = self.dir / place.strip("/").replace("/", "-")
            for part in ("upper", "work"):
                (layer / part).mkdir(parents=True)
            mount("-t", "overlay", "-o", f"lowerdir={place},upperdir={layer}/upper,workdir={layer}/work", "overlay", place)
        for place in PRIVATE:
            own = self.dir / place.strip("/").replace("/", "-")
            own.mkdir()
            mount("--bind", own, place)
        for name, value in SYSCTLS.items():
            own = Path("/run", name.replace("/", "."))
            own.write_text(f"{value}\n")
            mount("--bind", own, f"/proc/sys/{name}")
        mount("--make-rshared", "/")

    def make_network(self):
        commands = (
            "ip link set lo up", "ip link add node0 type bridge", f"ip addr add {ADDRESS}/24 dev node0",
            # Addresses of services are nobody's: packets for them need a way to go before they are rewritten.
            "ip link set node0 up", f"ip route add default via {ADDRESS} dev node0", "hostname node",
        )
        for command in commands:
            subprocess.run(command.split(), check=True)
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")

    def hierarchies(self):
        top = Path("/sys/fs/cgroup")
        return [top] if (top / "cgroup.controllers").exists() else [path for path in top.iterdir() if path.is_dir()]

    def make_groups(self):
        for hierarchy in self.hierarchies():
            group = hierarchy / self.group
            group.mkdir()
            for name in ("cpuset.cpus", "cpuset.mems"):
                if (group / name).exists():
                    (group / name).write_text((hierarchy / name).read_text())

    def remove_groups(self):
        for hierarchy in self.hierarchies():
            for directory, _, _ in os.walk(hierarchy / self.group, topdown=False):
                try:
                    os.rmdir(directory)
                except OSError as error:
                    print(f"cannot remove {directory}: {error}", file=sys.stderr)
