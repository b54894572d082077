"""The figures of scripts/bench-hibernate as Markdown tables, and as a chart."""

import textwrap
from html import escape
from math import ceil, floor, log10
from statistics import median, quantiles

WORKLOADS = {"python": "python", "redis": "redis, 100 MB", "sparse": "sparse heap, 256 MB", "dense": "dense heap, 256 MB"}
# What a row is called, and whose figures they are: runner and state.
LATENCIES = {
    "Dormouse, cold start": ("dormouse", "cold start"),
    "… with its files in the page cache": ("dormouse", "cold start, files cached"),
    "Dormouse, warm": ("dormouse", "warm"),
    "Dormouse, hibernated, woken by page faults": ("dormouse, page fault", "first request"),
    "Dormouse, hibernated, woken by REAP": ("dormouse, REAP", "first request"),
    "Dormouse, hibernated, woken by REAP stream": ("dormouse, REAP stream", "first request"),
    "Dormouse, woken-up, after page faults": ("dormouse, page fault", "woken-up"),
    "Dormouse, woken-up, after REAP": ("dormouse, REAP", "woken-up"),
    "runc, cold start": ("runc", "cold start"),
    "… with its files in the page cache ": ("runc", "cold start, files cached"),
    "runc, warm": ("runc", "warm"),
    "runc, frozen and reclaimed, thawed": ("runc, freezer", "first request"),
    "runc, after that": ("runc, freezer", "woken-up"),
    "runsc, cold start": ("runsc", "cold start"),
    "… with its files in the page cache  ": ("runsc", "cold start, files cached"),
    "runsc, warm": ("runsc", "warm"),
    "runsc, paused, resumed": ("runsc, pause", "first request"),
    "runsc, after that": ("runsc, pause", "woken-up"),
    "runsc, restored from a checkpoint": ("runsc, checkpoint", "first request"),
    "runsc, after that ": ("runsc, checkpoint", "woken-up"),
}
MEMORIES = {
    "Dormouse, warm": ("dormouse", "warm"),
    "Dormouse, hibernated, without REAP": ("dormouse, page fault", "asleep"),
    "Dormouse, hibernated": ("dormouse, REAP", "asleep"),
    "Dormouse, woken-up, after page faults": ("dormouse, page fault", "woken-up"),
    "Dormouse, woken-up, after REAP": ("dormouse, REAP", "woken-up"),
    "runc, warm": ("runc", "warm"),
    "runc, frozen and reclaimed": ("runc, freezer", "asleep"),
    "runc, after that": ("runc, freezer", "woken-up"),
    "runsc, warm": ("runsc", "warm"),
    "runsc, paused": ("runsc, pause", "asleep"),
    "runsc, restored from a checkpoint": ("runsc, checkpoint", "woken-up"),
}
BARS = {"latency": ["Dormouse, cold start", "Dormouse, warm", "Dormouse, hibernated, woken by page faults",
                    "Dormouse, hibernated, woken by REAP", "Dormouse, woken-up, after REAP", "runc, warm",
                    "runc, frozen and reclaimed, thawed", "runsc, warm", "runsc, paused, resumed",
                    "runsc, restored from a checkpoint"],
        "charge": ["Dormouse, warm", "Dormouse, hibernated", "Dormouse, woken-up, after REAP", "runc, warm",
                   "runc, frozen and reclaimed", "runc, after that", "runsc, warm", "runsc, paused"]}
MB = 1e6
NOTHING = "Not measured.\n"


def fill(text):
    """A paragraph of Markdown."""
    return textwrap.fill(" ".join(text.split()), 120, break_long_words=False, break_on_hyphens=False)


class Figures:
    """What was measured, with what follows from it."""

    def __init__(self, raw):
        self.raw, self.found = raw, raw["figures"]

    def values(self, workload, where, name):
        runner, state = where
        found = self.found.get(workload, {}).get(runner, {}).get(state, {}).get(name, [])
        return [value for value in found if value is not None]

    def median(self, workload, where, name):
        values = self.values(workload, where, name)
        return median(values) if values else None

    def ratio(self, workload, name, above, below):
        """The median of the turns' own ratios; where they are not of the same turns, the ratio of the medians."""
        tops, bottoms = self.values(workload, above, name), self.values(workload, below, name)
        if not tops or not bottoms:
            return None
        if len(tops) == len(bottoms) and len(tops) < 20:
            return median(top / bottom for top, bottom in zip(tops, bottoms))
        return median(tops) / median(bottoms)

    def asleep_share(self, workload):
        """Hibernated memory over warm memory, by the charge and by PSS."""
        pair = ("dormouse, REAP", "asleep"), ("dormouse", "warm")
        return [self.ratio(workload, name, *pair) for name in ("charge", "pss")]

    def workloads(self):
        return [name for name in WORKLOADS if name in self.found]


def number(value):
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def milliseconds(values):
    if not values:
        return "–"
    high = quantiles(values, n=10, method="inclusive")[8] if len(values) > 1 else values[0]
    return f"{number(median(values) / 1e6)} ({number(high / 1e6)})"


def megabytes(value):
    return "–" if value is None else f"{value / MB:.1f}"


def percent(value):
    return "–" if value is None else f"{value * 100:.1f} %"


def times(value):
    return "–" if value is None else f"{value:.2f}"


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def shown(figures, rows, name):
    """The rows of which there is a figure."""
    return {words: where for words, where in rows.items()
            if any(figures.values(workload, where, name) for workload in figures.workloads())}


def latencies(figures):
    names = figures.workloads()
    rows = [[words.strip(), *(milliseconds(figures.values(workload, where, "latency")) for workload in names)]
            for words, where in shown(figures, LATENCIES, "latency").items()]
    return table(["ms, median (90 %)", *(WORKLOADS[name] for name in names)], rows)


def memory_cell(figures, workload, where):
    charge, pss = (figures.median(workload, where, name) for name in ("charge", "pss"))
    dropped = figures.median(workload, where, "charge_dropped")
    return f"{megabytes(charge)}{f' ({megabytes(dropped)})' if dropped else ''} / {megabytes(pss)}"


def memories(figures):
    names = figures.workloads()
    rows = [[words.strip(), *(memory_cell(figures, workload, where) for workload in names)]
            for words, where in shown(figures, MEMORIES, "charge").items()]
    return table(["MB, charge / PSS", *(WORKLOADS[name] for name in names)], rows)


FIRST_REAP, FIRST_FAULT = ("dormouse, REAP", "first request"), ("dormouse, page fault", "first request")
THAWED, RESTORED = ("runc, freezer", "first request"), ("runsc, checkpoint", "first request")
RATIOS = {
    "REAP ÷ runc frozen and reclaimed": (FIRST_REAP, THAWED),
    "page faults ÷ runc frozen and reclaimed": (FIRST_FAULT, THAWED),
    "REAP ÷ page faults": (FIRST_REAP, FIRST_FAULT),
    "REAP stream ÷ REAP": (("dormouse, REAP stream", "first request"), FIRST_REAP),
    "REAP ÷ runsc restored": (FIRST_REAP, RESTORED),
    "REAP ÷ Dormouse's cold start": (FIRST_REAP, ("dormouse", "cold start")),
    "woken-up ÷ warm": (("dormouse, REAP", "woken-up"), ("dormouse", "warm")),
    "runc: after the thaw ÷ warm": (("runc, freezer", "woken-up"), ("runc", "warm")),
}


def ratios(figures):
    names = figures.workloads()
    rows = [[words, *(times(figures.ratio(workload, "latency", *pair)) for workload in names)]
            for words, pair in RATIOS.items()]
    for words, name in (("hibernated ÷ warm, charge", "charge"), ("hibernated ÷ warm, PSS", "pss")):
        pair = ("dormouse, REAP", "asleep"), ("dormouse", "warm")
        rows.append([words, *(times(figures.ratio(workload, name, *pair)) for workload in names)])
    return table(["", *(WORKLOADS[name] for name in names)], rows)


def ten(figures):
    rows = []
    for runner in ("dormouse", "dormouse, files shared", "runc"):
        for state in ("warm", "asleep, the first time", "asleep, the second time", "asleep", "woken-up"):
            if figures.values("ten", (runner, state), "charge"):
                rows.append([f"{runner}, {state}", memory_cell(figures, "ten", (runner, state))])
    processes = figures.values("ten", ("dormouse", "asleep"), "processes")
    if not rows:
        return NOTHING
    text = table(["MB a sandbox, charge / PSS", ""], rows)
    if processes:
        parts = ", ".join(f"{name} {number(size / 1e3)} kB" for name, size in processes[0].items())
        text += "\n" + fill(f"PSS of one of Dormouse's that sleep by process: {parts}.") + "\n"
    if classes := figures.values("ten", ("dormouse", "asleep"), "classes"):
        parts = ", ".join(f"{name.removesuffix('_bytes').replace('_', ' ')} {number(size / 1e3)} kB"
                          for name, size in classes[0].items())
        text += "\n" + fill(f"What `dormouse stats` says of it: {parts}.") + "\n"
    return text


def disk(figures):
    rows = []
    for words, of, beside in (("swap-out", "write", "write"), ("REAP prefetch", "read", "read"),
                              ("swap-out to the REAP file", "write of the REAP file", "write")):
        ours, theirs = figures.median("disk", ("dormouse", of), "rate"), figures.median("disk", ("fio", beside), "rate")
        if ours and theirs:
            share = figures.ratio("disk", "rate", ("dormouse", of), ("fio", beside))
            rows.append([words, number(ours / MB), number(theirs / MB), times(share)])
    return NOTHING if not rows else table(["MB/s", "Dormouse", "fio", "Dormouse ÷ fio"], rows)


def phases(figures):
    slept = figures.values("stop", ("dormouse", "hibernated"), "slept")
    if not slept:
        return NOTHING
    names = ("pause_us", "collect_us", "write_us", "release_us", "total_us")
    cells = [number(median(one[name] for one in slept) / 1e3) for name in names]
    took = figures.values("stop", ("dormouse", "hibernated"), "took")
    return table([*(name.removesuffix("_us") for name in names), "since the signal"], [[*cells, milliseconds(took)]])


def share(values, percent_of_them):
    """What so many percent of the values are below."""
    if len(values) < 2:
        return None
    return quantiles(values, n=100, method="inclusive")[percent_of_them - 1]


def cold(figures):
    """Touches of a cold heap beside the disk."""
    rows = []
    if rate := figures.median("cold", ("dormouse", "random"), "rate"):
        rows.append(["touches at random places by 8 tasks, pages/s", f"{rate:.0f}", "–", "–"])
    scan, disk_scan = (figures.median("cold", (runner, "scan"), "rate") for runner in ("dormouse", "fio"))
    if scan and disk_scan:
        beside = figures.ratio("cold", "rate", ("dormouse", "scan"), ("fio", "scan"))
        rows.append(["scan in order, MB/s", number(scan / MB), number(disk_scan / MB), times(beside)])
    single, read = (figures.median("cold", (runner, "single"), "latency") for runner in ("dormouse", "disk"))
    if single and read:
        beside = figures.ratio("cold", "latency", ("dormouse", "single"), ("disk", "single"))
        rows.append(["one touch, µs", number(single / 1e3), number(read / 1e3), times(beside)])
    return table(["", "Dormouse", "disk", "Dormouse ÷ disk"], rows) if rows else NOTHING


def wakes(figures):
    """The first requests of a python server, wake by wake."""
    rows = []
    for words, where in (("Dormouse, REAP", FIRST_REAP), ("Dormouse, page faults", FIRST_FAULT),
                         ("runc, frozen and reclaimed", THAWED)):
        if (took := figures.values("wakes", where, "latency"))[1:]:
            cells = [share(took, 50), share(took, 90), share(took, 99), max(took)]
            rows.append([words, str(len(took)), *(number(cell / 1e6) for cell in cells)])
    if not rows:
        return NOTHING
    text = table(["ms", "wakes", "50 %", "90 %", "99 %", "most"], rows)
    if sets := figures.values("wakes", FIRST_REAP, "working_set"):
        shown_sets = ", ".join(f"{sets[at] / MB:.1f}" for at in (0, 4, 9, 19, 29, 59) if at < len(sets))
        text += "\n" + fill(f"The working set before wake 1, 5, 10, 20, 30, 60, in MB: {shown_sets}.") + "\n"
    return text


def hundred(figures):
    """Servers woken at once, round by round."""
    rows = []
    for state in ("all answered, the first time", "all answered"):
        where = ("dormouse", state)
        if took := figures.values("hundred", where, "latency"):
            one = figures.median("hundred", where, "one")
            rows.append([state, ", ".join(number(value / 1e6) for value in took), number(one / 1e6)])
    return table(["ms", "each round", "one request, median"], rows) if rows else NOTHING


def target(what, reach, values, most=None, least=None, show=times):
    """A row of the table of targets; of several values all must reach it."""
    known = [value for value in values if value is not None]
    if not known:
        return [what, reach, "–", "not measured"]
    met = all((most is None or value <= most) and (least is None or value >= least) for value in known)
    return [what, reach, ", ".join(map(show, known)), "met" if met else "**missed**"]


def as_ms(nanoseconds):
    return f"{number(nanoseconds / 1e6)} ms"


def as_mb(size):
    return f"{megabytes(size)} MB"


def cold_targets(figures):
    rate = figures.median("cold", ("dormouse", "random"), "rate")
    first = figures.values("wakes", FIRST_REAP, "latency")
    rounds = figures.values("hundred", ("dormouse", "all answered"), "latency")
    return [
        # Nothing beside it does the same: it is compared with that of an earlier build.
        ["pages a second, cold heap of 1 GB, 8 tasks", "as listed", f"{rate:.0f}" if rate else "–", ""],
        target("scan of a cold heap of 2 GB ÷ fio", "at least 0.6",
               [figures.ratio("cold", "rate", ("dormouse", "scan"), ("fio", "scan"))], least=0.6),
        target("one fault of a cold heap ÷ a read of 4 KiB by the disk", "at most 1.5",
               [figures.ratio("cold", "latency", ("dormouse", "single"), ("disk", "single"))], 1.5),
        target(f"first request, python, REAP, {len(first)} wakes; 50 %", "at most 6 ms", [share(first, 50)], 6e6, show=as_ms),
        target("… 99 %", "at most 12 ms", [share(first, 99)], 12e6, show=as_ms),
        target("… page faults ÷ runc frozen and reclaimed", "at most 0.8",
               [figures.ratio("wakes", "latency", FIRST_FAULT, THAWED)], 0.8),
        target("100 python servers woken at once, the slowest round", "at most 0.8 s",
               [max(rounds, default=None)], 0.8e9, show=as_ms),
    ]


def targets(figures, only_measured=False):
    asleep = ("dormouse", "asleep")

    def latency(where):
        return [figures.median("python", where, "latency")]

    def ratio(*pair):
        return [figures.ratio("python", "latency", *pair)]

    cpu, seconds = (figures.values("ten", asleep, name) for name in ("cpu_ns", "cpu_seconds"))
    rows = [
        target("memory of a hibernated python, one of ten; charge, PSS", "at most 3 MB",
               [figures.median("ten", asleep, name) for name in ("charge", "pss")], 3 * MB, show=as_mb)]
    rows += [target(f"hibernated ÷ warm memory, {WORKLOADS[name]}; charge, PSS", "at most 2 %",
                    figures.asleep_share(name), 0.02, show=percent) for name in ("redis", "sparse", "dense")]
    rows += [
        target("first request, python, REAP", "at most 8 ms", latency(FIRST_REAP), 8e6, show=as_ms),
        target("… ÷ runc frozen and reclaimed", "at most 0.35", ratio(FIRST_REAP, THAWED), 0.35),
        target("first request, python, page faults ÷ runc frozen and reclaimed", "at most 1",
               ratio(FIRST_FAULT, THAWED), 1),
        target("request, python, woken-up ÷ warm", "at most 1.10", ratio(*RATIOS["woken-up ÷ warm"]), 1.1),
        target("first request, python, REAP ÷ cold start", "below 3 %",
               ratio(FIRST_REAP, ("dormouse", "cold start")), 0.03, show=percent),
        target("swap-out ÷ fio", "at least 0.85",
               [figures.ratio("disk", "rate", ("dormouse", "write"), ("fio", "write"))], least=0.85),
        target("REAP prefetch ÷ fio", "at least 0.7",
               [figures.ratio("disk", "rate", ("dormouse", "read"), ("fio", "read"))], least=0.7),
        target(f"processor time of a hibernated sandbox in {seconds[0] if seconds else 60} s", "0 ms", cpu, 50_000,
               show=as_ms),
        target("from SIGSTOP to hibernated, 20 MB", "at most 25 ms",
               [figures.median("stop", ("dormouse", "hibernated"), "took")], 25e6, show=as_ms),
        *cold_targets(figures),
    ]
    rows = [row for row in rows if row[2] != "–" or not only_measured]
    return table(["what", "to reach", "reached", ""], rows)


def machine_words(raw):
    machine = raw["machine"]
    kind = "a virtual machine with" if machine["virtual"] else "a machine with"
    return (f"{kind} {machine['cpus']} CPUs ({machine['model']}) and {machine['memory_gib']} GiB,"
            f" Linux {machine['kernel']}, platform {raw['platform']}")


def load_words(raw):
    before, after = raw["machine"]["load"]
    return f"load {before:.1f} before the run and {after:.1f} after it"


def span(figures, pick, show=percent):
    """The lowest and the highest over the workloads."""
    found = sorted((value, name) for name in figures.workloads() if (value := pick(name)) is not None)
    if not found:
        return "–"
    return " to ".join(f"{show(value)} ({name})" for value, name in sorted({found[0], found[-1]}))


def pss_of(figures, state):
    """A function from a workload to its PSS in a state and when warm; python's with ten of them, as the paper has it."""
    def pick(name):
        if name == "python" and "ten" in figures.found:
            name, where = "ten", ("dormouse", state)
        else:
            where = ("dormouse, REAP", state)
        return figures.median(name, where, "pss"), figures.median(name, ("dormouse", "warm"), "pss")

    return pick


def pss_share(figures, state):
    def pick(name):
        now, warm = pss_of(figures, state)(name)
        return now / warm if now and warm else None

    return span(figures, pick)


def pss_saved(figures, state):
    def pick(name):
        now, warm = pss_of(figures, state)(name)
        return warm - now if now and warm else None

    return span(figures, pick, as_mb)


def paper(figures):
    """Figures 6 and 7 of the paper, as far as its text gives numbers, beside ours."""
    def latency(above, below, show=percent):
        return span(figures, lambda workload: figures.ratio(workload, "latency", above, below), show)

    read = figures.median("disk", ("fio", "read"), "rate")
    rows = [
        ["Figure 6: first request by REAP ÷ cold start", "3 % (Python, Go hello-world) to 67 % (image, 2.6 MB)",
         latency(FIRST_REAP, ("dormouse", "cold start"))],
        ["Figure 6: REAP ÷ page faults", "below 1, but for one about equal (image, 2.6 MB)",
         latency(FIRST_REAP, FIRST_FAULT, times)],
        ["Figure 6: woken-up ÷ warm", "about 1", latency(*RATIOS["woken-up ÷ warm"], times)],
        ["Figure 7: hibernated ÷ warm, PSS", "7 % (video) to 25 % (Go hello-world)", pss_share(figures, "asleep")],
        ["Figure 7: hibernated saves, PSS", "12 of 16 MB (Go hello-world) to 252 of 281 MB (image, 2.6 MB)",
         pss_saved(figures, "asleep")],
        ["Figure 7: woken-up ÷ warm, PSS", "28 % (Node.js hello-world) to 90 % (image, 2.6 MB)",
         pss_share(figures, "woken-up")],
        ["Figure 7: woken-up saves, PSS", "7 of 16 MB (Go hello-world) to 151 of 226 MB (video)",
         pss_saved(figures, "woken-up")],
        ["disk, read in large pieces", "more than 1 GB/s", f"{number(read / 1e9)} GB/s" if read else "–"],
    ]
    return table(["", "paper", "here"], rows)


def markdown(raw):
    """All tables."""
    figures = Figures(raw)
    parts = [targets(figures, only_measured=True)]
    if figures.workloads():
        parts += [latencies(figures), memories(figures), ratios(figures)]
    if "ten" in figures.found:
        parts.append(ten(figures))
    if "disk" in figures.found:
        parts.append(disk(figures))
    if "stop" in figures.found:
        parts.append(phases(figures))
    for name, part in (("cold", cold), ("wakes", wakes), ("hundred", hundred)):
        if name in figures.found:
            parts.append(part(figures))
    parts += [line + "\n" for line in raw["missing"]]
    return "\n".join([*parts, f"Measured on {machine_words(raw)}; {load_words(raw)}."])


def beside_the_paper(raw):
    """Our figures beside the paper's, and how the machines differ; a part of docs/figures.md as well."""
    systrap = " (a fault there is a switch between processes)" if raw["platform"] == "systrap" else ""
    head = fill("""*Hibernate Container* (Sun et al.), section 4, Figures 6 and 7: the numbers that its text gives, and ours,
        the lowest and the highest of the workloads.""")
    foot = fill(f"""The machines differ. The paper's is an i7-8700K (12 hardware threads, 3.7 GHz) with 64 GB, an NVMe
        disk and Linux 5.15, and its sandboxes run on KVM. Ours is {machine_words(raw)}{systrap}. The workloads differ as well: the
        paper's are functions behind a web server; its cold start is one without a request over HTTP, and its memory is PSS
        by `pmap` with ten instances running, as ours is for python. So compare ratios, and not milliseconds.""")
    return f"{head}\n\n{paper(Figures(raw))}\n{foot}\n"


def how(raw):
    """How the figures were taken, as a list."""
    points = [
        """A latency is one connection, request and whole answer, by a client in python3 outside of the sandbox (which adds
        about 0.1 ms); of a sleeping sandbox the first one, which also wakes it. Before each, the page cache is dropped. A
        cold start lasts from the command to the first answer.""",
        """*python* is a web server in python3 that has imported much more than an answer needs. *redis* has loaded 100,000
        values of 1000 random bytes, and is asked for another one with each request. The heaps hold incompressible data, of
        which a request checks 256 scattered pages (*sparse*; 16 of them others each time, so that no working set is ever
        complete) or three quarters (*dense*), and changes one page in four. So only python's requests are all alike: those
        of the others on a woken-up sandbox touch what was never brought back.""",
        """*REAP* brings the working set back before anything runs (`--reap on`); with *REAP stream* programs run meanwhile
        (`--reap stream`).""",
        """Sandboxes have root file systems of their own, so that no file of theirs is in the page cache for another's sake.
        The ten python servers share one.""",
        """The charge is that of the sandbox's control group, with kernel memory and page cache (of version 1: the sums of its
        `memory.stat` and its kernel memory, since `usage_in_bytes` is not exact); in brackets, what is left of it when the
        page cache has been dropped. PSS is the sum over all processes: front end, VMM, leash and stubs. (That of
        runsc came out above its charge for some workloads; we have not looked into why.)""",
        f"""runc: the cgroup freezer, then `{raw["reclaim"] or "no way to reclaim"}` with a swap file on the same disk; the client
        writes to the freezer itself before it connects, as the fastest of activators would. runsc: `pause` and `resume` on
        the host's network, or `checkpoint`, and `create` with `restore` for each request.""",
        f"""fio writes 256 MB by calls of {raw["blocks"]["write"].upper()}, and reads 192 MB by calls of
        {raw["blocks"]["read"].upper()}, {raw["depth"]} at a time, past the page cache, as the VMM does. The swap-out also
        looks for pages of one word and computes checksums; the prefetch also fills fresh pages and verifies them.""",
        """A *cold heap* holds incompressible data, was woken by a command without REAP, and touches its pages while its own
        clock runs: 20,000 at random places by 8 tasks, all in order by one, or 1000 far from each other one at a time. The
        disk beside it: fio as above, and reads of 4 KiB at random places, one at a time, past the page cache.""",
    ]
    wrapped = (textwrap.indent(fill(point), "  ").replace("  ", "- ", 1) for point in points)
    return "".join(point + "\n" for point in wrapped)


def page(raw):
    """docs/hibernation-figures.md."""
    figures = Figures(raw)
    taken = fill(f"""Written by `scripts/bench-hibernate --docs`; taken on {machine_words(raw)}; {load_words(raw)}.
        Everything ran in turns; medians are shown.""")
    return f"""# Figures of hibernation

After this page you know how long sleeps and wakes take here, what a sleeper still takes, and how peers compare in the same run.

{taken}

![latency and memory by state](hibernation.svg)

## What was to be reached
{targets(figures)}
## How it is measured
{how(raw)}
## Latency
{latencies(figures)}
## Memory
{memories(figures)}
Ten python servers at once, of one root file system:

{ten(figures)}
## Ratios
{ratios(figures)}
## Disk
{disk(figures)}
Milliseconds from SIGSTOP to the leash until a heap of 20 MB, never stored before, is hibernated:

{phases(figures)}
## A cold heap
{cold(figures)}
## Wake after wake
The python server, sixty times asleep and woken by a request, the page cache dropped before each:

{wakes(figures)}
## A hundred at once
A hundred python servers of one root file system that sleep are asked by 16 clients at a time, until all have answered:

{hundred(figures)}
## Beside the paper
{beside_the_paper(raw)}{"".join(f"{chr(10)}Not measured: {line}{chr(10)}" for line in raw["missing"])}"""


COLOURS = {"Dormouse": "#2f6f8f", "runc": "#b5651d", "runsc": "#7a7a7a"}
BAR, LABEL, WIDTH, GAP = 17, 265, 300, 50


def panel(figures, workload, name, rows, left, top, scale, unit):
    """One group of bars on a logarithmic axis."""
    shown_rows = [(words, rows[words]) for words in BARS[name]]
    found = [(words, figures.median(workload, where, name)) for words, where in shown_rows]
    found = [(words, value / scale) for words, value in found if value]
    if not found:
        return [], 0
    low, high = floor(log10(min(value for _, value in found)) - 0.2), ceil(log10(max(value for _, value in found)) + 0.3)

    def at(value):
        return (log10(value) - low) / (high - low) * WIDTH

    start, parts = left + LABEL, []
    bottom = top + BAR * len(found) + 2
    for power in range(low, high + 1):
        x = start + at(10.0**power)
        parts.append(f'<line x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{bottom}" stroke="#ddd"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 12}" text-anchor="middle" class="axis">{10.0**power:g} {unit}</text>')
    for index, (words, value) in enumerate(found):
        y, colour = top + index * BAR + 2, COLOURS[words.split(",")[0]]
        parts.append(f'<text x="{start - 6}" y="{y + 11}" text-anchor="end">{escape(words)}</text>')
        parts.append(f'<rect x="{start}" y="{y}" width="{max(at(value), 1):.1f}" height="{BAR - 4}" fill="{colour}"/>')
        parts.append(f'<text x="{start + at(value) + 4:.1f}" y="{y + 11}" class="value">{number(value)}</text>')
    return parts, bottom + 20 - top


def chart(raw):
    """docs/hibernation.svg: latency and memory of each workload."""
    figures, parts, y = Figures(raw), [], 20
    second = LABEL + WIDTH + GAP
    for workload in figures.workloads():
        parts.append(f'<text x="10" y="{y + 4}" class="title">{escape(WORKLOADS[workload])}: a request, ms</text>')
        parts.append(f'<text x="{second + 10}" y="{y + 4}" class="title">charge of its control group, MB</text>')
        first, height = panel(figures, workload, "latency", LATENCIES, 0, y + 12, 1e6, "ms")
        other, more = panel(figures, workload, "charge", MEMORIES, second, y + 12, MB, "MB")
        parts += first + other
        y += max(height, more) + 30
    width = 2 * second
    style = ("text{font:11px sans-serif;fill:#222}.title{font-weight:bold;font-size:13px}.axis{fill:#777;font-size:10px}"
             ".value{font-size:10px}")
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y}" width="{width}" height="{y}">'
    paper = f'<rect width="{width}" height="{y}" fill="#fff"/>'
    return "\n".join([head, f"<style>{style}</style>", paper, *parts, "</svg>\n"])
