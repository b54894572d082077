"""What containers do under containerd, asked by `ctr`: the same with runc's shim and with ours."""
import os
import pty
import random
import re
import select
import signal
import subprocess
import threading
import time
import urllib.request
from pathlib import Path

from lib.network import free_port
from lib.outcome import Failure, Skip, check
from lib.tree import binaries
from lib.waiting import until
from runner import Cases
from world import IMAGE, RUNTIMES, command_lines, end_pid

case = Cases()
ALL = case.all


class Side:
    """One case with one runtime."""

    def __init__(self, engine, runtime, name):
        self.engine, self.runtime = engine, runtime
        self.id = f"{name}-{runtime}".replace("_", "-")[:60]

    def ctr(self, *words, **options):
        return self.engine.run_ctr(*words, **options)

    def run_words(self, *command, flags=(), id=None):
        fixed = ["run", "--snapshotter", self.engine.snapshotter, "--runtime", RUNTIMES[self.runtime]]
        if self.runtime == "dormouse" and self.engine.node_config:
            fixed += ["--runtime-config-path", self.engine.node_config]
        return [*fixed, *flags, IMAGE, id or self.id, *command]

    def run(self, *command, flags=(), id=None, **options):
        """Runs a container to its end, and removes it."""
        return self.ctr(*self.run_words(*command, flags=["--rm", *flags], id=id), **options)

    def detach(self, *command, flags=(), id=None):
        """Starts a container that stays."""
        self.ctr(*self.run_words(*command, flags=["-d", *flags], id=id))

    def status(self, id=None):
        for line in self.ctr("task", "ls").stdout.splitlines():
            words = line.split()
            if words and words[0] == (id or self.id):
                return words[2]
        return None

    def pid(self, id=None):
        for line in self.ctr("task", "ls").stdout.splitlines():
            words = line.split()
            if words and words[0] == (id or self.id):
                return int(words[1])
        raise Failure(f"{self.id} is no task")

    def exec(self, *command, flags=(), **options):
        exec_id = f"e{time.monotonic_ns()}"
        return self.ctr("task", "exec", "--exec-id", exec_id, *flags, self.id, *command, **options)

    def exec_says(self, word):
        """A process that comes in says something, which arrives. `ctr` drops what it has not begun to read when the process ends."""
        done = self.exec("sh", "-c", f"echo '{word}'; sleep 0.2")
        check(done.stdout == f"{word}\n", f"exec says {done.stdout!r}, {done.stderr!r}")

    def remove(self, id=None):
        """Removes a container that has ended or not."""
        self.ctr("task", "rm", "-f", id or self.id, code=None)
        self.ctr("container", "rm", id or self.id)

    def shim(self):
        shims = [pid for pid, line in command_lines()
                 if "containerd-shim" in line[:200] and f"-id {self.id} " in line + " "]
        check(len(shims) == 1, f"{len(shims)} shims serve {self.id}")
        return shims[0]

    def vmm(self):
        """The sandbox's VMM: the parent of the leash."""
        status = Path(f"/proc/{self.pid()}/status").read_text()
        return int(re.search(r"PPid:\s*(\d+)", status)[1])

    def is_clean(self, also=()):
        """Nothing is left of any container."""
        try:
            until("the end of what is left", lambda: not self.engine.remains(), 40)
        except Failure as failure:
            raise Failure(f"{failure}: {self.engine.remains()}") from None
        for pid in also:
            until(f"the end of process {pid}", lambda: not Path(f"/proc/{pid}").exists())


@case()
def run(side):
    done = side.run("sh", "-c", "echo out; echo err >&2; exit 7", code=7)
    check((done.stdout, done.stderr) == ("out\n", "err\n"), f"{done.stdout!r} {done.stderr!r}")
    side.is_clean()


@case()
def run_with_input(side):
    program = side.engine.start_ctr(*side.run_words("sh", "-c", "read a; echo got $a; cat | wc -c", flags=["--rm"]),
                                    stdin=subprocess.PIPE)
    # ctr overlooks an end that comes before the container has been made.
    with program.process.stdin as stdin:
        stdin.write(b"line\n")
        stdin.flush()
        until("the first line", lambda: "got line" in program.text())
        stdin.write(b"x" * 100_000)
    check(program.process.wait(60) == 0, program.text())
    check(program.text().split() == ["got", "line", "100000"], program.text())


@case()
def run_much_output(side):
    program = side.engine.start_ctr(*side.run_words("sh", "-c", "yes 0123456789abcde | head -c 3000000; read a",
                                                    flags=["--rm"]), stdin=subprocess.PIPE)
    with program.process.stdin:
        until("all of it", lambda: len(program.text()) == 3_000_000)
    check(program.process.wait(60) in (0, 1), program.text()[-300:])


@case()
def run_a_missing_program(side):
    done = side.run("/no/such/program", code=1)
    check("no such file" in done.stderr.lower() or "not found" in done.stderr.lower(), done.stderr)
    side.ctr("container", "rm", side.id, code=None)
    side.is_clean()


@case()
def ended_by_a_signal(side):
    side.detach("sleep", "1000")
    side.ctr("task", "kill", "-s", "SIGKILL", side.id)
    until("the end", lambda: side.status() == "STOPPED")
    done = side.ctr("task", "rm", side.id, code=None)
    check("137" in done.stderr or done.returncode == 137, f"{done.returncode}: {done.stderr}")
    side.remove()
    side.is_clean()


@case()
def run_detached(side):
    side.detach("sleep", "1000")
    check(side.status() == "RUNNING", side.status())
    pid = side.pid()
    check(Path(f"/proc/{pid}/ns/net").exists(), "its pid has no network namespace")
    side.remove()
    side.is_clean([pid])


@case()
def twice_the_same(side):
    side.detach("sleep", "1000")
    done = side.ctr("task", "start", side.id, code=1)
    check("already exists" in done.stderr, done.stderr)
    side.remove()


@case()
def exec_a_program(side):
    side.detach("sleep", "1000")
    done = side.exec("sh", "-c", "echo out; echo err >&2; exit 3", code=3)
    check((done.stdout, done.stderr) == ("out\n", "err\n"), f"{done.stdout!r} {done.stderr!r}")
    done = side.exec("sh", "-c", "cat; echo end", stdin="words\n")
    check(done.stdout == "words\nend\n", done.stdout)
    done = side.exec("/no/such/program", code=1)
    check("exec" in done.stderr, done.stderr)
    done = side.exec("sh", "-c", "pwd; echo $A", flags=["--cwd", "/tmp"])
    check(done.stdout.split()[0] == "/tmp", done.stdout)
    side.remove()
    side.is_clean()


def on_terminal(words, env, type_in, wanted):
    """Runs a program on a terminal of 33 × 101; types; result: what it showed, up to what is wanted."""
    controller, terminal = pty.openpty()
    import fcntl
    import struct
    import termios
    fcntl.ioctl(controller, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 101, 0, 0))
    program = subprocess.Popen(words, stdin=terminal, stdout=terminal, stderr=terminal, env=os.environ | env,
                               start_new_session=True)
    os.close(terminal)
    shown, end, typed = b"", time.monotonic() + 30, False
    try:
        while time.monotonic() < end:
            if select.select([controller], [], [], 0.2)[0]:
                try:
                    shown += os.read(controller, 4096)
                except OSError:
                    break
            if not typed and b"#" in shown:
                os.write(controller, type_in)
                typed = True
            if program.poll() is not None and not select.select([controller], [], [], 0.2)[0]:
                break
        check(wanted in shown, f"the terminal showed {shown[-300:]!r}")
        return program.wait(10)
    finally:
        program.kill()
        program.wait()
        os.close(controller)


TYPED = b"stty size; tty | wc -l; exit 5\n"


@case()
def run_on_a_terminal(side):
    words = side.engine.words(*side.run_words("sh", flags=["--rm", "-t"]))
    code = on_terminal(words, side.engine.env, TYPED, b"33 101")
    check(code == 5, f"it ended with {code}")
    side.is_clean()


@case()
def exec_on_a_terminal(side):
    side.detach("sleep", "1000")
    words = side.engine.words("task", "exec", "-t", "--exec-id", "tty", side.id, "sh")
    code = on_terminal(words, side.engine.env, TYPED, b"33 101")
    check(code == 5, f"it ended with {code}")
    side.remove()


@case()
def signals(side):
    side.detach("sh", "-c", "trap 'echo got; exit 9' TERM; echo >/trapped; while :; do sleep 0.1; done")
    until("its trap", lambda: side.exec("test", "-e", "/trapped", code=None).returncode == 0)
    side.ctr("task", "kill", "-s", "SIGTERM", side.id)
    until("the end", lambda: side.status() == "STOPPED")
    done = side.ctr("task", "rm", side.id, code=None)
    check("9" in done.stderr or done.returncode == 9, f"{done.returncode}: {done.stderr}")
    done = side.ctr("task", "kill", side.id, code=1)
    check("not found" in done.stderr, done.stderr)
    side.remove()


@case()
def kill_one_that_has_ended(side):
    side.detach("true")
    until("the end", lambda: side.status() == "STOPPED")
    done = side.ctr("task", "kill", "-s", "SIGKILL", side.id, code=None)
    check(done.returncode == 0 or "not found" in done.stderr or "already finished" in done.stderr, done.stderr)
    done = side.exec("true", code=1)
    side.remove()
    side.is_clean()


@case()
def processes(side):
    side.detach("sleep", "1000")
    pid = side.pid()
    done = side.ctr("task", "ps", side.id)
    check(str(pid) in done.stdout.split(), done.stdout)
    side.remove()


@case()
def metrics(side):
    side.detach("sleep", "1000")
    done = side.ctr("task", "metrics", side.id)
    numbers = dict(line.split()[:2] for line in done.stdout.splitlines() if len(line.split()) == 2)
    usage = numbers.get("memory.usage_in_bytes") or numbers.get("memory.usage")
    check(usage and int(usage) > 0, done.stdout)
    check(any(name.startswith("cpu") for name in numbers), done.stdout)
    side.remove()


def needs(side, command):
    """Skips a case of a command that `dormouse` does not have."""
    dormouse = binaries() / "dormouse"
    if side.runtime == "dormouse" and subprocess.run([dormouse, command, "--help"], capture_output=True).returncode != 0:
        raise Skip(f"dormouse has no {command}")


@case()
def pause_and_resume(side):
    needs(side, "pause")
    log = side.engine.dir / f"{side.id}.log"
    side.detach("sh", "-c", "while :; do echo x; sleep 0.05; done", flags=["--log-uri", f"file://{log}"])
    side.ctr("task", "pause", side.id)
    check(side.status() == "PAUSED", side.status())
    side.exec("true", code=1)

    def is_quiet():
        size = log.stat().st_size
        time.sleep(0.5)
        return log.stat().st_size == size
    # What it has written before may still be on its way.
    check(any(is_quiet() for _ in range(10)), "a paused program writes")
    size = log.stat().st_size
    side.ctr("task", "pause", side.id, code=1)
    side.ctr("task", "resume", side.id)
    check(side.status() == "RUNNING", side.status())
    until("more output", lambda: log.stat().st_size > size)
    side.ctr("task", "resume", side.id, code=1)
    side.ctr("task", "pause", side.id)
    side.remove()
    side.is_clean()


@case()
def checkpoint(side):
    needs(side, "pause")
    side.detach("sleep", "1000")
    done = side.ctr("task", "checkpoint", side.id, code=1)
    if side.runtime == "dormouse":
        check("not yet implemented" in done.stderr, done.stderr)
    check(side.status() == "RUNNING", side.status())
    side.remove()


@case()
def logs_to_a_file(side):
    log = side.engine.dir / f"{side.id}.log"
    side.detach("sh", "-c", "echo out; echo err >&2; sleep 0.3", flags=["--log-uri", f"file://{log}"])
    until("the end", lambda: side.status() == "STOPPED")
    side.remove()
    check(sorted(log.read_text().split()) == ["err", "out"], log.read_text())


@case()
def logs_to_a_program(side):
    log = side.engine.dir / f"{side.id}.log"
    program = side.engine.dir / f"{side.id}-logger"
    program.write_text(f"#!/bin/sh\necho $CONTAINER_ID $CONTAINER_NAMESPACE $1 $2 >{log}\nexec 5>&-\n"
                       f"cat <&4 >>{log} &\ncat <&3 >>{log}\nwait\n")
    program.chmod(0o755)
    side.detach("sh", "-c", "echo out; echo err >&2", flags=["--log-uri", f"binary://{program}?tag=a%20b"])
    until("the end", lambda: side.status() == "STOPPED")
    until("its log", lambda: len(log.read_text().split()) == 7)
    words = log.read_text().split()
    check(words[:5] == [side.id, side.engine.namespace, "tag", "a", "b"] and set(words[5:]) == {"out", "err"}, words)
    side.remove()
    side.is_clean()


def watch_events(side):
    """Starts `ctr events`, and waits until it hears of what happens."""
    watcher = side.engine.start_ctr("events")

    def hears():
        side.ctr("namespaces", "label", side.engine.namespace, f"beat={time.monotonic_ns()}")
        return "/namespaces/update" in watcher.text()
    until("an event", hears)
    return watcher


@case()
def events(side):
    watcher = watch_events(side)
    side.detach("sleep", "1000")
    side.exec("true")
    side.ctr("task", "kill", "-s", "SIGKILL", side.id)
    until("the end", lambda: side.status() == "STOPPED")
    side.remove()
    topics = ["create", "start", "exec-added", "exec-started", "exit", "exit", "delete"]

    def came():
        seen = re.findall(r"/tasks/([a-z-]+) .*" + re.escape(side.id), watcher.text())
        return seen == topics and seen
    try:
        until("all events in their order", came)
    except Failure as failure:
        raise Failure(f"{failure}: {watcher.text()[-1500:]}") from None
    finally:
        watcher.end()


GROW = ("x=0123456789abcdef; while [ ${#x} -lt 1000000 ]; do x=$x$x; done; "
        "i=0; while :; do eval v$i=$x; i=$((i+1)); done")


@case()
def what_exceeds_its_memory_is_an_event(side):
    watcher = watch_events(side)

    def seen(topic):
        return re.search(f"/tasks/{topic} .*" + re.escape(side.id), watcher.text())
    try:
        # A process of the container, which lives on.
        side.detach("sh", "-c", f"sh -c '{GROW}'; sleep 1000", flags=["--memory-limit", 64 << 20])
        until("word of it", lambda: seen("oom"))
        check(side.status() == "RUNNING" and not seen("exit"), watcher.text())
        side.remove()
        until("its end", lambda: seen("delete"))
        if side.runtime == "dormouse":
            # The first one: its end comes of it, and is told after it. runc's shim may overlook it.
            watcher.path.write_text("")
            side.detach("sh", "-c", GROW, flags=["--memory-limit", 64 << 20])
            until("its end", lambda: seen("exit"))
            check(seen("oom") and seen("oom").start() < seen("exit").start(), watcher.text())
            side.remove()
    finally:
        watcher.end()
    side.is_clean()


@case()
def a_group_that_starts_and_ends_at_once(side):
    """Containers of one pod come and go together: one shim serves those of one round."""
    names = [f"{side.id}-{number}" for number in range(6)]
    group = ["--annotation", f"io.containerd.runc.v2.group={side.id}"]
    # On a busy machine ctr now and then loses what is said by who ends at once, whatever the runtime is.
    place = side.engine.dir / "said"
    place.mkdir(exist_ok=True)
    mount = ["--mount", f"type=bind,src={place},dst=/said,options=rbind:rw"]
    for _ in range(3):
        failures = []
        # runc's shim now and then fails who comes or is removed while it ends with the last of its group. There one container
        # stays, as a pod's own does.
        if side.runtime == "runc":
            side.detach("sleep", "1000", flags=group)

        def live(name):
            said = place / name
            try:
                side.run("sh", "-c", f"echo {name} > /said/{name}", flags=[*group, *mount], id=name)
                check(said.read_text() == f"{name}\n", f"{name} says {said.read_text()!r}")
                said.unlink()
            except (Failure, OSError) as why:
                failures.append(str(why))
        threads = [threading.Thread(target=live, args=[name]) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        check(not failures, "; ".join(failures)[:600])
        if side.runtime == "runc":
            side.remove()
        side.is_clean()


@case()
def a_long_id(side):
    side.id = (side.id + "-" + "x" * 76)[:76]
    side.detach("sh", "-c", "trap 'exit 3' TERM; while :; do sleep 0.1; done")
    side.exec_says("inside")
    shown = on_terminal(side.engine.words("task", "exec", "-t", "--exec-id", "t", side.id, "sh"), side.engine.env,
                        b"echo a$((1+1))b\nexit\n", b"a2b")
    check(shown == 0, f"a terminal's shell ended with {shown}")
    side.remove()
    side.is_clean()


@case()
def containerd_restarts(side):
    side.detach("sh", "-c", "trap 'exit 9' TERM; while :; do sleep 0.1; done")
    pid = side.pid()
    side.engine.kill()
    side.engine.launch()
    check((side.status(), side.pid()) == ("RUNNING", pid), f"{side.status()} {side.pid()}, before it was {pid}")
    side.exec_says("still here")
    side.engine.kill()
    os.kill(pid, signal.SIGTERM)
    until("the end", lambda: not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text().split()[2])
    side.engine.launch()
    # From version 2 on containerd removes a task that has ended meanwhile.
    until("the end to be told", lambda: side.status() in (None, "STOPPED"))
    side.remove()
    side.is_clean([pid])


@case()
def shim_is_killed(side):
    side.detach("sleep", "1000")
    pid = side.pid()
    os.kill(side.shim(), signal.SIGKILL)
    until("the end of its task", lambda: side.status() in (None, "STOPPED"))
    side.remove()
    side.is_clean([pid])


@case()
def shim_is_killed_while_containerd_is_away(side):
    side.detach("sleep", "1000")
    pid, shim = side.pid(), side.shim()
    side.engine.kill()
    os.kill(shim, signal.SIGKILL)
    side.engine.launch()
    until("the end of its task", lambda: side.status() in (None, "STOPPED"))
    side.remove()
    side.is_clean([pid])


@case()
def its_pid_is_killed(side):
    side.detach("sleep", "1000")
    pid = side.pid()
    os.kill(pid, signal.SIGKILL)
    until("the end", lambda: side.status() == "STOPPED")
    done = side.ctr("task", "rm", side.id, code=None)
    check("137" in done.stderr or done.returncode == 137, f"{done.returncode}: {done.stderr}")
    side.remove()
    side.is_clean([pid])


@case("dormouse")
def vmm_is_killed(side):
    side.detach("sleep", "1000")
    pid, vmm = side.pid(), side.vmm()
    os.kill(vmm, signal.SIGKILL)
    until("the end", lambda: side.status() == "STOPPED")
    side.remove()
    side.is_clean([pid, vmm])


@case("dormouse")
def hibernates_and_wakes(side):
    port = free_port()
    side.detach("httpd", "-f", "-p", f"127.0.0.1:{port}", "-h", "/etc", flags=["--net-host"])
    pid = side.pid()

    def answers():
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/group", timeout=20) as answer:
                return answer.read() == b"root:x:0:\n"
        except OSError:
            return False

    def is_stopped():
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"

    def resident():
        return int(re.search(r"VmRSS:\s*(\d+)", Path(f"/proc/{side.vmm()}/status").read_text())[1])
    until("an answer", answers)
    before = resident()
    side.ctr("task", "kill", "-s", "SIGSTOP", side.id)
    until("hibernation", is_stopped)
    check(side.status() == "RUNNING", f"a hibernated container is {side.status()}")
    check(resident() < before, f"{resident()} KiB are resident, and {before} were")
    check(answers(), "it does not answer")
    until("its wake", lambda: not is_stopped())
    side.remove()
    side.is_clean([pid])


@case("dormouse")
def an_exec_wakes(side):
    side.detach("sleep", "1000")
    pid = side.pid()
    side.ctr("task", "kill", "-s", "SIGSTOP", side.id)
    until("hibernation", lambda: Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T")
    side.exec_says("awake")
    side.remove()


@case("dormouse")
def the_shim_is_small(side):
    """It contains no kernel, and few of its pages are its own."""
    side.detach("sleep", "1000")
    rollup = Path(f"/proc/{side.shim()}/smaps_rollup").read_text()
    private = sum(int(kib) for kib in re.findall(r"Private_Dirty:\s*(\d+)", rollup))
    check(private < 1200, f"{private} KiB are its own")
    program = os.readlink(f"/proc/{side.shim()}/exe")
    sections = subprocess.run(["readelf", "-SW", program], capture_output=True, text=True).stdout
    sizes = {name: int(size, 16) for name, size in re.findall(r"\] (\.\w+)\s+\w+\s+\w+ \w+ (\w+)", sections)}
    loaded = sum(sizes.get(name, 0) for name in (".rodata", ".data"))
    check(0 < loaded < 2 << 20, f"its constants take {loaded} bytes: is the kernel in it?")
    side.remove()


@case()
def many_at_once(side):
    ids = [f"{side.id}-{number}" for number in range(6)]
    programs = [side.engine.start_ctr(*side.run_words("sh", "-c", f"echo {id}", flags=["--rm"], id=id)) for id in ids]
    for id, program in zip(ids, programs):
        check(program.process.wait(120) == 0 and program.text() == f"{id}\n", program.text()[-300:])
    side.is_clean()


@case("dormouse")
def killed_at_any_moment(side):
    """Something dies while a container is started or ended; then it can be removed, and nothing is left."""
    random_ = random.Random(int(os.environ.get("ENGINES_SEED", "11")))
    for round_ in range(int(os.environ.get("ENGINES_KILLS", "16"))):
        id, victim = f"{side.id}-{round_}", random_.choice(["shim", "vmm", "leash", "dormouse", "containerd"])
        starter = side.engine.start_ctr(*side.run_words("sleep", "1000", flags=["-d"], id=id))
        time.sleep(random_.uniform(0.02, 0.4))
        if random_.random() < 0.3:
            side.ctr("task", "kill", "-s", "SIGKILL", id, code=None)
        kill(side, id, victim)
        try:
            starter.process.wait(60)
        except subprocess.TimeoutExpired:
            raise Failure(f"round {round_}: ctr still waits after the end of the {victim}") from None

        def is_removed(id=id):
            side.ctr("task", "rm", "-f", id, code=None)
            said = side.ctr("container", "rm", id, code=None).stderr
            return id not in side.ctr("container", "ls", "-q").stdout.split() or not said
        try:
            until("its removal", is_removed, 40)
            side.is_clean()
        except Failure as failure:
            raise Failure(f"round {round_}, after the end of the {victim}: {failure}") from None


def kill(side, id, victim):
    """Kills one of the processes that take part, if it is there."""
    if victim == "containerd":
        side.engine.kill()
        side.engine.launch()
        return
    bundle = f"{side.engine.dir}/state/io.containerd.runtime.v2.task/{side.engine.namespace}/{id}"
    for pid, line in command_lines():
        if victim == "shim":
            is_it = "containerd-shim" in line[:200] and f"-id {id} " in line + " "
        elif victim == "leash":
            is_it = bundle in line and name_of(pid) == "dormouse-leash"
        elif victim == "vmm":
            is_it = bundle in line and name_of(pid) == "dormouse-vmm"
        else:
            is_it = bundle in line and "create" in line
        if is_it:
            end_pid(pid)


def name_of(pid):
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
