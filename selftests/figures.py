# SPDX-License-Identifier: GPL-2.0
"""What the benches have in common: the figures of a row, and of what they are."""

import os
import subprocess

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# Words for the kernel's command line while it is measured. The two programs of a case have sessions
# of their own, and the scheduler would share the processor between sessions instead of programs:
# turns are then longer, and fall differently in each run.
COMMAND_LINE = "noautogroup"


def mean(row):
    """The figure of a row: the runs' mean."""
    return sum(row["runs"]) / len(row["runs"])


def spread(row):
    """How far apart the runs of a row are, as a share of the smallest, or of 1 where that is less."""
    return (max(row["runs"]) - min(row["runs"])) / max(min(row["runs"]), 1)


def revision():
    """The commit that is measured."""
    command = ["git", "-C", TOP, "describe", "--always", "--dirty"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"
