"""Runs scenarios with each runtime, and compares what they saw."""
import subprocess
import time
import traceback

import scenarios
from lib.outcome import Failure


class Side:
    """One scenario with one runtime: what it asks of the cluster, and what it saw."""

    def __init__(self, cluster, runtime, scenario):
        self.cluster, self.runtime = cluster, runtime
        self.name = f"{scenario.replace('_', '-')}-{runtime}"
        self.seen, self.told = [], []

    def note(self, what, value):
        """Something that has to be the same with both runtimes."""
        self.seen.append(f"{what}: {value}")

    def tell(self, what, value):
        """Something that may differ."""
        self.told.append(f"{what}: {value}")


def run_side(cluster, runtime, scenario):
    """The side, the failure if there is one, and the time it took."""
    side = Side(cluster, runtime, scenario.__name__)
    begin = time.monotonic()
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": side.name}})
    try:
        cluster.comes_about("an account for pods", lambda: cluster.kubectl(
            "get", "serviceaccount", "default", "-n", side.name, code=None).returncode == 0)
        scenario(scenarios.Pods(side))
        return side, None, time.monotonic() - begin
    except (Failure, OSError, subprocess.TimeoutExpired) as why:
        return side, f"{why} {cluster.describe(side.name)}", time.monotonic() - begin
    except Exception:
        return side, traceback.format_exc(limit=-3), time.monotonic() - begin
    finally:
        cluster.kubectl("delete", "namespace", side.name, "--wait=false", code=None)


def compare(seen):
    """The verdict on what each runtime showed."""
    if len(seen) < 2:
        return "alone"
    return "same" if seen["runc"].seen == seen["dormouse"].seen else "differs"


def run(cluster, chosen):
    rows, failed = [], 0
    for scenario in (scenario for scenario in scenarios.ALL if scenario.__name__ in chosen.names):
        seen, times, faults = {}, [], []
        for runtime in chosen.runtimes:
            if runtime not in scenario.runtimes:
                continue
            seen[runtime], fault, seconds = run_side(cluster, runtime, scenario)
            times.append(f"{runtime} {seconds:.0f} s")
            if fault:
                faults.append(f"{runtime}: {' '.join(fault.split())}")
        if not seen:
            continue
        verdict = "FAILED" if faults else compare(seen)
        bad = verdict in ("FAILED", "differs")
        failed += bad
        print(f"{'FAILED' if bad else 'ok':<7} {scenario.__name__:<16} {', '.join(times)}", *faults, sep="\n        " if faults else "", flush=True)
        rows.append((scenario, verdict, seen))
    table(rows)
    print(f"{len(rows) - failed} passed, {failed} failed, 0 skipped")
    return 1 if failed or not rows else 0


def table(rows):
    """What was compared."""
    print("\n| scenario | what it shows | |\n|---|---|---|")
    for scenario, verdict, _ in rows:
        print(f"| {scenario.__name__} | {' '.join(scenario.__doc__.split())} | {verdict} |")
    for scenario, verdict, seen in rows:
        print(f"\n{scenario.__name__}:")
        if verdict in ("same", "alone"):
            print("\n".join(f"    {line}" for line in next(iter(seen.values())).seen))
        for runtime, side in seen.items():
            lines = side.told if verdict in ("same", "alone") else side.seen + side.told
            print("".join(f"    {runtime:<9} {line}\n" for line in lines), end="")
    print()
