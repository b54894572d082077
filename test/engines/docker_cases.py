"""What Docker's users do, the same with runc and with Dormouse."""
import json
import os
import random
import re
import signal
import subprocess
import threading
import time
from pathlib import Path

from lib.outcome import Failure, check
from lib.waiting import until
from runner import Cases
from world import IMAGE, command_lines, end_pid

case = Cases()
ALL = case.all


class Side:
    """One case with one runtime."""

    def __init__(self, docker, runtime, name):
        self.docker, self.runtime = docker, runtime
        self.name = f"{name}-{runtime}".replace("_", "-")

    def __call__(self, *words, **options):
        return self.docker.run(*words, **options)

    def run(self, *words, flags=(), **options):
        return self("run", "--runtime", self.runtime, "--rm", *flags, IMAGE, *words, **options)

    def detach(self, *words, flags=(), name=None):
        self("run", "--runtime", self.runtime, "--detach", "--name", name or self.name, *flags, IMAGE, *words)

    def inspect(self, what, name=None):
        return self("inspect", "--format", "{{" + what + "}}", name or self.name).stdout.strip()

    def pid(self):
        return int(self.inspect(".State.Pid"))

    def status(self):
        return self.inspect(".State.Status")

    def exec(self, *words, flags=(), **options):
        return self("exec", *flags, self.name, *words, **options)

    def remove(self, name=None):
        self("rm", "--force", name or self.name)

    def until_logs(self, words):
        return until(f"{words!r} in the logs", lambda: words in self("logs", self.name).stdout)

    def until_status(self, wanted):
        until(f"the status {wanted}", lambda: self.status() == wanted)


@case()
def run_answers_with_streams_and_status(side):
    done = side.run("sh", "-c", "cat; echo err >&2; exit 7", flags=["-i"], stdin="in\n", code=7)
    check((done.stdout, done.stderr) == ("in\n", "err\n"), f"{done}")
    side.run("true")
    side.run("/no/such/program", code=127)
    side.run("/etc/passwd", code=126)
    side.run("sh", "-c", "sh -c 'kill -9 $$'; exit $?", code=137)


@case()
def options_of_run_count(side):
    flags = ["--env", "A=b", "--workdir", "/var", "--hostname", "box", "--user", "7:8", "--ulimit", "nofile=123:456",
             "--read-only", "--tmpfs", "/scratch", "--cap-drop", "ALL", "--memory", "64m", "--pids-limit", "50",
             "--cpus", "1", "--init"]
    done = side.run("sh", "-c", "echo $A $PWD $(hostname) $(id -u):$(id -g) $(ulimit -n); touch /x 2>/dev/null || "
                    "echo read-only; touch /scratch/y && echo scratch; grep CapEff /proc/self/status", flags=flags)
    check(done.stdout == "b /var box 7:8 123\nread-only\nscratch\nCapEff:\t0000000000000000\n", done.stdout)


@case()
def further_options_of_run_count(side):
    flags = ["--add-host", "other:10.1.2.3", "--dns", "10.3.2.1", "--dns-search", "a.test", "--shm-size", "8m",
             "--group-add", "44", "--group-add", "9", "--sysctl", "net.core.somaxconn=77", "--oom-score-adj", "300",
             "--mount", "type=tmpfs,target=/t,tmpfs-size=1m,tmpfs-mode=700", "--security-opt", "no-new-privileges",
             "--env", "A=1", "--label", "a=b", "--stop-signal", "USR1", "--network", "none", "--entrypoint", "/bin/sh"]
    script = ("grep -c 10.1.2.3 /etc/hosts; grep -E '^(search|nameserver)' /etc/resolv.conf; id -G; "
              "df -k /dev/shm /t | awk 'NR > 1 { print $2 }'; cat /proc/sys/net/core/somaxconn /proc/self/oom_score_adj; "
              "stat -c %a /t; grep NoNewPrivs /proc/self/status; ls /sys/class/net | wc -l")
    done = side.run("-c", script, flags=flags)
    expected = "1 nameserver 10.3.2.1 search a.test 0 9 44 8192 1024 77 300 700 NoNewPrivs: 1 1"
    check(sorted(done.stdout.split()) == sorted(expected.split()), done.stdout)


@case()
def nothing_is_left_in_the_image(side):
    """Mount points of the runtime's are not the container's files."""
    side("run", "--runtime", side.runtime, "--name", side.name, IMAGE, "touch", "/made")
    changed = side("diff", side.name).stdout.split("\n")
    side.remove()
    check("A /made" in changed, f"{changed}")
    check(not any("mqueue" in line or "cgroup" in line for line in changed), f"{changed}")


@case()
def volumes_are_the_hosts_files(side):
    place = side.docker.dir / side.name
    place.mkdir()
    (place / "from").write_text("host\n")
    done = side.run("sh", "-c", "cat /v/from; echo guest >/v/to; touch /r/x 2>/dev/null || echo refused",
                    flags=["--volume", f"{place}:/v", "--volume", f"{place}:/r:ro"])
    check(done.stdout == "host\nrefused\n" and (place / "to").read_text() == "guest\n", done.stdout)


@case()
def a_container_lives_and_is_removed(side):
    side.detach("sh", "-c", "trap 'echo bye; exit 3' TERM; echo up; while true; do sleep 0.1; done")
    side.until_logs("up")
    check(side.status() == "running" and side.pid() > 0, side.status())
    side("stop", "--time", "10", side.name)
    check(side.inspect(".State.ExitCode") == "3", side.inspect(".State.ExitCode"))
    check(side("logs", side.name).stdout == "up\nbye\n", "the logs end too early")
    said = side("kill", side.name, code=1).stderr
    check("is not running" in said, said)
    side("start", side.name)
    side("restart", "--time", "10", side.name)
    check(side.status() == "running", side.status())
    said = side("rm", side.name, code=1).stderr
    check("running container" in said, said)
    side.remove()


@case()
def exec_runs_in_it(side):
    side.detach("sleep", "1000", flags=["--env", "A=b"])
    done = side.exec("sh", "-c", "echo $A $B; cat; exit 9", flags=["-i", "--env", "B=c"], stdin="in", code=9)
    check(done.stdout == "b c\nin", done.stdout)
    check(side.exec("id", "-u", flags=["--user", "5"]).stdout == "5\n", "the user")
    check(side.exec("pwd", flags=["--workdir", "/var"]).stdout == "/var\n", "the directory")
    done = side.exec("/no/such/program", code=None)
    check(done.returncode in (126, 127), f"{done}")
    side.exec("sh", "-c", "echo there >/tmp/detached", flags=["--detach"])
    until("the detached process", lambda: side.exec("cat", "/tmp/detached", code=None).stdout == "there\n")
    side.remove()
    said = side.exec("true", code=1).stderr
    check("No such container" in said, said)


@case()
def who_runs_in_it_hears_of_its_end(side):
    for how in ("kill", "stop", "rm"):
        side.detach("sleep", "1000")
        ends = []

        def wait_in_it():
            ends.append(side("exec", side.name, "sleep", "1000", code=None, timeout=30).returncode)
        threads = [threading.Thread(target=wait_in_it) for _ in range(4)]
        for thread in threads:
            thread.start()
        until("all of them", lambda: side("top", side.name).stdout.count("sleep") == 5)
        side(*{"kill": ("kill",), "stop": ("stop", "--time", "0"), "rm": ("rm", "--force")}[how], side.name)
        for thread in threads:
            thread.join()
        # What is removed tells no status.
        check(len(ends) == 4 and (how == "rm" or ends == [137] * 4), f"{how}: {ends}")
        if how != "rm":
            side.remove()


@case()
def a_terminal_has_a_size(side):
    script = ["script", "--quiet", "--return", "--command",
              " ".join(side.docker.words("run", "--runtime", side.runtime, "--rm", "-it", IMAGE, "sh", "-c",
                                         "'stty size; tty; test -t 0 -a -t 1 && echo terminal'")), "/dev/null"]
    done = subprocess.run(script, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    check("terminal" in done.stdout and "/dev/pts/0" in done.stdout, done.stdout + done.stderr)


@case()
def top_shows_it(side):
    side.detach("sleep", "1234")
    lines = side("top", side.name).stdout.splitlines()
    check(len(lines) == 2 and str(side.pid()) in lines[1], "\n".join(lines))
    check("sleep" in lines[1], f"the command is missing: {lines[1]}")
    side.remove()


@case()
def what_is_paused_waits(side):
    side.detach("sh", "-c", "while true; do date +%s%N >/tmp/now; sleep 0.02; done")
    until("a beat", lambda: side.exec("cat", "/tmp/now", code=None).stdout)
    side("pause", side.name)
    check(side.status() == "paused", side.status())
    said = side.exec("true", code=1).stderr
    check("paused" in said, said)
    time.sleep(0.3)
    side("unpause", side.name)
    check(side.status() == "running", side.status())
    first = side.exec("cat", "/tmp/now").stdout
    until("another beat", lambda: side.exec("cat", "/tmp/now").stdout not in ("", first))
    side("pause", side.name)
    side.remove()


@case()
def limits_change_live(side):
    side.detach("sleep", "1000", flags=["--memory", "64m", "--memory-swap", "64m", "--pids-limit", "50"])
    side("update", "--memory", "128m", "--memory-swap", "128m", "--pids-limit", "20", "--cpus", "0.5", side.name)
    check(side.inspect(".HostConfig.Memory") == str(128 << 20), side.inspect(".HostConfig.Memory"))
    # More than 64 MB fits now.
    side.exec("dd", "if=/dev/zero", "of=/dev/null", "bs=90M", "count=1")
    done = side.exec("sh", "-c", "for i in $(seq 40); do sleep 100 >/dev/null 2>&1 & done; echo survived", code=None)
    check("survived" not in done.stdout or "fork" in done.stderr, f"40 processes where 20 may be: {done.stderr}")
    side.remove()


@case()
def statistics_are_plausible(side):
    side.detach("sh", "-c", "dd if=/dev/zero of=/dev/null bs=20M count=1; echo up; sleep 1000")
    side.until_logs("up")
    line = side("stats", "--no-stream", "--format", "{{json .}}", side.name).stdout
    stats = json.loads(line)
    check(re.match(r"[0-9.]+[KMG]?i?B /", stats["MemUsage"]) and not stats["MemUsage"].startswith("0B"), line)
    check(int(stats["PIDs"]) >= 1, line)
    side.remove()


@case()
def too_much_memory_ends_it(side):
    side.detach("sh", "-c", "dd if=/dev/zero of=/dev/null bs=200M count=1", flags=["--memory", "32m", "--memory-swap", "32m"])
    until("the end", lambda: side.status() == "exited")
    check(side.inspect(".State.ExitCode") != "0", "200 MB fitted into 32")
    side.remove()


@case()
def files_are_copied(side):
    side.detach("sleep", "1000")
    place = side.docker.dir / f"{side.name}.txt"
    place.write_text("there and back\n")
    side("cp", place, f"{side.name}:/tmp/file")
    check(side.exec("cat", "/tmp/file").stdout == "there and back\n", "in")
    side.exec("sh", "-c", "echo more >>/tmp/file")
    side("cp", f"{side.name}:/tmp/file", f"{place}.back")
    check(Path(f"{place}.back").read_text() == "there and back\nmore\n", "out")
    check("A /tmp/file" in side("diff", side.name).stdout, "diff")
    side("commit", side.name, f"{side.name}:1")
    done = side("run", "--rm", "--runtime", side.runtime, f"{side.name}:1", "cat", "/tmp/file")
    check(done.stdout.endswith("more\n"), done.stdout)
    side.remove()
    side("rmi", f"{side.name}:1")


@case()
def images_are_built(side):
    place = side.docker.dir / f"{side.name}.build"
    place.mkdir()
    (place / "Dockerfile").write_text(f"FROM {IMAGE}\nRUN echo built >/built && echo someone:x:9:9::/:/bin/sh >>/etc/passwd\nUSER someone\n"
                                      "CMD [\"sh\", \"-c\", \"cat /built; id -un\"]\n")
    side.docker.reload(side.runtime)
    try:
        side("build", "--tag", f"{side.name}:1", place)
        check(side("run", "--rm", f"{side.name}:1").stdout == "built\nsomeone\n", "what was built")
    finally:
        side.docker.reload("runc")
    side("rmi", f"{side.name}:1")


@case()
def ports_and_names_are_reached(side):
    network = f"{side.name}-net"
    side("network", "create", network)
    server = "mkdir -p /tmp/w; echo hello >/tmp/w/index.html; httpd -f -p 80 -h /tmp/w"
    side.detach("sh", "-c", server, flags=["--network", network, "--publish", "127.0.0.1::80"])
    port = side("port", side.name, "80").stdout.strip().rsplit(":", 1)[1]
    check(side.docker.answer_at(port) == "hello\n", "by the port")
    done = side.run("wget", "-q", "-O", "-", f"http://{side.name}/", flags=["--network", network])
    check(done.stdout == "hello\n", f"by the name: {done}")
    side.remove()
    side("network", "rm", network)


@case()
def it_restarts_when_it_fails(side):
    side.detach("sh", "-c", "echo again; exit 1", flags=["--restart", "on-failure:2"])
    until("three attempts", lambda: side("logs", side.name).stdout.count("again") == 3)
    side.until_status("exited")
    check(side.inspect(".RestartCount") == "2", side.inspect(".RestartCount"))
    side.remove()


@case()
def health_is_checked(side):
    side.detach("sh", "-c", "touch /tmp/well; sleep 1000", flags=["--health-cmd", "test -e /tmp/well", "--health-interval", "200ms"])
    until("health", lambda: side.inspect(".State.Health.Status") == "healthy")
    side.exec("rm", "/tmp/well")
    until("illness", lambda: side.inspect(".State.Health.Status") == "unhealthy")
    side.remove()


# runc needs to have all that it gives itself.
@case("dormouse")
def a_privileged_one_runs(side):
    done = side.run("sh", "-c", "id -u; grep CapEff /proc/self/status", flags=["--privileged"])
    check(done.stdout.startswith("0\n") and "CapEff:\t0000" in done.stdout, done.stdout)


@case("dormouse")
def what_cannot_be_shared_is_refused_in_words(side):
    for flag, words in (("--pid=host", "a kernel of their own"), ("--ipc=host", "its own kernel's")):
        said = side.run("true", flags=[flag], code=125).stderr
        check(words in said and "namespace" in said, said)


@case("dormouse")
def a_server_sleeps_and_is_woken_by_a_request(side):
    server = "mkdir -p /tmp/w; echo hello >/tmp/w/index.html; httpd -f -p 80 -h /tmp/w"
    side.detach("sh", "-c", server, flags=["--publish", "127.0.0.1::80"])
    port = side("port", side.name, "80").stdout.strip().rsplit(":", 1)[1]
    check(side.docker.answer_at(port) == "hello\n", "warm")
    for _ in range(3):
        side("kill", "--signal", "STOP", side.name)
        until("the sleep", lambda: Path(f"/proc/{side.pid()}/stat").read_text().rsplit(")")[1].split()[0] == "T")
        check(side.docker.answer_at(port) == "hello\n", "woken")
        until("the wake", lambda: Path(f"/proc/{side.pid()}/stat").read_text().rsplit(")")[1].split()[0] != "T")
    side("stop", "--time", "5", side.name)
    side.remove()


# More of them in soak tests.
IN_A_ROW = int(os.environ.get("DOCKER_IN_A_ROW", 10))
AT_ONCE = int(os.environ.get("DOCKER_AT_ONCE", 10))


@case()
def many_at_once_and_in_a_row(side):
    for _ in range(IN_A_ROW):
        check(side.run("echo", "x").stdout == "x\n", "in a row")
    failures = []

    def one():
        try:
            check(side.run("echo", "y").stdout == "y\n", "at once")
        except Failure as why:
            failures.append(str(why))
    threads = [threading.Thread(target=one) for _ in range(AT_ONCE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check(not failures, "; ".join(failures)[:600])


@case("dormouse")
def whoever_is_killed_leaves_nothing(side):
    """Of 40 starts, execs and stops some lose their VMM, shim or leash."""
    chance = random.Random(7)
    for number in range(40):
        name = f"{side.name}-{number}"
        begun = side("run", "--runtime", side.runtime, "--detach", "--name", name, IMAGE, "sleep", "1000", code=None)
        check(begun.returncode == 0, f"run {number}: {begun.stderr}")
        pid = int(side.inspect(".State.Pid", name))
        status = Path(f"/proc/{pid}/status").read_text()
        vmm = int(re.search(r"PPid:\s*(\d+)", status)[1])
        shim = next((pid for pid, line in command_lines() if "containerd-shim" in line[:200] and side.inspect(".Id", name) in line), 0)
        victim = chance.choice([pid, vmm, shim, 0])
        delay = chance.random() * 0.05

        def kill():
            time.sleep(delay)
            if victim:
                end_pid(victim)
        thread = threading.Thread(target=kill)
        thread.start()
        if number % 2:
            try:
                side("exec", name, "true", code=None, timeout=20 if victim == shim else 60)
            except Failure:
                # Docker waits for ever for an exec whose shim (containerd's own here) was killed before it told of its end.
                check(victim == shim, f"exec {number} waits, and its shim was not killed")
        else:
            side("stop", "--time", "1", name, code=None, timeout=60)
        thread.join()
        side("rm", "--force", name, timeout=60)
    until("an empty host", lambda: not side.docker.remains())


@case("dormouse")
def a_killed_daemon_finds_it_again(side):
    side.detach("sleep", "1000")
    pid = side.pid()
    side.docker.kill()
    check(Path(f"/proc/{pid}").exists(), "the container went with the daemon")
    side.docker.launch()
    # Without live-restore the daemon ends what it finds.
    until("an answer about it", lambda: side.status() in ("exited", "running"))
    side.remove()
    until("an empty host", lambda: not side.docker.remains())


__all__ = ["ALL", "Side", "os", "signal"]
