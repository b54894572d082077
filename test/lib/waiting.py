"""Waiting for what others bring about, with a deadline."""
import time
from collections.abc import Callable
from typing import TypeVar

from lib.outcome import Failure

T = TypeVar("T")


def comes(holds: Callable[[], T], patience: float, pause: float = 0.02) -> T:
    """Asks until something holds, for so many seconds. Result: what was given last, which is false if it came too late."""
    end = time.monotonic() + patience
    while True:
        got = holds()
        if got or time.monotonic() > end:
            return got
        time.sleep(pause)


def until(what: str, holds: Callable[[], T], patience: float = 60, pause: float = 0.02) -> T:
    """Waits until something holds; result: what it gave. `what` names it in the failure that comes of waiting too long."""
    if got := comes(holds, patience, pause):
        return got
    raise Failure(f"{what} did not come about in {patience} s")
