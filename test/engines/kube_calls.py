"""Every call of CRI's runtime service, with what kubelets rely on in its answers."""
import json
import re
import subprocess
import time
from pathlib import Path

from kube_pod import SLEEP, case
from kube_world import NODE, SUBNET
from lib.outcome import Failure, check
from lib.waiting import until
from world import IMAGE

COUNT = "i=0; while :; do i=$((i+1)); echo line $i; sleep 0.05; done"


@case()
def the_runtime_is_ready(side):
    version = side.call("Version", version="v1")
    side.call("UpdateRuntimeConfig", runtime_config={"network_config": {"pod_cidr": SUBNET}})
    conditions = side.call("Status", verbose=True)["status"]["conditions"]
    return {"version": version, "conditions": conditions}


@case()
def what_this_containerd_lacks_is_said(side):
    """Calls of later versions of the interface: containerd 1.6 answers that they are not implemented."""
    calls = {"CheckpointContainer": {"container_id": "none"}, "GetContainerEvents": {}, "ListMetricDescriptors": {},
             "ListPodSandboxMetrics": {}}
    return {method: side.refused(method, "Unimplemented", **request) for method, request in calls.items()}


@case()
def a_pod_lives_and_is_removed(side):
    pod = side.pod(annotations={"test/a": "b"})
    status = pod.status()
    check(status["network"]["ip"].startswith("10.88."), f"its address is {status['network']}")
    check(status["runtime_handler"] == side.runtime, f"its runtime is {status['runtime_handler']}")

    def listed(**more):
        found = side.call("ListPodSandbox", filter={"label_selector": {"case": side.id}} | more)["items"]
        return [item["state"] for item in found]
    answers = {
        "status": [status[name] for name in ("state", "annotations")] + [status["labels"]["name"], status["linux"]],
        "ready": [listed(), listed(id=pod.id), listed(state={"state": "SANDBOX_NOTREADY"})],
    }
    pod.stop()
    pod.stop()
    answers["stopped"] = [pod.status()["state"], listed(state={"state": "SANDBOX_NOTREADY"})]
    config = {"metadata": {"name": "late"}, "image": {"image": IMAGE}}
    answers["a container of it"] = side.refused("CreateContainer", "NotFound", pod_sandbox_id=pod.id, config=config,
                                                sandbox_config=pod.config).replace(pod.id, "ID")
    pod.remove()
    pod.remove()
    answers["removed"] = side.refused("PodSandboxStatus", "NotFound", pod_sandbox_id=pod.id).replace(pod.id, "ID")
    side.refused("RunPodSandbox", "Unknown", config=pod.config, runtime_handler="none")
    return answers


@case()
def a_pod_removed_as_it_runs(side):
    pod = side.pod()
    one = pod.launch("one", SLEEP)
    pid = one.pid()
    said = side.call("RemovePodSandbox", pod_sandbox_id=pod.id)
    until("the end of its process", lambda: not Path(f"/proc/{pid}").exists())
    return said, side.pods()


@case()
def a_container_lives_and_is_removed(side):
    pod = side.pod()
    one = pod.create("one", "echo up; trap 'exit 6' TERM; while :; do sleep 0.05; done")

    def listed(**more):
        found = side.call("ListContainers", filter={"pod_sandbox_id": pod.id} | more)["containers"]
        return [item["state"] for item in found]
    states = [one.state(), listed()]
    one.launch()
    one.logs("stdout F up")
    status = one.status()
    check(0 < int(status["created_at"]) < int(status["started_at"]), f"its times are {status}")
    states += [status["state"], listed(), listed(state={"state": "CONTAINER_EXITED"}), listed(id=one.id)]
    again = side.refused("StartContainer", "Unknown", container_id=one.id).replace(one.id, "ID")
    one.stop(20)
    status = one.status()
    check(int(status["finished_at"]) >= int(status["started_at"]), f"its times are {status}")
    ended = [status["state"], status["exit_code"], status["reason"]]
    one.stop()
    exec_in_it = side.refused("ExecSync", "Unknown", container_id=one.id, cmd=["true"])
    one.remove()
    one.remove()
    gone = side.refused("ContainerStatus", "NotFound", container_id=one.id).replace(one.id, "ID")
    return {"states": states, "again": again, "ended": ended, "exec": exec_in_it.replace(one.id, "ID"), "gone": gone}


@case()
def how_containers_end(side):
    pod = side.pod()
    endings = {}
    for name, script in {"well": "exit 0", "badly": "exit 4", "killed": "sh -c 'kill -9 $$'; exit $?"}.items():
        endings[name] = pod.launch(name, script).ending()
    deaf = pod.launch("deaf", "trap '' TERM; echo up; while :; do sleep 1; done")
    deaf.logs("stdout F up")
    deaf.stop(1)
    endings["deaf"] = deaf.ending()
    running = pod.launch("running", SLEEP)
    endings["removed as it runs"] = running.remove()
    missing = pod.create("missing", "", command=["/no/such/program"])
    said = side.refused("StartContainer", "Unknown", container_id=missing.id)
    check("no such file or directory" in said, said)
    endings["missing"] = missing.ending()
    check(endings["missing"] == (128, "StartError"), f"{endings}")
    return endings


@case()
def what_a_configuration_asks_for(side):
    volume = side.engine.dir / f"{side.id}-volume"
    volume.mkdir()
    (volume / "from").write_text("host\n")
    pod = side.pod(linux={"sysctls": {"net.core.somaxconn": "77"}}, dns_config={
        "servers": ["10.3.2.1"], "searches": ["a.test"], "options": ["ndots:2"],
    })
    mounts = [{"container_path": "/v", "host_path": str(volume)},
              {"container_path": "/r", "host_path": str(volume), "readonly": True}]
    security = {"run_as_user": {"value": "7"}, "run_as_group": {"value": "8"}, "supplemental_groups": ["9", "44"],
                "readonly_rootfs": True, "no_new_privs": True, "capabilities": {"drop_capabilities": ["ALL"]},
                "masked_paths": ["/proc/timer_list"], "readonly_paths": ["/proc/sys"],
                "seccomp": {"profile_type": "RuntimeDefault"}}
    one = pod.launch("one", SLEEP, envs=[{"key": "A", "value": "b c"}], working_dir="/var", mounts=mounts,
                    security=security)
    volume.chmod(0o777)
    script = ("echo \"$A $PWD $HOSTNAME\"; id -u; id -g; id -G; cat /v/from; echo guest >/v/to; "
              "touch /r/x 2>/dev/null || echo read-only; touch /x 2>/dev/null || echo read-only root; "
              "grep -E 'CapEff|NoNewPrivs' /proc/self/status; cat /etc/resolv.conf /proc/sys/net/core/somaxconn; "
              "cat /proc/timer_list | wc -c; ls -A /dev/shm; grep -c ' /dev/shm ' /proc/mounts")
    said = one.sh(script)
    check((volume / "to").read_text() == "guest\n", "what it wrote is not on the host")
    privileged = pod.launch("privileged", SLEEP, security={
        "capabilities": {"add_capabilities": ["NET_ADMIN"], "drop_capabilities": ["CHOWN"]}})
    return said, privileged.sh("grep CapEff /proc/self/status")


@case()
def on_the_hosts_network(side):
    pod = side.pod(namespaces={"network": "NODE"})
    one = pod.launch("one", SLEEP)
    interfaces = one.sh("ls /sys/class/net").split()
    check(sorted(interfaces) == side.engine.interfaces(), f"{interfaces} are not the host's")
    return pod.status()["network"], pod.status()["linux"]


@case()
def exec_sync(side):
    one = side.pod().launch("one", SLEEP)
    answers = {
        "streams": one.run("sh", "-c", "echo out; echo err >&2; exit 3"),
        "input": one.run("cat"),
        "a signal": one.run("sh", "-c", "kill -9 $$"),
        "much": len(one.run("sh", "-c", "yes 0123456789abcde | head -c 1000000")[1]),
    }
    said = side.refused("ExecSync", "Unknown", container_id=one.id, cmd=["/no/such/program"])
    check("no such file or directory" in said, said)
    said = side.refused("ExecSync", "DeadlineExceeded", container_id=one.id, cmd=["sleep", "50"], timeout="1")
    answers["late"] = re.sub(r"[0-9a-f]{64}", "ID", said)
    until("the end of what came late", lambda: one.sh("ps").count("sleep 50") == 0)
    return answers


@case("dormouse")
def exec_sync_in_a_sleeper(side):
    """A probe by a command wakes a pod, unless it says that one asleep is alive: then it sleeps on, until a client with input."""
    answers = {}
    for probe in ("wake", "asleep-is-alive"):
        pod = side.pod(probe, annotations={"dev.dormouse.exec-probe": probe})
        one = pod.launch("one", SLEEP)
        one.sh("true")

        def counts():
            stats = json.loads(side.engine.dormouse("stats", "--json", pod.id))
            return stats["wakes"], stats["answered_probes"]
        for _ in range(3):
            side.engine.dormouse("hibernate", pod.id)
            answers.setdefault(probe, []).append((one.run("sh", "-c", "echo out; exit 3"), counts()))
            done = one.exec("sh", "-c", "cat; exit 4", stdin="in")
            check((done.returncode != 0, done.stdout) == (True, "in"), f"a client with input is answered {done}")
            answers[probe].append(counts())
    ran, not_run = (3, "out\n", ""), (0, "", "")
    check(answers["wake"] == [(ran, (1, 0)), (1, 0), (ran, (2, 0)), (2, 0), (ran, (3, 0)), (3, 0)], f"{answers}")
    check(answers["asleep-is-alive"] == [(not_run, (0, 1)), (1, 1), (not_run, (1, 2)), (2, 2), (not_run, (2, 3)), (3, 3)],
          f"{answers}")


@case("dormouse")
def probes_of_the_node_do_not_keep_a_pod_awake(side):
    """The node has the bridge's address for its pods. It wakes a pod that ignores it, and another pod keeps that awake."""
    pod = side.pod(annotations={"dev.dormouse.idle-timeout": "1h", "dev.dormouse.idle-ignores": NODE})
    pod.launch("one", "mkdir /www; echo page >/www/page; exec httpd -f -p 80 -h /www")
    other = side.pod("other").launch("client", SLEEP)
    ask = ["wget", "-q", "-O", "-", f"http://{pod.address()}/page"]

    def probe():
        done = subprocess.run([*side.engine.inside, "busybox", *ask], capture_output=True, text=True, timeout=60)
        return done.stdout == "page\n"

    def stats():
        stats = json.loads(side.engine.dormouse("stats", "--json", pod.id))
        return stats["hibernations"], stats["wakes"]
    until("a server", probe)
    side.engine.dormouse("hibernate", pod.id)
    for count in (1, 2, 3):
        check(probe(), "a probe is not answered")
        until("another sleep", lambda: stats() == (count + 1, count))
    check(other.run(*ask) == (0, "page\n", ""), "a request is not answered")
    check(probe(), "a probe is not answered")
    time.sleep(1.5)
    check(stats() == (4, 4), f"after a request it has slept and woken {stats()} times")


@case()
def exec_with_streams(side):
    one = side.pod().launch("one", SLEEP)
    answers = {}
    done = one.exec("sh", "-c", "cat; echo err >&2; exit 7", stdin="in\n")
    answers["streams"] = done.returncode, done.stdout, done.stderr
    done = one.exec("sh", "-c", "wc -c; head -c 500000 /dev/zero | tr '\\0' x", stdin="y" * 300_000)
    answers["much"] = done.returncode, done.stdout[:7], len(done.stdout)
    done = one.exec("true")
    answers["nothing"] = done.returncode, done.stdout, done.stderr
    done = one.exec("/no/such/program")
    check(done.returncode != 0 and "no such file" in done.stderr, f"{done}")
    return answers


@case()
def exec_on_a_terminal(side):
    one = side.pod().launch("one", SLEEP)
    shell = one.attach(method="Exec", words=["sh"], tty=True, sizes="101x33,80x24")

    def said_to(line, wanted):
        shell.process.stdin.write(line)
        shell.process.stdin.flush()
        return until(f"{wanted!r}", lambda: re.search(wanted, shell.text()))
    said_to(b"tty; echo a$((1+1))b\n", "a2b")
    until("the first size", lambda: said_to(b"stty size\n", "33 101"))
    shell.process.send_signal(10)
    said_to(b"sleep 0.2; stty size\n", "24 80")
    said_to(b"exit 5\n", "exit 5")
    code = shell.process.wait(20)
    terminal = re.search(r"/dev/pts/\d+|/dev/console", shell.text())
    return code, bool(terminal)


@case()
def attach(side):
    pod = side.pod()
    one = pod.launch("one", "while read line; do echo got $line; echo not $line >&2; done; exit 9", stdin=True)
    first = one.attach()
    first.process.stdin.write(b"a\n")
    first.process.stdin.flush()
    until("an answer", lambda: {"got a", "not a"} <= set(first.text().splitlines()))
    first.end()
    check(one.state() == "RUNNING", f"after a client has gone it is {one.state()}")
    second = one.attach()
    second.process.stdin.write(b"b\n")
    second.process.stdin.flush()
    until("an answer", lambda: {"got b", "not b"} <= set(second.text().splitlines()))
    second.end()
    one.logs("stdout F got a", "stderr F not a", "stdout F got b")
    once = pod.launch("once", "while read line; do echo got $line; done; exit 9", stdin=True, stdin_once=True)
    third = once.attach()
    third.process.stdin.write(b"c\n")
    third.process.stdin.close()
    third.process.wait(20)
    return third.text(), once.ending(), sorted(one.log())


@case()
def attach_to_a_terminal(side):
    pod = side.pod()
    one = pod.launch("one", "read line; stty size; echo \"got $line\"; exit 3", stdin=True, tty=True)
    client = one.attach(tty=True, sizes="90x30")
    time.sleep(0.5)
    client.process.stdin.write(b"typed\n")
    client.process.stdin.flush()
    ending = one.ending()
    client.process.wait(20)
    return ending, client.text(), [line for line in one.log() if "typed" not in line.split(" ", 2)[2].split()[:1]]


@case()
def port_forward(side):
    pod = side.pod()
    pod.launch("server", "echo page >/tmp/index.html; httpd -f -p 8080 -h /tmp")
    pod.launch("echo", "while :; do nc -l -p 9090 -e /bin/cat; done")

    def answer_at(port, data):
        return until(f"an answer at port {port}", lambda: pod.forward(port, data).stdout)
    page = [answer_at(8080, b"GET /index.html HTTP/1.0\r\n\r\n").split(b"\r\n\r\n")[1] for _ in range(3)]
    data = bytes(range(256)) * 2000
    echo = answer_at(9090, data)
    check(echo == data, f"{len(echo)} bytes came back, and not what was sent")
    done = pod.forward(9, b"")
    check("refused" in done.stderr.decode(), f"a port where nobody listens: {done}")
    return page, done.returncode


@case()
def logs(side):
    pod = side.pod()
    one = pod.launch("one", "echo out; echo err >&2; printf part; sleep 0.3; echo ial; "
                           "head -c 20000 /dev/zero | tr '\\0' x; echo; echo end")
    one.ending()
    one.logs("stdout F end")
    return sorted((line[:10], len(line)) for line in one.log())


@case()
def a_log_is_opened_again(side):
    one = side.pod().launch("one", COUNT)
    one.logs("stdout F line 2")
    old = one.log_path().with_suffix(".old")
    one.log_path().rename(old)
    one.call("ReopenContainerLog")
    check(one.log_path().exists(), "no log was made")
    until("lines in the new log", lambda: len(one.log()) > 3)
    first, last = (re.search(r"line (\d+)", text)[1] for text in (one.log()[0], old.read_text().splitlines()[-1]))
    check(int(first) == int(last) + 1, f"the old log ends with {last}, the new one begins with {first}")
    one.stop(0)
    return side.refused("ReopenContainerLog", "Unknown", container_id=one.id)


@case()
def statistics(side):
    pod = side.pod()
    busy = pod.launch("busy", "x=; while :; do x=$x; done", memory_mib=256)
    pod.launch("idle", SLEEP)

    def numbers(stats):
        return {"cpu": int(((stats["cpu"] or {}).get("usage_core_nano_seconds") or {}).get("value", 0)),
                "memory": int(((stats["memory"] or {}).get("working_set_bytes") or {}).get("value", 0))}

    def counted(what, ask, least_ns):
        """Waits for figures of this much processor time; result: which there are."""
        last = {}

        def is_there():
            last.update(numbers(ask()))
            return last["cpu"] > least_ns and last["memory"] > 0
        try:
            until(what, is_there, 20)
        except Failure as late:
            raise Failure(f"{late}: {last}") from None
        return True
    answers = {"ContainerStats": counted("its figures", lambda: busy.call("ContainerStats")["stats"], 10**8)}
    listed = side.call("ListContainerStats", filter={"pod_sandbox_id": pod.id})["stats"]
    answers["ListContainerStats"] = sorted(stats["attributes"]["metadata"]["name"] for stats in listed)
    one = pod.call("PodSandboxStats")["stats"]
    check(numbers(one["linux"])["cpu"] > 0 and numbers(one["linux"])["memory"] > 0, f"of the pod: {one}")
    pods = side.call("ListPodSandboxStats", filter={"label_selector": {"case": side.id}})["stats"]
    answers["ListPodSandboxStats"] = [sorted(inner["attributes"]["metadata"]["name"] for inner in stats["linux"]["containers"])
                                      for stats in pods]
    network = one["linux"]["network"]["default_interface"]
    answers["network"] = network["name"]
    answers["of none"] = side.refused("ContainerStats", "NotFound", container_id="none")
    return answers


@case()
def resources_are_updated(side):
    pod = side.pod()
    one = pod.launch("one", SLEEP, memory_mib=64)
    # The first process lives on: runc's shim may overlook what is told in the moment of the container's end.
    answers = {"beyond 64 MiB": one.run("hungry", "150")[0]}
    one.call("UpdateContainerResources", linux={"memory_limit_in_bytes": str(256 << 20), "cpu_shares": "300"})
    answers["below 256 MiB"] = one.run("hungry", "150")[0]
    one.call("UpdateContainerResources", linux={"memory_limit_in_bytes": str(48 << 20)})
    answers["beyond 48 MiB"] = one.run("hungry", "150")[0]
    answers["state"] = one.state()
    one.stop(0)
    side.refused("UpdateContainerResources", "NotFound", container_id="none", linux={})
    return answers


