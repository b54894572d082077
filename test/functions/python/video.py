"""Frames of a film in color: to gray, and how much changes from each to the next."""

import itertools

import numpy
from serve import serve

WIDTH, HEIGHT = 160, 120
X, Y = numpy.meshgrid(numpy.arange(WIDTH), numpy.arange(HEIGHT))


def frame(seed, at):
    return numpy.stack([(X * (at + 1) + Y * channel + seed) & 255 for channel in (1, 2, 3)], axis=-1).astype(numpy.int64)


def answer(seed):
    grays = [frame(seed, at) @ numpy.array([77, 150, 29]) >> 8 for at in range(4 + seed % 5)]
    changed = [int((abs(after - before) > 16).sum()) for before, after in itertools.pairwise(grays)]
    return {"frames": len(grays), "changed": changed, "light": int(sum(gray.sum() for gray in grays))}


serve(answer)
