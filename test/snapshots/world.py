"""Containers of a run, their snapshots, and what is left of either."""
import contextlib
import fnmatch
import json
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

from lib.command import finish
from lib.network import free_port
from lib.outcome import Failure, check
from lib.tree import DORMOUSE
from lib.waiting import comes

HERE = Path(__file__).resolve().parent
PYTHON = "/usr/bin/python3"
FILES = ("manifest.json", "kernel.img", "pages.table", "pages.img")
ANSWER_SECONDS = 10
CGROUPS = Path("/sys/fs/cgroup")


class World:
    """A case's directory, with containers, snapshots and stored memory of its own."""

    # Containers that began with a snapshot, of all cases.
    restored = 0

    def __init__(self, directory, options):
        self.directory, self.platform, self.rounds, self.cycles = directory, options.platform, options.rounds, options.cycles
        # Commands that `dormouse` is begun by.
        self.by = ()
        # With whom pages of snapshots are shared, if nobody says.
        self.share = options.share
        self.tag = f"snap{os.getpid()}"
        self.state, self.snapshots, self.swap = directory / "state", directory / "snapshots", directory / "swap"
        self.environment = {"DORMOUSE_ROOT": str(self.state), "DORMOUSE_SNAPSHOTS": str(self.snapshots)}
        for made in (self.state, self.snapshots, self.swap):
            made.mkdir(mode=0o700)
        self.containers = []
        self.notes = []

    def shared(self, words):
        """The words of a command, with whom it shares the pages of the snapshot that it begins with."""
        begins = words[0] == "restore" or (words[0] == "do" and "--from" in words)
        is_said = any(str(word).startswith("--share") for word in words)
        return (words[0], "--share", self.share, *words[1:]) if begins and self.share and not is_said else words

    def dormouse(self, *words, code=0, patience=60, stdin=None):
        words = self.shared(words)
        return finish(*self.by, DORMOUSE, *words, code=code, patience=patience, stdin=stdin, environment=self.environment,
                      called=f"dormouse {words[0]}")

    def launch(self, *words, log):
        """Begins a container that outlives the command: its streams go to a file."""
        words = self.shared(words)
        with open(log, "ab") as output:
            done = subprocess.run([str(word) for word in (*self.by, DORMOUSE, *words)], stdin=subprocess.DEVNULL, stdout=output,
                                  stderr=output, env={**os.environ, **self.environment}, timeout=60)
        check(done.returncode == 0, f"dormouse {words[0]} ended with {done.returncode}: {log.read_text(errors='replace').strip()[-300:]}")
        World.restored += words[0] == "restore"

    def container(self, *command, **more):
        return self.add(Container(self, command, **more))

    def add(self, container):
        """A container that ends with the case."""
        self.containers.append(container)
        return container

    def refused(self, *words, says=()):
        """A command that has to be refused, in one sentence; result: the sentence."""
        done = self.dormouse(*words, code=None)
        said = done.stderr.strip()
        check(done.returncode not in (0, None) and done.returncode > 0, f"{' '.join(map(str, words))} ended with {done.returncode}: {said}")
        check(said.count("\n") == 0 and said.startswith("dormouse: ") and "panicked" not in said,
              f"{' '.join(map(str, words))} is refused with {said!r}")
        check(all(part in said for part in says), f"{' '.join(map(str, words))} is refused with {said!r}, without {says}")
        return said

    def ids(self):
        return set(self.dormouse("list", "--quiet").stdout.split())

    def names(self):
        return {row.split()[0] for row in self.dormouse("snapshot", "list").stdout.splitlines()[1:]}

    def status(self, name):
        """The container's status by the OCI runtime specification, or nothing if there is none."""
        done = self.dormouse("state", name, code=None)
        return json.loads(done.stdout)["status"] if done.returncode == 0 else ""

    def groups(self, name):
        """Control groups of a container; those of a run have names that no other has."""
        # Others' groups come and go meanwhile, which a walk does not mind.
        walk = os.walk(CGROUPS)
        return [Path(at, one) for at, below, _ in walk for one in below if fnmatch.fnmatch(one, f"dormouse-{name}")]

    def left_overs(self):
        """Whatever is beside the snapshots that have names."""
        named = self.names()
        return {path.name for path in self.snapshots.iterdir()} - named - {".key", ".lock", ".fork"}

    def check_gone(self, name, with_groups=True):
        """Nothing is left of a container that was not to come to be. A command that is killed before it has noted its control groups leaves
        empty ones (docs/limits.md)."""
        check(name not in self.ids(), f"{name} is listed")
        check(not (self.state / name).exists(), f"{name} has a directory of state")
        if with_groups and not comes(lambda: not self.groups(name), 2):
            groups = self.groups(name)
            check(not groups, f"{name} has {len(groups)} control groups: {groups[0] if groups else ''}")
        check(not any(name in path.name for path in self.swap.iterdir()), f"{name} has files of memory")

    def close(self):
        for container in self.containers:
            container.close()
        for name in self.ids():
            self.dormouse("delete", "--force", name, code=None)
        if (self.state / ".bases").exists():
            for base in json.loads(self.dormouse("snapshot", "bases", "--json").stdout):
                self.dormouse("snapshot", "release", base["digest"], code=None)
        # Empty ones that a faulty command has left: the case has told.
        for group in self.groups(f"{self.tag}-{self.directory.name.rpartition('.')[2]}-*"):
            with contextlib.suppress(OSError):
                group.rmdir()


class Container:
    """A container, and what it becomes: each restore has an id of its own."""

    def __init__(self, world, command, memory=1 << 30, user=0, environment=(), port=None, terminal=False):
        self.world, self.command, self.memory, self.user, self.environment = world, command, memory, user, environment
        self.terminal = terminal
        self.number = len(world.containers)
        self.generation = 0
        self.place = world.directory / f"c{self.number}"
        self.bundle, self.srv, self.log = self.place / "bundle", self.place / "srv", self.place / "log"
        for made in (self.place, self.bundle, self.srv):
            made.mkdir(mode=0o755)
        self.srv.chmod(0o777)
        self.port = port or free_port()
        self.log.touch()
        self.images = []

    @property
    def id(self):
        return f"{self.world.tag}-{self.world.directory.name.rpartition('.')[2]}-{self.number}-{self.generation}"

    def write_bundle(self, bundle=None, mounts=("/srv",), memory=None):
        """A bundle whose root is the host's, read only, with these directories of the case's bound to it."""
        bundle = bundle or self.bundle
        bundle.mkdir(exist_ok=True)
        bound = [{"destination": path, "type": "bind", "source": str(self.srv), "options": ["rbind", "rw"]} for path in mounts]
        spec = {
            "ociVersion": "1.0.2",
            "process": {"terminal": self.terminal, "user": {"uid": self.user, "gid": self.user}, "cwd": "/",
                        "args": [str(word).format(port=self.port) for word in self.command],
                        "env": ["PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin", "HOME=/tmp", *self.environment]},
            "root": {"path": "/", "readonly": True}, "hostname": "sleeper",
            "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"},
                       {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
                       {"destination": "/dev/pts", "type": "devpts", "source": "devpts", "options": ["newinstance", "ptmxmode=0666"]},
                       {"destination": "/dev/shm", "type": "tmpfs", "source": "tmpfs"},
                       {"destination": "/dev/mqueue", "type": "mqueue", "source": "mqueue"},
                       {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["mode=1777"]}, *bound],
            "linux": {"namespaces": [{"type": kind} for kind in ("pid", "mount", "ipc", "uts")],
                      "resources": {"memory": {"limit": memory or self.memory}}},
        }
        (bundle / "config.json").write_text(json.dumps(spec))
        return bundle

    def begin(self, *more):
        self.write_bundle()
        platform = () if self.world.platform == "auto" else ("--platform", self.world.platform)
        self.world.launch("run", "--detach", "--bundle", self.bundle, "--swap-dir", self.world.swap, *platform, *more, self.id,
                          log=self.log)
        return self

    def checkpoint(self, name=None, leave=False, more=()):
        """Result: the snapshot's name, and the figures."""
        name = name or f"{self.id}.{len(self.images)}"
        words = (*more, "--leave-running") if leave else more
        said = self.world.dormouse("checkpoint", "--json", "--name", name, *words, self.id).stdout
        self.images.append(name)
        if not leave:
            status = self.world.status(self.id)
            check(status == "stopped", f"after its checkpoint it is {status!r}")
        return name, json.loads(said)

    def restore(self, name, *more):
        self.generation += 1
        self.world.launch("restore", "--detach", "--snapshot", name, "--bundle", self.bundle, "--swap-dir", self.world.swap, *more,
                          self.id, log=self.log)

    def delete(self, force=False):
        self.world.dormouse("delete", *(["--force"] if force else []), self.id)

    def cycle(self, *more):
        """Written, ended, deleted, and restored."""
        name, _ = self.checkpoint()
        self.delete()
        self.restore(name, *more)
        self.world.dormouse("snapshot", "remove", name)

    def walk(self):
        """Has all memory of its processes read."""
        walk = (HERE / "inside/walk.py").read_text()
        read, compared = map(int, self.world.dormouse("exec", self.id, PYTHON, "-c", walk).stdout.split())
        check(read > compared > 0, f"{read} pages were read, and {compared} compared")

    def close(self):
        if self.id in self.world.ids():
            self.delete(force=True)

    def said(self):
        return self.log.read_text(errors="replace").strip()


class Held(Container):
    """A container whose program is `inside/held.py`: it answers lines, and says in each answer when it began, and how often it was
    asked since."""

    def __init__(self, world, topic, **more):
        super().__init__(world, (PYTHON, "/srv/held.py", "{port}", topic), **more)
        for file in (HERE / "inside").glob("*.py"):
            shutil.copy(file, self.srv)
        self.nonce = None
        self.asked = 0

    def call(self, *words, patience=ANSWER_SECONDS):
        """An answer of the program, which has to be the one that began, and to know of each request."""
        try:
            answer = json.loads(ask_line(self.port, json.dumps(words), patience))
        except Failure as why:
            raise Failure(f"{self.where()}: {why}; it says {self.said()[-200:]!r}") from None
        self.nonce = self.nonce or answer["nonce"]
        check(answer["nonce"] == self.nonce, "the program has begun anew")
        check(answer["asked"] == self.asked, f"the program was asked {answer['asked']} times, not {self.asked}")
        self.asked += 1
        check("wrong" not in answer, f"{self.where()}: {answer.get('wrong')}")
        return answer["result"]

    def where(self):
        return f"after {self.generation} restores" if self.generation else "before any restore"


def ask_line(port, line, patience=ANSWER_SECONDS):
    """One line there, and one back."""
    end = time.monotonic() + patience
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), 2) as client:
                client.settimeout(max(end - time.monotonic(), 0.1))
                client.sendall(line.encode() + b"\n")
                answer = client.makefile().readline()
                if answer:
                    return answer
                raise Failure(f"port {port}: no answer, and the connection ended")
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise Failure(f"nobody listens at port {port}") from None
            time.sleep(0.02)
        except ConnectionError as why:
            raise Failure(f"port {port}: {why}") from None
        except TimeoutError:
            raise Failure(f"no answer at port {port} in {patience} s") from None


def fetch(port, path="/", patience=ANSWER_SECONDS):
    """The body of an HTTP answer."""
    end = time.monotonic() + patience
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), 2) as client:
                client.settimeout(max(end - time.monotonic(), 0.1))
                client.sendall(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
                head, _, body = client.makefile("rb").read().partition(b"\r\n\r\n")
                check(b" 200 " in head, f"the answer begins with {head[:80]!r}")
                return body.decode()
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise Failure(f"nobody listens at port {port}") from None
            time.sleep(0.02)
        except ConnectionError as why:
            raise Failure(f"port {port}: {why}") from None
        except TimeoutError:
            raise Failure(f"no answer at port {port} in {patience} s") from None

