"""Trains a linear model by least squares on data that a linear rule made; the answer is the rule."""

import numpy
from serve import numbers, serve


def answer(seed):
    drawn = numbers(seed)
    rule = [next(drawn) % 100 - 50 for _ in range(8)]
    size = 1000 + seed % 6 * 1000
    features = numpy.random.default_rng(seed).normal(size=(size, len(rule)))
    found, *_ = numpy.linalg.lstsq(features, features @ numpy.array(rule), rcond=None)
    return {"rule": [round(float(weight)) for weight in found]}


serve(answer)
