# SPDX-License-Identifier: GPL-2.0
"""Measures the transport core on the host, and writes out/bench-core/report.md and bench-core.json;
`make bench-core` calls it. WORDS choose what to measure: requester SEND.

Valgrind counts the instructions: the results of a commit are equal on every machine, whatever its
load. Criterion measures the times on this machine. docs/benchmarking.md explains the results."""

import argparse
import collections
import concurrent.futures
import contextlib
import datetime
import json
import os
import re
import shutil
import subprocess
import sys

from .figures import mean, revision, spread
from .root import TARGET, TOP, environment, in_root

PROFILE = "core-bench"

# Rounds of the shortest run. The other runs have two and three times that number. The difference of
# two runs is the cost of ROUNDS rounds, without set-up and tear-down.
ROUNDS = 1000

# Maximum relative difference between the second and the third ROUNDS rounds. More means that rounds
# differ.
AGREEMENT = 0.01

# Functions of the bench that call the core, and their names in reports, in the order of a round.
PHASES = {
    "parse": "parse",
    "icrc": "ICRC",
    "icrc_in_row": "ICRC",
    "icrc_bytes": "ICRC",
    "icrc_bytes_in_row": "ICRC",
    "post": "post",
    "transmit": "transmit",
    "receive_response": "receive responses",
    "receive_request": "receive requests",
    "respond": "respond",
}
PREFIX = "rrxe_core_bench::phases::"

# Makes the C library use the same copy instructions on every processor.
TUNABLES = "glibc.cpu.hwcaps=-AVX2,-AVX512F,-AVX512VL,-ERMS,-FSRM"

# Version of bench-core.json, incremented if the meaning of a field changes (docs/benchmarking.md).
SCHEMA = 1


class Failure(Exception):
    """Why there are no results, in one sentence."""


def output_of(*command, log=None):
    """Runs a command in the build root. Returns its output; logs its errors to `log` if given."""
    with open(log, "w", encoding="utf-8") if log else contextlib.nullcontext() as errors:
        options = {"cwd": TOP, "env": environment(), "stdout": subprocess.PIPE, "stderr": errors, "text": True}
        done = subprocess.run(in_root(*command), check=False, **options)
    if done.returncode:
        words = " ".join(word for word in command if "=" not in word)
        raise Failure(f"'{words[:60]}…' ended with {done.returncode}" + (f" (log: {os.path.relpath(log)})" if log else ""))
    return done.stdout


def say(words):
    """Prints progress to standard error."""
    print(f"bench-core: {words}", file=sys.stderr, flush=True)


def cases(program, words):
    """Returns the cases whose name contains these words: (name, packets of a round)."""
    found = []
    for line in output_of(program, "--list").splitlines():
        packets, name = line.split("\t")
        if all(word in name for word in words):
            found.append((name, int(packets)))
    if not found:
        raise Failure(f"no case has {' '.join(words)} in its name")
    return found


def read_counts(path):
    """Returns instruction counts by function: inclusive for phases, and own."""
    inclusive, own = collections.Counter(), collections.Counter()
    function, called = "", False
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith("fn="):
                function = line[3:].rstrip("\n")
            elif line.startswith("calls="):
                called = True
            elif line[:1].isdigit():
                count = int(line.split()[1])
                # The line after a call has the inclusive cost of the called function.
                if not called:
                    own[function] += count
                if function.startswith(PREFIX):
                    inclusive[function[len(PREFIX):]] += count
                called = False
    return inclusive, own


def run(valgrind, program, name, rounds, out):
    """Counts the instructions of a run of `rounds` rounds."""
    path = os.path.join(out, "callgrind", f"{re.sub(r'[^A-Za-z0-9]+', '-', name)}-{rounds}.out")
    environment = [f"VALGRIND_LIB={valgrind}/usr/libexec/valgrind", f"GLIBC_TUNABLES={TUNABLES}"]
    tool = [f"{valgrind}/usr/bin/valgrind.bin", "--tool=callgrind", f"--callgrind-out-file={path}"]
    tool += ["--compress-strings=no", "--compress-pos=no"]
    output_of("env", *environment, *tool, program, str(rounds), name, log=f"{path[:-4]}.log")
    return read_counts(path)


def count(valgrind, program, case, out):
    """Returns the rows of a case, and each function's own instructions per packet."""
    name, packets = case
    first, second, third = (run(valgrind, program, name, times * ROUNDS, out) for times in (1, 2, 3))
    rows = []
    for phase, shown in PHASES.items():
        if second[0][phase] == 0:
            continue
        steps = [second[0][phase] - first[0][phase], third[0][phase] - second[0][phase]]
        runs = [round(step / ROUNDS / packets, 2) for step in steps]
        rows.append({"what": "instructions", "case": name, "phase": shown, "unit": "instructions a packet",
                     "packets": packets, "runs": runs})
    if not rows:
        raise Failure(f"Valgrind saw no call into the core in the case '{name}'")
    own = {function: (taken - first[1][function]) / ROUNDS / packets for function, taken in second[1].items()}
    return rows, own


def times(out, chosen):
    """Measures the time per packet of these cases on this machine. Returns the rows."""
    home = os.path.join(out, "criterion")
    shutil.rmtree(home, ignore_errors=True)
    pattern = "^core/(" + "|".join(re.escape(name) for name, _ in chosen) + ")$"
    command = ["cargo", "bench", "--quiet", "--locked", "--profile", PROFILE, "-p", "rrxe_core_bench", "--bench", "core"]
    options = ["--noplot", "--warm-up-time", "0.5", "--measurement-time", "2", pattern]
    text = output_of("env", f"CRITERION_HOME={home}", *command, "--", *options, log=os.path.join(out, "criterion.log"))
    with open(os.path.join(out, "criterion.txt"), "w", encoding="utf-8") as file:
        file.write(text)
    packets = dict(chosen)
    found = {}
    for folder, _, files in os.walk(home):
        if os.path.basename(folder) != "new" or "estimates.json" not in files:
            continue
        with open(os.path.join(folder, "benchmark.json"), encoding="utf-8") as file:
            name = json.load(file)["function_id"]
        with open(os.path.join(folder, "estimates.json"), encoding="utf-8") as file:
            median = json.load(file)["median"]["point_estimate"]
        found[name] = {"what": "time", "case": name, "phase": "all", "unit": "ns a packet",
                       "packets": packets[name], "runs": [round(median / packets[name], 2)]}
    missing = [name for name in packets if name not in found]
    if missing:
        raise Failure(f"criterion did not measure {'; '.join(missing)}")
    return [found[name] for name in packets]


def whole(rows):
    """Returns the total of each case: the sum of its phases."""
    sums = collections.Counter()
    for row in rows:
        sums[row["case"]] += mean(row)
    return sums


def change(now, before):
    """Returns the relative change as text."""
    return f"{(now / before - 1) * 100:+.1f} %" if before else ""


def report(rows, old):
    """Yields the report as lines of Markdown, compared with an older bench-core.json."""
    counted, was = ([row for row in kept if row["what"] == "instructions"] for kept in (rows, old))
    sums, sums_before = whole(counted), whole(was)
    clock = {row["case"]: row for row in rows if row["what"] == "time"}
    yield "| | packets | instructions a packet | of them |" + (" ns a packet |" if clock else "") + (" before | change |" if old else "")
    yield "|---" * (4 + bool(clock) + 2 * bool(old)) + "|"
    for case, total in sums.items():
        parts = [row for row in counted if row["case"] == case]
        of_them = ", ".join(f"{row['phase']} {mean(row):,.1f}" for row in parts) if len(parts) > 1 else ""
        cells = [case, str(parts[0]["packets"]), f"{total:,.1f}", of_them]
        if clock:
            cells.append(f"{mean(clock[case]):,.1f}" if case in clock else "")
        if old:
            before = sums_before.get(case)
            cells += [f"{before:,.1f}" if before else "", change(total, before)]
        yield "| " + " | ".join(cells) + " |"


def parse(arguments):
    """Parses the command line."""
    parser = argparse.ArgumentParser(prog="selftests/run bench-core", description=__doc__)
    parser.add_argument("words", nargs="*", help="measure only what has these in its name")
    parser.add_argument("--compare", metavar="FILE", help="an older bench-core.json: what has changed")
    parser.add_argument("--functions", action="store_true", help="also what each function takes by itself")
    parser.add_argument("--no-times", action="store_true", help="instructions only")
    parser.add_argument("--out", default=os.path.join(TOP, "out/bench-core"), help="folder for the results")
    return parser.parse_args(arguments)


def load(path):
    """Reads the rows of an older bench-core.json."""
    try:
        with open(path, encoding="utf-8") as file:
            kept = json.load(file)
    except (OSError, ValueError) as error:
        raise Failure(f"{path} can't be read: {error}") from error
    if not isinstance(kept, dict) or kept.get("schema") != SCHEMA or kept.get("lane") != "core":
        raise Failure(f"{path} is of another version of bench-core.json, and can't be compared")
    return kept["rows"]


def measure(args):
    """Measures all chosen cases. Returns the rows, and each case's instructions by function."""
    out = os.path.abspath(args.out)
    shutil.rmtree(os.path.join(out, "callgrind"), ignore_errors=True)
    os.makedirs(os.path.join(out, "callgrind"))
    done = subprocess.run([os.path.join(TOP, "qemu/valgrind")], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise Failure("Valgrind could not be unpacked")
    valgrind = done.stdout.strip()
    output_of("cargo", "build", "--quiet", "--locked", "--profile", PROFILE, "-p", "rrxe_core_bench", "--bin", "core-bench")
    program = os.path.join(TARGET, PROFILE, "core-bench")
    chosen = cases(program, args.words)
    say(f"counting the instructions of {len(chosen)} cases")
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        counted = list(pool.map(lambda case: count(valgrind, program, case, out), chosen))
    rows = [row for found, _ in counted for row in found]
    functions = {case[0]: own for case, (_, own) in zip(chosen, counted)}
    if not args.no_times:
        say("taking their times")
        rows += times(out, chosen)
    return rows, functions


def main(arguments):
    """Returns 1 if a measurement failed or rounds differ, else 0."""
    args = parse(arguments)
    try:
        old = load(args.compare) if args.compare else []
        rows, functions = measure(args)
        compiler = output_of("rustc", "--version").strip()
    except Failure as failure:
        say(failure)
        return 1
    bench = {
        "schema": SCHEMA,
        "lane": "core",
        "commit": revision(),
        "date": datetime.date.today().isoformat(),
        "compiler": compiler,
        "rows": rows,
    }
    with open(os.path.join(args.out, "bench-core.json"), "w", encoding="utf-8") as file:
        json.dump(bench, file, indent=1)
    lines = list(report(rows, old))
    if args.functions:
        for case, own in functions.items():
            lines += ["", f"{case}: instructions a packet by function", ""]
            taken = sorted(own.items(), key=lambda item: -item[1])
            lines += [f"    {each:9,.1f} {function}" for function, each in taken if each >= 0.5]
    with open(os.path.join(args.out, "report.md"), "w", encoding="utf-8") as file:
        file.write(f"{bench['commit']}, {bench['date']}, {compiler}\n\n" + "\n".join(lines) + "\n")
    print("\n".join(lines))
    uneven = [row for row in rows if row["what"] == "instructions" and spread(row) > AGREEMENT]
    for row in uneven:
        say(f"{row['case']}, {row['phase']}: rounds differ: {row['runs']} {row['unit']}")
    return 1 if uneven else 0
