# SPDX-License-Identifier: GPL-2.0
"""Data integrity between two hosts: every operation, each byte of both memories compared."""

import data_cases
import testbed

bed = testbed.Bed()

def ends():
    """An endpoint here and one on the other host."""
    import endpoint  # only a guest has verbs

    here, peer = bed.here, bed.peer
    mine, theirs = endpoint.Endpoint(), endpoint.Peer(peer.address)
    return [
        (mine, mine.open(here.device, here.address, here.driver)),
        (theirs, theirs.open(peer.device, peer.address, peer.driver)),
    ]


data_cases.declare(ends)


def run():
    """Run the suite."""
    return bed.run()
