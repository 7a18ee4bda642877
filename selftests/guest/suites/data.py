# SPDX-License-Identifier: GPL-2.0
"""Data integrity between two hosts: every operation, each byte of both memories compared."""

import data_cases
import testbed

bed = testbed.Bed()
data_cases.declare(bed.endpoints)


def run():
    """Runs the suite."""
    return bed.run()
