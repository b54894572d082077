"""Real programs, and such that hold what the kernel has: each goes on in a restored container, and in clones of clones."""
import os
import pwd
import shutil
import socket
import subprocess
from pathlib import Path

from lib.command import finish
from lib.outcome import Failure, Skip, check
from lib.tree import SEARCH, TOP
from lib.waiting import until
from world import ANSWER_SECONDS, HERE, PYTHON, Held, fetch

SERVERS = HERE / "inside/servers"


def go_on(world, container, look, walks=True):
    """A container that is asked, written while it runs, and then written, ended and restored again and again. All memory of its
    processes is read after each restore."""
    container.begin()
    look()
    container.checkpoint(leave=True)
    look()
    for _ in range(world.rounds):
        container.cycle()
        look()
        if walks:
            container.walk()


def held(topic, verb="step", last=None):
    """A case of a topic of `inside`, which looks at what it holds at each step. `last` is what it has to do in the end."""
    def case(world):
        container = world.add(Held(world, topic))
        kept = []

        def look():
            kept.append(container.call(verb))
            if topic in ("Waiters", "Forks", "SystemV", "States", "Listeners"):
                check(kept[-1] == kept[0], f"numbers of threads or objects were {kept[0]}, and are {kept[-1]}")
        go_on(world, container, look)
        if last:
            container.call(last)
    return case


class Counted:
    """A server that answers with a nonce and how often it was asked."""

    def __init__(self, container, path="/"):
        self.container, self.path, self.nonce, self.asked = container, path, None, 0

    def __call__(self):
        try:
            nonce, asked = fetch(self.container.port, self.path, patience=3 * ANSWER_SECONDS).split()
        except Failure as why:
            raise Failure(f"{why}; it says {self.container.said()[-200:]!r}") from None
        self.asked += 1
        self.nonce = self.nonce or nonce
        check(nonce == self.nonce, "the server has begun anew")
        check(int(asked) == self.asked, f"it was asked {asked} times, not {self.asked}")


def counted(*command, files=(), build=None, memory=1 << 30, module=None):
    """A case of a server that says how often it was asked. `module` is one of Python's that it needs."""
    def case(world):
        if module and finish(PYTHON, "-c", f"import {module}", code=None).returncode != 0:
            raise Skip(f"{PYTHON} has no {module} here")
        container = world.container(*command, memory=memory)
        for file in files:
            shutil.copy(SERVERS / file, container.srv)
        if build:
            build(container.srv)
        go_on(world, container, Counted(container))
    return case


def http_server(world):
    """Its files are in the sandbox's memory: one that begins anew has none."""
    container = world.container(PYTHON, "-m", "http.server", "{port}", "--bind", "127.0.0.1", "--directory", "/tmp")
    number = 0

    def look():
        nonlocal number
        if number == 0:
            fetch(container.port)
        number += 1
        world.dormouse("exec", container.id, "/bin/sh", "-c", f"echo text {number} >/tmp/file{number}")
        for before in range(1, number + 1):
            check(fetch(container.port, f"/file{before}") == f"text {before}\n", "another text")
    go_on(world, container, look)


def build_tokio(srv):
    built = [TOP / "target" / kind / "examples/counted" for kind in ("release", "debug")]
    there = [program for program in built if program.exists()]
    if not there:
        raise Skip(f"{built[0]} is not there; run `cargo build --release -p faas --example counted`")
    shutil.copy(max(there, key=lambda program: program.stat().st_mtime), srv)


def build_go(srv):
    finish("go", "build", "-o", srv / "server", SERVERS / "server.go", patience=120,
           environment={"CGO_ENABLED": "0", "GOFLAGS": "-mod=mod", "GO111MODULE": "off", "HOME": os.environ.get("HOME", "/root")})


def build_java(srv):
    finish("javac", "-d", srv, SERVERS / "Server.java", patience=60)


def resp(port, *words):
    """A command to redis, and the answer's first line."""
    with socket.create_connection(("127.0.0.1", port), ANSWER_SECONDS) as client:
        client.sendall((" ".join(words) + "\r\n").encode())
        lines = client.makefile("rb")
        first = lines.readline().decode().strip()
        return lines.read(int(first[1:])).decode() if first.startswith("$") and first != "$-1" else first


def redis(world):
    container = world.container("redis-server", "--port", "{port}", "--bind", "127.0.0.1", "--save", "", "--dir", "/tmp")
    run_ids, count = set(), 0

    def look():
        nonlocal count
        if not run_ids:
            until("redis", lambda: answers(container.port), 20)
            resp(container.port, "SET", "kept", "v" * 10000)
            resp(container.port, "SET", "ending", "x", "EX", "1000")
        count += 1
        check(resp(container.port, "INCR", "count") == f":{count}", "another count")
        check(resp(container.port, "GET", "kept") == "v" * 10000, "another value")
        check(900 < int(resp(container.port, "TTL", "ending")[1:]) <= 1000, "another time to live")
        run_ids.add(next(line for line in resp(container.port, "INFO", "server").splitlines() if line.startswith("run_id")))
        check(len(run_ids) == 1, "redis has begun anew")
    go_on(world, container, look)


def answers(port):
    try:
        return resp(port, "PING") == "+PONG"
    except OSError:
        return False


NGINX = """daemon off;
user root;
worker_processes 2;
pid /tmp/nginx.pid;
error_log stderr;
events {{ worker_connections 64; }}
http {{
    access_log off;
    {temporary}
    server {{ listen 127.0.0.1:{port}; location /pid {{ return 200 "$pid"; }}
        location /count {{ stub_status; }} location / {{ root /srv/files; }} }}
}}
"""


def nginx(world):
    container = world.container("/usr/sbin/nginx", "-c", "/srv/nginx.conf")
    temporary = " ".join(f"{kind}_temp_path /tmp/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    (container.srv / "nginx.conf").write_text(NGINX.format(port=container.port, temporary=temporary))
    (container.srv / "files").mkdir()
    (container.srv / "files/text").write_text("a file's text")
    workers, asked = set(), 0

    def look():
        nonlocal asked
        # The workers count requests in memory that they share.
        count = int(fetch(container.port, "/count").split()[9])
        check(count > asked, f"nginx has begun anew: it counts {count} requests, and had {asked}")
        asked = count
        for _ in range(20):
            workers.add(fetch(container.port, "/pid"))
        check(fetch(container.port, "/text") == "a file's text", "another text")
        check(len(workers) <= 2, f"nginx has workers of other ids: {workers}")
    go_on(world, container, look)


def postgres_here():
    """The directory of PostgreSQL's programs, and its user."""
    try:
        return Path(os.path.realpath(shutil.which("initdb", path=SEARCH))).parent, pwd.getpwnam("postgres")
    except KeyError:
        raise Skip("there is no user postgres here") from None


def postgres(world):
    programs, user = postgres_here()
    container = world.container(programs / "postgres", "-D", "/srv/data", "-p", "{port}", "-c", "listen_addresses=127.0.0.1",
                                "-c", "unix_socket_directories=/tmp", "-c", "shared_buffers=16MB", user=user.pw_uid)
    data = container.srv / "data"
    data.mkdir(mode=0o700)
    os.chown(data, user.pw_uid, user.pw_gid)
    finish("setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", programs / "initdb", "-D", data, "-A", "trust",
           "--no-sync", "-U", "postgres", environment={"LC_ALL": "C"})
    started, count = set(), 0

    def query(text, code=0):
        return finish(programs / "psql", "-X", "-h", "127.0.0.1", "-p", container.port, "-U", "postgres", "-Atc", text, code=code)

    def look():
        nonlocal count
        if not started:
            until("PostgreSQL", lambda: query("select 1", code=None).returncode == 0, 30, 0.1)
            query("create table rows (number integer primary key, text text)")
        count += 1
        query(f"insert into rows values ({count}, repeat('x', 3000))")
        rows, begun = query("select count(*), pg_postmaster_start_time() from rows").stdout.strip().split("|")
        started.add(begun)
        check(int(rows) == count, f"{rows} rows instead of {count}")
        check(len(started) == 1, "PostgreSQL has begun anew")
    go_on(world, container, look)


def shell(world):
    container = world.container("/bin/sh", "/srv/shell.sh")
    shutil.copy(SERVERS / "shell.sh", container.srv)
    srv, signals = container.srv, 0

    def read(name):
        file = srv / name
        return file.read_text().split() if file.exists() else []

    def look():
        nonlocal signals
        seen = len(read("numbers"))
        until("a further number from the pipe", lambda: len(read("numbers")) > seen + 5, ANSWER_SECONDS)
        numbers = [int(line) for line in (srv / "numbers").read_text().splitlines()[:-1]]
        check(numbers == list(range(len(numbers))), "the pipe has lost or doubled numbers")
        (srv / "alive").unlink(missing_ok=True)
        until("word that the jobs run", lambda: read("alive"), ANSWER_SECONDS)
        check(len(read("starts")) == 1 and set(read("alive")) == set(read("starts")), "the shell has begun anew")
        world.dormouse("kill", container.id, "USR1")
        signals += 1
        until("the trap", lambda: len(read("signals")) == signals, ANSWER_SECONDS)
    go_on(world, container, look)


def executed(world):
    """A program that came by `exec` goes on; its streams are hung up."""
    from lib.tree import DORMOUSE
    container = world.add(Held(world, "Plain")).begin()
    container.call("step")
    script = ("i=0; (while :; do i=$((i + 1)); echo $i >/srv/count; sleep 0.02; done) & "
              "while read -r line; do echo $line >>/srv/lines; done; echo ended >/srv/ended; wait")
    command = subprocess.Popen([str(DORMOUSE), "exec", container.id, "/bin/bash", "-c", script], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **world.environment})
    try:
        command.stdin.write(b"one\n")
        command.stdin.flush()
        lines, count, ended = (container.srv / name for name in ("lines", "count", "ended"))
        until("a line", lambda: lines.exists() and lines.read_text() == "one\n", ANSWER_SECONDS)
        container.checkpoint(leave=True)
        command.stdin.write(b"two\n")
        command.stdin.flush()
        until("a line after a checkpoint", lambda: lines.read_text() == "one\ntwo\n", ANSWER_SECONDS)
        check(not ended.exists(), "a checkpoint ended the streams of a container that goes on")
        for turn in range(world.rounds):
            container.cycle()
            if turn == 0:
                check(command.wait(10) != 0, "exec ended with 0 though its program did not end")
                until("the end of its streams", ended.exists, ANSWER_SECONDS)
            before = int(count.read_text() or 0)
            until("a higher count", lambda: int(count.read_text() or 0) > before, ANSWER_SECONDS)
            container.call("step")
    finally:
        command.kill()
        command.communicate()


def left_running(world):
    """What is written while the pages of a snapshot are is not in it, and nothing is lost where it goes on. Close to the limit."""
    container = world.add(Held(world, "Moving", memory=96 << 20)).begin()
    container.call("step", patience=60)
    for _ in range(world.rounds):
        asked, images = container.asked, []
        for _ in range(3):
            images.append(container.checkpoint(leave=True)[0])
        container.call("step", patience=60)
        # One is stored right after it was written.
        world.dormouse("hibernate", container.id)
        container.call("step", patience=60)
        for name in images:
            container.delete(force=True)
            container.restore(name)
            container.asked = asked
            container.call("step", patience=60)
            world.dormouse("snapshot", "remove", name)


def heap(world):
    """1 GB, all of which is looked at in each clone. That takes seconds, so few rounds are one."""
    container = world.add(Held(world, "Heap", memory=1280 << 20)).begin()
    container.call("step", patience=60)
    name, _ = container.checkpoint()
    asked = container.asked
    for _ in range(world.rounds if world.rounds > 3 else 1):
        container.delete(force=True)
        container.restore(name)
        container.asked = asked
        container.call("step", patience=60)


def patched(world):
    """Calls patched in a process's memory, before and after restores. Who reads that from outside undoes it."""
    container = world.add(Held(world, "Patched"))
    is_patched = []
    go_on(world, container, lambda: is_patched.append(container.call("step")), walks=False)
    if not is_patched[0]:
        raise Skip("calls are not patched on this platform")


# Name, what it does, and programs of the host it needs.
CASES = [
    ("http.server", http_server, ()),
    ("asyncio", counted(PYTHON, "/srv/asynchronous.py", "{port}", files=["asynchronous.py"]), ()),
    ("uvicorn", counted(PYTHON, "-m", "uvicorn", "--app-dir", "/srv", "--host", "127.0.0.1", "--port", "{port}", "--lifespan", "off",
                        "application:application", files=["application.py"], module="uvicorn"), ()),
    ("tokio", counted("/srv/counted", "{port}", build=build_tokio), ()),
    ("node", counted("node", "/srv/server.js", "{port}", files=["server.js"]), ("node",)),
    ("java-serial", counted("java", "-XX:+UseSerialGC", "-Xmx32m", "-cp", "/srv", "Server", "{port}", build=build_java), ("java", "javac")),
    ("java-g1", counted("java", "-XX:+UseG1GC", "-Xmx32m", "-cp", "/srv", "Server", "{port}", build=build_java), ("java", "javac")),
    ("go", counted("/srv/server", "{port}", build=build_go), ("go",)),
    ("redis", redis, ("redis-server",)),
    ("nginx", nginx, ("nginx",)),
    ("postgres", postgres, ("initdb", "setpriv")),
    ("shell", shell, ()),
    ("exec", executed, ()),
    ("memory", held("Memory"), ()),
    ("heap", heap, ()),
    ("patched-calls", patched, ()),
    ("left-running", left_running, ()),
    ("waiters", held("Waiters"), ()),
    ("forks", held("Forks", last="last"), ()),
    ("states-of-processes", held("States", last="reap"), ()),
    ("descriptors", held("Descriptors", last="rest"), ()),
    ("listeners", held("Listeners", last="listen"), ()),
    ("mappings", held("Mappings"), ()),
    ("system-v", held("SystemV"), ()),
    ("posix-queues", held("PosixQueues"), ()),
    ("memfd", held("Memfd"), ()),
    ("pipes", held("Pipes"), ()),
    ("unix", held("Unix"), ()),
    ("udp", held("Udp"), ()),
    ("sqlite", held("Sqlite"), ()),
    ("open-files", held("Open"), ()),
    ("deleted-directory", held("Directory"), ()),
    ("deleted-directory-of-volume", held("DirectoryOfVolume"), ()),
    ("mapped-files", held("Mapped"), ()),
]
