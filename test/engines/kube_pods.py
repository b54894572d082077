"""Containers of one pod: what each has for itself, and what they have in common."""
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kube_calls import COUNT
from kube_pod import SLEEP, case
from lib.outcome import check
from lib.waiting import until

# Takes more memory than it may, from when the engine hears of it: runc's shim does not see what happens in the moment of the
# container's start or of its end.
EXCEEDS = "until [ -e /v/begin ]; do sleep 0.02; done; {}; code=$?; until [ -e /v/end ]; do sleep 0.02; done; exit $code"
GREEDY = EXCEEDS.format("hungry 150")
# A block that is larger than the container's memory.
BLOCK = EXCEEDS.format("dd if=/dev/zero of=/dev/null bs=20M count=1")


def serve(number):
    """A container that answers at a port of its own on the pod's loopback, and marks its root."""
    return (f"mkdir /www; echo page {number} >/www/page; echo {number} >/mark; echo {number} >/dev/shm/c{number}; "
            f"exec httpd -f -p 127.0.0.1:{8000 + number} -h /www")


def pods_of_containers(side):
    """Pods of 1, 3 and 5 containers, which are started at once."""
    for count in (1, 3, 5):
        pod = side.pod(f"of{count}")
        with ThreadPoolExecutor(count) as pool:
            containers = list(pool.map(lambda number: pod.launch(f"c{number}", serve(number)), range(count)))
        yield count, pod, containers
        pod.stop()
        pod.remove()


@case()
def containers_have_a_root_and_processes_of_their_own(side):
    answers: dict[object, object] = {}
    for count, pod, containers in pods_of_containers(side):
        script = "until [ -e /mark ]; do sleep 0.02; done; cat /mark; cat /proc/1/cmdline | tr '\\0' ' '; ps | grep -c 127.0.0.1[:]800; ls /"
        answers[count] = [one.sh(script) for one in containers]
        check(len({one.sh("cat /mark") for one in containers}) == count, "their roots are the same")
        answers[count, "listed"] = len(side.call("ListContainers", filter={"pod_sandbox_id": pod.id})["containers"])
    return answers


@case()
def containers_have_their_network_in_common(side):
    answers = {}
    for count, pod, containers in pods_of_containers(side):
        pages = "".join(f"until wget -q -O - http://127.0.0.1:{8000 + number}/page; do sleep 0.02; done; "
                        for number in range(count))
        answers[count] = [one.sh(pages) for one in containers]
        addresses = {one.sh("ip -4 -o addr show eth0 | awk '{ print $4 }'") for one in containers}
        check(addresses == {f"{pod.address()}/16\n"}, f"{addresses}, and the pod has {pod.address()}")
    pod = side.pod("taken")
    pod.launch("first", "nc -l -p 7000")
    answers["a port that is taken"] = until("its refusal", lambda: pod.launch(
        f"second{time.monotonic_ns()}", "nc -l -p 7000 2>&1").ending()[0])
    return answers


@case()
def pods_reach_each_other(side):
    first, second = side.pod("first"), side.pod("second")
    first.launch("server", "mkdir /www; echo page >/www/page; exec httpd -f -p 80 -h /www")
    one = second.launch("client", SLEEP)
    check(first.address() != second.address(), "both have one address")
    return one.sh(f"until wget -q -O - http://{first.address()}/page; do sleep 0.02; done; nc 127.0.0.1 80 || echo none")


@case()
def containers_have_files_of_shared_memory_in_common(side):
    answers = {}
    for count, _, containers in pods_of_containers(side):
        files = "".join(f"until cat /dev/shm/c{number}; do sleep 0.02; done 2>/dev/null; " for number in range(count))
        answers[count] = [one.sh(files) for one in containers]
    return answers


@case()
def containers_have_their_name_in_common(side):
    return {count: [one.sh("hostname; cat /proc/sys/kernel/hostname; cat /etc/hostname; uname -n") for one in containers]
            for count, _, containers in pods_of_containers(side)}


@case()
def containers_have_mapped_memory_in_common(side):
    """A lock and a futex in a file of `/dev/shm`."""
    first, second, third = side.pod().sleepers(3)
    with ThreadPoolExecutor(3) as pool:
        added = list(pool.map(lambda one: one.run("share", "add", "/dev/shm/counter", "200000")[0], [first, second, third]))
        waits = pool.submit(first.run, "share", "wait", "/dev/shm/futex")
        wakes = second.run("share", "wake", "/dev/shm/futex")
        return added, third.run("share", "sum", "/dev/shm/counter"), waits.result(), wakes


@case()
def containers_have_system_v_ipc_in_common(side):
    first, second = side.pod().sleepers(2)
    other = side.pod("other").launch("other", SLEEP)
    with ThreadPoolExecutor(1) as pool:
        message = pool.submit(second.run, "share", "receive", "0x66")
        sent = first.run("share", "send", "0x66", "a message")
        put = first.run("share", "put", "0x55", "a text")
        return {"message": (sent, message.result()), "of another pod": other.run("share", "get", "0x55")[0] != 0,
                "segment": (put, second.run("share", "get", "0x55"))}


@case()
def processes_are_private_unless_asked(side):
    first, second = side.pod().sleepers(2)
    first.sh("sleep 7777 >/dev/null 2>&1 &")
    return [second.sh("ps | grep -c '[s]leep 7777' || true"), first.sh("ps | grep -c '[s]leep 7777'"),
            second.sh("tr '\\0' ' ' </proc/1/cmdline")]


@case()
def processes_are_shared_when_asked(side):
    """`shareProcessNamespace` of a pod: the pod's own process is the first one of all containers."""
    pod = side.pod(namespaces={"pid": "POD"})
    first = pod.launch("first", "trap 'exit 8' TERM; echo $$ >/dev/shm/pid; while :; do sleep 0.05; done")
    second = pod.launch("second", SLEEP)
    pid = until("the first one's pid", lambda: second.run("cat", "/dev/shm/pid")[1].strip())
    answers = {
        "first of all": second.sh("tr '\\0' ' ' </proc/1/cmdline"),
        "seen": second.sh(f"tr '\\0' ' ' </proc/{pid}/cmdline"),
        "is not 1": pid != "1",
        "roots": (second.sh("echo 2 >/mark; cat /mark"), first.run("cat", "/mark")[0]),
        "by its root": second.sh(f"ls /proc/{pid}/root/mark 2>/dev/null || echo none"),
    }
    first.sh("echo 1 >/mark")
    answers["its file"] = second.sh(f"cat /proc/{pid}/root/mark")
    second.sh(f"kill -TERM {pid}")
    answers["killed by the other"] = first.ending()
    answers["the other"] = second.state()
    again = pod.launch("first", SLEEP, attempt=1)
    answers["again"] = again.sh("ps | grep -c '[s]leep 100000'"), again.sh("echo $$") != "1\n"
    return answers


@case()
def a_container_joins_the_processes_of_another(side):
    """What `kubectl debug --target` asks for."""
    pod = side.pod()
    first, other = pod.sleepers(2)
    first.sh("echo 1 >/mark")
    target = {"network": "POD", "pid": "TARGET", "ipc": "POD", "target_id": first.id}
    debug = pod.launch("debug", SLEEP, security={"namespace_options": target})
    answers = {"first of all": debug.sh("tr '\\0' ' ' </proc/1/cmdline"), "its file": debug.sh("cat /proc/1/root/mark"),
               "own root": debug.run("cat", "/mark")[0], "other": other.sh("ps | grep -c '[t]rap' || true")}
    debug.stop(0)
    answers["states"] = [one.state() for one in (first, other, debug)]
    return answers


@case("dormouse")
def the_hosts_processes_and_memory_are_refused(side):
    for kind in ("pid", "ipc"):
        config = side.config(namespaces={kind: "NODE"})
        said = side.refused("RunPodSandbox", "Unknown", config=config, runtime_handler=side.runtime)
        check(kind in said and "host" in said, said)


@case()
def a_container_that_ends_takes_no_other_along(side):
    pod = side.pod()
    stays = pod.launch("stays", COUNT)
    pid = stays.pid()
    endings = [pod.launch(name, script).ending()
               for name, script in {"ends": "exit 0", "fails": "exit 3", "crashes": "sh -c 'kill -SEGV $$'; exit $?"}.items()]
    endings.append(pod.launch("ends", "cat /mark 2>/dev/null || echo fresh; echo x >/mark; exit 5", attempt=1).ending())
    again = pod.launch("ends", "cat /mark 2>/dev/null || echo fresh; exit 6", attempt=2)
    endings.append(again.ending())
    killed = pod.launch("killed", SLEEP)
    killed.stop(0)
    endings.append(killed.ending())
    goes_on(stays, pid)
    return endings, again.log(), pod.is_ready()


def goes_on(one, pid):
    """It is as it was, and says so."""
    check((one.state(), one.pid()) == ("RUNNING", pid), f"it is {one.state()} {one.pid()}, before it was {pid}")
    seen = len(one.log())
    until("another line of its log", lambda: len(one.log()) > seen)
    numbers = [int(line.split()[-1]) for line in one.log()]
    check(numbers == list(range(1, len(numbers) + 1)), "it began anew")


@case()
def a_container_out_of_memory_takes_no_other_along(side):
    pod = side.pod()
    stays = pod.launch("stays", COUNT, memory_mib=64)
    pid = stays.pid()
    answers = {}
    for name, mib, script in (("greedy", 64, GREEDY), ("block", 15, BLOCK)):
        volume = side.engine.dir / f"{side.id}-{name}"
        volume.mkdir()
        one = pod.launch(name, script, memory_mib=mib, mounts=[{"container_path": "/v", "host_path": str(volume)}])
        (volume / "begin").touch()
        until("its reason", lambda: one.status()["reason"] == "OOMKilled")
        (volume / "end").touch()
        answers[name] = one.ending()
    if side.runtime == "dormouse":
        # Nothing is overlooked: the end and its cause are two events.
        at_once = pod.launch("at-once", "exec hungry 150", memory_mib=64)
        check(at_once.ending()[0] == 137, f"it ended with {at_once.ending()}")
        until("its reason", lambda: at_once.status()["reason"] == "OOMKilled")
    again = pod.launch("greedy", "hungry 20", attempt=1, memory_mib=64)
    answers["again"] = again.ending()
    inside = pod.launch("inside", SLEEP, memory_mib=64)
    answers["a process of it"] = inside.run("hungry", "150")[0], inside.state()
    goes_on(stays, pid)
    return answers


@case()
def memory_is_counted_by_container(side):
    pod = side.pod()
    idle = pod.launch("idle", SLEEP, memory_mib=256)
    # Fills a buffer, and is stuck as it writes it.
    full = pod.launch("full", "mkfifo /f; sleep 100000 <>/f & dd if=/dev/zero of=/f bs=48M count=1", memory_mib=256)
    until("its memory", lambda: full.memory_bytes() > 40e6)
    idle_bytes = until("the figures", idle.memory_bytes)
    check(idle_bytes < 30e6, f"an idle container has {idle_bytes} bytes")


@case()
def containers_of_init_and_a_common_volume(side):
    volume = side.engine.dir / f"{side.id}-volume"
    volume.mkdir()
    mounts = [{"container_path": "/v", "host_path": str(volume)}]
    pod = side.pod()
    answers = [pod.launch("init", "echo made >/v/file", mounts=mounts).ending()]
    first = pod.launch("first", "while :; do date >/v/now; sleep 0.05; done", mounts=mounts)
    second = pod.launch("second", SLEEP, mounts=mounts)
    answers.append(second.sh("cat /v/file; until [ -s /v/now ]; do sleep 0.02; done; rm /v/now; "
                             "until [ -s /v/now ]; do sleep 0.02; done; ls /v"))
    first.stop(0)
    answers.append(second.sh("echo more >>/v/file; cat /v/file"))
    return answers


@case()
def mounts_below_a_volume(side):
    """Those that are there when a container begins, and those that the node makes later."""
    volume = side.engine.dir / f"{side.id}-volume"
    (volume / "below").mkdir(parents=True)
    (volume / "later").mkdir()

    def mount(*words):
        subprocess.run(["mount", *map(str, words)], check=True)
    try:
        mount("--bind", volume, volume)
        mount("--make-shared", volume)
        mount("-t", "tmpfs", "below", volume / "below")
        mounts = [{"container_path": f"/{name}", "host_path": str(volume), **more} for name, more in (
            ("follows", {"propagation": "PROPAGATION_HOST_TO_CONTAINER"}), ("own", {}), ("read", {"readonly": True}))]
        pod = side.pod()
        containers = [pod.launch(f"c{number}", SLEEP, mounts=mounts) for number in range(2)]
        answers = [one.sh("for at in . below; do touch /read/$at/x 2>/dev/null && echo writable $at; done; true") for one in containers]
        mount("-t", "tmpfs", "later", volume / "later")
        (volume / "later/file").write_text("seen\n")
        answers += [one.sh("cat /follows/later/file; ls /own/later; echo $HOSTNAME >>/follows/later/back") for one in containers]
        check(len((volume / "later/back").read_text().splitlines()) == 2, "not both have written to the mount")
        pod.stop()
        pod.remove()
        subprocess.run(["umount", volume / "later"], check=True)
    finally:
        subprocess.run(["umount", "--recursive", "--lazy", volume], check=False)
    return answers


@case()
def a_container_is_stopped_alone(side):
    pod = side.pod()
    containers = pod.sleepers(3)
    pids = [one.pid() for one in containers]
    containers[1].stop()
    states = [one.state() for one in containers] + [containers[1].ending()]
    containers[1].remove()
    until("the end of its process", lambda: not Path(f"/proc/{pids[1]}").exists())
    check([containers[0].pid(), containers[2].pid()] == [pids[0], pids[2]], "another one began anew")
    answers = states, containers[1].name, [one.sh("echo here") for one in (containers[0], containers[2])]
    pod.stop()
    return answers, [containers[0].ending(), containers[2].ending()]
