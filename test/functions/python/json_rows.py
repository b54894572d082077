"""Parses and writes JSON: rows of shops and prices, grouped by shop."""

import collections
import json

from serve import numbers, serve


def text_of(seed):
    drawn = numbers(seed)
    return json.dumps([{"id": at, "shop": f"shop-{next(drawn) % 20}", "price": next(drawn), "tags": ["a", str(at)] * 3}
                       for at in range(400 + seed % 7 * 200)])


def answer(seed):
    sums = collections.Counter()
    for row in json.loads(text_of(seed)):
        sums[row["shop"]] += row["price"]
    return json.loads(json.dumps(sums))


serve(answer)
