# SPDX-License-Identifier: GPL-2.0
"""Measures the share of its undisturbed goodput that rrxe keeps on a lossy wire, and that of
rdma_rxe in the same boot, and prints a table; `make goodput` calls it. WORDS choose a pair of
drivers, WRITE or READ, and a wire.

The guest's clock counts instructions. The results are those of one slow CPU that both ends share,
and are reproducible on any machine. This is not a test: docs/transport.md has the expected
results."""

import statistics

from .measurement import measure


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
    return measure("goodput", __doc__, table, arguments)
