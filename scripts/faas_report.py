"""The figures of scripts/bench-faas, as a table and as a chart."""

from math import ceil, floor, log10
from xml.sax.saxutils import escape

MB = 1e6
WORDS = {"dormouse": "Dormouse", "runc": "runc, stopped", "runc-freeze": "runc, frozen and reclaimed",
         "runc-more": "runc, stopped, more memory"}
COLOURS = {"dormouse": "#2f6f8f", "runc": "#b5651d", "runc-freeze": "#7a7a7a", "runc-more": "#d9a066"}
SHARES = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
BAR, LABEL, WIDTH, TOP = 17, 215, 300, 62
PANEL = LABEL + WIDTH + 60


def percentile(values, share):
    """The smallest value that so many of them do not exceed."""
    return sorted(values)[max(ceil(len(values) * share) - 1, 0)]


def mean_bytes(run):
    return sum(size for _, size in run["memory"]) / max(len(run["memory"]), 1)


def most_bytes(run):
    return max((size for _, size in run["memory"]), default=0)


def ms(value):
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def table(raw):
    """A row a runtime."""
    head = ["", "budget, MB", "requests", "cold starts", "wakes", *(f"{name}, ms" for name, _ in SHARES), "longest, ms",
            "memory of all, mean, MB", "most, MB", "wrong answers"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for name, run in raw["runs"].items():
        latencies = run["latencies_ms"]
        cells = [WORDS[name], f"{run['budget_bytes'] / MB:.0f}", run["requests"], run["cold_starts"], run["wakes"],
                 *(ms(percentile(latencies, share)) for _, share in SHARES), ms(max(latencies)),
                 f"{mean_bytes(run) / MB:.0f}", f"{most_bytes(run) / MB:.0f}", run["wrong"]]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    loads = ", ".join(f"{WORDS[name]} {run['load']:.1f}" for name, run in raw["runs"].items())
    machine = raw["machine"]
    return "\n".join([*lines, "", f"{machine['cpus']} CPUs ({machine['model']}), {machine['memory_gib']} GiB, Linux "
                      f"{machine['kernel']}; load before each day: {loads}."])


def text(x, y, words, kind="", anchor="start"):
    kind = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{kind} text-anchor="{anchor}">{escape(str(words))}</text>'


def rule(x1, y1, x2, y2, style='stroke="#ddd"'):
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" {style}/>'


def latency_panel(runs):
    """Bars on a logarithmic axis; result: what is drawn, and where it ends."""
    rows = [(name, share, percentile(run["latencies_ms"], part)) for name, run in runs.items() for share, part in SHARES]
    low = floor(log10(min(value for *_, value in rows)))
    high = ceil(log10(max(value for *_, value in rows)) + 0.1)
    bottom = TOP + BAR * len(rows)

    def at(value):
        return LABEL + (log10(value) - low) / (high - low) * WIDTH

    parts = [text(10, TOP - 14, "a request, ms", "title")]
    for power in range(low, high + 1):
        parts += [rule(at(10.0**power), TOP, at(10.0**power), bottom),
                  text(at(10.0**power), bottom + 14, f"{10.0**power:g}", "axis", "middle")]
    for index, (name, share, value) in enumerate(rows):
        y = TOP + index * BAR + 2
        if index % len(SHARES) == 0:
            parts.append(text(LABEL - 36, y + 11, WORDS[name], anchor="end"))
        parts += [text(LABEL - 6, y + 11, share, "axis", "end"),
                  f'<rect x="{LABEL}" y="{y}" width="{max(at(value) - LABEL, 1):.1f}" height="{BAR - 4}" fill="{COLOURS[name]}"/>',
                  text(at(value) + 4, y + 11, ms(value), "value")]
    return parts, bottom


def step_of(most):
    """A round number of which four to ten make the axis."""
    power = 10 ** floor(log10(most / 4))
    return next(times * power for times in (5, 2, 1) if most / (times * power) >= 4)


def memory_panel(runs, seconds, bottom):
    """Lines over the day."""
    most = max(max(most_bytes(run), run["budget_bytes"]) for run in runs.values()) / MB
    step = step_of(most)
    full = ceil(most / step) * step
    left = PANEL + 50

    def across(at):
        return left + at / seconds * WIDTH

    def up(size_mb):
        return bottom - size_mb / full * (bottom - TOP)

    parts = [text(left, TOP - 14, "memory of all functions, asleep ones included, MB", "title")]
    for index in range(round(full / step) + 1):
        parts += [rule(left, up(index * step), left + WIDTH, up(index * step)),
                  text(left - 6, up(index * step) + 4, f"{index * step:g}", "axis", "end")]
    for hour in (0, 6, 12, 18, 24):
        parts.append(text(across(hour / 24 * seconds), bottom + 14, f"{hour}:00", "axis", "middle"))
    for name, run in runs.items():
        points = " ".join(f"{across(min(at, seconds)):.1f},{up(size / MB):.1f}" for at, size in run["memory"])
        parts.append(f'<polyline points="{points}" fill="none" stroke="{COLOURS[name]}" stroke-width="1.5"/>')
    budget = min(run["budget_bytes"] for run in runs.values()) / MB
    parts += [rule(left, up(budget), left + WIDTH, up(budget), 'stroke="#222" stroke-dasharray="4 3"'),
              text(left + WIDTH + 4, up(budget) + 4, "budget", "axis")]
    return parts


def chart(raw):
    """The whole chart, an SVG."""
    runs = raw["runs"]
    bars, bottom = latency_panel(runs)
    lines = memory_panel(runs, raw["seconds"], bottom)
    width, height = 2 * PANEL, bottom + 76
    legend = []
    for place, (name, run) in enumerate(runs.items()):
        x, y = 10 + place % 2 * PANEL, bottom + 32 + place // 2 * 20
        words = f"{WORDS[name]}: {run['cold_starts']} cold starts, {run['wakes']} wakes"
        legend += [f'<rect x="{x}" y="{y}" width="11" height="11" fill="{COLOURS[name]}"/>',
                   text(x + 16, y + 9, words, "axis")]
    title = f"A day of {next(iter(runs.values()))['requests']} requests to {raw['functions']} functions, in {raw['seconds']} s"
    style = ("text{font:11px sans-serif;fill:#222}.title{font-weight:bold;font-size:13px}.axis{fill:#777;font-size:10px}"
             ".value{font-size:10px}")
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
    paper = f'<rect width="{width}" height="{height}" fill="#fff"/>'
    return "\n".join([head, f"<style>{style}</style>", paper, text(10, 22, title, "title"), *bars, *lines, *legend, "</svg>\n"])
