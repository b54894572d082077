"""A list of cases: a line for each, and their counts at the end."""


class CheckList:
    """Tells what came of cases, and counts it. The names take so many columns."""

    def __init__(self, width: int = 28) -> None:
        self.width = width
        self.counts = {"ok": 0, "FAILED": 0, "skipped": 0}

    def tell(self, verdict: str, name: str, words: str = "") -> None:
        """A case's verdict, `ok`, `FAILED` or `skipped`; further lines of its words stand below it."""
        self.counts[verdict] += 1
        first, *rest = words.splitlines() or [""]
        line = f"{verdict:<7} {name:<{self.width}} {first}".rstrip()
        print("\n".join([line, *(f"        {more}" for more in rest)]), flush=True)

    def ok(self, name: str, words: str = "") -> None:
        self.tell("ok", name, words)

    def failed(self, name: str, words: str) -> None:
        self.tell("FAILED", name, words)

    def skipped(self, name: str, words: str) -> None:
        self.tell("skipped", name, words)

    def end(self) -> int:
        """The last line; result: the exit status. A run in which nothing passed has shown nothing."""
        print("{ok} passed, {FAILED} failed, {skipped} skipped".format(**self.counts))
        return 0 if self.counts["FAILED"] == 0 and self.counts["ok"] > 0 else 1


def skip_all(name: str, why: object, cases: int = 1) -> int:
    """Tells why none of so many cases can run here; result: the exit status."""
    print(f"skipped {name}: {why}\n0 passed, 0 failed, {cases} skipped")
    return 0
