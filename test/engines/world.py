"""Where a case runs: a containerd of its own with a client, and whatever else is to end with it."""
import hashlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import tarfile
import tempfile
from pathlib import Path

from lib.command import finish
from lib.outcome import Skip, check
from lib.tree import SEARCH, binaries
from lib.waiting import until

RUNTIMES = {"runc": "io.containerd.runc.v2", "dormouse": "io.containerd.dormouse.v1"}
IMAGE = "test.local/busybox:1"
PAUSE = "test.local/pause:1"
# Of libraries of programming languages, what no container uses.
UNNEEDED = re.compile(r"/(__pycache__|dist-packages|test)$")


def image_tar(path, name=IMAGE, command=("/bin/sh",), programs=(), files=()):
    """An image of one layer, as `docker save` writes it: busybox, what names users, further programs, and files of the host with
    their places in it, links followed."""
    busybox = next((place for place in ("/bin/busybox", "/usr/bin/busybox") if Path(place).exists()), None)
    if not busybox:
        raise Skip("busybox is not installed")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        def add(file, data=None, mode=0o755, link=None, kind=None):
            info = tarfile.TarInfo(file)
            info.mode, info.type = mode, kind or (tarfile.SYMTYPE if link else tarfile.REGTYPE)
            info.linkname, info.size = link or "", len(data or b"")
            tar.addfile(info, io.BytesIO(data or b""))
        for place in ("bin", "etc", "tmp", "proc", "sys", "dev", "root", "var"):
            add(place, kind=tarfile.DIRTYPE, mode=0o1777 if place == "tmp" else 0o755)
        add("bin/busybox", Path(busybox).read_bytes())
        names = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout.split()
        for applet in names:
            if applet != "busybox":
                add(f"bin/{applet}", link="busybox")
        for program in programs:
            add(f"bin/{Path(program).name}", Path(program).read_bytes())
        add("etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n", 0o644)
        add("etc/group", b"root:x:0:\n", 0o644)
        tar.dereference = True
        for source, place in files:
            tar.add(source, place, filter=lambda info: None if UNNEEDED.search(info.name) else info)
    layer = packed.getvalue()
    digest = hashlib.sha256(layer).hexdigest()
    config = json.dumps({
        "architecture": "amd64", "os": "linux", "config": {"Env": ["PATH=/bin"], "Cmd": list(command)},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]}, "history": [{"created_by": "a test"}],
    }).encode()
    described = hashlib.sha256(config).hexdigest() + ".json"
    manifest = json.dumps([{"Config": described, "RepoTags": [name], "Layers": ["layer.tar"]}]).encode()
    with tarfile.open(path, "w") as tar:
        for file, data in ((described, config), ("layer.tar", layer), ("manifest.json", manifest)):
            info = tarfile.TarInfo(file)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def plain(text):
    """What a client says, without its remarks about the host."""
    return "".join(line for line in text.splitlines(True) if "DEPRECATION:" not in line)


class Program:
    """A program that runs, with what it writes in a file."""

    def __init__(self, words, path, env=None, stdin=subprocess.DEVNULL):
        self.words, self.path = [str(word) for word in words], Path(path)
        with open(path, "ab") as out:
            self.process = subprocess.Popen(
                self.words, stdin=stdin, stdout=out, stderr=out, start_new_session=True,
                env=os.environ | {"PATH": SEARCH} | (env or {}),
            )

    def text(self):
        return plain(self.path.read_text(errors="replace"))

    def end(self, patience=10):
        """SIGTERM, and SIGKILL for who does not hear it."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self.process.poll() is None:
                try:
                    self.process.send_signal(number)
                    self.process.wait(patience)
                except subprocess.TimeoutExpired:
                    pass
        return self.process.poll()


class Engine:
    """containerd with root, state and sockets of its own."""

    def __init__(self, name="containerd", cri="", containerd="containerd", ctr="ctr", platform="auto"):
        self.dir = Path(tempfile.mkdtemp(prefix=f"dormouse-{name}."))
        self.programs, self.containerd, self.ctr_program, self.cri = [], containerd, ctr, cri
        self.address = self.dir / "c.sock"
        # The node's configuration, if there is one, names the platform: containers may not choose it.
        self.node_config = None if platform == "auto" else self.dir / "node.toml"
        if self.node_config:
            self.node_config.write_text(f'platform = "{platform}"\n')
        # The shim's state lies in a directory of this name.
        self.namespace = f"engines-{os.getpid()}"
        # Shims lie on PATH, under the name that their runtime's type gives.
        beside = f"{Path(containerd).parent}:" if "/" in containerd else ""
        self.env = {"PATH": f"{binaries()}:{beside}{SEARCH}"}
        self.snapshotter = "overlayfs"
        self.state_root = Path("/run/containerd/dormouse")
        self.process = None
        # Words before containerd's own: where it runs.
        self.inside = []
        self._sequence = 0

    def configuration(self):
        disabled = [] if self.cri else ["io.containerd.grpc.v1.cri"]
        return f"""
version = 2
root = "{self.dir}/root"
state = "{self.dir}/state"
disabled_plugins = {json.dumps(disabled)}
[grpc]
  address = "{self.address}"
{self.cri}
"""

    def launch(self):
        """Starts containerd, and waits until it answers."""
        (self.dir / "config.toml").write_text(self.configuration())
        words = [*self.inside, self.containerd, "--config", self.dir / "config.toml", "--log-level", "warn"]
        self.process = Program(words, self.dir / "containerd.log", self.env)
        self.programs.append(self.process)

        def answers():
            check(self.process.process.poll() is None, f"containerd ended: {self.process.text()[-500:]}")
            return self.run_ctr("version", code=None).returncode == 0
        until("an answer of containerd", answers, 60)
        return self

    def text(self):
        """What containerd wrote."""
        return self.process.text() if self.process else ""

    def kill(self):
        """Kills containerd alone, and waits for its end."""
        self.process.process.kill()
        self.process.process.wait(10)

    def pull(self):
        """Makes the image known."""
        tar = self.dir / "image.tar"
        image_tar(tar)
        if self.run_ctr("image", "import", "--snapshotter", self.snapshotter, tar, code=None).returncode != 0:
            self.snapshotter = "native"
            self.run_ctr("image", "import", "--snapshotter", self.snapshotter, tar)
        tar.unlink()

    def words(self, *words):
        return [self.ctr_program, "--address", str(self.address), "--namespace", self.namespace, *map(str, words)]

    def run_ctr(self, *words, code=0, timeout=120, stdin=None):
        """Runs `ctr` to its end. `code`: what is expected, or None."""
        done = finish(*self.words(*words), code=code, patience=timeout, stdin=stdin, environment=self.env,
                      called=f"ctr {' '.join(map(str, words))}")
        done.stderr = plain(done.stderr)
        return done

    def start_ctr(self, *words, stdin=subprocess.DEVNULL):
        """Starts `ctr`, which goes on."""
        self._sequence += 1
        program = Program(self.words(*words), self.dir / f"ctr-{self._sequence}.log", self.env, stdin)
        self.programs.append(program)
        return program

    def shims(self):
        """Pids of the shims of this containerd."""
        return [pid for pid, line in command_lines() if str(self.address) in line and "containerd-shim" in line[:200]]

    def remains(self):
        """What of this engine's containers is left on the host."""
        left = [f"process {pid}: {line[:80]}" for pid, line in command_lines()
                if ("containerd-shim" in line[:200] and str(self.address) in line)
                or ("dormouse" in line[:200] and f"{self.dir}/state" in line)]
        left += [f"mount {line.split()[4]}" for line in Path("/proc/self/mountinfo").read_text().splitlines()
                 if f"{self.dir}/state" in line.split()[4]]
        left += [f"state {path}" for path in (self.state_root / self.namespace).glob("*")
                 if not path.name.startswith(".")]
        left += [f"bundle {path}" for path in (self.dir / "state").glob(f"io.containerd.runtime.v2.task/{self.namespace}/*")]
        return left + [f"group {path}" for path in self.groups()]

    def groups(self):
        """Control groups of containers of this namespace."""
        return [path for pattern in ("*/{}/*", "{}/*") for path in Path("/sys/fs/cgroup").glob(pattern.format(self.namespace))
                if path.is_dir()]

    def stop(self):
        """Ends everything: containers, shims, containerd."""
        if self.process and self.process.process.poll() is None:
            for name in self.run_ctr("task", "ls", "-q", code=None).stdout.split():
                self.run_ctr("task", "rm", "-f", name, code=None)
        for pid in self.shims():
            end_pid(pid)
        for program in reversed(self.programs):
            program.end()
        points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        for point in reversed([point for point in points if point.startswith(str(self.dir))]):
            subprocess.run(["umount", "-l", point], capture_output=True)
        shutil.rmtree(self.dir, ignore_errors=True)
        for path in [*self.groups(), *Path("/sys/fs/cgroup").glob(f"*/{self.namespace}")]:
            try:
                path.rmdir()
            except OSError:
                pass
        try:
            # Only if it is empty but for its lock: others may use the namespace.
            state = self.state_root / self.namespace
            if all(path.name.startswith(".") for path in state.iterdir()):
                shutil.rmtree(state, ignore_errors=True)
        except OSError:
            pass


def end_pid(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def command_lines():
    """Pids and command lines of the host's processes."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                line = Path("/proc", entry, "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if line:
                yield int(entry), line


def children(pid):
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
