# SPDX-License-Identifier: GPL-2.0
"""A trial with a wire of its own, on which to forge packets of the local queue pair."""

import packets
from trial import Trial

# The initial PSN of a trial's queue pairs.
FIRST = 5

PAYLOAD = bytes(range(64))


class Attacker(Trial):
    """A trial with `wire`, from this host to the other, and `qpn`, the remote QP's number."""

    def __init__(self, bed, bench, **how):
        super().__init__(bench, **how)
        self._bed = bed

    def __enter__(self):
        super().__enter__()
        mac = self._bed.peer.machine.read("/sys/class/net/eth0/address")
        self.wire = packets.Wire("eth0", self._bed.here.address, self._bed.peer.address, mac)
        self.qpn = self.remote.qp["qpn"]
        return self

    def __exit__(self, *why):
        self.wire.close()
        super().__exit__(*why)
