"""The tables of scripts/bench-functions."""

from statistics import mean, median

# Figures of a wake: name, title, what one unit is, digits behind the point.
WAKE = (("prefetch_us", "prefetch, ms", 1e3, 2), ("latency_ns", "first answer, ms", 1e6, 1), ("cpu_ns", "CPU, ms", 1e6, 1))
STORE = (("disk_bytes", "disk, MB", 1e6, 2), ("set_bytes", "set, MB", 1e6, 2), ("set_disk_bytes", "… stored", 1e6, 2))
# A list that is nearly empty packs as nothing real does; the paper's means leave it out as well.
SYNTHETIC = "list"
RATIOS = (("ratio", "ratio"), ("ratio_with_words", "… with word pages"))


def spread(values, unit, digits):
    """The median, and the lowest and the highest in brackets."""
    if not any(values):
        return "–"
    low, middle, high = (f"{value / unit:.{digits}f}" for value in (min(values), median(values), max(values)))
    return f"{middle} ({low}–{high})"


def relative(rows, base, figure):
    """The median over the rounds of a figure divided by the base's in the same round."""
    mine, other = rows.get("wake", {}).get(figure, []), base.get("wake", {}).get(figure, [])
    # With `--reap stream` nothing says how long the prefetch took.
    found = [a / b for a, b in zip(mine, other) if a and b]
    return median(found) if found else None


def table(titles, lines):
    return "\n".join(["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles),
                      *("| " + " | ".join(line) + " |" for line in lines)])


def of_function(rows, base):
    """One line for each list of options; `rows`: figures by label and state."""
    lines = []
    for label, states in rows.items():
        wake, store = states.get("wake", {}), states.get("asleep", {})
        if not wake or not store:
            continue
        line = [label, ", ".join(sorted(set(store["codec"])))]
        line += [f"{median(store[name]):.2f}" for name, _ in RATIOS]
        line += [f"{median(store[name]) / unit:.{digits}f}" for name, _, unit, digits in STORE]
        for name, _, unit, digits in WAKE:
            times = relative(states, rows.get(base, {}), name)
            line.append(spread(wake[name], unit, digits) + (f" ×{times:.2f}" if times is not None and label != base else ""))
        lines.append(line)
    titles = ["options", "codec", *(title for _, title in RATIOS), *(title for _, title, _, _ in STORE),
              *(title for _, title, _, _ in WAKE)]
    return table(titles, lines)


def over_functions(found, labels, base):
    """The means over the functions of ratios, and of figures beside the base's; lowest and highest in brackets."""
    lines = []
    for label in labels:
        stores = [rows[label]["asleep"] for rows in found.values() if "asleep" in rows.get(label, {})]
        line = [label, str(len(stores))]
        for values in ([median(store[name]) for store in stores] for name, _ in RATIOS):
            line.append(around_mean(values))
        for name, _, _, _ in WAKE:
            line.append(around_mean([times for rows in found.values()
                                     if (times := relative(rows.get(label, {}), rows.get(base, {}), name)) is not None]))
        pairs = [(rows[label]["asleep"]["disk_bytes"], rows[base]["asleep"]["disk_bytes"]) for rows in found.values()
                 if all("asleep" in rows.get(one, {}) for one in (label, base))]
        line.append(around_mean([median(mine) / median(other) for mine, other in pairs]))
        lines.append(line)
    titles = ["options", "functions", *(title for _, title in RATIOS),
              *(f"{title.partition(',')[0]} ÷ {base}" for _, title, _, _ in WAKE), f"disk ÷ {base}"]
    return table(titles, lines)


def around_mean(values):
    return f"{mean(values):.2f} ({min(values):.2f}–{max(values):.2f})" if values else "–"


def packing(found, labels):
    """What packing and unpacking cost, as the sandboxes count it: means over the functions, of all that each packed."""
    lines = []
    for label in labels:
        own = [rows.get(label, {}) for rows in found.values()]
        stores = [states["asleep"] for states in own if "pack_cpu_us" in states.get("asleep", {})]
        wakes = [states["wake"] for states in own if "unpack_us" in states.get("wake", {})]
        if stores:
            # They are sums since the start.
            line = [label] + [f"{mean(store[name][-1] for store in stores):.1f}" for name in ("packings", "packings_cancelled")]
            line += [f"{mean(store[name][-1] for store in stores) / 1e3:.1f}" for name in ("pack_us", "pack_cpu_us")]
            line.append(packed_ratio([store["home"][-1] for store in stores]))
            lines.append([*line, f"{mean(median(wake['unpack_us']) for wake in wakes) / 1e3:.2f}" if wakes else "–"])
    titles = ["options", "packings", "cancelled", "packing, ms", "… CPU, ms", "ratio of all packed",
              "unpacking in a wake, ms of all threads"]
    return table(titles, lines) if lines else "Nothing was packed."


def packed_ratio(homes):
    return around_mean([home["packed_input_bytes"] / home["packed_output_bytes"] for home in homes
                        if home.get("packed_output_bytes")])


def page(raw):
    found, labels, base = raw["figures"], raw["options"], raw["base"]
    parts = [f"## {name}\n{of_function(rows, base)}" for name, rows in found.items()]
    real = {name: rows for name, rows in found.items() if name != SYNTHETIC} or found
    without = f", without {SYNTHETIC}" if len(real) < len(found) else ""
    title = f"## Over the functions{without}: means (lowest–highest), beside {base} in the same round"
    parts.append(f"{title}\n{over_functions(real, labels, base)}")
    parts.append(f"## Packing, over the functions{without}\n{packing(real, labels)}")
    parts += [f"Not measured: {why}" for why in raw["missing"]]
    parts += raw["notes"]
    return "\n\n".join(parts)
