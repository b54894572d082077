"""Cases that go with runc first and then with Dormouse: how they are registered, chosen, run and told of, whatever the
engine is. What a case returns has to be the same with both."""
import os
import signal
import subprocess
import sys
import time
import traceback

from world import Failure, Skip, missing

BOTH = ("runc", "dormouse")


class Cases:
    """A decorator that registers cases; its arguments are the runtimes that a case is for, by default both."""

    def __init__(self):
        self.all = []

    def __call__(self, *runtimes):
        def register(function):
            function.runtimes = runtimes or BOTH
            self.all.append(function)
            return function
        return register


def difference(runc, dormouse):
    """What of two answers is not the same."""
    if isinstance(runc, dict) and isinstance(dormouse, dict):
        names = [name for name in {**runc, **dormouse} if runc.get(name) != dormouse.get(name)]
        return "; ".join(f"{name}: {runc.get(name)!r}, and here {dormouse.get(name)!r}" for name in names)
    return f"{runc!r}, and here {dormouse!r}"


class Runner:
    """The runner of one engine's cases. `name` and `doc` are the program's. An engine's own runner says the rest."""

    name, doc, cases = "", "", ()
    # Options of its own: with their values, and without.
    values, flags = {}, ()
    # Programs that have to be there.
    needs = ()

    def start(self, chosen):
        """The engine, which answers."""
        raise NotImplementedError

    def side(self, engine, runtime, name):
        """One case with one runtime."""
        raise NotImplementedError

    def clean(self, side):
        """After a case that failed."""

    def more(self, chosen, tell):
        """Cases of another kind, after the others."""

    def options(self, arguments):
        chosen = {"only": [], "runtimes": list(BOTH), "verbose": False}
        chosen |= {word[2:]: value for word, value in self.values.items()} | {word[2:]: False for word in self.flags}
        words = iter(arguments)
        for word in words:
            if word == "--only":
                chosen["only"].append(next(words, ""))
            elif word in self.values:
                chosen[word[2:]] = next(words, "")
            elif word in ("--dormouse-only", "--runc-only"):
                chosen["runtimes"] = [word[2:-5]]
            elif word in ("--verbose", *self.flags):
                chosen[word[2:]] = True
            elif word == "--list":
                print("\n".join(case.__name__ for case in self.cases))
                sys.exit(0)
            else:
                print(self.doc, file=sys.stdout if word in ("-h", "--help") else sys.stderr)
                sys.exit(0 if word in ("-h", "--help") else 2)
        return chosen

    def run_case(self, case, chosen, engine):
        """What is printed about a case: verdict and remark."""
        times, answers = [], []
        for runtime in [runtime for runtime in chosen["runtimes"] if runtime in case.runtimes]:
            side = self.side(engine, runtime, case.__name__)
            start = time.monotonic()
            try:
                answers.append(case(side))
                times.append(f"{runtime} {time.monotonic() - start:.1f} s")
            except Skip as why:
                return "skipped", str(why)
            except Exception as error:
                expected = isinstance(error, (Failure, OSError, subprocess.TimeoutExpired))
                text = str(error) if expected else traceback.format_exc(limit=-3)
                hint = "with runc, so the test is wrong: " if runtime == "runc" else ""
                self.clean(side)
                return "FAILED", hint + " ".join(text.split())
        if len(answers) == 2 and answers[0] != answers[1]:
            return "FAILED", "with runc it answers otherwise: " + difference(*answers)
        return ("ok", ", ".join(times)) if times else ("skipped", "only with the other runtime")

    def main(self, arguments):
        # What a run has started ends with it, when it is told to end as well.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        chosen = self.options(arguments)
        only = chosen["only"]
        wanted = [case for case in self.cases if not only or any(name in case.__name__ for name in only)]
        counts = {"ok": 0, "FAILED": 0, "skipped": 0}

        def tell(verdict, name, remark):
            counts[verdict] += 1
            print(f"{verdict:<7} {name:<44} {remark}", flush=True)

        engine = None
        try:
            try:
                if os.geteuid() != 0:
                    raise Skip("root is needed")
                for program in (*self.needs, *(chosen[word[2:]] for word in self.values)):
                    if missing(program):
                        raise Skip(f"{program} is not installed here")
                engine = self.start(chosen)
            except Skip as why:
                print(f"skipped {self.name:<44} {why}")
                print(f"0 passed, 0 failed, {len(wanted)} skipped")
                return 0
            for case in wanted:
                verdict, remark = self.run_case(case, chosen, engine)
                tell(verdict, case.__name__, remark)
            if chosen["verbose"]:
                print(engine.text())
            self.more(chosen, tell)
        finally:
            if engine:
                engine.stop()
        print(f"{counts['ok']} passed, {counts['FAILED']} failed, {counts['skipped']} skipped")
        return 0 if counts["FAILED"] == 0 and counts["ok"] > 0 else 1
