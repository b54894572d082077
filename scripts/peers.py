"""What people would use instead of hibernation: runc's containers frozen and reclaimed, and runsc's."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

from lib.command import run
from lib.outcome import Failure
from measure import charge_bytes_of
from sleepers import PATIENCE, Sleeper, own_cgroup, reap, write_bundle


class Runc(Sleeper):
    """runc; asleep it is frozen, and its memory reclaimed to the swap file."""

    frozen = False

    def launch(self):
        pid_file = Path(self.place.directory, self.id + ".pid")
        words = ["runc", "--root", self.place.directory / "runc", "run", "--detach", "--pid-file", pid_file, "--bundle",
                 write_bundle(self, {"cgroupsPath": f"/dormouse-{self.id}"}), self.id]
        with open(self.output, "wb") as log:
            done = subprocess.run([str(word) for word in words], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        if done.returncode != 0:
            raise Failure(f"runc cannot start {self.workload.name}: {self.log()}")
        self.pid = int(pid_file.read_text())
        rows = [row.split(":", 2) for row in Path(f"/proc/{self.pid}/cgroup").read_text().splitlines()]
        paths = {kind: path.lstrip("/") for _, kinds, path in rows for kind in kinds.split(",")}
        top = Path("/sys/fs/cgroup")
        if "memory" in paths:
            self.memory_dir = top / "memory" / paths["memory"]
            self.freeze_file = top / "freezer" / paths["freezer"] / "freezer.state"
        else:
            self.memory_dir = top / paths[""]
            self.freeze_file = self.memory_dir / "cgroup.freeze"

    def is_alive(self):
        return Path(f"/proc/{self.pid}").exists()

    def set_frozen(self, frozen):
        old = self.freeze_file.name == "freezer.state"
        self.freeze_file.write_text(("FROZEN" if frozen else "THAWED") if old else str(int(frozen)))
        self.frozen = frozen

    def is_frozen(self):
        if self.freeze_file.name == "freezer.state":
            return self.freeze_file.read_text().strip() == "FROZEN"
        return "frozen 1" in (self.memory_dir / "cgroup.events").read_text()

    def sleep(self):
        self.set_frozen(True)
        while not self.is_frozen():
            time.sleep(0.001)
        begin = time.perf_counter_ns()
        self.place.reclaim(self)
        return {"reclaim_us": (time.perf_counter_ns() - begin) // 1000}

    def rouse(self):
        # As an activator would that has a connection: one write, and no process of its own.
        if self.frozen:
            self.set_frozen(False)

    def pids(self):
        return [int(pid) for pid in (self.memory_dir / "cgroup.procs").read_text().split()]

    def charge_bytes(self):
        return charge_bytes_of(self.memory_dir)

    def end(self):
        if hasattr(self, "freeze_file"):
            pids = self.pids()
            self.set_frozen(False)
            os.kill(self.pid, signal.SIGKILL)
            reap(pids)
        subprocess.run(["runc", "--root", self.place.directory / "runc", "delete", "--force", self.id], capture_output=True)


class Runsc(Sleeper):
    """runsc; asleep it is paused."""

    def __init__(self, place, workload, root):
        super().__init__(place, workload, root)
        self.base = [place.runsc, "-ignore-cgroups", f"-root={place.directory}/runsc", "-network=host",
                     "-overlay2=root:memory"]
        self.paused = False

    def call(self, *words):
        # Its own output is a file: the sandbox keeps it open.
        command = [str(word) for word in (*self.base, *words)]
        with open(self.output, "ab") as log:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=PATIENCE,
                                  preexec_fn=self.cgroup.enter)
        if done.returncode != 0:
            raise Failure(f"runsc {' '.join(words[len(self.base):])} ended with {done.returncode}: {self.log()}")

    def launch(self):
        self.cgroup = own_cgroup(self.id)
        self.bundle = write_bundle(self, {})
        self.call("run", "-detach", "-bundle", self.bundle, self.id)

    def is_alive(self):
        return bool(self.pids())

    def sleep(self):
        self.call("pause", self.id)
        self.paused = True

    def rouse(self):
        if self.paused:
            self.call("resume", self.id)
            self.paused = False

    def pids(self):
        return [int(pid) for pid in (self.cgroup.entrance / "cgroup.procs").read_text().split()]

    def charge_bytes(self):
        return self.cgroup.charge_bytes()

    def end(self):
        words, pids = [*self.base, "delete", "-force", self.id], self.pids()
        subprocess.run([str(word) for word in words], capture_output=True, timeout=PATIENCE)
        reap(pids)
        for mount in Path(self.place.directory, "runsc").glob("*-netns"):
            subprocess.run(["umount", "-l", mount], capture_output=True)
        self.cgroup.remove()


class Restored(Runsc):
    """runsc; asleep it is a checkpoint on the disk, and nothing else."""

    def sleep(self):
        self.image = Path(self.place.directory, self.id + ".image")
        begin = time.perf_counter_ns()
        pids = self.pids()
        self.call("checkpoint", "-image-path", self.image, self.id)
        self.call("delete", "-force", self.id)
        reap(pids)
        written = sum(file.stat().st_size for file in self.image.iterdir())
        return {"checkpoint_us": (time.perf_counter_ns() - begin) // 1000, "written": written}

    def restore(self):
        """Brings it back under another name; result: nanoseconds to its first answer."""
        begin = time.perf_counter_ns()
        self.id += "r"
        self.call("create", "-bundle", self.bundle, self.id)
        self.call("restore", "-detach", "-image-path", self.image, "-bundle", self.bundle, self.id)
        took = self.first_answer(begin)
        shutil.rmtree(self.image)
        return took


class SwapFile:
    """A swap file of our own, and the way in which this kernel reclaims the memory of a control group."""

    def __init__(self, path, size_bytes):
        self.path = path
        with open(path, "wb") as file:
            os.fchmod(file.fileno(), 0o600)
            os.posix_fallocate(file.fileno(), 0, size_bytes)
        run("mkswap", path)
        run("swapon", "--priority", "100", path)
        self.how = ""

    def reclaim(self, sleeper):
        """Reclaims all that can be."""
        top, last = sleeper.memory_dir, -1
        for _ in range(10):
            charge = sleeper.charge_bytes()
            if last >= 0 and last - charge < 256 << 10:
                return
            last = charge
            self.once(top, charge)

    def once(self, top, charge):
        ways = ((top / "memory.reclaim", f"{charge}", "memory.reclaim"),
                (top / "memory.force_empty", "0", "memory.force_empty"))
        for file, text, how in ways:
            if file.exists():
                try:
                    file.write_text(text)
                except OSError:
                    # Not all of what was asked for: that is usual.
                    pass
                self.how = how
                return
        raise Failure("this kernel cannot reclaim a control group's memory: neither memory.reclaim nor memory.force_empty")

    def remove(self):
        subprocess.run(["swapoff", str(self.path)], capture_output=True)
        self.path.unlink(missing_ok=True)


def swap_bytes(sleeper):
    """What of its processes lies in swap."""
    total = 0
    for pid in sleeper.pids():
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
            total += int(text.partition("\nSwap:")[2].split()[0]) * 1024
        except (OSError, IndexError):
            pass
    return total
