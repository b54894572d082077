"""Cases that go with runc first and then with Dormouse: how they are registered, chosen, run and told of, whatever the
engine is. What a case returns has to be the same with both."""
import os
import signal
import sys
import time

from lib.checklist import CheckList, skip_all
from lib.options import Options, add_runtimes
from lib.outcome import Skip, words_of
from lib.tree import missing

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

    name, doc = "", ""
    cases: list = []
    # Options of its own with a value, which is the name of a program: their defaults.
    values: dict[str, str] = {}
    # Programs that have to be there.
    needs: tuple[str, ...] = ()

    def make_engine(self, options):
        """The engine, which answers."""
        raise NotImplementedError

    def side(self, engine, runtime, name):
        """One case with one runtime."""
        raise NotImplementedError

    def clean(self, side):
        """Called after a case that failed."""

    def more(self, options, tell):
        """Cases of another kind, after the others."""

    def options(self):
        """The options, and the cases that they choose."""
        parser = Options(self.doc, platform=True)
        add_runtimes(parser)
        for word, program in self.values.items():
            parser.add_argument(word, default=program, metavar="PROGRAM", help=f"another {program} than the one on PATH")
        parser.add_argument("--verbose", action="store_true", help="show what the engine wrote")
        options = parser.parse_args()
        chosen = parser.choose(options, [case.__name__ for case in self.cases])
        return options, [case for case in self.cases if case.__name__ in chosen]

    def run_case(self, case, runtimes, engine):
        """Verdict and remark."""
        times, answers = [], []
        for runtime in [runtime for runtime in runtimes if runtime in case.runtimes]:
            side = self.side(engine, runtime, case.__name__)
            start = time.monotonic()
            try:
                answers.append(case(side))
                times.append(f"{runtime} {time.monotonic() - start:.1f} s")
            except Skip as why:
                return "skipped", str(why)
            except Exception as error:
                hint = "with runc, so the test is wrong: " if runtime == "runc" else ""
                self.clean(side)
                return "FAILED", hint + " ".join(words_of(error).split())
        if len(answers) == 2 and answers[0] != answers[1]:
            return "FAILED", "with runc it answers otherwise: " + difference(*answers)
        return ("ok", ", ".join(times)) if times else ("skipped", "only with the other runtime")

    def main(self):
        # What a run has started ends with it, when it is told to end as well.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        options, wanted = self.options()
        results, engine = CheckList(44), None
        try:
            try:
                if os.geteuid() != 0:
                    raise Skip("root is needed")
                for program in (*self.needs, *(getattr(options, word[2:]) for word in self.values)):
                    if missing(program):
                        raise Skip(f"{program} is not installed here")
                engine = self.make_engine(options)
            except Skip as why:
                return skip_all(self.name, why, len(wanted))
            for case in wanted:
                verdict, remark = self.run_case(case, options.runtimes, engine)
                results.tell(verdict, case.__name__, remark)
            if options.verbose:
                print(engine.text())
            self.more(options, results.tell)
        finally:
            if engine:
                engine.stop()
        return results.end()
