"""Walks through a long list that is nearly empty, at the request's stride."""

from serve import serve

LENGTH, EVERY = 3_000_000, 48
LIST = [number if number % EVERY == 0 else 0 for number in range(LENGTH)]


def answer(seed):
    return {"sum": sum(LIST[seed % EVERY::EVERY * (1 + seed % 2)]), "length": len(LIST)}


serve(answer)
