"""The product of two matrices."""

import numpy
from serve import numbers, serve


def answer(seed):
    size, drawn = 64 + seed % 7 * 32, numbers(seed)
    left, right = (numpy.array([next(drawn) for _ in range(size * size)], dtype=float).reshape(size, size) for _ in range(2))
    product = left @ right
    return {"size": size, "sum": int(product.sum()), "trace": int(numpy.trace(product))}


serve(answer)
