# SPDX-License-Identifier: GPL-2.0
"""The boots of guests: each of one or two machines, with the drivers of a lane."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Boot:
    """A boot runs one suite of selftests/guest/suites.

    With `port` it is part of the core that the lane `guest-7.3` runs: the suites that use the interfaces of the
    kernel, not those that are about the transport alone.

    `drivers` names a driver for each host, "test" for the one under test. Between two different ones
    the suite's cases run with this host as client and as server. A suite is `dynamic` if only the
    guest knows its cases. Without `debug` it is not part of the core that the lane `debug` runs;
    without `default` it needs the debug kernel.
    A guest of one CPU (`cpus`) takes a quarter less processor time. Boots of the other driver and of scripts have one,
    since boots of two CPUs run the same suites.
    With `scripts` the guest has the scripted packets and their interpreter. `packages` are further Debian packages
    in its image, and `release` is the Debian release of that.
    With `extra` the kernel has the modules that Debian leaves out (qemu/kernel/extra-modules). With `poison` it
    fills memory from kmalloc() when that is freed.
    The suites `together` under one name run one after the other in one boot, which takes ten seconds of two
    processors, and a minute under the debug kernel; leaks are looked for after the last. kmemleak doubles the time that
    everything there takes: a run of the core uses it only in the boots with `leaks`. These create and destroy objects,
    and refuse programs and packets.
    """

    name: str
    suite: str
    hosts: int = 2
    drivers: tuple = ("test", "test")
    dynamic: bool = False
    debug: bool = True
    default: bool = True
    cpus: int = 2
    scripts: bool = False
    together: str = ""
    leaks: bool = True
    packages: tuple = ()
    release: str = "trixie"
    extra: bool = False
    port: bool = False
    poison: bool = False

    @property
    def mixed(self):
        """Whether the hosts' drivers differ."""
        return self.hosts == 2 and self.drivers[0] != self.drivers[1]


def grouped(boots):
    """Returns lists of boots, those together that one boot does for."""
    groups = {}
    for boot in boots:
        groups.setdefault(boot.together or boot, []).append(boot)
    for group in groups.values():
        alike = {dataclasses.replace(boot, name="", suite="", debug=True, default=True, port=True) for boot in group}
        assert len(alike) == 1 and not (len(group) > 1 and group[0].dynamic), "one boot can't do for these suites"
    return list(groups.values())


INTEROP = ("test", "rdma_rxe")

# Packages that the kernel's clients of RDMA need in user space.
CLIENTS = ("nfs-common", "nfs-kernel-server", "open-iscsi", "cifs-utils", "ksmbd-tools")

# Programs that use verbs. One image serves all suites of them.
PROGRAMS = ("ucx-utils", "openmpi-bin", "python3-mpi4py", "qperf", "fio", "libfabric-bin")

BOOTS = (
    # The longest first, so that none of them runs alone at the end.
    Boot("rdmacm", "rdmacm", together="traffic", leaks=False, port=True),
    Boot("perftest", "perftest", together="traffic", leaks=False),
    Boot("data", "data", together="traffic", leaks=False, port=True),
    Boot("loss", "loss", together="traffic", leaks=False),
    Boot("interop-perftest", "perftest", drivers=INTEROP, debug=False, together="interop", cpus=1),
    Boot("clients", "clients", debug=False, extra=True, packages=CLIENTS),
    Boot("ucx", "ucx", debug=False, packages=PROGRAMS, together="applications"),
    Boot("mpi", "mpi", debug=False, packages=PROGRAMS, together="applications"),
    Boot("applications", "applications", debug=False, packages=PROGRAMS, together="applications"),
    Boot("conformance-rxe", "conformance", hosts=1, drivers=("rdma_rxe",), debug=False, scripts=True, cpus=1),
    Boot("srq", "srq", together="hostile", port=True),
    Boot("kunit", "kunit", hosts=1, default=False, together="one-host", poison=True),
    Boot("link", "link", hosts=1, together="one-host", poison=True, port=True),
    Boot("xrc", "xrc", hosts=1, together="one-host", poison=True, port=True),
    Boot("poll", "poll", hosts=1, together="one-host", poison=True, port=True),
    Boot("waiting", "waiting", hosts=1, together="one-host", poison=True),
    Boot("direct", "direct", hosts=1, together="one-host", poison=True, port=True),
    Boot("data-loopback", "data_loopback", hosts=1, debug=False, together="one-host", poison=True),
    Boot("completion-events", "completion_events", hosts=1, debug=False, together="one-host", poison=True),
    Boot("information", "information", hosts=1, together="one-host", poison=True, port=True),
    Boot("faults", "faults", hosts=1, default=False, together="one-host", poison=True),
    Boot("guard", "guard", hosts=1, together="one-host", poison=True, port=True),
    Boot("memory", "memory", hosts=1, together="one-host", poison=True, port=True),
    Boot("objects", "objects", hosts=1, together="one-host", poison=True, port=True),
    # Last of its boot: it leaves no device.
    Boot("lifecycle", "lifecycle", hosts=1, together="one-host", poison=True, port=True),
    Boot("path-mtu", "path_mtu", hosts=1, together="one-host-traffic", leaks=False),
    Boot("rows", "rows", hosts=1, together="one-host-traffic", leaks=False, port=True),
    Boot("answers", "answers", hosts=1, together="one-host-traffic", leaks=False),
    Boot("placement", "placement", together="traffic", leaks=False),
    Boot("bad-input", "bad_input", together="hostile"),
    Boot("bad-packets", "bad_packets", together="hostile"),
    Boot("statements", "statements", together="hostile"),
    Boot("conformance", "conformance", hosts=1, debug=False, scripts=True, cpus=1),
    Boot("congestion", "congestion", debug=False, together="traffic", leaks=False),
    # After those that count violations: it has the counters reach their end.
    Boot("counters", "counters", together="traffic", leaks=False, port=True),
    Boot("stacked", "stacked", together="traffic", leaks=False, port=True),
    Boot("local-queue", "local_queue", together="traffic", leaks=False),
    Boot("keys", "keys", together="hostile", port=True),
    Boot("storage", "storage", debug=False, together="traffic", leaks=False, port=True),
    Boot("multicast", "multicast", debug=False, together="traffic", leaks=False, port=True),
    Boot("tunnels", "tunnels", hosts=1, debug=False, packages=("wireguard-tools",)),
    Boot("rdma-core", "rdma_core", hosts=1, dynamic=True, debug=False),
    Boot("rdma-core-65", "rdma_core", hosts=1, dynamic=True, debug=False, release="forky"),
    Boot("interop-rdmacm", "rdmacm", drivers=INTEROP, debug=False, together="interop", cpus=1),
    Boot("interop-multicast", "multicast", drivers=INTEROP, debug=False, together="interop", cpus=1),
    Boot("interop-storage", "storage", drivers=INTEROP, debug=False, together="interop", cpus=1),
    Boot("interop-data", "data", drivers=INTEROP, debug=False, together="interop", cpus=1),
    Boot("interop-srq", "srq", drivers=INTEROP, debug=False, together="interop", cpus=1),
    Boot("interop-congestion", "rxe_congestion", drivers=INTEROP, debug=False, together="interop", cpus=1),
    Boot("interop-placement", "placement", drivers=INTEROP, debug=False, together="interop", cpus=1),
)
