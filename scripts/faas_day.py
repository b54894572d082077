"""A day of requests to many functions, replayed fast: a few are asked often, most hardly ever, and requests come in bursts."""

import math
import random
from dataclasses import dataclass

# How often a function is asked falls with its rank to this power.
ZIPF = 1.0
# Requests of one burst on average, and the time between two of them, in seconds of the replay.
BURST, GAP_SECONDS = 3, 0.3
HOURS = 24
# Functions that ask for themselves on the hour, and how many of them each hour.
TIMED_SHARE, TIMED_AN_HOUR = 0.2, 6


@dataclass(frozen=True, order=True)
class Arrival:
    """A request: when, in seconds since the day's begin; for which function, by its rank; and its input."""

    at: float
    function: int
    seed: int


def busyness(part):
    """How busy a part of the day is, 0 to 1 of it: least at night, most in the afternoon."""
    return 0.3 + 0.7 * math.sin(math.pi * part) ** 2


def bursts(random_numbers, functions, seconds, requests_a_second):
    """Begins of bursts: more of them by day, and by popularity."""
    weights = [1 / (rank + 1) ** ZIPF for rank in range(functions)]
    # The mean of `busyness` is 0.65.
    most = requests_a_second / BURST / 0.65
    at = 0.0
    while (at := at + random_numbers.expovariate(most)) < seconds:
        if random_numbers.random() < busyness(at / seconds):
            yield at, random_numbers.choices(range(functions), weights)[0]


def arrivals(seed, functions, seconds, requests_a_second):
    """All requests of a day in their order; the same for the same numbers."""
    numbers = random.Random(seed)
    found = []
    for begin, function in bursts(numbers, functions, seconds, requests_a_second):
        at = begin
        while at < seconds:
            found.append((at, function))
            if numbers.random() < 1 / BURST:
                break
            at += numbers.expovariate(1 / GAP_SECONDS)
    timed = numbers.sample(range(functions), max(int(functions * TIMED_SHARE), 1))
    for hour in range(HOURS):
        for function in numbers.sample(timed, min(TIMED_AN_HOUR, len(timed))):
            found.append((hour * seconds / HOURS, function))
    return sorted(Arrival(at, function, numbers.randrange(1, 10000)) for at, function in found)
