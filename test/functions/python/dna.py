"""The line that draws a DNA sequence: each base is two steps to the right, up or down."""

from serve import numbers, serve

STEPS = {"A": (0.5, -0.5), "C": (-0.5, -0.5), "G": (-0.5, 0.5), "T": (0.5, 0.5)}


def answer(seed):
    drawn = numbers(seed)
    sequence = "".join("ACGT"[next(drawn) >> 7 & 3] for _ in range(3000 + seed % 9 * 3000))
    x, y, line = 0.0, 0.0, []
    for base in sequence:
        for step in STEPS[base]:
            x, y = x + 0.5, y + step
            line.append((x, y))
    heights = [point[1] for point in line]
    return {"points": len(line), "end": line[-1], "lowest": min(heights), "highest": max(heights)}


serve(answer)
