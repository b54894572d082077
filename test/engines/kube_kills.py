"""Whatever takes part is killed, and many pods come and go at once: then all can be removed, and nothing is left."""
import os
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kube_calls import COUNT
from kube_pod import SLEEP, case, parent
from kube_pods import goes_on
from kube_world import CallFailure
from lib.outcome import Failure, check
from lib.waiting import until
from world import end_pid


def is_gone(pid):
    try:
        return "Z" in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return True


@case()
def the_shim_is_killed(side):
    pod = side.pod()
    first, second = pod.sleepers(2)
    pids = [pod.pid(), first.pid(), second.pid()]
    end_pid(pod.shim())
    endings = [first.ending(), second.ending()]
    until("the end of the pod", lambda: not pod.is_ready())
    until("the end of its processes", lambda: all(is_gone(pid) for pid in pids))
    again = side.pod("again")
    return endings, again.launch("one", "echo again; exit 3").ending()


@case()
def the_first_process_of_a_container_is_killed(side):
    pod = side.pod()
    stays, first = pod.launch("stays", COUNT), pod.launch("first", SLEEP)
    pid = stays.pid()
    end_pid(first.pid())
    ending = first.ending()
    goes_on(stays, pid)
    return ending, pod.is_ready(), pod.launch("first", "exit 3", attempt=1).ending()


@case()
def the_first_process_of_a_pod_is_killed(side):
    pod = side.pod()
    pod.launch("one", SLEEP)
    end_pid(pod.pid())
    until("the end of the pod", lambda: not pod.is_ready())
    said = side.refused("CreateContainer", "NotFound", pod_sandbox_id=pod.id, sandbox_config=pod.config,
                        config={"metadata": {"name": "late"}, "image": {"image": "test.local/busybox:1"}})
    pod.stop()
    return said.replace(pod.id, "ID"), side.pod("again").is_ready()


@case("dormouse")
def the_vmm_is_killed(side):
    pod = side.pod()
    one = pod.launch("one", SLEEP)
    vmm = parent(pod.pid())
    name = Path(f"/proc/{vmm}/comm").read_text().strip()
    check(name == "dormouse-vmm", f"the parent of the pod's leash is {name}")
    end_pid(vmm)
    check(one.ending() == (137, "Error"), f"it ended with {one.ending()}")
    until("the end of the pod", lambda: not pod.is_ready())
    other = side.pod("other").launch("one", "exit 3").ending()
    check(other == (3, "Error"), f"another pod's container ends with {other}")


@case()
def containerd_is_killed(side):
    """Pods go on without it, and with the next one; what ended meanwhile is told by it."""
    pod = side.pod()
    stays = pod.launch("stays", COUNT)
    stops = pod.launch("stops", "echo up; trap 'exit 6' TERM; while :; do sleep 0.05; done")
    ends = pod.launch("ends", "trap 'exit 4' TERM; echo up; while :; do sleep 0.05; done")
    for one in (stops, ends):
        one.logs("stdout F up")
    pids = [one.pid() for one in (stays, stops, ends)]
    side.engine.kill()
    os.kill(pids[2], signal.SIGTERM)
    until("its end", lambda: is_gone(pids[2]))
    side.engine.launch()
    check([one.pid() for one in (stays, stops)] == pids[:2], "containers began anew")
    answers = {"states": [one.state() for one in (stays, stops)], "ready": pod.is_ready(),
               "exec": stays.run("echo", "still here"), "meanwhile": ends.ending()[0]}
    seen = len(stays.log())
    until("another line of its log", lambda: len(stays.log()) > seen)
    stops.stop()
    answers["stopped"] = stops.ending()
    answers["another"] = pod.launch("another", "exit 3").ending()
    return answers


@case()
def containerd_is_killed_at_any_moment(side):
    """While a pod with its container is made or removed."""
    random_ = random.Random(int(os.environ.get("ENGINES_SEED", "11")))
    for round_ in range(int(os.environ.get("CRI_KILLS", "4"))):
        def live(round_=round_):
            try:
                pod = side.pod(f"pod{round_}")
                pod.launch("one", SLEEP)
                pod.stop()
                pod.remove()
            except CallFailure:
                pass
        thread = threading.Thread(target=live)
        thread.start()
        time.sleep(random_.uniform(0.02, 0.6))
        side.engine.kill()
        thread.join()
        side.engine.launch()

        def is_removed():
            try:
                side.remove_all()
            except CallFailure:
                return False
            return not side.pods()
        try:
            until("the removal of its pods", is_removed, 30)
            # containerd 1.6 forgets what it was about to make.
            if of_the_runtime(side):
                side.engine.end_orphans(side.runtime)
            until("the end of what is left", lambda: not of_the_runtime(side), 20)
        except Failure as why:
            raise Failure(f"round {round_}: {why}; {side.left()}") from None
    side.engine.abandoned += side.left()


def of_the_runtime(side):
    """What of the things that are left our runtime and its shim have to remove; runc forgets groups."""
    kinds = ("process", "mount", "state", "socket") + (("group",) if side.runtime == "dormouse" else ())
    return [text for text in side.left() if text.startswith(kinds)]


@case()
def many_pods_at_once(side):
    """So many are made, asked and removed at once."""
    count = int(os.environ.get("CRI_PODS", "20"))

    def live(number):
        pod = side.pod(f"pod{number}")
        one = pod.launch("one", f"echo {number}; {SLEEP}")
        answer = one.sh(f"cat /proc/sys/kernel/random/boot_id >/dev/null; echo {number}")
        one.logs(f"stdout F {number}")
        if number % 2:
            one.stop()
        pod.stop()
        ending = one.ending()[0]
        pod.remove()
        return answer, ending
    with ThreadPoolExecutor(count) as pool:
        answers = list(pool.map(live, range(count)))
    check(side.pods() == [], "pods are left")
    return answers
