"""The tables of scripts/bench-phoenix."""

from statistics import median

MB, MS = 10**6, 10**6
WANTED = {
    "size": "at most 3% of what a clone has awake, and 35% of a start of its own",
    "sleeper": "at most 3.5 MB without the base, 5.7 MB with its share of it",
    "request": "memory in at most 3.5 ms",
    "linpack": "memory in at most 1.1 times the warm run, where the disk takes 1.5",
    "packing": "memory at 400 MB/s a core or more",
    "many": "all are answered",
}


def cell(values, unit=1.0, digits=2):
    """The median, and the lowest and the highest."""
    if not values:
        return "–"
    low, high = min(values) / unit, max(values) / unit
    return f"{median(values) / unit:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def rows(headings, lines):
    head = f"| {' | '.join(headings)} |\n|{'---|' * len(headings)}\n"
    return head + "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def ratios(above, below):
    return [a / b for a, b in zip(above, below) if b]


def size(found):
    lines = []
    for runner, states in found.items():
        row = states["asleep"]
        kinds = {way: median([ways[way] for ways in row["ways"]]) for way in row["ways"][0]}
        parts = [100 * part for part in ratios(row["asleep"], row["warm"])]
        lines.append((runner, cell(row["warm"], MB, 1), cell(row["asleep"], MB, 3), cell(parts, 1, 2),
                      ", ".join(f"{count:.0f} {way}" for way, count in kinds.items() if count)))
    return rows(("server", "awake, MB", "asleep, MB", "asleep ÷ awake, %", "pages stored, by how"), lines)


def sleeper(found):
    lines = []
    for runner, states in found.items():
        row = states["asleep"]
        kinds = {kind: median([parts.get(kind, 0) for parts in row["parts"]]) for kind in sorted({kind for parts in row["parts"] for kind in parts})}
        sizes = (cell(row.get(name, []), MB) for name in ("own", "files", "charge", "share", "total", "awake"))
        lines.append((runner, *sizes, ", ".join(f"{kind} {size / MB:.2f}" for kind, size in kinds.items())))
    headings = ("sleeper", "without the base, MB", "of it files (the program), MB", "charged to its group, MB",
                "its share of base, index and keeper, MB", "with its share, MB", "awake with the base's pages, MB", "by process, MB")
    table = rows(headings, lines)
    held = next((states["asleep"] for states in found.values() if "pages" in states["asleep"]), None)
    if held:
        table += (f"\n\nThe base has {median(held['pages']) / MB:.1f} MB of pages and {median(held['index']) / MB:.1f} MB of index, and its keeper "
                  f"{median(held['keeper']) / MB:.1f} MB.")
    return table


def request(found):
    warm = found.get("warm", {}).get("cached", {}).get("latency", [])
    lines = []
    for runner, states in found.items():
        cached, dropped = (states.get(state, {}).get("latency", []) for state in ("cached", "dropped"))
        times = f"{median(cached) / median(warm):.1f}" if cached and warm else "–"
        memory = [value for state in states.values() for value in state.get("memory", [])]
        swapped = states.get("swapped", {}).get("swapped", [])
        lines.append((runner, cell(cached, MS), times, cell(dropped, MS), cell(memory, MB, 1), cell(swapped, MB, 1)))
    return rows(("sleeper", "first answer, ms", "÷ warm", "page cache dropped, ms", "memory asleep, MB", "in swap, MB"), lines)


def linpack(found):
    lines = []
    for which, states in found.items():
        for state, row in states.items():
            # Beyond a warm run, where nothing came at once: a page of the base that is shown is a fault, too.
            together = zip(row["run"], row["warm"], row["pages"], row["shown"])
            each = [(run - warm) / 1000 / max(pages + shown, 1) for run, warm, pages, shown in together]
            counts = (cell(row[name], 1, 0) for name in ("faults", "pages", "shown", "set"))
            lines.append((which, state, cell(row["warm"], MS), cell(row["run"], MS), cell(ratios(row["run"], row["warm"])), *counts,
                          cell(each if "page by page" in state else [], 1, 1)))
    headings = ("engine, n", "slept", "warm, ms", "run, ms", "run ÷ warm", "faults", "pages by faults", "base pages shown", "working set, pages",
                "a page, µs")
    table = rows(headings, lines)
    return f"{table}\n\n{further_faults(found)}"


def further_faults(found):
    """What a fault and a page take by the largest matrix beside the smallest: the wake itself, which both have, is no part of it."""
    lines = []
    for engine in sorted({which.partition(",")[0] for which in found}):
        of_engine = [states for which, states in found.items() if which.startswith(f"{engine},")]
        small, large = of_engine[0], of_engine[-1]
        for state in large if small is not large else ():
            more = {name: median(large[state][name]) - median(small[state][name]) for name in ("run", "warm", "faults", "pages", "shown")}
            took = (more["run"] - more["warm"]) / 1000
            counts = more["faults"], more["pages"], more["pages"] + more["shown"]
            each = [f"{took / count:.2f}" if count > 0 else "–" for count in (counts[0], counts[2])]
            lines.append((engine, state, *(f"{count:.0f}" for count in counts), f"{took / 1000:.1f}", *each))
    headings = ("engine", "slept", "further faults", "further pages by faults", "with base pages shown", "further time, ms", "a fault, µs",
                "a page, µs")
    return rows(headings, lines)


def packing(found):
    lines = []
    for what, states in found.items():
        for state, row in states.items():
            rate = [size / us for size, us in zip(row["bytes"], row["write_us"]) if us]
            core = [size / us for size, us in zip(row["bytes"], row["cpu_us"]) if us]
            a_megabyte = [us / 1000 / (size / MB) for us, size in zip(row["total_us"], row["bytes"]) if size]
            lines.append((what, state, cell(row["bytes"], MB, 1), cell(row["stored"], MB, 1), cell(row["total_us"], 1000, 1),
                          cell(row["write_us"], 1000, 1), cell(a_megabyte), cell(rate, 1, 0), cell(row["cpu_us"], 1000, 1), cell(core, 1, 0)))
    return rows(("server", "home", "pages, MB", "stored, MB", "in all, ms", "write, ms", "in all, ms a MB", "write, MB/s", "processor, ms",
                 "MB/s a core"), lines)


def many(found):
    lines = []
    for runner, states in found.items():
        row = states["all"]
        lines.append((runner, cell(row["answered"], 1, 0), cell(row["every"], MS, 0), cell(row["each"], MS, 0), cell(row["longest"], MS, 0)))
    return rows(("fifty sleepers", "answered", "until all have answered, ms", "median of a request, ms", "longest, ms"), lines)


TITLES = {
    "size": (size, "What sleeps in memory, of what it has awake"),
    "sleeper": (sleeper, "A whole sleeper: proportional set size of all of its processes"),
    "request": (request, "The first request to a sleeper"),
    "linpack": (linpack, "LINPACK: a product of a random matrix and a vector"),
    "packing": (packing, "Falling asleep for the first time"),
    "many": (many, "Fifty sleepers asked at once"),
}


def markdown(raw):
    machine = raw["machine"]
    load = ", ".join(f"{value:.1f}" for value in machine["load"])
    parts = [f"{machine['cpus']} processors ({machine['model']}), {machine['memory_gib']} GiB, Linux {machine['kernel']}, load before and after "
             f"{load}; {raw['rounds']} rounds; medians, lowest to highest."]
    for name, (table, title) in TITLES.items():
        if name in raw["figures"]:
            parts.append(f"### {title}\nWanted: {WANTED[name]}.\n\n{table(raw['figures'][name])}")
    if raw["missing"]:
        parts.append("### Missing\n" + "\n".join(f"- {words}" for words in raw["missing"]))
    return "\n\n".join(parts)
