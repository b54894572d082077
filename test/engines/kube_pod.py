"""Pods and containers as a kubelet sees them."""
import base64
import functools
import json
import re
import subprocess
from pathlib import Path

from kube_world import CallFailure
from lib.outcome import Failure, check
from lib.waiting import until
from runner import Cases
from world import IMAGE

MIB = 1 << 20


class PodCases(Cases):
    """Cases after which nothing is left."""

    def __call__(self, *runtimes):
        def register(function):
            @functools.wraps(function)
            def whole(side):
                answers = function(side)
                side.remove_all()
                side.is_clean()
                return answers
            return Cases.__call__(self, *runtimes)(whole)
        return register


case = PodCases()


class Container:
    """A container of a pod, which may have been started."""

    def __init__(self, pod, name, id):
        self.pod, self.side, self.name, self.id = pod, pod.side, name, id

    def call(self, method, **request):
        return self.side.call(method, container_id=self.id, **request)

    def launch(self):
        self.call("StartContainer")
        return self

    def stop(self, timeout_seconds=10):
        self.call("StopContainer", timeout=str(timeout_seconds))

    def remove(self):
        self.call("RemoveContainer")

    def status(self):
        return self.call("ContainerStatus")["status"]

    def state(self):
        return self.status()["state"].removeprefix("CONTAINER_")

    def ending(self):
        """Waits for its end; result: its exit code and the reason."""
        status = until(f"the end of {self.name}", lambda: self.is_exited(), 40)
        return status["exit_code"], status["reason"]

    def is_exited(self):
        status = self.status()
        return status if status["state"] == "CONTAINER_EXITED" else None

    def pid(self):
        """The pid on the host of its first process."""
        answer = self.call("ContainerStatus", verbose=True)
        return int(json.loads(answer["info"]["info"])["pid"])

    def run(self, *words, timeout_seconds=30):
        """A command by ExecSync; result: its exit code, output and errors."""
        done = self.call("ExecSync", cmd=list(words), timeout=str(timeout_seconds))
        stdout, stderr = (base64.b64decode(done[name] or "").decode(errors="replace") for name in ("stdout", "stderr"))
        return done["exit_code"], stdout, stderr

    def sh(self, script, **options):
        """What a shell command prints, which has to succeed."""
        code, stdout, stderr = self.run("sh", "-c", script, **options)
        check(code == 0, f"in {self.name} {script!r} ended with {code}: {stderr or stdout}")
        return stdout

    def log_path(self):
        return self.pod.logs / f"{self.name}.log"

    def log(self):
        """The lines of its log: stream, tag (full or partial) and text."""
        try:
            lines = self.log_path().read_text(errors="replace").splitlines()
        except FileNotFoundError:
            return []
        return [line.split(" ", 1)[1] for line in lines]

    def logs(self, *lines):
        """Waits until its log has these lines."""
        try:
            until("its log", lambda: all(line in self.log() for line in lines))
        except Failure:
            raise Failure(f"{lines} are not all in the log of {self.name}: {self.log()[-20:]}") from None

    def open(self, method, words=(), tty=False, stdin=False, sizes=""):
        """Words that start a client of the streams of Exec or Attach."""
        more = {"cmd": list(words)} if method == "Exec" else {}
        answer = self.call(method, tty=tty, stdin=stdin, stdout=True, stderr=not tty, **more)
        flags = ["-tty", "-sizes", sizes] if tty else []
        return self.side.engine.client("stream", *flags, *(["-stdin"] if stdin else []), answer["url"])

    def exec(self, *words, stdin=None, tty=False, sizes=""):
        """A command by Exec and its streams, to its end."""
        return subprocess.run(self.open("Exec", words, tty, stdin is not None, sizes), input=stdin, text=True,
                              capture_output=True, timeout=60)

    def attach(self, tty=False, method="Attach", words=(), sizes=""):
        """A client that goes on, attached to it or to a command in it. What it says is in a file."""
        return self.side.engine.start_program(self.open(method, words, tty, True, sizes), subprocess.PIPE)

    def memory_bytes(self):
        stats = self.call("ContainerStats")["stats"]
        return int((stats["memory"] or {}).get("working_set_bytes", {}).get("value", 0))


class Pod:
    """A pod that runs."""

    def __init__(self, side, name, config, id):
        self.side, self.name, self.config, self.id = side, name, config, id
        self.logs = Path(config["log_directory"])

    def call(self, method, **request):
        return self.side.call(method, pod_sandbox_id=self.id, **request)

    def status(self):
        return self.call("PodSandboxStatus")["status"]

    def is_ready(self):
        return self.status()["state"] == "SANDBOX_READY"

    def address(self):
        return self.status()["network"]["ip"]

    def pid(self):
        """The pid on the host of the pod's own first process."""
        answer = self.call("PodSandboxStatus", verbose=True)
        return int(json.loads(answer["info"]["info"])["pid"])

    def shim(self):
        """The pid of the shim that serves it."""
        return self.side.shim(self.id)

    def create(self, name, script, attempt=0, memory_mib=0, **more):
        """A container of a shell script. `more` is of its configuration; `resources`, `security` of its Linux part."""
        resources = {"memory_limit_in_bytes": str(memory_mib * MIB)} | more.pop("resources", {})
        # As a kubelet asks for it: a container's namespaces are the pod's.
        security = {"namespace_options": self.side.options(self.config)} | more.pop("security", {})
        config = {
            "metadata": {"name": name, "attempt": attempt}, "image": {"image": IMAGE}, "log_path": f"{name}.log",
            "command": ["sh", "-c", script], "labels": {"case": self.side.id, "name": name},
            "linux": {"resources": resources, "security_context": security},
        } | more
        answer = self.call("CreateContainer", config=config, sandbox_config=self.config)
        return Container(self, name, answer["container_id"])

    def launch(self, name, script, **more):
        """A container that has been started."""
        return self.create(name, script, **more).launch()

    def sleepers(self, count, **more):
        """So many containers that do nothing until they are told to end."""
        containers = [self.launch(f"c{number}", f"trap 'exit 0' TERM; echo up; {WAIT}", **more) for number in range(count)]
        for one in containers:
            one.logs("stdout F up")
        return containers

    def stop(self):
        self.call("StopPodSandbox")

    def remove(self):
        self.call("RemovePodSandbox")

    def forward(self, port, data, program=None):
        """What comes back from a port for some bytes."""
        url = self.call("PortForward", port=[port])["url"]
        return subprocess.run(self.side.engine.client("forward", url, port), input=data, capture_output=True, timeout=60)


WAIT = "sleep 100000 & wait"
# Ends at once when it is told to, and reaps nobody.
SLEEP = f"trap 'exit 0' TERM; {WAIT}"


class Side:
    """One case with one runtime: all that it makes is labelled with its name, and goes at its end."""

    def __init__(self, engine, runtime, name):
        self.engine, self.runtime = engine, runtime
        self.id = f"{name}-{runtime}".replace("_", "-")[:60]

    def call(self, method, **request):
        return self.engine.call(self.runtime, method, **request)

    def options(self, config):
        return config["linux"]["security_context"]["namespace_options"]

    def config(self, name="pod", namespaces=(), **more):
        """The configuration of a pod. `namespaces` are modes other than those of an ordinary pod."""
        full = f"{self.id}-{name}"
        # A pod on the host's network has the host's name.
        own_name = {} if dict(namespaces).get("network") == "NODE" else {"hostname": f"box-{name}"}
        linux = {"cgroup_parent": self.engine.cgroup_parent, "security_context": {
            "namespace_options": {"network": "POD", "pid": "CONTAINER", "ipc": "POD"} | dict(namespaces),
        }} | more.pop("linux", {})
        logs = self.engine.dir / "logs" / full
        logs.mkdir(parents=True, exist_ok=True)
        return {
            "metadata": {"name": full, "uid": full, "namespace": "test"}, "log_directory": str(logs),
            "labels": {"case": self.id, "name": name}, "linux": linux,
        } | own_name | more

    def pod(self, name="pod", namespaces=(), **more):
        """Makes a pod."""
        config = self.config(name, namespaces, **more)
        answer = self.call("RunPodSandbox", config=config, runtime_handler=self.runtime)
        return Pod(self, name, config, answer["pod_sandbox_id"])

    def pods(self):
        """IDs of the pods that are there."""
        listed = self.call("ListPodSandbox", filter={"label_selector": {"case": self.id}})["items"]
        return [pod["id"] for pod in listed]

    def refused(self, method, code, **request):
        """Makes a call that fails with this code; result: the message."""
        try:
            self.call(method, **request)
        except CallFailure as failure:
            check(failure.code == code, f"{failure}: the code is not {code}")
            return failure.message
        raise Failure(f"{method} was not refused")

    def shim(self, id):
        shims = [pid for pid in self.engine.shims() if id in Path(f"/proc/{pid}/cmdline").read_text()]
        check(len(shims) == 1, f"{len(shims)} shims serve {id}")
        return shims[0]

    def remove_all(self):
        """Removes what the case has made."""
        for pod in self.pods():
            self.remove(pod)

    def remove(self, pod):
        """Tries again when it fails, as a kubelet does: containerd may be about to see a container's end."""
        failures = []

        def is_removed():
            try:
                self.call("StopPodSandbox", pod_sandbox_id=pod)
                self.call("RemovePodSandbox", pod_sandbox_id=pod)
                return True
            except CallFailure as failure:
                failures.append(failure)
                return False
        try:
            until("a pod's removal", is_removed)
        except Failure:
            raise failures[-1] from None

    def left(self):
        """What is left of pods, but for that of earlier cases that failed."""
        return [text for text in self.engine.remains() if text not in self.engine.abandoned]

    def is_clean(self):
        """Nothing is left of any pod."""
        try:
            until("the end of what is left", lambda: not self.left())
        except Failure as failure:
            raise Failure(f"{failure}: {self.left()}") from None

    def abandon(self):
        """After a failure: removes what can be removed. What stays is not blamed on later cases."""
        try:
            self.remove_all()
        except Failure as failure:
            print(f"        {failure}")
        self.engine.abandoned = self.engine.remains()


def parent(pid):
    return int(re.search(r"PPid:\s*(\d+)", Path(f"/proc/{pid}/status").read_text())[1])
