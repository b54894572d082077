"""Options that runners have in common."""
import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from lib.tree import TOP

PLATFORMS = ("auto", "kvm", "systrap")


class Options(argparse.ArgumentParser):
    """The options of a runner, whose documentation is the beginning of its help.

    Each one has `--list` and `--only`; with `platform` it has `--platform`, and with `jobs` (how many by default) `--jobs`.
    """

    def __init__(self, doc: str | None, platform: bool = False, jobs: int | None = None, building: str = "") -> None:
        program = Path(sys.argv[0]).resolve()
        super().__init__(prog=str(program.relative_to(TOP)) if program.is_relative_to(TOP) else program.name, allow_abbrev=False,
                         description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
        self.add_argument("--list", action="store_true", help=f"print the cases' names, one a line, and run nothing{building}")
        self.add_argument("--only", action="append", default=[], metavar="NAME[,NAME]",
                          help="only cases whose name contains one of these; may be repeated")
        if platform:
            self.add_argument("--platform", choices=PLATFORMS, default="auto", metavar="NAME",
                              help=f"Dormouse's platform: {', '.join(PLATFORMS)} (default: auto)")
        if jobs is not None:
            self.add_argument("--jobs", type=positive, default=jobs, metavar="N", help=f"so many cases at once (default: {jobs})")

    def error(self, message: str) -> NoReturn:
        """Wrong options end a runner with one sentence and status 2."""
        self.exit(2, f"{self.prog}: {message}; see --help\n")

    def choose(self, options: argparse.Namespace, names: Sequence[str]) -> list[str]:
        """Which of the cases `--only` means; `--list` ends here."""
        parts = [part for given in options.only for part in given.split(",")]
        for part in parts:
            if not part or not any(part in name for name in names):
                self.error(f"no case has {part!r} in its name (--list shows the names)")
        chosen = [name for name in names if not parts or any(part in name for part in parts)]
        if options.list:
            # A reader that has seen enough ends it.
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            print("\n".join(chosen))
            self.exit()
        return chosen


def positive(text: str) -> int:
    """A number of jobs."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of jobs")
    return int(text)


def add_runtimes(parser: argparse.ArgumentParser, both: Sequence[str] = ("runc", "dormouse")) -> None:
    """`--dormouse-only` and `--runc-only`, for cases that go with both."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--dormouse-only", dest="runtimes", action="store_const", const=["dormouse"], default=list(both),
                       help="not with runc")
    group.add_argument("--runc-only", dest="runtimes", action="store_const", const=["runc"],
                       help="not with Dormouse: is the test itself right?")
