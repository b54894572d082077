"""What a cluster is asked for. Each scenario runs with each runtime; what it notes has to be the same with both."""
import hashlib
import json
import os
import signal
import subprocess
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from images import IMAGE
from lib.waiting import until
from pods import PORT, Pods, container, http_probe, server, shell
from world import command_lines

__all__ = ["ALL", "Pods"]
ALL = []
MIB = 1 << 20


def scenario(*runtimes):
    """Registers a scenario; `runtimes`: those that it is for."""
    def register(function):
        function.runtimes = runtimes or ("runc", "dormouse")
        ALL.append(function)
        return function
    return register


@scenario()
def deployment(pods):
    """three replicas behind a Service all answer, and one that is deleted is replaced"""
    pods.deployment("web", server(readinessProbe=http_probe("/ready")), replicas=3)
    url, names = pods.url("web"), pods.names("web")
    pods.fetch(url)
    pods.note("ready", pods.endpoints("web"))
    pods.note("pods that answer", len(pods.all_answer("web")))
    pods.kubectl("delete", "pod", names[0])
    until("three ready pods", lambda: pods.endpoints("web") == 3 and names[0] not in pods.names("web"), 60)
    pods.note("after one was deleted", len(pods.all_answer("web")))
    pods.kubectl("scale", "deployment/web", "--replicas=1")
    until("one pod", lambda: len(pods.names("web")) == 1 and pods.endpoints("web") == 1, 60)
    pods.note("scaled to", pods.endpoints("web"))


@scenario()
def execute(pods):
    """`kubectl exec`: streams, exit codes, a terminal, and a command that is not there"""
    pods.pod("web", server())
    pods.ready("web")
    done = pods.kubectl("exec", "web", "--", "sh", "-c", "id -u; echo $HOSTNAME; cat /etc/hostname; echo wrong >&2; exit 3", code=None)
    pods.note("output", done.stdout.split())
    pods.note("errors", done.stderr.split())
    pods.note("exit code", done.returncode)
    data = "line\n" * 100000
    pods.note("through cat", pods.kubectl("exec", "-i", "web", "--", "cat", stdin=data).stdout == data)
    pods.note("terminal", pods.type_into(["exec", "-it", "web", "--", "sh"], ("", "# "), (
        "test -t 0 && echo terminal-$((1 + 1))", "terminal-2"), ("read word; echo got-$word", "\n"), ("typed", "got-typed"),
        ("stty -echo; echo quiet-$((1 + 1))", "quiet-2"), ("exit 5", "")))
    done = pods.kubectl("exec", "web", "--", "/no/such/program", code=None)
    pods.note("no such program", (done.returncode, "no such file or directory" in done.stderr.lower()))
    pods.note("processes", pods.kubectl("exec", "web", "--", "sh", "-c", "ls -d /proc/[0-9]* | head -n 1").stdout.split())


@scenario()
def attach(pods):
    """`kubectl attach` to a container with standard input, with a terminal and without one; a container beside a running one"""
    pods.pod("reads", container("reads", ["/bin/cat"], stdin=True, stdinOnce=True), restartPolicy="Never")
    pods.ready("reads")
    pods.note("through cat", pods.kubectl("attach", "-i", "-q", "reads", stdin="first\nsecond\n").stdout.split())
    pods.note("its end", pods.ended("reads")["reads"]["exitCode"])
    pods.pod("typed", container("typed", ["/bin/sh"], stdin=True, tty=True), restartPolicy="Never")
    pods.ready("typed")
    # The shell asked before anybody listened.
    pods.note("terminal", pods.type_into(["attach", "-it", "typed"], ("", "# "), ("echo got-$((1 + 1))", "got-2"), ("exit 6", "")))
    pods.note("its exit code", pods.ended("typed")["typed"]["exitCode"])
    pods.pod("web", server(readinessProbe=http_probe("/ready")))
    pods.ready("web")
    pods.kubectl("debug", "web", "--image", IMAGE, "--image-pull-policy=Never", "--container=late", "--profile=general", "--",
                 "wget", "-qO-", f"http://127.0.0.1:{PORT}/")
    pods.note("an ephemeral container", until("its words", lambda: pods.kubectl("logs", "web", "-c", "late", code=None).stdout.strip(), 30))


@scenario()
def logs(pods):
    """`kubectl logs`: all, the last lines, those of both streams, those to come, and those of the container before"""
    pods.pod("talker", shell("talker", "for i in 1 2 3 4 5; do echo line $i; done; echo wrong >&2; sleep 2; echo later; sleep 1000"))
    pods.ready("talker")
    follow = pods.program("logs", "-f", "talker")
    until("a line to come", lambda: "later" in follow.text(), 30)
    follow.end()
    lines = follow.text().split("\n")
    # The order of two streams is nobody's promise.
    pods.note("followed", (sorted(lines[:6]), lines[6:]))
    pods.note("last line", pods.kubectl("logs", "talker", "--tail=1").stdout.strip())
    script = "[ -e /kept/once ] || { touch /kept/once; echo first; echo why > /dev/termination-log; exit 4; }; echo second; sleep 1000"
    pods.pod("crash", shell("crash", script, volumeMounts=[{"name": "kept", "mountPath": "/kept"}]),
             volumes=[{"name": "kept", "emptyDir": {}}])
    until("a restart", lambda: any(one["restartCount"] for one in pods.get("pod", "crash")["status"].get("containerStatuses", [])), 60)
    until("the second's log", lambda: pods.kubectl("logs", "crash", code=None).stdout == "second\n", 20)
    pods.note("of the container before", pods.kubectl("logs", "-p", "crash").stdout)
    end = pods.get("pod", "crash")["status"]["containerStatuses"][0]["lastState"]["terminated"]
    pods.note("its end", (end["exitCode"], end["reason"], end["message"]))


@scenario()
def copy(pods):
    """`kubectl cp` of a file and a directory, there and back"""
    pods.pod("web", server())
    pods.ready("web")
    place = pods.cluster.machine.dir / pods.side.name
    (place / "dir/below").mkdir(parents=True)
    data = os.urandom(3 * MIB)
    (place / "data").write_bytes(data)
    (place / "dir/below/file").write_text("below\n")
    pods.kubectl("cp", place / "data", "web:/tmp/data")
    pods.kubectl("cp", place / "dir", "web:/tmp/dir")
    summed = pods.kubectl("exec", "web", "--", "sha256sum", "/tmp/data").stdout.split()[0]
    pods.note("there", summed == hashlib.sha256(data).hexdigest())
    pods.note("directory", pods.kubectl("exec", "web", "--", "cat", "/tmp/dir/below/file").stdout.strip())
    pods.kubectl("cp", "web:/tmp/data", place / "back")
    pods.note("back", (place / "back").read_bytes() == data)


@scenario()
def forward(pods):
    """`kubectl port-forward`, several requests at a time"""
    # A refused connection ends the command.
    pods.pod("web", server(readinessProbe=http_probe("/ready")))
    pods.ready("web")
    with forwarded(pods, "web") as url, ThreadPoolExecutor(8) as threads:
        pods.note("answers", list(threads.map(pods.ask, [url] * 8)))


@contextmanager
def forwarded(pods, name):
    """`kubectl port-forward` to a pod; gives its URL."""
    program = pods.program("port-forward", f"pod/{name}", f"0:{PORT}")
    try:
        said = until("the port", lambda: program.text() if "Forwarding from 127.0.0.1" in program.text() else None, 20)
        yield f"http://127.0.0.1:{said.split('127.0.0.1:')[1].split()[0]}/"
    finally:
        program.end()


def ask_forwarded(pods, name):
    with forwarded(pods, name) as url:
        return pods.fetch(url)


@scenario()
def probes(pods):
    """probes by HTTP, TCP and command: a sick container is started anew, an unready one gets no requests"""
    liveness = http_probe("/healthz")
    pods.deployment("web", server(livenessProbe=liveness, readinessProbe=http_probe("/ready"), startupProbe={
        "tcpSocket": {"port": PORT}, "periodSeconds": 1, "failureThreshold": 30}))
    name = pods.names("web")[0]
    pods.note("ready", pods.endpoints("web"))
    pods.kubectl("exec", name, "--", "touch", "/tmp/unready")
    until("an unready pod", lambda: pods.endpoints("web") == 0, 30)
    pods.note("unready", pods.endpoints("web"))
    pods.kubectl("exec", name, "--", "rm", "/tmp/unready")
    until("a ready pod", lambda: pods.endpoints("web") == 1, 30)
    pods.kubectl("exec", name, "--", "touch", "/tmp/sick")
    until("a restart", lambda: pods.get("pod", name)["status"]["containerStatuses"][0]["restartCount"] == 1, 60)
    until("a ready pod again", lambda: pods.endpoints("web") == 1, 30)
    end = pods.get("pod", name)["status"]["containerStatuses"][0]["lastState"]["terminated"]
    pods.note("end of the sick", (end["exitCode"], end["reason"]))
    pods.note("its last words", pods.kubectl("logs", "-p", name).stdout.split()[-1])
    pods.pod("command", shell("command", "touch /tmp/alive; sleep 4; rm /tmp/alive; sleep 1000", livenessProbe={
        "exec": {"command": ["cat", "/tmp/alive"]}, "periodSeconds": 1, "failureThreshold": 2, "initialDelaySeconds": 1}),
        terminationGracePeriodSeconds=1)
    until("a restart by a command", lambda: any(one["restartCount"] for one in pods.get("pod", "command")["status"].get(
        "containerStatuses", [])), 60)
    until("its end", lambda: pods.get("pod", "command")["status"]["containerStatuses"][0]["lastState"].get("terminated"), 30)
    end = pods.get("pod", "command")["status"]["containerStatuses"][0]["lastState"]["terminated"]
    pods.note("end by a command", (end["exitCode"], end["reason"]))


@scenario()
def update(pods):
    """a rolling update, during which each request is answered; hooks after the start and before the end"""
    sleep = {"preStop": {"exec": {"command": ["sleep", "2"]}}, "postStart": {"exec": {"command": ["touch", "/tmp/started"]}}}
    pods.deployment("web", server(readinessProbe=http_probe("/ready"), lifecycle=sleep), replicas=2)
    url = pods.url("web")
    pods.fetch(url)
    stop, answers = threading.Event(), []

    def keep_asking():
        while not stop.is_set():
            try:
                with urllib.request.urlopen(url, timeout=10) as got:
                    answers.append(got.read().decode().split()[0])
            except OSError as error:
                answers.append(f"failed: {error}")
            time.sleep(0.05)
    asker = threading.Thread(target=keep_asking)
    asker.start()
    try:
        pods.deployment("web", server("two", readinessProbe=http_probe("/ready"), lifecycle=sleep), replicas=2)
    finally:
        stop.set()
        asker.join()
    pods.kubectl("exec", "deployment/web", "--", "ls", "/tmp/started")
    pods.note("answers meanwhile", sorted(set(answers)))
    until("two pods", lambda: len(pods.get("pods", "-l", "app=web")["items"]) == 2 and pods.endpoints("web") == 2, 60)
    pods.note("afterwards", sorted({answer.split()[0] for answer in pods.all_answer("web")}))


@scenario()
def job(pods):
    """a Job of three pods, and one that fails and is tried again"""
    def job_of(name, script, **more):
        pods.apply({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": {
            "template": {"metadata": {"labels": {"app": name}}, "spec": pods.spec(shell("work", script), restartPolicy="Never")}} | more})
    job_of("sum", "i=0; s=0; while [ $i -lt 20000 ]; do i=$((i+1)); s=$((s+i)); done; echo $s", completions=3, parallelism=2)
    pods.wait("condition=complete", "job/sum", 120)
    pods.note("succeeded", pods.get("job", "sum")["status"]["succeeded"])
    pods.note("said", sorted(pods.kubectl("logs", "-l", "app=sum").stdout.split()))
    job_of("broken", "exit 7", backoffLimit=1)
    pods.wait("condition=failed", "job/broken", 120)
    pods.note("failed", pods.get("job", "broken")["status"]["failed"])


@scenario()
def several(pods):
    """a pod of an init container and three others: emptyDir on disk and in memory, localhost in common"""
    disk, memory = {"name": "disk", "mountPath": "/disk"}, {"name": "memory", "mountPath": "/memory"}
    both = {"volumeMounts": [disk, memory]}
    pods.pod(
        "three",
        server(**both),
        shell("asks", "until wget -qO /disk/answer http://127.0.0.1:8080/; do sleep 0.2; done; echo asked > /memory/asked; "
              "until [ -e /memory/end ]; do sleep 0.1; done", **both),
        shell("reads", "until [ -s /memory/asked ]; do sleep 0.2; done; cat /disk/begun /disk/answer /memory/asked; "
              "df /memory | tail -n 1 | awk '{ print $2 }'; echo changed > /disk/begun; sleep 1000", **both),
        initContainers=[shell("first", "echo begun > /disk/begun; id -u > /disk/id", **both)],
        volumes=[{"name": "disk", "emptyDir": {}}, {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "16Mi"}}],
    )
    pods.ready("three")
    said = until("four lines", lambda: (lines := pods.kubectl("logs", "three", "-c", "reads").stdout.splitlines()) and len(lines) >= 4 and lines, 40)
    pods.note("said", said)
    pods.note("changes are seen", until("a change", lambda: pods.kubectl("exec", "three", "-c", "server", "--", "cat", "/disk/begun").stdout.strip()))
    status = pods.get("pod", "three")["status"]
    pods.note("init container", status["initContainerStatuses"][0]["state"]["terminated"]["reason"])
    pods.kubectl("exec", "three", "-c", "server", "--", "touch", "/memory/end")
    until("a restart of one", lambda: [one["restartCount"] for one in sorted(
        pods.get("pod", "three")["status"]["containerStatuses"], key=lambda one: one["name"])] == [1, 0, 0], 60)
    pods.note("restarted", "the one that ended")


@scenario()
def host_name(pods):
    """the containers of a pod have the pod's host name"""
    pods.pod("named", *(shell(name, "sleep 1000") for name in ("one", "two")))
    pods.ready("named")
    for name in ("one", "two"):
        asked = pods.kubectl("exec", "named", "-c", name, "--", "sh", "-c", "echo $HOSTNAME; cat /etc/hostname; hostname; uname -n")
        pods.note(name, asked.stdout.split())


@scenario()
def one_tree(pods):
    """containers of a pod with `shareProcessNamespace` see and end each other's processes, others do not; `kubectl debug --target`"""
    count = "grep -lsaE '^(/bin/)?sleep' /proc/[0-9]*/cmdline | wc -l"
    for name, shared in (("shared", True), ("apart", False)):
        pods.pod(name, shell("one", "sleep 1000 & sleep 1000; true"), container("two", ["/bin/sleep", "2000"]), shareProcessNamespace=shared)
        pods.ready(name)
        # The pod's own first container is one of them in this image.
        pods.note(name, [pods.kubectl("exec", name, "-c", one, "--", "sh", "-c", count).stdout.strip() for one in ("one", "two")])
    pods.kubectl("exec", "shared", "-c", "one", "--", "sh", "-c", "kill -9 $(grep -lsaE '^.bin.sleep.2000' /proc/[0-9]*/cmdline | cut -d/ -f3)")
    until("a restart of the other", lambda: {one["name"]: one["restartCount"] for one in pods.get("pod", "shared")["status"][
        "containerStatuses"]} == {"one": 0, "two": 1}, 30)
    pods.pod("debugged", server(readinessProbe=http_probe("/ready")))
    pods.ready("debugged")
    pods.kubectl("debug", "debugged", "--image", IMAGE, "--image-pull-policy=Never", "--container=late", "--target=server", "--profile=general",
                 "--", "sh", "-c", "tr '\\0' ' ' < /proc/1/cmdline; echo; sleep 1000")
    pods.note("what a debugger sees", until("its words", lambda: pods.kubectl("logs", "debugged", "-c", "late", code=None).stdout.strip(), 30))


@scenario()
def volumes(pods):
    """a ConfigMap, a Secret, fields of the pod, a token, a file of the node; a change of the ConfigMap is seen"""
    def config(value):
        pods.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "config"}, "data": {"key": value}},
                   {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "secret"}, "stringData": {"word": "hush"}})
    config("first")
    mounts = [{"name": name, "mountPath": f"/{name}", "readOnly": True} for name in ("config", "secret", "fields", "hosts")]
    script = ("cat /config/key; echo; cat /secret/word; echo; cat /fields/name; echo; echo $KEY $NODE; stat -L -c %a /secret/word; "
              "echo x > /config/key; cut -d. -f1 /var/run/secrets/kubernetes.io/serviceaccount/token | wc -l; wc -l < /hosts; sleep 1000")
    pods.pod("volumes", shell("reads", script, volumeMounts=mounts, env=[
        {"name": "KEY", "valueFrom": {"configMapKeyRef": {"name": "config", "key": "key"}}},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]),
        automountServiceAccountToken=True, volumes=[
            {"name": "config", "configMap": {"name": "config"}},
            {"name": "secret", "secret": {"secretName": "secret", "defaultMode": 0o400}},
            {"name": "fields", "downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
            {"name": "hosts", "hostPath": {"path": "/etc/hostname", "type": "File"}}])
    pods.ready("volumes")
    pods.note("said", until("eight lines", lambda: (lines := sorted(pods.kubectl("logs", "volumes").stdout.splitlines()))
                            and len(lines) >= 8 and lines, 20))
    config("second")
    until("the change", lambda: pods.kubectl("exec", "volumes", "--", "cat", "/config/key").stdout == "second", 120)
    pods.note("changed to", "second")


@scenario()
def places(pods):
    """parts of a volume, one named by the environment; a mount that the node makes later; a volume in memory with a limit"""
    where = pods.cluster.machine.dir / pods.side.name
    (where / "later").mkdir(parents=True)
    pods.pod("places", shell("places", "echo one > /part/file; echo two > /named/file; ls -R /whole; i=0; "
                             "while [ ! -e /node/later/here ] && [ $i -lt 100 ]; do i=$((i+1)); sleep 0.1; done; "
                             "cat /node/later/here; dd if=/dev/zero of=/small/file bs=1M count=8 2>&1 | tail -n 1 | cut -c1-8; "
                             "stat -c %s /small/file; cat /one; sleep 1000",
                             env=[{"name": "PART", "value": "b"}], volumeMounts=[
        {"name": "whole", "mountPath": "/whole"}, {"name": "whole", "mountPath": "/part", "subPath": "a"},
        {"name": "whole", "mountPath": "/named", "subPathExpr": "$(PART)/c"},
        {"name": "node", "mountPath": "/node", "mountPropagation": "HostToContainer"},
        {"name": "small", "mountPath": "/small"}, {"name": "config", "mountPath": "/one", "subPath": "key"}]), volumes=[
        {"name": "whole", "emptyDir": {}}, {"name": "node", "hostPath": {"path": str(where)}},
        {"name": "small", "emptyDir": {"medium": "Memory", "sizeLimit": "4Mi"}}, {"name": "config", "configMap": {"name": "config"}}])
    pods.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "config"}, "data": {"key": "single\n"}})
    pods.ready("places")
    subprocess.run(["mount", "-t", "tmpfs", "later", where / "later"], check=True)
    (where / "later/here").write_text("mounted later\n")
    try:
        pods.note("said", until("all of it", lambda: (lines := pods.kubectl("logs", "places").stdout.splitlines())
                                and lines[-1] == "single" and lines, 30))
        unmounted = subprocess.run(["umount", where / "later"], capture_output=True).returncode == 0
        pods.note("unmounted by the node while the pod runs", unmounted)
    finally:
        subprocess.run(["umount", "--lazy", where / "later"], stderr=subprocess.DEVNULL)


@scenario()
def security(pods):
    """a security context: user, groups, capabilities, no new privileges, a seccomp profile, a root that is read only"""
    script = ("id -u; id -g; id -G; stat -c '%g %a' /data; echo x > /data/file && stat -c '%u %g' /data/file; echo x > /file; "
              "grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status; mount -t tmpfs none /data; chown 5 /data/file; "
              "cat /proc/keys | wc -l; ls /proc/kcore -l | cut -c1; unshare -r true; date -s 2020-01-01 >/dev/null")
    pods.pod("bound", shell("bound", script + "; true", volumeMounts=[{"name": "data", "mountPath": "/data"}], securityContext={
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"}}), restartPolicy="Never", volumes=[{"name": "data", "emptyDir": {}}],
        securityContext={"runAsUser": 1000, "runAsGroup": 2000, "fsGroup": 3000, "supplementalGroups": [4000], "runAsNonRoot": True})
    pods.note("exit code", pods.ended("bound")["bound"]["exitCode"])
    pods.note("said", sorted(pods.kubectl("logs", "bound").stdout.splitlines()))
    pods.pod("network", shell("network", "hostname; sleep 1000"), hostNetwork=True)
    pods.ready("network")
    pods.pod("privileged", shell("privileged", "grep CapEff /proc/self/status; mount -t tmpfs none /tmp && echo mounted; sleep 1000",
                                 securityContext={"privileged": True}))
    pods.ready("privileged")
    pods.note("privileged", until("two lines", lambda: (lines := pods.kubectl("logs", "privileged").stdout.splitlines())
                                  and len(lines) > 1 and lines, 20))
    pods.note("the node's network", pods.kubectl("exec", "network", "--", "sh", "-c", "ip addr show node0 | grep -c 10.99.0.1").stdout.strip())


@scenario()
def figures(pods):
    """kubelet's figures of a pod: memory, processor time, and its network"""
    pods.pod("web", server())
    pods.ready("web")

    def found():
        raw = json.loads(pods.kubectl("get", "--raw", "/api/v1/nodes/node/proxy/stats/summary").stdout)
        pod = next((one for one in raw["pods"] if one["podRef"]["namespace"] == pods.side.name), None)
        if not pod or not pod.get("containers"):
            return None
        one = pod["containers"][0]
        return {"memory": one.get("memory", {}).get("workingSetBytes", 0) > 0, "cpu": one.get("cpu", {}).get(
            "usageCoreNanoSeconds", 0) > 0, "root": one.get("rootfs", {}).get("usedBytes", 0) > 0,
            "network": "rxBytes" in pod.get("network", {}), "memory of the pod": pod.get("memory", {}).get("workingSetBytes", 0) > 0}
    until("figures", lambda: (got := found()) and got["memory"] and got["cpu"], 40)
    pods.note("there are", found())


@scenario()
def memory(pods):
    """memory limits: OOMKilled by 137, and nobody else in the pod is"""
    def limit(size):
        return {"resources": {"limits": {"memory": size}, "requests": {"memory": "1Mi", "cpu": "10m"}}}
    grow = "import time; a = []\nwhile True: a.append(bytearray(1 << 20)); time.sleep(0.005)"
    pods.pod("grows", container("grows", ["/usr/bin/python3", "-c", grow], **limit("64Mi")),
             shell("beside", "sleep 8; echo here", **limit("32Mi")), restartPolicy="Never")
    ends = pods.ended("grows")
    pods.note("grows", [(name, end["exitCode"], end["reason"]) for name, end in sorted(ends.items())])
    pods.pod("reads", shell("reads", "dd if=/dev/zero of=/dev/null bs=20M count=5; echo $? >&2; exec dd if=/dev/zero of=/dev/null bs=20M count=5",
                            **limit("15Mi")), restartPolicy="Never")
    ends = pods.ended("reads")
    pods.note("blocks of 20 MiB in 15 MiB", [(name, end["exitCode"], end["reason"]) for name, end in ends.items()])
    pods.pod("again", container("again", ["/usr/bin/python3", "-c", grow], **limit("64Mi")))
    until("a restart", lambda: any(one["restartCount"] for one in pods.get("pod", "again")["status"].get("containerStatuses", [])), 60)
    end = until("its end", lambda: pods.get("pod", "again")["status"]["containerStatuses"][0]["lastState"].get("terminated"), 30)
    pods.note("started anew after", (end["exitCode"], end["reason"]))
    pods.pod("knows", shell("knows", "cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max 2>/dev/null; "
                            "grep -c MemTotal /proc/meminfo", **limit("64Mi")), restartPolicy="Never")
    pods.ended("knows")
    pods.note("a program sees its limit", pods.kubectl("logs", "knows").stdout.split())


@scenario()
def sleep(pods):
    """pods with an idle time sleep until a request comes through their Service"""
    pods.deployment("web", server(), replicas=2, annotations={"dev.dormouse.idle-timeout": "2s"})
    pods.note("pods that answer", len(pods.all_answer("web")))
    names, url = pods.names("web"), pods.url("web")
    pods.tell("awake", " and ".join(pods.memory(name) for name in names))
    times = {"after idle time": [], "again": []}
    for turn in range(5):
        if pods.runtime == "dormouse":
            pods.asleep()
        else:
            time.sleep(3)
        if turn in (0, 4):
            pods.tell("idle", " and ".join(pods.memory(name) for name in names))
        # Either of them.
        for milliseconds in times.values():
            begin = time.perf_counter()
            pods.fetch(url)
            milliseconds.append((time.perf_counter() - begin) * 1000)
        pods.note("pods that answer afterwards", len(pods.all_answer("web")))
    for when, milliseconds in times.items():
        pods.tell(f"request {when}, ms", " ".join(f"{one:.1f}" for one in milliseconds))
    pods.note("restarts", [one["status"]["containerStatuses"][0]["restartCount"] for one in pods.get("pods", "-l", "app=web")["items"]])


@scenario("dormouse")
def orders(pods):
    """STOP to a pod's first container, or to all others, by `ctr task kill` or to its pid, has the pod sleep; a request, CONT,
    `exec` and `port-forward` wake it, `logs` and kubelet's figures do not; `delete` ends a sleeper by its SIGTERM"""
    pods.deployment("web", server())
    name, url = pods.names("web")[0], pods.url("web")
    pods.fetch(url)
    own = next(iter(pods.sandboxes(name)))
    first = pods.state(own)["annotations"]["io.kubernetes.cri.sandbox-id"]

    def send(by, who, signal_name):
        if by == "ctr":
            pods.cluster.ctr("task", "kill", "-s", signal_name, who)
        else:
            os.kill(pods.state(who)["pid"], getattr(signal, signal_name))
    wakes = {"request": lambda *_: pods.fetch(url), "CONT": lambda by, who: send(by, who, "SIGCONT"),
             "exec": lambda *_: pods.kubectl("exec", name, "--", "true"), "port-forward": lambda *_: ask_forwarded(pods, name)}
    for who, box in (("first", first), ("other", own)):
        for by in ("ctr", "kill"):
            for wake, comes in wakes.items():
                if (who, wake) == ("other", "exec"):
                    # A container that was stopped itself takes none.
                    continue
                send(by, box, "SIGSTOP")
                pods.asleep()
                phase = pods.get("pod", name)["status"]["phase"]
                comes(by, box)
                until("a pod that is awake", lambda: pods.sandboxes(name)[own]["sandboxState"] != "hibernated", 20)
                pods.note("stopped, by, woken by, phase", (who, by, wake, phase, pods.fetch(url).split()[0]))
    pods.note("restarts", pods.get("pod", name)["status"]["containerStatuses"][0]["restartCount"])
    send("ctr", first, "SIGSTOP")
    pods.asleep()
    pods.kubectl("logs", name)
    pods.kubectl("get", "--raw", "/api/v1/nodes/node/proxy/stats/summary")
    pods.cluster.ctr("task", "metrics", own)
    pods.note("after logs and figures", pods.sandboxes(name)[own]["sandboxState"])
    follow = pods.program("logs", "-f", name)
    pods.kubectl("delete", "deployment", "web")
    pods.note("last words", until("the last words", lambda: follow.text().split()[-1] if "ended" in follow.text() else None, 20))


@scenario("dormouse")
def probed(pods):
    """a pod with a probe by HTTP, or by a command, sleeps between probes, each of which wakes it"""
    for kind, asked in (("http", {"httpGet": {"path": "/ready", "port": PORT}}), ("command", {"exec": {"command": ["true"]}})):
        pods.deployment("web", server(readinessProbe=asked | {"periodSeconds": 5}),
                        annotations={"dev.dormouse.idle-timeout": "1s"})
        until("one pod", lambda: len(pods.get("pods", "-l", "app=web")["items"]) == 1, 60)
        box = next(iter(pods.sandboxes(pods.names("web")[0])))

        def counts():
            stats = json.loads(pods.cluster.dormouse("stats", box, "--json").stdout)
            return stats["wakes"], stats["written_bytes"]
        pods.asleep()
        before, begin = counts(), time.monotonic()
        until("three wakes by probes", lambda: counts()[0] >= before[0] + 3, 40)
        after, seconds = counts(), time.monotonic() - begin
        pods.note(f"ready by {kind}", pods.endpoints("web"))
        pods.tell(f"by {kind}: wakes, seconds, bytes written", (after[0] - before[0], round(seconds), after[1] - before[1]))


@scenario()
def delete(pods):
    """`kubectl delete` takes a pod along at its SIGTERM, with all that was its own on the node"""
    pods.pod("web", server(), shell("stubborn", "trap '' TERM; while :; do sleep 1; done"), terminationGracePeriodSeconds=3)
    pods.ready("web")
    uid = pods.get("pod", "web")["metadata"]["uid"]
    follow = pods.program("logs", "-f", "web", "-c", "server")
    until("its first words", lambda: "begun" in follow.text(), 20)
    pods.kubectl("delete", "pod", "web")
    pods.note("last words", until("the last words", lambda: follow.text().split()[-1] if "ended" in follow.text() else None, 20))
    follow.end()

    def left():
        groups = [str(path) for top in Path("/sys/fs/cgroup").iterdir() for path in top.glob(f"{pods.cluster.machine.group}/kubepods/*/pod{uid}")]
        mounts = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if uid in line]
        return groups + mounts + [str(path) for path in Path("/var/lib/kubelet/pods").glob(uid)]
    until(f"the end of {left()[:3]}", lambda: not left(), 60)
    pods.note("left", left())


@scenario("dormouse")
def installer(pods):
    """the installer takes Dormouse away once no pod uses it, and brings it back"""
    def install(order):
        # containerd, which carries this command's streams, is restarted.
        return pods.cluster.kubectl("exec", "-n", "dormouse", "daemonset/installer", "--", "/opt/dormouse/install", order, "/host", code=None)

    def shims():
        return [pid for pid, line in command_lines() if line.startswith("/usr/local/bin/containerd-shim-dormouse-v1")]

    config, program = Path("/etc/containerd/config.toml"), Path("/usr/local/bin/dormouse")
    pods.pod("web", server())
    pods.ready("web")
    pods.note("refused", "pods run in Dormouse; delete them first" in install("remove").stderr)
    pods.note("there", ("dormouse" in config.read_text(), program.exists()))
    pods.kubectl("delete", "pod", "web")
    # Those of scenarios before may be on their way.
    until("the end of all pods", lambda: not shims(), 60)
    install("remove")
    until("the removal", lambda: not program.exists(), 20)
    pods.note("left", ("dormouse" in config.read_text(), program.exists()))
    until("containerd", lambda: pods.cluster.ctr("version", code=None).returncode == 0, 20)
    pods.pod("late", server())
    until("a refusal", lambda: "no runtime for \"dormouse\" is configured" in pods.cluster.describe(pods.side.name), 40)
    install("add")
    pods.ready("late")
    pods.note("restarts", pods.get("pod", "late")["status"]["containerStatuses"][0]["restartCount"])
