# SPDX-License-Identifier: GPL-2.0
"""Data integrity between the contexts of two programs on one host."""

import data_cases
import testbed

bed = testbed.Bed()

def ends():
    """Returns two endpoints on this host's device."""
    import endpoint  # only a guest has verbs

    here, both = bed.here, [endpoint.Endpoint(), endpoint.Endpoint()]
    return [(end, end.open(here.device, here.address, here.driver)) for end in both]


data_cases.declare(ends)


def run():
    """Runs the suite."""
    return bed.run()
