"""The tables of scripts/bench-store."""

from statistics import median

from phoenix_report import cell, rows

MB, MS = 10**6, 1e-3
PLAIN = "files as they are"


def ratio(values, base):
    return f"{median(values) / median(base):.2f}" if values and base and median(base) else "–"


def space(found):
    base = found.get(PLAIN, {}).get("all", {}).get("bytes", [])
    sizes = [(name, states["all"]["bytes"]) for name, states in found.items()]
    return rows(("form", "MB", "÷ files as they are"), [(name, cell(size, MB, 1), ratio(size, base)) for name, size in sizes])


def times(found):
    """Storing all, as seconds and as parts of the first row's."""
    orders = sorted({state for states in found.values() for state in states}, reverse=True)
    first = next(iter(found.values()))
    lines = []
    for name, states in found.items():
        line = [name]
        for order in orders:
            took = states.get(order, {}).get("took", [])
            line += [cell(took), ratio(took, first.get(order, {}).get("took", []))]
        lines.append(line)
    heads = [head for order in orders for head in (f"{order}, s", f"÷ {next(iter(found))}")]
    return rows(("program", *heads), lines)


def retrieval(found):
    """One snapshot: the time, the rate, and what was read for it."""
    kinds = list(dict.fromkeys(kind for states in found.values() for kind in states))
    lines = []
    for kind in kinds:
        base = found.get("read", {}).get(kind, {}).get("took", [])
        for name, states in found.items():
            if not (row := states.get(kind)):
                continue
            rates = [size / took for size, took in zip(row["bytes"], row["took"], strict=True)]
            lines.append((kind, "reading as many bytes" if name == "read" else name, cell(row["took"], MS, 0), ratio(row["took"], base),
                          cell(rates, MB, 0), cell(row["bytes"], MB, 1), cell(row.get("read", []), MB, 1), cell(row.get("reads", []), 1, 0),
                          cell(row.get("dblocks", []), 1, 0)))
    return rows(("disk", "program", "ms a snapshot", "÷ reading", "MB/s", "MB a snapshot", "MB read", "reads", "dblocks"), lines)


def answer(found):
    lines = []
    for name in dict.fromkeys(runner.rpartition(", ")[0] for runner in found):
        plain, stored = (found.get(f"{name}, {way}", {}) for way in ("plain", "stored"))
        for kind in plain:
            took = [states.get(kind, {}).get("took", []) for states in (plain, stored)]
            lines.append((name, kind, cell(took[0], MS, 0), cell(took[1], MS, 0), ratio(took[1], took[0])))
    return rows(("function", "disk", "plain, ms", "stored, ms", "stored ÷ plain"), lines)


def ablations(found):
    lines = []
    for name, states in found.items():
        row = states["all"]
        given = row["given"][0]
        lines.append((name, cell(row["bytes"], MB, 0), f"{given / row['bytes'][0]:.2f}", cell(row["index"], MB, 2), cell(row["storing"], 1, 1),
                      cell(row["retrieving"], 1, 2), cell(row["reads"], 1, 0), cell(row["memory"], MB, 0)))
    heads = ("without", "MB", "1 :", "index, MB", "storing, s", "retrieving, s", "reads", "memory, MB")
    return rows(heads, lines)


def many(found):
    counts = sorted({int(count) for states in found.values() for count in states})
    lines = [(name, *(cell(states.get(str(count), {}).get("took", []), MS, 0) for count in counts)) for name, states in found.items()]
    return rows(("ms, with so many snapshots", *map(str, counts)), lines)


PARTS = {"space": ("What the snapshots take", space), "time": ("Storing all", times),
         "retrieval": ("Bringing one back", retrieval), "answer": ("The first answer of a clone", answer),
         "ablations": ("Without one thing or another", ablations), "many": ("A thousand snapshots of forty kinds", many)}


def markdown(raw):
    host, parts = raw["machine"], []
    kind = "virtual" if host["virtual"] else "physical"
    parts.append(f"{len(raw['snapshots'])} snapshots; {host['cpus']} processors ({host['model']}, {kind}), {host['memory_gib']} GiB, Linux "
                 f"{host['kernel']}; load {host['load'][0]:.1f} to {host['load'][1]:.1f}; {raw['rounds']} rounds, {raw['orders']} random orders.")
    for name, (title, table) in PARTS.items():
        if found := raw["figures"].get(name):
            parts.append(f"### {title}\n\n{table(found)}")
    if raw["missing"]:
        parts.append("Left out:\n\n" + "\n".join(f"- {words}" for words in raw["missing"]))
    return "\n\n".join(parts)
