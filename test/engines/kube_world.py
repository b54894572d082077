"""containerd with its CRI plugin, in a network of its own, and what a kubelet asks of it."""
import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path

from lib.command import run
from lib.outcome import Failure, Skip
from lib.tree import SEARCH, TOP, binaries, missing
from lib.waiting import until
from world import IMAGE, PAUSE, RUNTIMES, Engine, Program, command_lines, end_pid, image_tar

PLUGINS = "/usr/lib/cni"
CLIENT = TOP / "target/engines/cri"
GUESTS = TOP / "target/guest"
PROGRAMS = ("hungry", "share")
SUBNET = "10.88.0.0/16"
# The address of the bridge, by which the node reaches its pods.
NODE = "10.88.0.1"


class CallFailure(Failure):
    """A call that was answered with an error. `code` is gRPC's, by its name."""

    def __init__(self, method, said):
        self.code, _, self.message = said.strip().partition(": ")
        super().__init__(f"{method}: {said.strip()}")


def build_client():
    """Builds the client, if there is a compiler for it."""
    go = next((path for path in ("/usr/local/go/bin/go", "/usr/bin/go") if Path(path).exists()), None)
    if not go:
        if missing("go"):
            raise Skip("Go is not installed")
        go = "go"
    CLIENT.parent.mkdir(parents=True, exist_ok=True)
    # The module's versions are fixed, and their checksums lie beside it.
    built = subprocess.run([go, "build", "-o", CLIENT, "."], cwd=TOP / "test/engines/cri", capture_output=True,
                           text=True, env=os.environ | {"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly"})
    if built.returncode != 0:
        raise Skip(f"the client cannot be built: {built.stderr.strip().splitlines()[-1]}")


def build_programs():
    """Builds what containers run beside busybox; result: the programs, which need no libraries."""
    subprocess.run([TOP / "test/guest/build.sh", GUESTS, *PROGRAMS], check=True)
    return [GUESTS / "static" / name for name in PROGRAMS]


class Kube(Engine):
    """containerd with the CRI plugin."""

    def __init__(self, platform="auto"):
        super().__init__("cri", platform=platform)
        self.namespace = "k8s.io"
        # As a kubelet does, with a parent for the control groups of all pods.
        self.cgroup_parent = f"/cri-{os.getpid()}"
        self.net = f"cri{os.getpid()}"
        self.network = f"pods-{os.getpid()}"
        self.inside = ["nsenter", f"--net=/run/netns/{self.net}"]
        self.cri = self.plugin()
        # IDs of all pods and containers that were made.
        self.ids = set()
        # Those of Dormouse.
        self.own_ids = set()
        # What cases that failed have left.
        self.abandoned = []
        # By runtime: the names of the calls that were made.
        self.calls = {}
        for words in (["netns", "add", self.net], ["-n", self.net, "link", "set", "lo", "up"]):
            subprocess.run(["ip", *words], check=True, capture_output=True)
        (self.dir / "cni").mkdir()
        (self.dir / "cni/10-pods.conflist").write_text(json.dumps({
            "cniVersion": "0.4.0", "name": self.network, "plugins": [{
                "type": "bridge", "bridge": "pods", "isGateway": True, "ipam": {
                    "type": "host-local", "dataDir": f"{self.dir}/ipam", "ranges": [[{"subnet": SUBNET}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            }],
        }))

    def plugin(self):
        """The plugin's part of containerd's configuration."""
        runtimes = "".join(f"""
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{name}]
      runtime_type = "{kind}"
      pod_annotations = ["dev.dormouse.*"]
      container_annotations = ["dev.dormouse.*"]
""" for name, kind in RUNTIMES.items())
        if self.node_config:
            runtimes += f"""
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.dormouse.options]
      TypeUrl = "runtimeoptions.v1.Options"
      ConfigPath = "{self.node_config}"
"""
        return f"""
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  stats_collect_period = 1
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
{runtimes}
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{PLUGINS}"
    conf_dir = "{self.dir}/cni"
"""

    def launch(self):
        super().launch()
        until("a ready network", self.is_ready)
        return self

    def is_ready(self):
        try:
            return all(condition["status"] for condition in self.call(None, "Status")["status"]["conditions"])
        except CallFailure:
            return False

    def pull(self):
        for name, command, programs in ((IMAGE, ["/bin/sh"], build_programs()), (PAUSE, ["/bin/sleep", "100000"], [])):
            tar = self.dir / "image.tar"
            image_tar(tar, name, command, programs)
            self.run_ctr("image", "import", tar)
            tar.unlink()
        until("the image in the plugin", lambda: IMAGE in self.run_ctr("image", "ls", "-q").stdout)

    def start_program(self, words, stdin):
        """A program that goes on."""
        self._sequence += 1
        program = Program(words, self.dir / f"program-{self._sequence}.log", stdin=stdin)
        self.programs.append(program)
        return program

    def client(self, *words):
        return [*self.inside, str(CLIENT), *map(str, words)]

    def call(self, runtime, method, **request):
        """One call of the runtime service, which is counted for `runtime`."""
        self.calls.setdefault(runtime, set()).add(method)
        done = subprocess.run(self.client("call", self.address, method), input=json.dumps(request), text=True,
                              capture_output=True, timeout=300, env=os.environ | {"PATH": SEARCH})
        if done.returncode != 0:
            raise CallFailure(method, done.stderr)
        answer = json.loads(done.stdout)
        if method == "RunPodSandbox":
            self.ids.add(answer["pod_sandbox_id"])
            if runtime == "dormouse":
                self.own_ids.add(answer["pod_sandbox_id"])
        elif method == "CreateContainer":
            self.ids.add(answer["container_id"])
        return answer

    def methods(self):
        """Names of all calls of the runtime service."""
        return subprocess.run([CLIENT, "methods"], capture_output=True, text=True, check=True).stdout.split()

    def interfaces(self):
        """Names of the interfaces of containerd's own network, which is the host's to it."""
        links = subprocess.run(["ip", "-json", "-n", self.net, "link"], capture_output=True, check=True).stdout
        return sorted(link["ifname"] for link in json.loads(links))

    def groups(self):
        """Control groups of pods of this containerd."""
        return [path for place in ("*", ".") for path in Path("/sys/fs/cgroup").glob(f"{place}{self.cgroup_parent}/*")
                if path.is_dir()]

    def remains(self):
        own = str(self.dir)
        left = [f"process {pid}: {line[:80]}" for pid, line in command_lines()
                if ("containerd-shim" in line[:200] and str(self.address) in line)
                or ("dormouse" in line[:200] and f"{own}/state" in line)]
        left += [f"mount {line.split()[4]}" for line in Path("/proc/self/mountinfo").read_text().splitlines()
                 if f"{own}/state" in line.split()[4]]
        left += [f"bundle {path}" for path in (self.dir / "state").glob(f"io.containerd.runtime.v2.task/{self.namespace}/*")]
        left += [f"pod's files {path}" for kind in ("sandboxes", "containers")
                 for place in ("root", "state") for path in (self.dir / place / "io.containerd.grpc.v1.cri" / kind).glob("*")]
        left += [f"network namespace {path}" for path in (self.dir / "state/io.containerd.grpc.v1.cri/netns").glob("*")]
        left += [f"address {path}" for path in (self.dir / "ipam").glob("*/10.*")]
        left += [f"network's result {path}" for path in Path("/var/lib/cni/results").glob(f"{self.network}-*")]
        left += [f"state {path}" for path in self.states()]
        # A shim's socket is named by its containerd and its pod, and beside it is a lock. That of runc's shim stays at times when it is killed.
        names = (hashlib.sha256(f"{self.address}/{self.namespace}/{id_}".encode()).hexdigest() for id_ in self.own_ids)
        left += [f"socket {path}" for name in names for path in Path("/run/containerd/s").glob(f"{name}*")]
        return left + [f"group {path}" for path in self.groups()]

    def states(self, runtime="dormouse"):
        """What a runtime keeps of this containerd's containers: others use the same directory."""
        def is_own(path):
            try:
                return path.name in self.ids or str(self.dir) in (path / "state.json").read_text()
            except OSError:
                return False
        return [path for path in Path("/run/containerd", runtime, self.namespace).glob("*") if is_own(path)]

    def dormouse(self, *words):
        """An order of Dormouse's own for one of this containerd's containers; result: what it prints."""
        return run(binaries() / "dormouse", "--root", f"/run/containerd/dormouse/{self.namespace}", *words)

    def end_orphans(self, runtime):
        """Ends, by the runtime's own command, containers that containerd has forgotten."""
        for pid in self.shims():
            end_pid(pid)
        program = "runc" if runtime == "runc" else binaries() / "dormouse"
        for bundle in (self.dir / f"state/io.containerd.runtime.v2.task/{self.namespace}").glob("*"):
            root = f"/run/containerd/{runtime}/{self.namespace}"
            subprocess.run([program, "--root", root, "delete", "--force", bundle.name], capture_output=True, timeout=60)
            subprocess.run(["umount", "-l", bundle / "rootfs"], capture_output=True)
            shutil.rmtree(bundle, ignore_errors=True)

    def stop(self):
        super().stop()
        for place in ("*", "."):
            for path in Path("/sys/fs/cgroup").glob(f"{place}{self.cgroup_parent}"):
                remove_groups(path)
        subprocess.run(["ip", "netns", "del", self.net], capture_output=True)
        for path in [*self.states("runc"), *self.states()]:
            shutil.rmtree(path, ignore_errors=True)
        for path in Path("/var/lib/cni/results").glob(f"{self.network}-*"):
            path.unlink()
            path.with_name(f"cni-loopback-{path.name.split('-')[-2]}-lo").unlink(missing_ok=True)


def remove_groups(path):
    """A control group and those in it, which have no processes."""
    for inner in (*filter(Path.is_dir, path.iterdir()), path):
        try:
            remove_groups(inner) if inner != path else inner.rmdir()
        except OSError:
            pass
