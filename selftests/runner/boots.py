# SPDX-License-Identifier: GPL-2.0
"""The boots: each starts one or two guests with the drivers of a lane."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Boot:
    """A boot runs one suite of selftests/guest/suites.

    - `drivers` names a driver for each host; "test" is the driver under test. If they differ, this
      host runs the cases of the suite both as client and as server.
    - `dynamic`: only the guest knows the cases of the suite.
    - `port`: part of the core set that the lane `guest-7.3` runs. These suites use kernel
      interfaces, not the transport alone.
    - `debug`: part of the core set that the lane `debug` runs.
    - `default`: false if the suite needs the debug kernel.
    - `cpus`: a guest with one CPU takes a quarter less CPU time. Boots of the other driver, of
      scripts and of the second rdma-core have one, because boots with two CPUs run the same suites.
      The kernel's clients have one, too: NVMe runs with two. So have all boots of the lane
      `guest-7.3`.
    - `scripts`: the guest has the packet scripts and their interpreter.
    - `packages`: further Debian packages in the guest's image. `release` is the image's Debian
      release.
    - `extra`: the kernel has the modules that Debian leaves out (qemu/kernel/extra-modules).
    - `icount`: the guest has one CPU, and its clock counts instructions, so that a suite can judge
      times.
    - `without`: the name of an offload that the network devices of the guests do not have.
    - `poison`: the kernel fills memory from kmalloc() with a pattern when it is freed.
    - `together`: suites with equal names share one boot, one after the other. A boot takes ten
      seconds of two CPUs. The check for leaks follows the last suite.
    - `leaks`: in a run of the core set, kmemleak is on only in these boots, which create and
      destroy objects, and refuse programs and packets. It doubles the run time.
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
    icount: bool = False
    without: str = ""

    @property
    def repeats(self):
        """Returns whether the boot repeats suites of other boots with another driver or release.

        Its results are kept for later runs with the same inputs."""
        return "rdma_rxe" in self.drivers or self.release != "trixie"

    @property
    def mixed(self):
        """Returns whether the hosts have different drivers."""
        return self.hosts == 2 and self.drivers[0] != self.drivers[1]


def grouped(boots):
    """Groups the boots whose suites share one boot. Returns a list of lists."""
    groups = {}
    for boot in boots:
        groups.setdefault(boot.together or boot, []).append(boot)
    for group in groups.values():
        alike = {dataclasses.replace(boot, name="", suite="", debug=True, default=True, port=True) for boot in group}
        assert len(alike) == 1 and not (len(group) > 1 and group[0].dynamic), "one boot can't do for these suites"
    return list(groups.values())


INTEROP = ("test", "rdma_rxe")

# The user-space packages of the kernel's RDMA clients, programs that use verbs, and programs that
# monitor devices. All suites that need any of them share one image.
CLIENTS = ("nfs-common", "nfs-kernel-server", "open-iscsi", "cifs-utils", "ksmbd-tools")
MONITORING = ("prometheus-node-exporter", "collectd-core")
PROGRAMS = ("ucx-utils", "openmpi-bin", "python3-mpi4py", "qperf", "fio", "libfabric-bin", *MONITORING, *CLIENTS)

BOOTS = (
    # The longest boots come first, so that none of them runs alone at the end.
    Boot("kunit", "kunit", hosts=1, default=False, together="one-host", poison=True),
    Boot("link", "link", hosts=1, together="one-host", poison=True, port=True),
    Boot("xrc", "xrc", hosts=1, together="one-host", poison=True, port=True),
    Boot("poll", "poll", hosts=1, together="one-host", poison=True, port=True),
    Boot("cpu-yield", "cpu_yield", hosts=1, together="one-host", poison=True),
    Boot("same-device", "same_device", hosts=1, together="one-host", poison=True, port=True),
    Boot("data-loopback", "data_loopback", hosts=1, debug=False, together="one-host", poison=True),
    Boot("completion-events", "completion_events", hosts=1, debug=False, together="one-host", poison=True),
    Boot("information", "information", hosts=1, together="one-host", poison=True, port=True),
    Boot("faults", "faults", hosts=1, default=False, together="one-host", poison=True),
    Boot("guard", "guard", hosts=1, together="one-host", poison=True, port=True),
    Boot("memory", "memory", hosts=1, together="one-host", poison=True, port=True),
    Boot("device-memory", "device_memory", hosts=1, together="one-host", poison=True, port=True),
    Boot("null-region", "null_region", hosts=1, together="one-host", poison=True),
    Boot("importing", "importing", hosts=1, together="one-host", poison=True, port=True),
    Boot("objects", "objects", hosts=1, together="one-host", poison=True, port=True),
    Boot("limits", "limits", hosts=1, together="one-host", poison=True),
    Boot("provider", "provider", hosts=1, debug=False, together="one-host", poison=True),
    # Last in its boot: it leaves no device behind.
    Boot("lifecycle", "lifecycle", hosts=1, together="one-host", poison=True, port=True),
    Boot("rdmacm", "rdmacm", together="traffic", leaks=False, port=True),
    Boot("perftest", "perftest", together="traffic", leaks=False),
    Boot("data", "data", together="traffic", leaks=False, port=True),
    Boot("loss", "loss", together="traffic", leaks=False),
    Boot("reordering", "reordering", together="traffic", leaks=False),
    Boot("interop-perftest", "perftest", drivers=INTEROP, debug=False, together="interop", cpus=1),
    Boot("clients", "clients", debug=False, extra=True, packages=PROGRAMS, cpus=1),
    Boot("ucx", "ucx", debug=False, packages=PROGRAMS, together="applications"),
    Boot("mpi", "mpi", debug=False, packages=PROGRAMS, together="applications"),
    Boot("applications", "applications", debug=False, packages=PROGRAMS, together="applications"),
    Boot("monitoring", "monitoring", debug=False, packages=PROGRAMS, together="applications"),
    Boot("conformance-rxe", "conformance", hosts=1, drivers=("rdma_rxe",), debug=False, scripts=True, cpus=1, icount=True),
    Boot("srq", "srq", together="hostile", port=True),
    Boot("path-mtu", "path_mtu", hosts=1, together="one-host-traffic", leaks=False),
    Boot("gso", "gso", hosts=1, together="one-host-traffic", leaks=False, port=True),
    Boot("chains", "chains", hosts=1, together="one-host-traffic", leaks=False, port=True),
    Boot("borders", "borders", hosts=1, together="one-host-traffic", leaks=False, port=True),
    Boot("delayed-ack", "delayed_ack", hosts=1, together="one-host-traffic", leaks=False),
    Boot("interfaces", "interfaces", hosts=1, debug=False, together="one-host-traffic", leaks=False, port=True),
    Boot("tunnels", "tunnels", hosts=1, debug=False, together="one-host-traffic", leaks=False),
    Boot("placement", "placement", together="traffic", leaks=False),
    Boot("bad-input", "bad_input", together="hostile"),
    Boot("bad-packets", "bad_packets", together="hostile"),
    Boot("statements", "statements", together="hostile"),
    Boot("details", "details", together="hostile", port=True),
    Boot("conformance", "conformance", hosts=1, debug=False, scripts=True, cpus=1, icount=True),
    Boot("congestion", "congestion", debug=False, together="traffic", leaks=False),
    # After the suites that count violations: it saturates the counters.
    Boot("counters", "counters", together="traffic", leaks=False, port=True),
    Boot("service-levels", "service_levels", together="traffic", leaks=False, port=True),
    Boot("stacked", "stacked", together="traffic", leaks=False, port=True),
    Boot("local-queue", "local_queue", together="traffic", leaks=False),
    Boot("keys", "keys", together="hostile", port=True),
    Boot("paging", "paging", together="hostile", port=True),
    Boot("storage", "storage", debug=False, together="traffic", leaks=False, port=True),
    Boot("multicast", "multicast", debug=False, together="traffic", leaks=False, port=True),
    Boot("budgets", "budgets", hosts=1, debug=False, cpus=1, icount=True, together="clock"),
    Boot("dead-peer", "dead_peer", hosts=1, debug=False, cpus=1, icount=True, together="clock"),
    Boot("data-without-gro", "data", debug=False, together="without-gro", cpus=1, without="gro"),
    Boot("reordering-without-gro", "reordering", debug=False, together="without-gro", cpus=1, without="gro"),
    Boot("rdma-core", "rdma_core", hosts=1, dynamic=True, debug=False),
    Boot("rdma-core-65", "rdma_core", hosts=1, dynamic=True, debug=False, release="forky", cpus=1),
    Boot("interop-rdmacm", "rdmacm", drivers=INTEROP, debug=False, together="interop", cpus=1),
    Boot("interop-multicast", "multicast", drivers=INTEROP, debug=False, together="interop", cpus=1),
    Boot("interop-storage", "storage", drivers=INTEROP, debug=False, together="interop", cpus=1),
    Boot("interop-data", "data", drivers=INTEROP, debug=False, together="interop", cpus=1),
    Boot("interop-reordering", "reordering", drivers=INTEROP, debug=False, together="interop", cpus=1),
    Boot("interop-srq", "srq", drivers=INTEROP, debug=False, together="interop", cpus=1),
    Boot("interop-congestion", "rxe_congestion", drivers=INTEROP, debug=False, together="interop", cpus=1),
    Boot("interop-placement", "placement", drivers=INTEROP, debug=False, together="interop", cpus=1),
)
