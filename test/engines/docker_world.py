"""A Docker daemon of its own, in a network namespace of its own, and what is asked of it."""
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from lib.command import finish
from lib.outcome import check
from lib.tree import SEARCH
from lib.waiting import until
from world import IMAGE, Program, command_lines, end_pid, image_tar


class Docker:
    """dockerd with root, state, sockets and network of its own."""

    def __init__(self, dormouse, config=""):
        self.dir = Path(tempfile.mkdtemp(prefix="dormouse-docker."))
        self.socket = f"unix://{self.dir}/docker.sock"
        self.net = f"dm{os.getpid()}"
        # Paths of Unix sockets are short, and containerd makes some below this.
        self.exec_root = self.dir / "x"
        self.node_config = self.dir / "node.toml"
        self.node_config.write_text(config)
        self.node_config.chmod(0o600)
        self.dormouse, self.daemon = dormouse, None
        self.default_runtime = "runc"
        for words in (["netns", "add", self.net], ["-n", self.net, "link", "set", "lo", "up"]):
            subprocess.run(["ip", *words], check=True, capture_output=True)

    def configure(self):
        (self.dir / "daemon.json").write_text(json.dumps({
            "runtimes": {"dormouse": {
                "path": str(self.dormouse), "runtimeArgs": ["--config", str(self.node_config)],
            }},
            "default-runtime": self.default_runtime,
            "max-concurrent-downloads": 1,
        }))

    def text(self):
        """What dockerd wrote."""
        return self.daemon.text() if self.daemon else ""

    def inside(self, *words):
        """A command in the daemon's network."""
        return ["nsenter", f"--net=/run/netns/{self.net}", *map(str, words)]

    def launch(self):
        self.configure()
        words = self.inside(
            "dockerd", "--host", self.socket, "--data-root", self.dir / "data", "--exec-root", self.exec_root,
            "--pidfile", self.dir / "pid", "--config-file", self.dir / "daemon.json", "--log-level", "warn",
            "--shutdown-timeout", "5",
        )
        self.daemon = Program(words, self.dir / "dockerd.log")

        def answers():
            check(self.daemon.process.poll() is None, f"dockerd ended: {self.daemon.text()[-600:]}")
            return self.run("version", code=None).returncode == 0
        until("an answer of dockerd", answers, 60)
        return self

    def load(self):
        tar = self.dir / "image.tar"
        image_tar(tar)
        self.run("load", "--input", tar)
        tar.unlink()

    def reload(self, default_runtime):
        """Changes the runtime of containers that name none."""
        self.default_runtime = default_runtime
        self.configure()
        pid = int((self.dir / "pid").read_text())
        os.kill(pid, 1)
        until("the new default", lambda: default_runtime in self.run(
            "info", "--format", "{{.DefaultRuntime}}").stdout)

    def words(self, *words):
        return ["docker", "--host", self.socket, *map(str, words)]

    def run(self, *words, code=0, timeout=120, stdin=None):
        """Runs `docker` to its end. `code`: what is expected, or None."""
        environment = {"PATH": SEARCH, "DOCKER_CONFIG": str(self.dir / "client"), "DOCKER_BUILDKIT": "0"}
        return finish(*self.words(*words), code=code, patience=timeout, stdin=stdin, environment=environment,
                      called=f"docker {' '.join(map(str, words))}")

    def answer_at(self, port, patience=20):
        """The answer of an HTTP server at a published port."""
        def answer():
            done = subprocess.run(
                self.inside("curl", "--silent", "--max-time", "5", f"http://127.0.0.1:{port}/"),
                capture_output=True, text=True,
            )
            return done.stdout if done.returncode == 0 else None
        return until(f"an answer at port {port}", answer, patience)

    def kill(self):
        """Kills the daemon and its containerd, and waits for their end; shims go on."""
        pids = [pid for pid, line in command_lines()
                if str(self.dir) in line and line.split()[0].split("/")[-1] in ("dockerd", "containerd")]
        for pid in pids:
            end_pid(pid)
        self.daemon.process.wait(10)
        until("the end of the daemon's processes", lambda: not any(
            Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().split(")")[-1][:3]
            for pid in pids))
        (self.dir / "pid").unlink(missing_ok=True)
        for left in self.exec_root.glob("containerd/*.pid"):
            left.unlink()

    def sandboxes(self):
        """VMMs and leashes of this daemon's containers."""
        return [pid for pid, line in command_lines() if str(self.exec_root) in line and "dormouse" in line[:200]]

    def remains(self):
        """What of containers is left on the host."""
        own = str(self.dir)
        left = [f"process {pid}: {line[:120]}" for pid, line in command_lines()
                if own in line and ("containerd-shim" in line[:200] or "dormouse" in line.split()[0])]
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        left += [f"mount {line.split()[4]}" for line in mounts
                 if own in line.split()[4] and ("/merged" in line or "/shm" in line)]
        state = self.exec_root / "runtime-dormouse/moby"
        left += [f"state {path}" for path in state.glob("*") if not path.name.startswith(".")]
        return left

    def stop(self):
        if self.daemon and self.daemon.process.poll() is None:
            names = self.run("ps", "--all", "--quiet", code=None).stdout.split()
            if names:
                self.run("rm", "--force", *names, code=None)
            self.daemon.end(20)
        for pid, line in list(command_lines()):
            if str(self.dir) in line:
                end_pid(pid)
        points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        for point in reversed([point for point in points if point.startswith(str(self.dir))]):
            subprocess.run(["umount", "-l", point], capture_output=True)
        subprocess.run(["ip", "netns", "del", self.net], capture_output=True)
        time.sleep(0.1)
        shutil.rmtree(self.dir, ignore_errors=True)


__all__ = ["IMAGE", "Docker"]
