# SPDX-License-Identifier: GPL-2.0
"""What runs in guests: one boot each of one or two machines, with the drivers of a lane."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Boot:
    """A boot runs one suite of selftests/guest/suites.

    `drivers` names a driver for each host, "test" for the one under test. Between two different ones
    the suite's cases run with this host as client and as server. A suite is `dynamic` where only the
    guest knows its cases. Without `debug` it runs under the debug kernel only where all is asked for; without
    `default` not under the other. `append` goes to the kernel's command line.
    With `scripts` the guest has the scripted packets and their interpreter.
    """

    name: str
    suite: str
    hosts: int = 2
    drivers: tuple = ("test", "test")
    dynamic: bool = False
    debug: bool = True
    default: bool = True
    append: str = ""
    cpus: int = 2
    scripts: bool = False

    @property
    def mixed(self):
        """Whether the hosts' drivers differ."""
        return self.hosts == 2 and self.drivers[0] != self.drivers[1]


INTEROP = ("test", "rdma_rxe")

BOOTS = (
    # The longest first, so that none of them runs alone in the end.
    Boot("lifecycle", "lifecycle", hosts=1),
    Boot("interop-perftest", "perftest", drivers=INTEROP, debug=False),
    Boot("conformance-rxe", "conformance", hosts=1, drivers=("rdma_rxe",), debug=False, scripts=True),
    Boot("kunit", "kunit", hosts=1, default=False, append="kunit.enable=1 kunit.autorun=1"),
    Boot("link", "link", hosts=1),
    Boot("rdmacm", "rdmacm"),
    Boot("perftest", "perftest"),
    Boot("data", "data"),
    Boot("loss", "loss"),
    Boot("path-mtu", "path_mtu", hosts=1),
    Boot("rows", "rows", hosts=1),
    Boot("data-loopback", "data_loopback", hosts=1, debug=False),
    Boot("completion-events", "completion_events", hosts=1, debug=False),
    Boot("srq", "srq"),
    Boot("xrc", "xrc", hosts=1),
    Boot("placement", "placement"),
    Boot("bad-input", "bad_input"),
    Boot("bad-packets", "bad_packets"),
    Boot("statements", "statements"),
    Boot("conformance", "conformance", hosts=1, debug=False, scripts=True),
    Boot("counters", "counters"),
    Boot("congestion", "congestion", debug=False),
    Boot("keys", "keys"),
    Boot("storage", "storage", debug=False),
    Boot("multicast", "multicast", debug=False),
    Boot("rdma-core", "rdma_core", hosts=1, dynamic=True, debug=False),
    Boot("interop-rdmacm", "rdmacm", drivers=INTEROP, debug=False),
    Boot("interop-multicast", "multicast", drivers=INTEROP, debug=False),
    Boot("interop-storage", "storage", drivers=INTEROP, debug=False),
    Boot("interop-data", "data", drivers=INTEROP, debug=False),
    Boot("interop-srq", "srq", drivers=INTEROP, debug=False),
    Boot("interop-congestion", "rxe_congestion", drivers=INTEROP, debug=False),
    Boot("interop-placement", "placement", drivers=INTEROP, debug=False),
)
