# SPDX-License-Identifier: GPL-2.0
"""Null memory regions (ibv_alloc_null_mr): reads find zeroes, and writes are discarded."""

import testbed
from harness import Skip, case, equal

bed = testbed.Bed()


@case(each={f"mtu-{mtu}": mtu for mtu in (256, 1024, 4096)})
def segments(mtu):
    """Each operation takes data from a null region, or leaves data there.

    Peers have no right to it, and the verbs that change regions refuse it.
    """
    here = bed.here
    if here.driver != "rrxe":
        raise Skip("the other driver has no null regions")
    equal("the program", here.machine.run(f"null-region {here.device} {here.gid_index()} {mtu}").strip(), "ok")


def run():
    """Runs the suite."""
    return bed.run()
