"""The programs of a cluster of one node, and what is asked of it."""
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import images
import settings
from lib.command import finish, named
from lib.outcome import check
from lib.tree import SEARCH, TOP, binaries
from lib.waiting import until
from programs import BIN, etcd
from world import Program

NAMESPACE = "k8s.io"
STATE = Path("/run/containerd/dormouse", NAMESPACE)


class Supervised(Program):
    """A program that is started again whenever it ends, as a service manager does."""

    def __init__(self, words, path, env=None):
        loop = "trap 'kill $!; exit' TERM; while :; do \"$@\" & echo $! > /run/containerd/pid; wait $!; sleep 0.2; done"
        super().__init__(["sh", "-c", loop, "sh", *words], path, env)


class Cluster:
    """A node and its control plane, with the usual directories of the machine that they are on."""

    def __init__(self, machine, containerd):
        """`containerd`: the directory with its programs."""
        self.machine, self.programs, self.containerd = machine, [], containerd
        self.logs = machine.dir / "logs"
        self.logs.mkdir(exist_ok=True)
        # The shim is found where its installation puts it.
        self.env = {"PATH": f"/usr/local/bin:{containerd}:{BIN}:{SEARCH}", "KUBECONFIG": str(settings.KUBECONFIG)}

    def program(self, name, *words, kind=Program):
        self.programs.append(kind([name if "/" in str(name) else BIN / name, *words], self.logs / f"{Path(name).name}.log", self.env))
        return self.programs[-1]

    def comes_about(self, name, holds, patience=120):
        def alive():
            for program in self.programs:
                check(program.process.poll() is None, f"{Path(program.path).stem} ended: {program.text()[-800:]}")
            return holds()
        until(name, alive, patience)

    def launch(self):
        version = self.run([f"{self.containerd}/containerd", "--version"]).stdout
        settings.write(self.machine, 2 if re.search(r"\bv2\.", version) else 1)
        self.program(f"{self.containerd}/containerd", "--log-level", "info", kind=Supervised)
        self.program(etcd(), "--data-dir", "/var/lib/etcd")
        self.program("kube-apiserver", *settings.apiserver())
        self.comes_about("an answer of containerd", lambda: self.ctr("version", code=None).returncode == 0)
        images.load(self)
        self.comes_about("an answer of the API server", lambda: self.kubectl("get", "--raw", "/readyz", code=None).returncode == 0)
        self.program("kube-controller-manager", *settings.controller_manager())
        self.program("kube-scheduler", *settings.scheduler())
        self.program("kubelet", *settings.kubelet())
        self.program("kube-proxy", *settings.kube_proxy())
        self.comes_about("a ready node", lambda: "True" in self.kubectl(
            "get", "nodes", "-o", "jsonpath={.items[*].status.conditions[?(@.type=='Ready')].status}").stdout)
        self.comes_about("an account for pods", lambda: self.kubectl("get", "serviceaccount", "default", code=None).returncode == 0)
        self.apply(settings.runc_class())
        self.install()

    def install(self):
        """Installs Dormouse as a platform does, but with the service manager that there is here."""
        restart = "kill $(cat /run/containerd/pid)"
        manifest = (TOP / "deploy/installer.yaml").read_text().replace("systemctl restart containerd", restart)
        for text in ((TOP / "deploy/runtimeclass.yaml").read_text(), manifest):
            self.apply(text)
        self.kubectl("rollout", "status", "daemonset/installer", "-n", "dormouse", "--timeout=100s")
        self.comes_about("the node with its runtime", lambda: "dormouse" in self.kubectl(
            "get", "nodes", "-o", "jsonpath={.items[*].status.runtimeHandlers[*].name}").stdout
            or "runtimes.dormouse" in Path("/etc/containerd/config.toml").read_text())

    def run(self, words, code=0, timeout=120, stdin=None):
        """Runs a program to its end. `code`: what is expected, or None."""
        return finish(*words, code=code, patience=timeout, stdin=stdin, environment=self.env, called=named([str(word) for word in words]))

    def kubectl(self, *words, code=0, timeout=120, stdin=None):
        return self.run([BIN / "kubectl", *words], code, timeout, stdin)

    def ctr(self, *words, code=0):
        return self.run([f"{self.containerd}/ctr", "--namespace", NAMESPACE, *words], code)

    def dormouse(self, *words, code=0):
        return self.run([binaries() / "dormouse", "--root", STATE, *words], code)

    def apply(self, manifest):
        """Makes what a manifest says: an object, or a text."""
        self.kubectl("apply", "-f", "-", stdin=manifest if isinstance(manifest, str) else json.dumps(manifest))

    def get(self, *words):
        return json.loads(self.kubectl("get", *words, "-o", "json").stdout)

    def describe(self, namespace):
        """What may explain a failure."""
        events = self.kubectl("get", "events", "-n", namespace, "--sort-by=.lastTimestamp", "-o", "custom-columns=:.type,:.reason,:.message",
                              code=None).stdout.splitlines()
        said = [" | ".join(line for line in events if line.startswith("Warning"))[-600:]]
        for pod in self.kubectl("get", "pods", "-n", namespace, "-o", "name", code=None).stdout.split():
            logs = self.kubectl("logs", "-n", namespace, pod, "--all-containers", "--tail=6", code=None)
            said.append(f"{pod}: {logs.stdout or logs.stderr}")
        return " | ".join(said)

    def shell(self):
        print(f"kubectl and ctr reach the cluster; logs: {self.logs}", file=sys.stderr)
        return subprocess.run(["bash", "-i"], env=os.environ | self.env).returncode

    def stop(self):
        """Pods end through the cluster, so that what is left can be told; the rest ends with the machine."""
        for program in reversed(self.programs):
            program.end(5)


def seconds_since(begin):
    return time.monotonic() - begin
