# SPDX-License-Identifier: GPL-2.0
"""Measures rrxe, rdma_rxe, siw and TCP in one guest, and writes out/bench/report.md and bench.json;
`make bench` calls it. WORDS choose what to measure: a driver, an operation, a size.

In the deterministic lane the guest has one CPU, and its clock counts instructions. The results are
reproducible on any machine, whatever its load; they are meaningful only relative to each other. The
wire lane repeats this over a device that takes each packet separately. The native lane runs the
kernel's code of such a wire on the machine's own CPU, and gives nanoseconds. The machines lane
joins two guests by a bridge, with the offloads of their devices and without, and the parallel lane
uses all CPUs; both have the machine's own clock, and their only results are ratios.
docs/benchmarking.md explains the results."""

import argparse
import datetime
import json
import os
import re
import statistics
import subprocess
import sys

from .figures import COMMAND_LINE, mean, revision, spread
from .plots import draw
from .root import TOP

# Results for which less is better.
LESS = ("latency", "memory", "time", "kernel time")

# The measured groups of the guest in each lane.
GROUPS = {
    "deterministic": ("table", "sizes", "queue-pairs", "signaled", "services", "loopback", "connections", "registering", "fairness", "idle"),
    "wire": ("table", "variants"),
    "native": ("native",),
    "machines": ("machines",),
    "parallel": ("parallel",),
}
# Maximum relative difference of two equal runs. More means that the clock did not count
# instructions. In the groups with many concurrent tasks, time slices fall differently in each run.
AGREEMENT = dict.fromkeys((*GROUPS["deterministic"], "variants", "wire"), 0.01) | {"connections": 0.03, "fairness": 0.05}
# Turns of each driver in the lanes whose results vary, in a long and in a quick run.
TURNS = {"parallel": (3, 3), "native": (10, 3), "machines": (5, 2)}
# Memory in MiB of the guest of the deterministic lane: twice the maximum that is registered there
# at once.
MEMORY = 2048
# The measured drivers. A quick run of a lane whose clock counts instructions has fewer, and only
# the first group.
DRIVERS = {
    "deterministic": ("rrxe", "rdma_rxe", "siw", "tcp"),
    "wire": ("rrxe", "rdma_rxe", "siw", "tcp"),
    "native": ("rrxe", "rdma_rxe", "tcp"),
    "machines": ("rrxe", "rdma_rxe", "tcp"),
    "parallel": ("rrxe", "rdma_rxe"),
}
QUICK_DRIVERS = ("rrxe", "rdma_rxe")
# The wires (qemu/vm.py --wire) of the lanes with two guests, one after the other.
WIRES = {"machines": ("taps", "plain-taps")}

# Lanes in which no packet is lost or marked, so rrxe must reduce no window and no rate. With
# "timeouts", a window may be reduced if an acknowledge timer expires, because the guest may have to
# wait for a CPU of the machine. In the native lane the queue of a veth overflows.
LOSSLESS = {"deterministic": "strict", "wire": "strict", "machines": "timeouts", "parallel": "timeouts"}

# Titles of the groups in the report.
TITLES = {
    "table": "Side by side",
    "sizes": "Over the size of messages",
    "queue-pairs": "Over the number of queue pairs",
    "signaled": "Each message with a completion",
    "services": "UC, UD, atomics, a shared receive queue",
    "idle": "Beside idle queue pairs",
    "connections": "Connections",
    "registering": "Registering memory",
    "loopback": "On one device",
    "fairness": "Beside a flood",
    "wire": "Over a wire",
    "native": "Over a wire, on this machine's CPU",
    "machines": "Between two machines",
    "machines, no offloads": "Between two machines without offloads",
    "parallel": "On all processors",
}

# Version of bench.json, incremented when the meaning of a field changes (docs/benchmarking.md).
SCHEMA = 2


def ratio(row, base):
    """Returns how many times better a row is than `base`, as text; empty if one of them is 0."""
    better, worse = (base, row) if row["what"] in LESS else (row, base)
    return f"{mean(better) / mean(worse):.2f}" if min(mean(better), mean(worse)) > 0 else ""


def shown(value):
    """Formats a number with about three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def line(cells):
    """Returns a row of a Markdown table."""
    return "| " + " | ".join(cells) + " |"


def by_name(rows):
    """Returns the rows by case, quantity and driver."""
    return {(row["case"], row["what"], row["driver"]): row for row in rows}


def side_by_side(rows, old):
    """Yields a table of the rows by case and driver, compared with an older bench.json."""
    drivers = list(dict.fromkeys(row["driver"] for row in rows))
    found, before = by_name(rows), by_name(old)
    head = [*drivers, *(["rrxe to rdma_rxe"] if {"rrxe", "rdma_rxe"} <= set(drivers) else [])]
    head += ["rrxe to before"] if old else []
    yield line(["", "unit", *head])
    yield "|---" * (len(head) + 2) + "|"
    for case, what in dict.fromkeys((row["case"], row["what"]) for row in rows):
        of = {driver: found.get((case, what, driver)) for driver in drivers}
        unit = next(row["unit"] for row in of.values() if row)
        cells = [shown(mean(row)) if row else "" for row in of.values()]
        rrxe, base, was = of.get("rrxe"), of.get("rdma_rxe"), before.get((case, what, "rrxe"))
        if "rrxe to rdma_rxe" in head:
            cells.append(ratio(rrxe, base) if rrxe and base else "")
        if old:
            cells.append(ratio(rrxe, was) if rrxe and was else "")
        yield line([case, unit, *cells])


def latencies(rows):
    """Yields a table of the latency distributions, averaged over the runs."""
    rows = [row for row in rows if row.get("latencies")]
    names = list(rows[0]["latencies"][0]) if rows else []
    yield line(["us", "driver", *names])
    yield "|---" * (len(names) + 2) + "|"
    for row in rows:
        runs = row["latencies"]
        yield line([row["case"], row["driver"], *(shown(sum(run[name] for run in runs) / len(runs)) for name in names)])


def costs(rows):
    """Yields a table of the cost of a message over many queue pairs, relative to one queue pair."""
    columns = list(dict.fromkeys((row["driver"], row["operation"]) for row in rows))
    found = {(row["driver"], row["operation"], row["queue_pairs"]): row for row in rows}
    yield line(["cost, of one being 1", *(" ".join(column) for column in columns)])
    yield "|---" * (len(columns) + 1) + "|"
    for count in sorted({row["queue_pairs"] for row in rows}):
        pairs = [(found.get((*column, 1)), found.get((*column, count))) for column in columns]
        cells = [f"{mean(one) / mean(many):.2f}" if one and many else "" for one, many in pairs]
        yield line([f"{count:,} queue pairs", *cells])


def parts(rows):
    """Yields a table of the memory usage by kind of memory."""
    kinds = list(dict.fromkeys(kind for row in rows for kind in row["parts"][0]))
    yield line(["KiB", "driver", *kinds])
    yield "|---" * (len(kinds) + 2) + "|"
    for row in rows:
        yield line([row["case"], row["driver"], *(f"{row['parts'][0].get(kind, 0):.1f}" for kind in kinds)])


def ratios(one, other):
    """Returns the median, the least and the most ratio of runs that were adjacent in time."""
    pairs = [a / b for a, b in zip(one["runs"], other["runs"])]
    return [statistics.median(pairs), min(pairs), max(pairs)]


def between_machines(rows, _old):
    """Yields a table of the ratios in the machines lane."""
    found = by_name(rows)
    tcp = next((row for row in rows if row["driver"] == "tcp"), None)
    yield line(["", "rrxe to rdma_rxe", "least", "most", "rrxe to TCP", "least", "most"])
    yield "|---" * 7 + "|"
    for case, what in dict.fromkeys((row["case"], row["what"]) for row in rows):
        rrxe, base = found.get((case, what, "rrxe")), found.get((case, what, "rdma_rxe"))
        if rrxe and base:
            cells = ratios(rrxe, base) + (ratios(rrxe, tcp) if tcp else [])
            yield line([case, *(f"{cell:.2f}" for cell in cells), *([] if tcp else [""] * 3)])


def comparison(rows, old):
    """Yields a table of the ratios in the parallel lane, whose absolute results have no meaning."""
    found, before = by_name(rows), by_name(old)
    yield line(["", "rrxe to rdma_rxe", "least", "most", *(["before"] if old else [])])
    yield "|---" * (5 if old else 4) + "|"
    for case, what in dict.fromkeys((row["case"], row["what"]) for row in rows):
        cells = []
        for of in (found, before):
            rrxe, base = of.get((case, what, "rrxe")), of.get((case, what, "rdma_rxe"))
            if rrxe and base:
                cells += ratios(rrxe, base)[: 3 if of is found else 1]
        yield line([case, *(f"{cell:.2f}" for cell in cells)])


def fastest(rows, old):
    """Yields a table of the native lane: the least time of each driver, and the most.

    Other programs on the machine only add to a time, so the least one is compared.
    """
    drivers = list(dict.fromkeys(row["driver"] for row in rows))
    found, before = by_name(rows), by_name(old)
    yield line(["ns of kernel code", *drivers, "to rdma_rxe", "to TCP", *(["to before"] if old else [])])
    yield "|---" * (len(drivers) + (4 if old else 3)) + "|"
    for case, what in dict.fromkeys((row["case"], row["what"]) for row in rows):
        of = {driver: found.get((case, what, driver)) for driver in drivers}
        cells = [f"{min(row['runs']):,.0f} to {max(row['runs']):,.0f}" if row else "" for row in of.values()]
        others = [of.get("rdma_rxe"), of.get("tcp"), *([before.get((case, what, "rrxe"))] if old else [])]
        rrxe = of.get("rrxe")
        cells += [f"{min(other['runs']) / min(rrxe['runs']):.2f}" if rrxe and other else "" for other in others]
        yield line([case, *cells])


# The table of a group, if it is not `side_by_side`.
TABLES = {
    "parallel": comparison,
    "native": fastest,
    "machines": between_machines,
    "machines, no offloads": between_machines,
}


def report(bench, old):
    """Yields the report as lines of Markdown."""
    yield ", ".join(filter(None, [bench["commit"], bench["date"], f"Linux {bench['kernel']}", bench["parameters"]]))
    rows = bench["rows"]
    for group in dict.fromkeys(row["group"] for row in rows):
        of = [row for row in rows if row["group"] == group]
        yield from ("", f"## {TITLES.get(group, group)}", "")
        before = [row for row in old if row["group"] == group]
        yield from TABLES.get(group, side_by_side)(of, before)
        if group == "queue-pairs":
            yield from ("", *costs(of))
        if any(row.get("parts") for row in of):
            yield from ("", *parts([row for row in of if row.get("parts")]))
    if any(row.get("latencies") for row in rows):
        yield from ("", "## Latencies", "")
        yield from latencies(rows)


def load(path):
    """Reads the rows of a bench.json. Version 1 had one lane and no groups."""
    with open(path, encoding="utf-8") as file:
        kept = json.load(file)
    if kept.get("schema") not in (1, SCHEMA):
        raise ValueError(f"{path} is of another version of bench.json, and can't be compared")
    return [{"lane": "deterministic", "group": "table", **row} for row in kept["rows"]]


def parse(arguments):
    """Parses the command line."""
    parser = argparse.ArgumentParser(prog="selftests/run bench", description=__doc__)
    parser.add_argument("words", nargs="*", help="measure only what has these in driver or case")
    parser.add_argument("--compare", metavar="FILE", help="an older bench.json: what has changed")
    parser.add_argument("--lane", choices=GROUPS, help="only this one (all; with words or --quick: deterministic)")
    parser.add_argument("--parameters", default="", help="rrxe's module is loaded with these")
    parser.add_argument("--runs", type=int, help="equal runs of each (2; quick: 1)")
    parser.add_argument("--quick", action="store_true", help="rrxe and rdma_rxe only, once each: under five minutes")
    parser.add_argument("--out", help="folder for the results (out/bench; quick: out/bench-quick)")
    args = parser.parse_args(arguments)
    args.runs = args.runs or (1 if args.quick else 2)
    # A quick run has a folder of its own, so that it does not overwrite the results of a long one.
    args.out = args.out or os.path.join(TOP, "out/bench-quick" if args.quick else "out/bench")
    return args


def folder_of(args, lane, wire):
    """Returns the folder for the output of a lane's guests."""
    return os.path.join(args.out, f"{lane}-{wire}" if wire else lane)


def measure(args, lane, wire):
    """Runs a guest, or two of them joined by `wire`. Returns their rows and their kernel's version.

    Raises CalledProcessError if the guest fails."""
    counted = lane not in TURNS
    groups = GROUPS[lane][:1] if args.quick else GROUPS[lane]
    drivers = QUICK_DRIVERS if args.quick and counted else DRIVERS[lane]
    out = folder_of(args, lane, wire)
    command = [os.path.join(TOP, "qemu/vm.py"), "--driver", "rrxe", "--timeout", "7200", "--out", out]
    command += ["--extra"] if "siw" in drivers else []
    environment = {"CASE_GROUPS": ",".join(groups), "DRIVERS": ",".join(drivers), "RRXE_PARAMETERS": args.parameters}
    environment |= {"RUNS": args.runs} if counted else {"RUNS": 1, "TURNS": TURNS[lane][args.quick]}
    environment |= {"WIRE": 1} if lane in ("wire", "native") else {}
    environment |= {"LOSSLESS": LOSSLESS[lane]} if lane in LOSSLESS else {}
    if counted:
        if args.runs > 1:
            environment["AGREEMENT"] = ",".join(f"{group}={by}" for group, by in AGREEMENT.items())
        command += ["--icount", "--append", COMMAND_LINE, *([] if args.quick else ["--mem", str(MEMORY)])]
    elif lane == "native":
        command += ["--kernel", lane, "--cpus", "1"]
    elif wire:
        command += ["--hosts", "2", "--wire", wire, "--cpus", "1"]
    else:
        command += ["--cpus", str(os.cpu_count()), "--env", "SPREAD=1"]
    for name, value in environment.items():
        command += ["--env", f"{name}={value}"]
    subprocess.run([*command, os.path.join(TOP, "selftests/guest/bench"), *args.words], check=True)
    # Of two guests, the first one measures.
    out = os.path.join(out, "h1") if wire else out
    with open(os.path.join(out, "measured.json"), encoding="utf-8") as file:
        rows = json.load(file)
    with open(os.path.join(out, "dmesg.txt"), encoding="utf-8", errors="replace") as file:
        kernel = re.search(r"Linux version (\S+)", file.read())
    # The wire lane runs the cases of the group "table" and its variants. Its rows need a name of
    # their own, as do those of the machines without offloads.
    group = "wire" if lane == "wire" else "machines, no offloads" if wire == "plain-taps" else None
    rows = [{**row, "lane": lane, "group": group or row["group"]} for row in rows]
    return rows, kernel.group(1) if kernel else "unknown"


def main(arguments):
    """Returns 1 if a measurement failed or two equal runs differ, else 0."""
    args = parse(arguments)
    lanes = [args.lane] if args.lane else ["deterministic"] if args.words or args.quick else list(GROUPS)
    rows, failed = [], []
    try:
        old = load(args.compare) if args.compare else []
        for lane in lanes:
            for wire in WIRES.get(lane, (None,)):
                more, kernel = measure(args, lane, wire)
                rows += [row for row in more if row["runs"]]
                failed += [row for row in more if row.get("failed")]
    except (OSError, ValueError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        where = os.path.relpath(folder_of(args, lane, wire))
        print(f"bench: the guest ended with {error.returncode}: see output.txt in {where}", file=sys.stderr)
        return error.returncode
    date = datetime.date.today().isoformat()
    bench = {"schema": SCHEMA, "commit": revision(), "date": date, "kernel": kernel, "parameters": args.parameters, "rows": rows}
    with open(os.path.join(args.out, "bench.json"), "w", encoding="utf-8") as file:
        json.dump(bench, file, indent=1)
    lines = list(report(bench, old))
    with open(os.path.join(args.out, "report.md"), "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    print("\n".join(lines))
    try:
        draw(args.out)
    except subprocess.CalledProcessError as error:
        print(f"bench: there are no plots: {os.path.basename(error.cmd[0])} ended with {error.returncode}", file=sys.stderr)
        return error.returncode
    for row in rows:
        if others := row.get("others"):
            figures, more = (", ".join(map(shown, runs)) for runs in (row["runs"], others))
            print(f"bench: {row['driver']}, {row['case']}: {figures} {row['unit']}; before two agreed: {more}", file=sys.stderr)
    uneven = [row for row in rows if row["lane"] not in TURNS and spread(row) > AGREEMENT[row["group"]]]
    for row in uneven:
        figures = ", ".join(map(shown, row["runs"]))
        print(f"bench: {row['driver']}, {row['case']}: equal runs differ: {figures} {row['unit']}", file=sys.stderr)
    for row in failed:
        print(f"bench: {row['driver']}, {row['case']}: {row['failed']} runs failed: see output.txt", file=sys.stderr)
    return 1 if uneven or failed else 0
