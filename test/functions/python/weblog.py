"""Reads lines of a web server's log by a regular expression: requests by status, and bytes."""

import collections
import re

from serve import numbers, serve

LINE = re.compile(r'^(?P<host>\S+) \S+ \S+ \[(?P<time>[^]]+)\] '
                  r'"(?P<method>[A-Z]+) (?P<path>\S+) HTTP/1\.[01]" (?P<status>\d{3}) (?P<bytes>\d+)$')
STATUSES = (200, 200, 200, 204, 301, 404, 500)


def lines(seed):
    drawn = numbers(seed)
    for at in range(500 + seed % 10 * 250):
        host, path, status, size = (next(drawn) for _ in range(4))
        yield (f'10.0.{host >> 8}.{host & 255} - - [22/Nov/2026:10:{at // 60 % 60:02}:{at % 60:02} +0000] '
               f'"GET /page/{path} HTTP/1.1" {STATUSES[status % len(STATUSES)]} {size}')


def answer(seed):
    statuses, size = collections.Counter(), 0
    for line in lines(seed):
        found = LINE.match(line)
        statuses[found["status"]] += 1
        size += int(found["bytes"])
    return {"statuses": statuses, "bytes": size}


serve(answer)
