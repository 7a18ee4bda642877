# SPDX-License-Identifier: GPL-2.0
"""Measures how a queue pair of rrxe shares a link of 100 Mbit/s with TCP connections of the kernel,
and prints a table; `make fairness` calls it. WORDS choose a queue and a congestion control.

The guest's clock counts instructions, so the results are reproducible on any machine. This is not a
test: docs/congestion.md has the expected results."""

from .measurement import measure


def table(rows):
    """Yields the rows of the guest as lines of Markdown."""
    yield "| queue | beside | queue pair | TCP | of its fair share: queue pair | TCP |"
    yield "|---|---|---|---|---|---|"
    for row in rows:
        count, both = row["connections"], row["rdma"] + row["tcp"]
        beside = f"{count} × TCP {row['control'].upper()}" if count else "nothing"
        fair = both / (count + 1)
        shares = f"{100 * row['rdma'] / fair:.0f} % | {100 * row['tcp'] / (fair * count):.0f} %" if count else " | "
        yield f"| {row['queue']} | {beside} | {row['rdma']:.1f} MB/s | {row['tcp']:.1f} MB/s | {shares} |"


def main(arguments):
    """Returns the exit status of the guest."""
    return measure("fairness", __doc__, table, arguments)
