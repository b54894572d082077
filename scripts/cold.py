"""What a wake costs in other ways than a median: a cold heap touched by many tasks and beside the disk, sixty wakes in
turn, and a hundred servers woken at once."""

import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median

from asked import Cold, Python
from disk import fio, read_pages
from lib.outcome import Failure
from peers import Runc
from sleepers import Dormouse, drop_caches

TASKS, TOUCHES = 8, 20_000
SINGLES = 1000
FILE_SIZE = "1g"
SERVERS, CLIENTS = 100, 16
# Commands at a time when all servers are started, or put to sleep.
HANDS = 4
SETTLE_SECONDS = 0.2


def cold_answer(sleeper, request):
    """Wakes it by a command after its memory went to the disk, and asks it; result: the numbers that it answers."""
    sleeper.sleep()
    time.sleep(SETTLE_SECONDS)
    drop_caches()
    sleeper.wake()
    words = sleeper.exchange(request.encode() + b"\n").decode().split()
    if not words or not all(word.isdigit() for word in words):
        raise Failure(f"a cold heap answered {' '.join(words)} to {request}")
    return [int(word) for word in words]


def cold_turn(figures, file, heap, large):
    """One turn of touches of a cold heap, and of the same by the disk itself."""
    pages, took_us = cold_answer(heap, f"random {TOUCHES} {TASKS}")
    figures.add("cold", "dormouse", "random", rate=pages * 10**6 / took_us)
    _, half, nine_tenths, most = cold_answer(heap, f"single {SINGLES}")
    figures.add("cold", "dormouse", "single", latency=half, p90=nine_tenths, p99=most)
    figures.add("cold", "disk", "single", latency=median(read_pages(file, SINGLES)))
    size, took_us = cold_answer(large, "scan 1")
    figures.add("cold", "dormouse", "scan", rate=size * 10**6 / took_us)
    figures.add("cold", "fio", "scan", rate=fio("read", file, FILE_SIZE))


def cold(figures, place, quick):
    heap = Dormouse(place, Cold(1024), "cold", reap="off")
    large = Dormouse(place, Cold(2048), "cold", reap="off", memory="3G")
    try:
        for sleeper in (heap, large):
            sleeper.launch_and_wait()
        file = place.swap / "fio"
        fio("write", file, FILE_SIZE)
        for _ in range(3 if quick else 7):
            figures.attempt("cold", "dormouse", cold_turn, figures, file, heap, large)
        file.unlink()
    finally:
        for sleeper in (heap, large):
            sleeper.close()


def wake(figures, runner, sleeper):
    """One sleep of the python server, and its first request with a cold page cache."""
    sleeper.sleep()
    more = {"working_set": sleeper.memory_by_class()["working_set_bytes"]} if isinstance(sleeper, Dormouse) else {}
    time.sleep(SETTLE_SECONDS)
    drop_caches()
    figures.add("wakes", runner, "first request", latency=sleeper.timed_request(), **more)


def wakes(figures, place, quick):
    workload = Python()
    sleepers = {"dormouse, REAP": Dormouse(place, workload, "wakes-reap"),
                "dormouse, page fault": Dormouse(place, workload, "wakes-fault", reap="off"),
                "runc, freezer": Runc(place, workload, "wakes-runc")}
    drop_caches()
    try:
        for runner, sleeper in sleepers.items():
            figures.attempt("wakes", runner, sleeper.launch_and_wait)
            # The first wake has no working set.
            figures.attempt("wakes", runner, sleeper.sleep)
            figures.attempt("wakes", runner, sleeper.timed_request)
        for _ in range(20 if quick else 60):
            for runner, sleeper in sleepers.items():
                figures.attempt("wakes", runner, wake, figures, runner, sleeper)
    finally:
        for sleeper in sleepers.values():
            sleeper.close()


def hundred_rounds(figures, sleepers, rounds):
    with ThreadPoolExecutor(HANDS) as hands:
        list(hands.map(Dormouse.launch_and_wait, sleepers))
    for turn in range(rounds + 1):
        with ThreadPoolExecutor(HANDS) as hands:
            list(hands.map(Dormouse.sleep, sleepers))
        time.sleep(1)
        drop_caches()
        with ThreadPoolExecutor(CLIENTS) as clients:
            # The threads are there before the clock runs.
            list(clients.map(time.sleep, [0.05] * CLIENTS))
            begin = time.perf_counter_ns()
            each = list(clients.map(Dormouse.timed_request, sleepers))
            took = time.perf_counter_ns() - begin
        # The first wakes have no working set.
        state = "all answered" if turn else "all answered, the first time"
        figures.add("hundred", "dormouse", state, latency=took, one=median(each), slowest=max(each))


def hundred(figures, place, quick):
    workload = Python()
    sleepers = [Dormouse(place, workload, "hundred") for _ in range(SERVERS)]
    try:
        figures.attempt("hundred", "dormouse", hundred_rounds, figures, sleepers, 3 if quick else 8)
    finally:
        with ThreadPoolExecutor(HANDS) as hands:
            list(hands.map(Dormouse.close, sleepers))


PARTS = {"cold": cold, "wakes": wakes, "hundred": hundred}
