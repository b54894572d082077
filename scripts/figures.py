"""What was measured, and on which machine."""

import os
import platform
import re
import sys
from pathlib import Path

from lib.outcome import Failure


class Figures:
    """What was measured: by workload, runner and state, lists of values; and why something is missing."""

    def __init__(self, program):
        self.program = program
        self.found, self.missing, self.failed = {}, [], set()

    def add(self, workload, runner, state, **values):
        row = self.found.setdefault(workload, {}).setdefault(runner, {}).setdefault(state, {})
        for name, value in values.items():
            row.setdefault(name, []).append(value)

    def attempt(self, workload, runner, action, *arguments):
        """Does it, unless it failed with this runner before; a failure is told once, and the rest goes on."""
        if (workload, runner) in self.failed:
            return None
        try:
            return action(*arguments)
        except (Failure, OSError) as error:
            self.failed.add((workload, runner))
            self.missing.append(f"{workload}, {runner}: {error}.")
            print(f"{self.program}: {self.missing[-1]}", file=sys.stderr)
            return None


def machine(load):
    info = Path("/proc/cpuinfo").read_text()
    model = re.search(r"^model name\s*: (.*)$", info, re.M)
    memory = int(re.search(r"^MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text(), re.M)[1]) / (1 << 20)
    return {"cpus": os.cpu_count(), "model": model[1] if model else "unknown", "memory_gib": round(memory),
            "virtual": bool(re.search(r"^flags\s*:.*\bhypervisor\b", info, re.M)),
            "kernel": ".".join(platform.release().split(".")[:2]), "load": [load, os.getloadavg()[0]]}
