# SPDX-License-Identifier: GPL-2.0
"""Measures the share of its undisturbed goodput that rrxe keeps on a lossy wire, and that of
rdma_rxe in the same boot, and prints a table; `make goodput` calls it. WORDS choose a pair of
drivers, WRITE or READ, and a wire.

The guest's clock counts instructions. The results are those of one slow CPU that both ends share,
and are reproducible on any machine. This is not a test: docs/transport.md has the expected
results."""

import argparse
import json
import os
import statistics
import subprocess
import sys

from .root import TOP

OUT = os.path.join(TOP, "out/goodput")


def share(row):
    """Returns the percentage of the undisturbed goodput, from the medians of the runs."""
    return 100 * statistics.median(row["bad"]) / statistics.median(row["clean"])


def table(rows):
    """Yields the rows of the guest as lines of Markdown."""
    columns = list(dict.fromkeys((row["program"], row["pair"]) for row in rows))
    columns.sort(key=lambda column: column[0] != "WRITE")
    wires = list(dict.fromkeys(row["wire"] for row in rows))
    found = {(row["program"], row["pair"], row["wire"]): row for row in rows}
    yield "| | " + " | ".join(f"{program} {pair}" for program, pair in columns) + " |"
    yield "|---" * (len(columns) + 1) + "|"
    for wire in wires:
        cells = []
        for program, pair in columns:
            row = found.get((program, pair, wire))
            cells.append(f"{share(row):.0f} %" if row else "")
        yield f"| {wire} | " + " | ".join(cells) + " |"
    speeds = []
    for column in columns:
        clean = [statistics.median(row["clean"]) for row in rows if (row["program"], row["pair"]) == column]
        speeds.append(f"{max(clean):.0f} MB/s")
    yield "| undisturbed | " + " | ".join(speeds) + " |"


def main(arguments):
    """Returns the exit status of the guest."""
    parser = argparse.ArgumentParser(prog="selftests/run goodput", description=__doc__)
    parser.add_argument("words", nargs="*", help="measure only what has these in its name")
    args = parser.parse_args(arguments)
    command = [os.path.join(TOP, "qemu/vm.py"), "--icount", "--driver", "rrxe", "--timeout", "7200", "--out", OUT]
    status = subprocess.run([*command, os.path.join(TOP, "selftests/guest/goodput"), *args.words], check=False).returncode
    if status:
        print(f"goodput: the guest ended with {status}: see {os.path.relpath(OUT)}/output.txt", file=sys.stderr)
        return status
    with open(os.path.join(OUT, "goodput.json"), encoding="utf-8") as file:
        lines = list(table(json.load(file)))
    with open(os.path.join(OUT, "table.md"), "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    print("\n".join(lines))
    return 0
