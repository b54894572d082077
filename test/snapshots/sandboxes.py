"""Snapshots of sandboxes of `do`: their files belong to memory's moment, and clones begin with both."""
import json
import os
import random
import select
import shutil
import subprocess
import time

from commands import check_nothing_left, layers
from lib.outcome import check
from lib.tree import DORMOUSE
from lib.waiting import until
from refusals import small_disk
from world import ANSWER_SECONDS, PYTHON, Container

# Changes files in all ways that a layer knows, holds some open, says so, and answers lines with a count and what the open ones have.
SHELL = """
echo mine >/kept/file; rm /kept/gone; rm -r /kept/away; mkdir /kept/away; echo new >/kept/away/new
mv /kept/moved /kept/here; ln /kept/file /kept/twice; ln -s file /kept/link; mkfifo /kept/pipe
echo deleted >/kept/deleted; exec 3</kept/deleted; rm /kept/deleted
echo open >/kept/open; exec 4</kept/open
chmod 4751 /kept/file; chown 7:8 /kept/open
n=0; echo ready
while read word; do n=$((n + 1)); echo $n $word; [ $word != files ] || { cat <&3; cat <&4; }; [ $word != quit ] || exit 6; done
"""
LINKER = """
echo content >/kept/first; ln /kept/first /kept/second; rm /kept/first; exec 3</kept/second
echo ready; read word; cat <&3; read word
"""
LOOK = ("cat /kept/file /kept/twice /kept/link; ls /kept /kept/away /kept/here; cat /kept/here/within;"
        " stat -c '%a %u:%g %h' /kept/file /kept/open; [ /kept/file -ef /kept/twice ] && echo same")
SEEN = """mine
mine
mine
/kept:
away
file
here
link
open
pipe
twice

/kept/away:
new

/kept/here:
within
stays
4751 0:0 2
644 7:8 1
same
"""
# Counts rows of a database, and finds out at each step whether its memory and its file are of one moment.
COUNTER = """
import os, sqlite3, sys
base = sqlite3.connect("/kept/base", isolation_level=None)
base.execute("pragma journal_mode = " + sys.argv[1])
base.execute("create table rows (number)")
count, nonce = 0, os.urandom(8).hex()
while True:
    with base:
        base.execute("begin")
        base.execute("insert into rows values (?)", (count,))
        base.execute("commit")
    count += 1
    found = base.execute("select count(*), max(number) from rows").fetchone()
    verdict = "whole" if found == (count, count - 1) else f"torn: {found} for {count}"
    with open("/kept/.now", "w") as file:
        file.write(f"{nonce} {count} {verdict}\\n")
    os.rename("/kept/.now", "/kept/now")
    if verdict != "whole":
        sys.exit(9)
"""
CHECKER = ("import sqlite3; base = sqlite3.connect('/kept/base', timeout=30);"
           "print(base.execute('pragma integrity_check').fetchone()[0], base.execute('select count(*) from rows').fetchone()[0])")


class Sandbox(Container):
    """A sandbox of `do` with a root of its own, or the host's, whose streams are pipes."""

    def __init__(self, world, command, *options, root=True):
        super().__init__(world, command)
        self.options, self.process, self.root = options, None, world.directory / f"root{len(world.containers)}" if root else None
        if root:
            self.make_root()

    def make_root(self):
        for name in ("bin", "proc", "sys", "dev", "tmp", "kept/away", "kept/moved"):
            (self.root / name).mkdir(parents=True)
        shutil.copy("/bin/busybox", self.root / "bin")
        for name in ("sh", "cat", "ls", "sleep", "stat", "rm", "mv", "ln", "mkdir", "mkfifo", "chmod", "chown", "sed", "wc"):
            (self.root / "bin" / name).symlink_to("busybox")
        (self.root / "kept/file").write_text("the host's\n")
        (self.root / "kept/gone").write_text("gone\n")
        (self.root / "kept/away/old").write_text("old\n")
        (self.root / "kept/moved/within").write_text("stays\n")

    def spawn(self, *words):
        command = [str(word) for word in (DORMOUSE, "do", "--id", self.id, "--swap-dir", self.world.swap, *words)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env={**os.environ, **self.world.environment})
        return self

    def begin(self):
        roots = ("--rootfs", self.root) if self.root else ()
        return self.spawn("--platform", self.world.platform, *roots, *self.options, "--", *self.command)

    def line(self, word=None):
        if word:
            self.process.stdin.write(word + "\n")
            self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def inside(self, *command, code=0):
        return self.world.dormouse("exec", self.id, *command, code=code).stdout

    def checkpoint(self, name=None, leave=False, more=()):
        """Result: the snapshot's name, and the figures."""
        name = name or f"{self.id}.{len(self.images)}"
        said = self.world.dormouse("checkpoint", "--json", "--name", name, *(["--leave-running"] if leave else []), *more, self.id).stdout
        self.images.append(name)
        return name, json.loads(said)

    def close(self):
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process.stdin.close()
            self.process.stdout.close()


def clone(world, name, *command, **more):
    return world.dormouse("do", "--from", name, "--swap-dir", world.swap, "--", *command, **more)


def shell(world):
    """A sandbox whose shell has changed files; it answers."""
    sandbox = world.add(Sandbox(world, ("/bin/sh", "-c", SHELL))).begin()
    check(sandbox.line() == "ready", "it does not begin")
    return sandbox


def files(world):
    """Files are those of the moment, each clone's are its own, and clones of clones have them as well."""
    before = layers()
    sandbox = shell(world)
    check(sandbox.inside("/bin/sh", "-c", LOOK) == SEEN, "it has other files than it is told to make")
    name, _ = sandbox.checkpoint(leave=True)
    sandbox.inside("/bin/sh", "-c", "echo later >/kept/file; rm /kept/open; echo later >/kept/later")
    check(sandbox.line("one") == "1 one", "the one that was left running does not go on")
    for _ in range(world.rounds):
        found = clone(world, name, "/bin/sh", "-c", LOOK + "; echo the clone\\'s >/kept/file; rm -r /kept/here").stdout
        check(found == SEEN, f"a clone sees {found!r}")
    check(sandbox.inside("/bin/cat", "/kept/file") == "later\n", "a clone has written to the sandbox")
    for generation in range(3):
        again = world.add(Sandbox(world, ())).spawn("--from", name)
        check(again.line("two") == f"{generation + 1} two", "a clone's first process has begun anew")
        check(again.inside("/bin/sh", "-c", LOOK) == SEEN, "a clone of a clone sees other files")
        again.inside("/bin/sh", "-c", f"echo {generation} >/tmp/generation{generation}")
        name, _ = again.checkpoint()
        check(again.process.wait(20) == 137, "it has not ended with its snapshot")
        world.dormouse("snapshot", "verify", name)
        found = clone(world, name, "/bin/sh", "-c", "cat /tmp/generation*").stdout
        check(found == "".join(f"{one}\n" for one in range(generation + 1)), f"clones of generation {generation} see {found!r}")
        clone(world, name, "/bin/sh", "-c", "rm /kept/away/new; mv /kept/here /kept/there; [ ! -e /kept/here ]")
    last = world.add(Sandbox(world, ())).spawn("--from", name)
    check([last.line("files"), last.line(), last.line()] == ["4 files", "deleted", "open"], "open files are others")
    check(last.line("quit") == "5 quit" and last.process.wait(20) == 6, "its status is another")
    check((sandbox.root / "kept/file").read_text() == "the host's\n" and (sandbox.root / "kept/gone").exists(), "the host's files have changed")
    sandbox.close()
    check_nothing_left(world, before)


def of_the_host(world):
    """A sandbox with the host's files and memory in Python; without a network, on which its clones depend not."""
    program = ("import sys; d = {i: str(i) * 10 for i in range(50000)}; open('/tmp/made', 'w').write('x');"
               "print('ready', flush=True); sys.stdin.read()")
    sandbox = world.add(Sandbox(world, (PYTHON, "-c", program), "--net", "none", "--env", "WHO=first", root=False)).begin()
    check(sandbox.line() == "ready", "it does not begin")
    name, _ = sandbox.checkpoint()
    check(sandbox.process.wait(20) == 137, "it has not ended with its snapshot")
    check(clone(world, name, "/bin/sh", "-c", "echo $WHO; cat /tmp/made; ls /sys/class/net").stdout == "first\nxlo\n", "a clone has other files")
    done = world.dormouse("do", "--from", name, "--env", "WHO=b", "--cwd", "/usr", "--", "/bin/sh", "-c", "echo $WHO; pwd; cat; exit 3",
                          stdin="in\n", code=3)
    check(done.stdout == "b\n/usr\nin\n", f"a command says {done.stdout!r}")
    layer = (world.snapshots / name / "layer").stat()
    check((layer.st_mode & 0o7777, layer.st_uid) == (0o700, os.getuid()), "others may look into its layer")
    check(world.dormouse("do", "--", "/bin/ls", "-A", world.snapshots).stdout == "", "a sandbox sees snapshots")
    check(world.dormouse("do", "--from", name, stdin="").returncode == 0, "the first process does not end with its input")


def one_moment(mode):
    """A database under writes: memory and files are of one moment, however often and whenever."""
    def case(world):
        sandbox = world.add(Sandbox(world, ("/bin/sh", "-c", f"mkdir /kept; exec {PYTHON} -c '{COUNTER}' {mode}"), root=False)).begin()

        def now(look):
            words = look("/bin/cat", "/kept/now").split(None, 2)
            return words[0], int(words[1]), words[2].strip()
        until("its first row", lambda: world.dormouse("exec", sandbox.id, "/bin/cat", "/kept/now", code=None).returncode == 0, 30)
        rng, counts = random.Random(os.getpid()), []
        for number in range(2 * world.rounds):
            time.sleep(rng.uniform(0, 0.2))
            nonce, before, verdict = now(sandbox.inside)
            check(verdict == "whole", f"the one that goes on is {verdict}")
            name, _ = sandbox.checkpoint(f"{sandbox.id}-{number}", leave=True)
            _, after, _ = now(sandbox.inside)
            copy = world.add(Sandbox(world, ())).spawn("--from", name)
            until("the clone", lambda: world.dormouse("exec", copy.id, "/bin/true", code=None).returncode == 0, ANSWER_SECONDS)
            same, first, _ = now(copy.inside)
            until("rows in the clone", lambda: now(copy.inside)[1] > first + 5 or copy.process.poll() is not None, ANSWER_SECONDS)
            check(copy.process.poll() is None, "the clone has found its file torn")
            check(same == nonce and now(copy.inside)[2] == "whole", "the clone is another program")
            check(before <= first, f"{before} rows were acknowledged before, and the clone began with at most {first}")
            copy.close()
            until("the clone's end", lambda: copy.id not in world.ids(), ANSWER_SECONDS)
            # Beside the program, which goes on, a reader sees a whole database.
            integrity, rows = clone(world, name, PYTHON, "-c", CHECKER).stdout.split()
            check(integrity == "ok" and int(rows) >= before, f"a clone's database is {integrity} with {rows} rows of {before}")
            counts.append(after - before)
        world.notes.append(f"{max(counts)} rows beside a checkpoint at most")
    return case


def on_a_terminal(world):
    """A shell on a terminal: it goes on with another one, and commands run beside it without."""
    sandbox = world.add(Sandbox(world, ("/bin/sh",)))
    with Line(world, "do", "--id", sandbox.id, "--tty", "--rootfs", sandbox.root, "--", "/bin/sh") as line:
        line.expect("x=5; echo one$((x + 1))", "one6")
        name, _ = sandbox.checkpoint(leave=True)
        line.expect("echo two$((x + 2))", "two7")
        for _ in range(world.rounds):
            said = clone(world, name, "/bin/sh", "-c", "echo mine >/kept/file; sleep 0.3; cat /proc/1/comm /kept/file").stdout
            check(said == "sh\nmine\n", f"beside the shell a command says {said!r}")
        world.refused("do", "--from", name, says=("terminal",))
        with Line(world, "do", "--from", name) as other:
            other.expect("echo three$((x + 3)); cat /kept/file", "three8\r\nthe host's")
        line.expect("echo four$((x + 4))", "four9")


class Line:
    """A command on a terminal of its own."""

    def __init__(self, world, *words):
        self.master, slave = os.openpty()
        self.command = subprocess.Popen([str(word) for word in (DORMOUSE, *words)], stdin=slave, stdout=slave, stderr=slave,
                                        start_new_session=True, env={**os.environ, **world.environment})
        os.close(slave)
        self.heard = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.command.kill()
        self.command.wait()
        os.close(self.master)

    def expect(self, line, answer):
        os.write(self.master, line.encode() + b"\n")
        end = time.monotonic() + ANSWER_SECONDS
        while answer.encode() not in self.heard:
            check(time.monotonic() < end, f"to {line!r} it says {self.heard[-300:]!r}")
            if select.select([self.master], [], [], 0.2)[0]:
                self.heard += os.read(self.master, 4096)


def linked(world):
    """A file that is open by its only name, the one by which it was made having gone: git and others make their files so."""
    before = layers()
    sandbox = world.add(Sandbox(world, ("/bin/sh", "-c", LINKER))).begin()
    check(sandbox.line() == "ready", "it does not begin")
    name, _ = sandbox.checkpoint(leave=True)
    check(sandbox.line("word") == "content", "the one that was left running reads something else")
    again = world.add(Sandbox(world, ())).spawn("--from", name)
    check(again.line("word") == "content", "a clone reads something else")
    check(again.inside("/bin/sh", "-c", "cd /kept; ls; stat -c %h second") == "away\nfile\ngone\nmoved\nsecond\n1\n", "the names are others")
    for one in (again, sandbox):
        one.close()
    check_nothing_left(world, before)


def removed(world):
    """A snapshot that is removed while a clone sees files through it goes when the clone has ended."""
    sandbox = shell(world)
    name, _ = sandbox.checkpoint()
    other = world.add(Sandbox(world, ())).spawn("--from", name)
    check(other.line("one") == "1 one", "the clone does not go on")
    world.dormouse("snapshot", "remove", name)
    check(name not in world.names(), "it is listed")
    check(other.inside("/bin/sh", "-c", LOOK) == SEEN, "its files have gone under the clone")
    world.refused("checkpoint", "--leave-running", other.id, says=("removed",))
    world.refused("do", "--from", name, "--", "/bin/ls", says=("there is none",))
    check(other.line("two") == "2 two", "the clone does not go on after a refusal")
    check(other.line("quit") == "3 quit" and other.process.wait(20) == 6, "the clone's status is another")
    until("its files to go", lambda: not world.left_overs(), ANSWER_SECONDS)


def refused(world):
    before = layers()
    sandbox = shell(world)
    name, _ = sandbox.checkpoint(leave=True)
    world.refused("restore", "--snapshot", name, "--bundle", sandbox.root, "elsewhere", says=("do --from",))
    world.refused("do", "--from", name, "--env", "A=b", says=("--env",))
    layer = world.snapshots / name / "layer/0/kept/away/new"
    text = layer.read_text()
    layer.write_text("now\n")
    world.refused("snapshot", "verify", name, says=(name, "layer"))
    layer.write_text(text)
    (sandbox.root / "kept").rename(sandbox.root / "other")
    done = world.dormouse("do", "--from", name, "--", "/bin/ls", "/other", code=0)
    check("moved" in done.stdout.split(), f"the host's files are {done.stdout!r}")
    (sandbox.root / "other").rename(sandbox.root / "kept")
    sandbox.root.rename(world.directory / "elsewhere")
    world.refused("do", "--from", name, "--", "/bin/ls", says=(str(sandbox.root),))
    (world.directory / "elsewhere").rename(sandbox.root)
    # A file that it has open is another.
    (world.snapshots / name / "layer/0/kept/open").write_text("changed\n")
    world.refused("do", "--from", name, "--", "/bin/ls", says=("/kept/open", "changed"))
    done = world.dormouse("do", "--from", name, "--changed-files", "accept", "--", "/bin/cat", "/kept/open")
    check(done.stdout == "changed\n", f"the changed file is {done.stdout!r}")
    check(sandbox.line("one") == "1 one", "the sandbox does not go on")
    sandbox.close()
    check_nothing_left(world, before)


def disk_full(world):
    """A disk that is full with the files: the sandbox goes on, and nothing is left."""
    sandbox = shell(world)
    sandbox.inside("/bin/sh", "-c", "for i in 1 2 3 4 5 6 7 8; do cat /bin/busybox >/kept/big$i; done")
    for leave in ((), ("--leave-running",)):
        with small_disk(world, "6m") as place:
            world.refused("checkpoint", "--image-path", place / "one", *leave, sandbox.id, says=("No space left",))
            check(not list(place.iterdir()), f"it has left {list(place.iterdir())}")
        check(sandbox.line("word").endswith(" word"), "the sandbox does not go on")
        check(sandbox.inside("/bin/cat", "/kept/file") == "mine\n", "its files are others")
    name, _ = sandbox.checkpoint(leave=True)
    size = clone(world, name, "/bin/sh", "-c", "cat /kept/big8 | wc -c").stdout.strip()
    check(size == str(os.path.getsize("/bin/busybox")), f"a big file has {size} bytes")


def killed(world):
    """A checkpoint whose command is killed, at whatever moment: the sandbox goes on, and a snapshot is whole or not there."""
    sandbox = shell(world)
    sandbox.inside("/bin/sh", "-c", "for i in 1 2 3 4 5 6 7 8; do cat /bin/busybox >/kept/big$i; done")
    rng, whole = random.Random(os.getpid()), 0
    for number in range(8):
        command = subprocess.Popen([str(word) for word in (DORMOUSE, "checkpoint", "--leave-running", "--name", f"k{number}", sandbox.id)],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, **world.environment})
        time.sleep(rng.uniform(0, 0.15))
        command.kill()
        command.wait()
        check(sandbox.line("word") == f"{number + 1} word", "the sandbox does not go on")
        if f"k{number}" in world.names():
            whole += 1
            world.dormouse("snapshot", "verify", f"k{number}")
    until("a whole one", lambda: world.dormouse("checkpoint", "--leave-running", "--name", "last", sandbox.id, code=None).returncode == 0, 30)
    check(clone(world, "last", "/bin/sh", "-c", LOOK.replace("ls /kept ", "ls /kept/away >/dev/null; ls ")).returncode == 0, "the last one is none")
    world.notes.append(f"{whole} of 8 were made")


CASES = [
    ("sandbox-files", files, ("busybox",)),
    ("sandbox-of-the-host", of_the_host, ()),
    ("sandbox-sqlite-wal", one_moment("wal"), ()),
    ("sandbox-sqlite-delete", one_moment("delete"), ()),
    ("sandbox-on-a-terminal", on_a_terminal, ("busybox",)),
    ("sandbox-linked", linked, ("busybox",)),
    ("sandbox-removed", removed, ("busybox",)),
    ("sandbox-refused", refused, ("busybox",)),
    ("sandbox-disk-full", disk_full, ("busybox",)),
    ("sandbox-killed", killed, ("busybox",)),
]
