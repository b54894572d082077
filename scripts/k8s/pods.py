"""What scenarios make and ask, in the namespace and with the runtime of their side."""
import json
import os
import pty
import select
import subprocess
import time
import urllib.request
from pathlib import Path

from images import IMAGE, PYTHON
from lib.outcome import check
from lib.waiting import until
from measure import pss_bytes
from programs import BIN
from world import Program

PORT = 8080
MIB = 1 << 20


def container(name="server", command=(), **more):
    return {"name": name, "image": IMAGE, "imagePullPolicy": "Never", "command": list(command)} | more


def server(version="one", port=PORT, **more):
    """The small server's container."""
    return container(command=[PYTHON, "/server.py", str(port)], env=[{"name": "VERSION", "value": version}], **more)


def shell(name, script, **more):
    return container(name, ["/bin/sh", "-c", script], **more)


def http_probe(path, **more):
    return {"httpGet": {"path": path, "port": PORT}, "periodSeconds": 1, "failureThreshold": 2} | more


class Pods:
    """One side of a scenario."""

    def __init__(self, side):
        self.side, self.cluster, self.note = side, side.cluster, side.note
        self.runtime, self.tell = side.runtime, side.tell
        self._sequence = 0

    def kubectl(self, *words, **more):
        return self.cluster.kubectl("--namespace", self.side.name, *words, **more)

    def apply(self, *objects):
        self.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def get(self, *words):
        return json.loads(self.kubectl("get", *words, "-o", "json").stdout)

    def spec(self, *containers, **more):
        return {"runtimeClassName": self.runtime, "containers": list(containers), "terminationGracePeriodSeconds": 5,
                "automountServiceAccountToken": False, "dnsPolicy": "Default"} | more

    def pod(self, name, *containers, annotations=None, **more):
        """Makes a pod. It is not waited for."""
        self.apply({"apiVersion": "v1", "kind": "Pod",
                    "metadata": {"name": name, "labels": {"app": name}, "annotations": annotations or {}},
                    "spec": self.spec(*containers, **more)})

    def deployment(self, name, *containers, replicas=1, annotations=None, **more):
        """Makes a Deployment behind a Service of its name, and waits until it is complete."""
        labels = {"app": name}
        self.apply(
            {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": {
                "replicas": replicas, "selector": {"matchLabels": labels}, "progressDeadlineSeconds": 90,
                "strategy": {"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
                "template": {"metadata": {"labels": labels, "annotations": annotations or {}}, "spec": self.spec(*containers, **more)}}},
            {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
             "spec": {"selector": labels, "ports": [{"port": 80, "targetPort": PORT}]}})
        self.kubectl("rollout", "status", f"deployment/{name}", "--timeout=100s")

    def wait(self, condition, what, seconds=60):
        self.kubectl("wait", f"--for={condition}", what, f"--timeout={seconds}s", timeout=seconds + 10)

    def ready(self, name):
        self.wait("condition=Ready", f"pod/{name}")

    def ended(self, name, seconds=60):
        """Waits until all of a pod's containers have ended; result: how each did."""
        def states():
            found = self.get("pod", name)["status"].get("containerStatuses", [])
            ends = {one["name"]: one["state"].get("terminated") for one in found}
            return ends if ends and all(ends.values()) else None
        return until(f"the end of pod {name}", states, seconds)

    def names(self, app):
        """The pods of an app that are not being deleted."""
        return [one["metadata"]["name"] for one in self.get("pods", "-l", f"app={app}")["items"]
                if "deletionTimestamp" not in one["metadata"]]

    def endpoints(self, name):
        """So many pods are ready for a Service's requests."""
        subsets = self.get("endpoints", name).get("subsets") or []
        return sum(len(one.get("addresses") or []) for one in subsets)

    def url(self, name):
        return f"http://{self.get('service', name)['spec']['clusterIP']}/"

    def fetch(self, url, patience=20):
        """The answer to a request, asked again until there is one: kube-proxy takes a moment."""
        def answer():
            try:
                with urllib.request.urlopen(url, timeout=10) as got:
                    return got.read().decode().strip()
            except OSError:
                return None
        return until(f"an answer of {url}", answer, patience)

    def all_answer(self, name):
        """Asks a Service until each of its pods has answered; result: the last answer of each, and nobody else's."""
        url, wanted = self.url(name), set(self.names(name))
        until(f"an answer of each of {sorted(wanted)}", lambda: {
            self.fetch(url).split()[1] for _ in range(10 * len(wanted))} == wanted, 40)
        return {self.fetch(url) for _ in range(20 * len(wanted))}

    def type_into(self, command, *exchanges):
        """Types lines into kubectl on a terminal, and waits for what each of them makes it show; result: its exit code."""
        controller, terminal = pty.openpty()
        words = [BIN / "kubectl", "--namespace", self.side.name, *command]
        process = subprocess.Popen(words, stdin=terminal, stdout=terminal, stderr=terminal, env=os.environ | self.cluster.env)
        os.close(terminal)
        try:
            for line, shown in exchanges:
                os.write(controller, f"{line}\r".encode())
                read_until(controller, shown)
            return process.wait(20)
        finally:
            process.kill()
            process.wait()
            os.close(controller)

    def program(self, *words):
        """kubectl, which goes on."""
        self._sequence += 1
        path = self.cluster.logs / f"{self.side.name}-{self._sequence}.log"
        return Program([BIN / "kubectl", "--namespace", self.side.name, *words], path, self.cluster.env)

    def memory(self, pod):
        """What a pod costs: the charge of its control group, and its processes' PSS."""
        uid = self.get("pod", pod)["metadata"]["uid"]
        top = next(Path("/sys/fs/cgroup/memory").glob(f"{self.cluster.machine.group}/kubepods/**/pod{uid}"))
        pids = [int(pid) for group in top.glob("**/cgroup.procs") for pid in group.read_text().split()]
        charge = int((top / "memory.usage_in_bytes").read_text())
        return f"charge {charge / MIB:.1f} MiB, PSS {pss_bytes(pids) / MIB:.1f} MiB"

    def asleep(self):
        """Waits until the sandboxes of all pods of the app `web` hibernate."""
        def all_are():
            states = [one["sandboxState"] for name in self.names("web") for one in self.sandboxes(name).values()]
            return states and all(state == "hibernated" for state in states)
        until("pods that hibernate", all_are, 30)

    def state(self, box):
        """What the runtime says of a container."""
        return json.loads(self.cluster.dormouse("state", box).stdout)

    def sandboxes(self, pod):
        """The sandboxes of a pod's containers: id to what `dormouse list` says. The pod's own first container is not among them."""
        found = self.get("pod", pod)["status"]["containerStatuses"]
        ids = [one["containerID"].rpartition("/")[2] for one in found]
        listed = {one["id"]: one for one in json.loads(self.cluster.dormouse("list", "--json").stdout)}
        return {one: listed[one] for one in ids if one in listed}


def read_until(controller, text, patience=20):
    """Reads what a terminal shows until a text is there."""
    shown, end = "", time.monotonic() + patience
    while text not in shown:
        readable, _, _ = select.select([controller], [], [], max(0, end - time.monotonic()))
        check(readable, f"the terminal does not show {text!r}: {shown!r}")
        shown += os.read(controller, 4096).decode(errors="replace")
