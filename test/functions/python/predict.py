"""Serves a model that it has trained at its start: nearest centers of clusters of points."""

import numpy
from serve import numbers, serve

CLUSTERS, DIMENSIONS, EXAMPLES = 50, 64, 60


def center(cluster):
    drawn = numbers(cluster)
    return [next(drawn) for _ in range(DIMENSIONS)]


def train():
    noise = numpy.random.default_rng(1)
    examples = [numpy.array(center(cluster)) + noise.normal(scale=500, size=(EXAMPLES, DIMENSIONS))
                for cluster in range(CLUSTERS)]
    return numpy.stack([of.mean(axis=0) for of in examples])


MODEL = train()


def answer(seed):
    drawn, noise = numbers(seed), numpy.random.default_rng(seed)
    points = [numpy.array(center(next(drawn) % CLUSTERS)) + noise.normal(scale=500, size=DIMENSIONS)
              for _ in range(20 + seed % 10 * 20)]
    return {"clusters": [int(((MODEL - point) ** 2).sum(axis=1).argmin()) for point in points]}


serve(answer)
