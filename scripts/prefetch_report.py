"""A table and a chart of what bench-prefetch has measured."""
import statistics
from html import escape

# The way in which pages come, with whom they are shared, its words, and its colour.
WAYS = [("none", "none", "no prefetch", "#b8b8b8"), ("host", "none", "Linux read-ahead", "#8a8a8a"),
        ("mincore", "none", "mincore's list", "#c99a4a"),
        ("reap", "none", "REAP's file", "#b5651d"), ("list", "none", "kernel's list", "#7fb0c8"),
        ("list", "snapshot", "kernel's list, shared", "#2f6f8f"),
        ("bpf", "snapshot", "eBPF's list, shared", "#1d4a61")]
LABEL, WIDTH, BAR, GAP = 90, 520, 9, 14


def taken(ways, count, by, share):
    """Milliseconds of each round."""
    return next(([took for took, _ in values] for clones, way, whom, values in ways if (clones, way, whom) == (count, by, share)), [])


def read(ways, count, by, share):
    """MiB of each round."""
    return next(([mib for _, mib in values] for clones, way, whom, values in ways if (clones, way, whom) == (count, by, share)), [])


def cell(values, base):
    if not values:
        return "–"
    middle = statistics.median(values)
    part = f"**{middle / base:.2f}** " if base else ""
    return f"{part}{middle:.0f} ({min(values):.0f} to {max(values):.0f})"


def table(found):
    """One clone: its time by each way, as a part of that without any and in ms."""
    rows = ["| function | " + " | ".join(words for _, _, words, _ in WAYS) + " |", "|---" * (len(WAYS) + 1) + "|"]
    for name, one in found.items():
        base = statistics.median(taken(one["ways"], 1, "none", "none"))
        rows.append(f"| {name} | " + " | ".join(cell(taken(one["ways"], 1, by, share), base) for by, share, _, _ in WAYS) + " |")
    return "\n".join(rows)


def several(found, clones):
    """Many clones at once, beside one: times and bytes."""
    ways = [("reap", "none"), ("list", "snapshot"), ("bpf", "snapshot")]
    heads = (f"{by}: {clones} ÷ 1, MiB {clones}, 1" for by, _ in ways)
    rows = ["| function | used, missed | " + " | ".join(heads) + " |", "|---" * (len(ways) + 2) + "|"]
    for name, one in found.items():
        cells = []
        for way in ways:
            many, single = (statistics.median(taken(one["ways"], count, *way)) for count in (clones, 1))
            much, little = (statistics.median(read(one["ways"], count, *way)) for count in (clones, 1))
            cells.append(f"{many / single:.1f} ({many:.0f} ms), {much:.1f}, {little:.1f}")
        rows.append(f"| {name} | {one['used']:.0%}, {one['missed']:.0%} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def chart(found):
    """The time of one clone by each way: the median, and a line from the lowest to the highest."""
    most = max(max(taken(one["ways"], 1, by, share), default=0) for one in found.values() for by, share, _, _ in WAYS)
    scale, parts, y = WIDTH / most, [], 40
    for at, (_, _, words, colour) in enumerate(WAYS):
        left, top = 10 + at % 4 * 165, 8 + at // 4 * 14
        parts.append(f'<rect x="{left}" y="{top}" width="9" height="9" fill="{colour}"/><text x="{left + 13}" y="{top + 9}">{escape(words)}</text>')
    for name, one in found.items():
        parts.append(f'<text x="{LABEL - 6}" y="{y + len(WAYS) * BAR / 2 + 4:.0f}" text-anchor="end">{escape(name)}</text>')
        for by, share, _, colour in WAYS:
            values = taken(one["ways"], 1, by, share)
            low, middle, high = (LABEL + scale * value for value in (min(values), statistics.median(values), max(values)))
            parts.append(f'<rect x="{LABEL}" y="{y}" width="{middle - LABEL:.1f}" height="{BAR - 1}" fill="{colour}"/>'
                         f'<path d="M{low:.1f} {y + BAR / 2 - 0.5}H{high:.1f}" stroke="#222" stroke-width="1"/>'
                         f'<text x="{high + 4:.1f}" y="{y + BAR - 1}" class="value">{statistics.median(values):.0f} ms</text>')
            y += BAR
        y += GAP
    width = LABEL + WIDTH + 60
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y}" width="{width}" height="{y}">'
    style = "<style>text{font:11px sans-serif;fill:#222}.value{font-size:8px}</style>"
    return "\n".join([head, style, f'<rect width="{width}" height="{y}" fill="#fff"/>', *parts, "</svg>\n"])
