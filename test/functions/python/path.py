"""Breadth-first search in a graph that it has made at its start: a torus whose nodes have other numbers."""

import collections

from serve import serve

WIDTH, HEIGHT, STEP = 150, 100, 7919


def node(x, y):
    return (y % HEIGHT * WIDTH + x % WIDTH) * STEP % (WIDTH * HEIGHT)


GRAPH = {node(x, y): [node(x + 1, y), node(x - 1, y), node(x, y + 1), node(x, y - 1)]
         for y in range(HEIGHT) for x in range(WIDTH)}


def answer(seed):
    start, goal = seed * 31 % len(GRAPH), seed * 1009 % len(GRAPH)
    far, queue = {start: 0}, collections.deque([start])
    while goal not in far:
        at = queue.popleft()
        for next_one in GRAPH[at]:
            if next_one not in far:
                far[next_one] = far[at] + 1
                queue.append(next_one)
    return {"steps": far[goal]}


serve(answer)
