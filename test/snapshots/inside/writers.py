"""Programs under writes in a sandbox of `do`, and what is found out in clones of it. It is called with a program, `postgres` or `git`,
and a verb:

  begin      as the sandbox's first process: begins the program and a writer, and reaps
  examine    in a clone: stops the writer, looks at the program that goes on, and lets the writer go on as well
  recover    in a clone: kills the program, begins anew on its files, and looks at them

The last two print what they found as JSON: what was acknowledged, and what is there. To judge is up to the caller.
"""
import contextlib
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

# In a tmpfs, so it is memory of the sandbox's, as the writer's own count is.
NOTE = Path("/dev/shm/note")
PLACE = Path("/kept")
# So many further writes show that a clone goes on.
FURTHER = 5
PATIENCE_SECONDS = 30


def comes(what, holds):
    """Waits until something holds; result: what it gave."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not (got := holds()):
        if time.monotonic() > end:
            sys.exit(f"{what} did not come about in {PATIENCE_SECONDS} s")
        time.sleep(0.01)
    return got


def run(*command, code=0, **more):
    """A command's output. `code` is how it has to end; None: any will do, and the result has it."""
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)
    if code is None:
        return {"code": done.returncode, "said": done.stdout.strip()[-500:]}
    if done.returncode != code:
        sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}: {done.stdout.strip()[-500:]}")
    return done.stdout.strip()


def processes(name):
    """Ids of processes of a program, zombies included."""
    found = []
    for entry in Path("/proc").iterdir():
        # Others end meanwhile.
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and (entry / "comm").read_text().strip() == name:
                found.append(int(entry.name))
    return found


def kill_all(name):
    """Kills the processes of a program until its last one has been reaped."""
    def left():
        pids = processes(name)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return pids
    comes(f"the end of {name}", lambda: not left())


def all_stopped(group, *pids):
    """Whether some processes of a group are stopped or have ended; without ids: all of its processes."""
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and (not pids or int(entry.name) in pids):
                state, _, of, *_ = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(of) == group and state not in "TZ":
                    return False
    return True


def count(kept):
    """How many writes were acknowledged: they are listed, or counted."""
    return len(kept) if isinstance(kept, list) else kept


class Writer:
    """A program under writes. Whatever was acknowledged is noted, with whether the program's files agree with this memory."""

    def __init__(self):
        self.nonce = os.urandom(8).hex()
        self.kept = None
        self.device = open("/dev/sysgenid", "rb", buffering=0)
        self.generation = self.device.read(4)
        # The count at the first note in a clone: when the snapshot was made it was this, or one less.
        self.first = None

    def note(self, verdict="whole"):
        if (generation := self.device.read(4)) != self.generation:
            self.generation, self.first = generation, count(self.kept)
        new = NOTE.with_suffix(".new")
        new.write_text(json.dumps({"pid": os.getpid(), "nonce": self.nonce, "kept": self.kept, "first": self.first, "verdict": verdict}))
        new.rename(NOTE)

    def noted(self):
        return json.loads(NOTE.read_text())

    def begin(self):
        """The first process outlives the program: with its end a clone would end."""
        self.prepare()
        if os.fork() == 0:
            os.setpgid(0, 0)
            try:
                self.write()
            except BaseException as why:
                self.note(str(why) or repr(why))
                os._exit(9)
        while True:
            try:
                os.wait()
            except ChildProcessError:
                signal.pause()

    def stop(self):
        """Stops the writer and then its children: with a child that is stopped in vfork(2) the writer would not stop. Result: what it noted
        before."""
        writer = self.noted()["pid"]
        with contextlib.suppress(ProcessLookupError):
            os.kill(writer, signal.SIGSTOP)
            comes("the writer's stop", lambda: all_stopped(writer, writer))
            os.killpg(writer, signal.SIGSTOP)
            comes("its children's stop", lambda: all_stopped(writer))
        return self.noted()

    def examine(self):
        noted = self.stop()
        found = {"noted": noted, **self.look()}
        with contextlib.suppress(ProcessLookupError):
            os.killpg(noted["pid"], signal.SIGCONT)
        comes("further writes in the clone", lambda: self.has_gone_on(noted))
        return {**found, "later": self.noted()}

    def has_gone_on(self, before):
        now = self.noted()
        return count(now["kept"]) > count(before["kept"]) + FURTHER or now["verdict"] != "whole"

    def recover(self):
        noted = self.stop()
        self.kill()
        return {"noted": noted, "recovered": self.revive(), **self.look()}


class Postgres(Writer):
    """PostgreSQL to which a client adds rows, one a transaction. Its data directory is made in the sandbox."""

    DATA = PLACE / "data"
    LOG = PLACE / "log"
    # Small segments and few of them: PostgreSQL changes between them and has checkpoints of its own all the time.
    SETTINGS = ("listen_addresses=", f"unix_socket_directories={PLACE}", "shared_buffers=16MB", "fsync=on", "synchronous_commit=on",
                "min_wal_size=2MB", "max_wal_size=2MB", "checkpoint_timeout=30s", "autovacuum_naptime=1s")

    def __init__(self, programs):
        super().__init__()
        self.programs = Path(programs)
        self.psql = (self.programs / "psql", "-X", "-q", "-At", "-v", "ON_ERROR_STOP=1", "-h", PLACE, "-U", "postgres")

    def prepare(self):
        PLACE.mkdir()
        shutil.chown(PLACE, "postgres", "postgres")
        run(self.programs / "initdb", "-D", self.DATA, "-A", "trust", "-U", "postgres", "--no-sync", "--data-checksums", "--wal-segsize=1",
            **self.identity())
        self.serve()
        # Two thirds of the files are of databases that nobody uses.
        self.query("update pg_database set datistemplate = false", "drop database template0", "drop database template1",
                   "create table rows (number integer primary key, text text)")

    def identity(self):
        """It refuses to run as root."""
        user = pwd.getpwnam("postgres")
        return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": [], "env": {**os.environ, "LC_ALL": "C"}}

    def serve(self):
        settings = [word for setting in self.SETTINGS for word in ("-c", setting)]
        with self.LOG.open("w") as log:
            subprocess.Popen([str(self.programs / "postgres"), "-D", str(self.DATA), *settings], stdin=subprocess.DEVNULL, stdout=log,
                             stderr=log, **self.identity())
        comes("PostgreSQL", lambda: run(*self.psql, "-c", "select 1", code=None)["code"] == 0)

    def query(self, *texts):
        """The result of the last of some statements, which one session runs."""
        return run(*self.psql, *(word for text in texts for word in ("-c", text))).rpartition("\n")[2]

    def write(self):
        # In a group of its own: a statement that was begun ends though the writer is stopped, and keeps no locks.
        client = subprocess.Popen([str(word) for word in self.psql], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, process_group=0)

        def session(text):
            """The line that statements give, once all of them were acknowledged. At the first error psql ends."""
            client.stdin.write(text + "\n\\echo .\n")
            client.stdin.flush()
            lines = []
            while (line := client.stdout.readline()) != ".\n":
                if not line:
                    sys.exit("the session has ended")
                lines.append(line.strip())
            return "".join(lines)
        self.kept = 0
        while True:
            session(f"begin; insert into rows values ({self.kept + 1}, '{os.urandom(100).hex()}'); commit;")
            self.kept += 1
            self.note()
            found = session("select count(*), max(number) from rows;")
            if found != f"{self.kept}|{self.kept}":
                sys.exit(f"torn: {found} for {self.kept}")

    def look(self):
        """Rows by the table and by its index, and all that pg_amcheck looks at."""
        numbers = "select count(*), min(number), max(number) from rows where number > 0"
        table = self.query("set enable_indexscan = off", "set enable_indexonlyscan = off", "set enable_bitmapscan = off", numbers)
        index = self.query("set enable_seqscan = off", "set enable_bitmapscan = off", numbers)
        amcheck = self.programs / "pg_amcheck"
        checked = run(amcheck, "--install-missing", "--heapallindexed", "--parent-check", "-h", PLACE, "-U", "postgres", "postgres",
                      code=None) if amcheck.exists() else None
        return {"table": table, "index": index, "checked": checked}

    def kill(self):
        # The first one would begin the others anew.
        os.kill(int((self.DATA / "postmaster.pid").read_text().split()[0]), signal.SIGKILL)
        kill_all("postgres")

    def revive(self):
        self.serve()
        return "automatic recovery in progress" in self.LOG.read_text()


class Git(Writer):
    """A repository to which commits are added, one file changed in each."""

    REPOSITORY = PLACE / "repository"
    FILES = 30
    # With so many commits there is one `git gc`, so that packs are exchanged as well.
    GC_EVERY = 20

    def __init__(self):
        super().__init__()
        # Nothing that the host's git is told.
        os.environ |= {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
        os.environ |= {f"GIT_{who}_{what}": "writer" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}

    def git(self, *words, code=0):
        return run("git", "-C", self.REPOSITORY, *words, code=code)

    def prepare(self):
        run("git", "init", "-q", "-b", "main", self.REPOSITORY)
        self.git("config", "gc.auto", "0")
        self.git("config", "core.fsync", "all")

    def write(self):
        self.kept = []
        while True:
            number = len(self.kept)
            (self.REPOSITORY / f"file{number % self.FILES}").write_text(f"{number}\n" + os.urandom(2000).hex())
            self.git("add", "-A")
            self.git("commit", "-q", "-m", f"commit {number}")
            self.kept.append(self.git("rev-parse", "HEAD"))
            self.note()
            found = self.git("rev-list", "--max-count=2", "HEAD").split()
            if found != self.kept[:-3:-1]:
                sys.exit(f"torn: {found} after {self.kept[-2:]}")
            if len(self.kept) % self.GC_EVERY == 0:
                self.git("gc", "-q", "--prune=now")

    def look(self):
        return {"checked": self.git("fsck", "--full", "--strict", code=None), "there": self.git("rev-list", "--reverse", "main").split()}

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.noted()["pid"], signal.SIGKILL)
        kill_all("git")

    def revive(self):
        """Locks of a killed git are removed, as it says itself, and it goes on. Result: what was found before."""
        for lock in (self.REPOSITORY / ".git").rglob("*.lock"):
            lock.unlink()
        before = self.look()
        (self.REPOSITORY / "further").write_text("further\n")
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "further")
        self.git("reset", "-q", "--hard", "HEAD^")
        return before


def main(program, verb, *arguments):
    writer = {"postgres": Postgres, "git": Git}[program](*arguments)
    if found := getattr(writer, verb)():
        print(json.dumps(found))


main(*sys.argv[1:])
