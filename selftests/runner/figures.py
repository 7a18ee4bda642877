# SPDX-License-Identifier: GPL-2.0
"""Helpers shared by the benches: statistics of a row, and the measured commit."""

import subprocess

from .root import TOP

# Words for the kernel's command line during measurements. The two programs of a case have sessions
# of their own. With autogroup, the scheduler would share the CPU between sessions instead of
# programs: time slices would be longer, and would fall differently in each run.
COMMAND_LINE = "noautogroup"


def mean(row):
    """Returns the mean of the runs of a row."""
    return sum(row["runs"]) / len(row["runs"])


def spread(row):
    """Returns the spread of a row's runs, relative to the smallest run but at least to 1."""
    return (max(row["runs"]) - min(row["runs"])) / max(min(row["runs"]), 1)


def revision():
    """Returns the measured commit."""
    command = ["git", "-C", TOP, "describe", "--always", "--dirty"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"
