# SPDX-License-Identifier: GPL-2.0
"""The machines of a suite, and their RDMA devices.

qemu/vm.py has loaded the driver of each host and made its device before a suite starts.
"""

import contextlib
import ipaddress
import os
import time

import harness
import kernellog
import looks
import machine
from harness import require, wait_until

# The link type of each driver, for `rdma link add`.
LINK_TYPES = {"rrxe": "rrxe", "rdma_rxe": "rxe", "siw": "siw"}


class Host:
    """A machine with its device and addresses."""

    def __init__(self, where, device, driver, address, address6, netdev="eth0"):
        self.machine = where
        self.name = where.name
        self.device = device
        self.netdev = netdev
        self.driver = driver
        self.address = address
        self.address6 = address6

    def frames(self):
        """Returns the number of frames that its network device has sent."""
        return int(self.machine.read(f"/sys/class/net/{self.netdev}/statistics/tx_packets"))

    def gid_index(self, address=None):
        """Returns the index of the RoCEv2 GID of one of the host's addresses."""
        return self.machine.look("gid_index", self.device, 6 if ":" in (address or self.address) else 4)


def this_host():
    """Returns the host on which this program runs."""
    env = os.environ
    return Host(machine.Local(), env["DEV"], env["DRIVER"], env["SELF"], env["SELF6"])


def other_host():
    """Returns the host at the other end of the wire."""
    env = os.environ
    remote = machine.Remote(env["PEER"])
    device, driver = remote.run('echo "$DEV $DRIVER"').split()
    return Host(remote, device, driver, env["PEER"], env["PEER6"])


class Bed:
    """The hosts of a suite: `here`, and `peer` if there are two.

    They are created on first use, so that the cases of a suite can be listed on any machine.
    """

    def __init__(self):
        self._here = None
        self._peer = None

    @property
    def here(self):
        """This host."""
        if self._here is None:
            self._here = this_host()
        return self._here

    @property
    def peer(self):
        """The other host."""
        if self._peer is None:
            self._peer = other_host()
        return self._peer

    def endpoints(self):
        """Returns an endpoint on each host, with the result of its `open`."""
        import endpoint  # only a guest has verbs

        pairs = ((self.here, endpoint.Endpoint()), (self.peer, endpoint.Peer(self.peer.address)))
        return [(end, end.open(host.device, host.address, host.driver)) for host, end in pairs]

    def clear(self):
        """Ends the jobs that a case has left running."""
        for host in (self._here, self._peer):
            if host:
                host.machine.end_jobs()

    def run(self, finish=None):
        """Runs the suite's cases, then dismisses the other host unless another suite follows.

        The other host's kernel log is judged with this one's.
        """

        def end():
            try:
                if finish:
                    finish()
                self.clear()
                if self._peer:
                    name, where = self._peer.name, self._peer.machine
                    splat = kernellog.splat_in(where.run("dmesg"))
                    require(not splat, f"on {name}: {splat}")
                    if harness.leaks_matter():
                        leaks = where.kernel("memory_leaks", os.path.join(harness.OUT, "memory-leaks.log"))
                        require(not leaks, f"on {name}: {leaks}")
            finally:
                if self._peer and not harness.more_follows():
                    self._peer.machine.dismiss()

        return harness.run_suite(after_each=self.clear, finish=end)

    def run_without_device(self, finish=None):
        """Runs the cases of a suite of one host that makes devices of its own.

        After `finish`, this machine's device is restored for the next suite.
        """
        here = self.here
        had = device_exists(here.device)
        if had:
            delete_link(here.machine, here.device)
        try:
            return self.run(finish)
        finally:
            if had:
                add_link(here.machine, here.driver, here.device, here.netdev)
                wait_for_gid(here.device, here.address)


def device_exists(device):
    """Returns whether the RDMA device is registered."""
    return os.path.isdir(f"/sys/class/infiniband/{device}")


def port_attribute(device, name):
    """Returns the contents of a sysfs file of the device's port."""
    with open(f"/sys/class/infiniband/{device}/ports/1/{name}", encoding="ascii") as file:
        return file.read().strip()


def gids(device):
    """Returns the device's RoCEv2 GIDs: {text of the GID: index}."""
    return {gid: index for index, gid in looks.gids(device)}


def cm_listens(where, port):
    """Returns whether a program on the machine listens for RDMA connections on the port."""
    pid = where.look("cm_listener", port)
    if pid is None:
        return False
    # The state is visible slightly before requests are accepted (rdma_listen() in
    # drivers/infiniband/core/cma.c). They are accepted once the program sleeps, since it waits for
    # them. The kernel's own listeners have no program.
    for _ in range(20):
        time.sleep(0.3)
        if not pid or where.look("sleeps", pid):
            break
    return True


def tcp_listens(where, port):
    """Returns whether a program on the machine listens for TCP connections on the port."""
    return where.tcp_listens(port)


# For suites that load drivers and make devices themselves.


def load(where, driver, parameters=""):
    """Loads the driver's module.

    rrxe gets the parameters in RRXE_PARAMETERS, as at boot, followed by `parameters`.
    """
    if driver == "rrxe":
        words = ["insmod", "/guest/rrxe/rrxe.ko", *os.environ.get("RRXE_PARAMETERS", "").split(), *parameters.split()]
        where.run(" ".join(words))
    else:
        where.run(f"modprobe {driver}")


def unload(where, driver):
    """Unloads the driver's module."""
    where.run(f"rmmod {driver}", 120)


def is_loaded(where, driver):
    """Returns whether the driver's module is loaded."""
    return bool(where.look("listed", "/sys/module", driver))


@contextlib.contextmanager
def one_cpu(where):
    """Takes all CPUs of the machine except the first offline for the block."""
    others = "/sys/devices/system/cpu/cpu[1-9]*/online"
    where.run(f"for cpu in {others}; do echo 0 >$cpu; done")
    try:
        yield
    finally:
        where.run(f"for cpu in {others}; do echo 1 >$cpu; done")


@contextlib.contextmanager
def loaded_with(where, parameters):
    """Loads rrxe with these parameters for the block.

    rrxe must have no device before and after the block.
    """
    unload(where, "rrxe")
    try:
        load(where, "rrxe", parameters)
        yield
    finally:
        # The module is absent if it failed to load.
        if is_loaded(where, "rrxe"):
            unload(where, "rrxe")
        load(where, "rrxe")


@contextlib.contextmanager
def parameters_of(host, parameters):
    """Loads the host's rrxe with these parameters for the block.

    The host's device is removed and made again, both at the start and at the end.
    """
    delete_link(host.machine, host.device)
    try:
        with loaded_with(host.machine, parameters):
            make_device(host)
            try:
                yield
            finally:
                delete_link(host.machine, host.device)
    finally:
        make_device(host)


def add_link(where, driver, device, netdev):
    """Makes a device over the network device."""
    where.run(f"rdma link add {device} type {LINK_TYPES[driver]} netdev {netdev}")


def make_device(host):
    """Makes the device of a host whose driver is loaded."""
    add_link(host.machine, host.driver, host.device, host.netdev)
    wait_for_gid(host.device, host.address)


def bring_up(host, parameters=""):
    """Loads the driver of a host without it (rrxe with these parameters), and makes its device."""
    load(host.machine, host.driver, parameters)
    make_device(host)


# The network device feature that lets several packets leave as one GSO packet.
ROWS = "tx-udp-segmentation"


def send_gso(where, netdev, allowed):
    """Sets whether packets may leave the network device as GSO packets.

    If not, each packet passes the stack on its own, as on a wire.
    """
    where.run(f"ethtool -K {netdev} {ROWS} {'on' if allowed else 'off'}")


@contextlib.contextmanager
def machines(driver, mtu):
    """Yields this machine and the other one, each with a device of the driver over its eth0 with
    this MTU, unless the driver is "tcp".

    Neither may have a device before.
    """
    hosts = [Host(host.machine, f"dev_{host.name}", driver, host.address, host.address6) for host in (this_host(), other_host())]
    try:
        for host in hosts:
            host.machine.run(f"ip link set eth0 mtu {mtu}")
            if driver != "tcp":
                add_link(host.machine, driver, host.device, host.netdev)
                gid = gid_of(host.address)
                wait_until(f"{host.name} has a GID", lambda where=host, gid=gid: where.machine.look("has_gid", where.device, gid))
        yield hosts
    finally:
        for host in hosts:
            host.machine.end_jobs()
            if driver != "tcp":
                host.machine.try_run(f"rdma link delete {host.device}")


# The offloads that can be switched off, by the name that ethtool shows for them.
OFFLOADS = {
    "gro": "generic-receive-offload",
    "gso": "generic-segmentation-offload",
    "tso": "tcp-segmentation-offload",
    "sg": "scatter-gather",
    "tx": "tx-checksumming",
    "rx": "rx-checksumming",
}


def switch_off(where, netdev):
    """Switches the offload that $WITHOUT names off for this network device, unless the device does
    not allow it: virtio-net verifies checksums always."""
    name = os.environ.get("WITHOUT")
    if name:
        where.try_run(f"ethtool -K {netdev} {name} off")
        shown = where.run(f"ethtool -k {netdev}")
        is_off = any(f"{OFFLOADS[name]}: {state}" in shown for state in ("off", "on [fixed]"))
        require(is_off, f"{netdev}: ethtool -K {name} off has no effect: {shown}")


def delete_link(where, device):
    """Deletes the device."""
    where.run(f"rdma link delete {device}", 120)


def wait_for_gid(device, address):
    """Waits until ib_core has a GID for the IP address; returns its index."""
    gid = gid_of(address)
    return wait_until(f"{device} has a GID for {address}", lambda: gids(device).get(gid, -1) + 1) - 1


def gid_of(address):
    """Returns the GID of an IP address as sysfs writes it."""
    address = ipaddress.ip_address(address)
    packed = address.packed if address.version == 6 else bytes(10) + b"\xff\xff" + address.packed
    return packed.hex(":", 2)


@contextlib.contextmanager
def namespaces(drivers, mtu=4200, spread=False):
    """Yields two hosts: namespaces of this machine joined by a veth pair with this MTU.

    Each has addresses, and a device of its driver unless that is "tcp". With `spread`, received
    packets are distributed over all CPUs by flow (RPS); otherwise the CPU that sent a packet
    also receives it.
    """
    local = machine.Local()
    hosts = []
    try:
        for side in ("a", "b"):
            local.run(f"ip netns add {side}")
        local.run(f"ip link add va mtu {mtu} netns a type veth peer name vb mtu {mtu} netns b")
        for number, side, driver in ((1, "a", drivers[0]), (2, "b", drivers[1])):
            where, device, netdev = machine.Local(f"namespace {side}", side), f"dev_{side}", f"v{side}"
            with where.inside(), open(f"/proc/sys/net/ipv6/conf/{netdev}/accept_dad", "w", encoding="ascii") as file:
                file.write("0")
            if spread:
                every = (1 << os.cpu_count()) - 1
                where.run(f"echo {every:x} > /sys/class/net/{netdev}/queues/rx-0/rps_cpus")
            switch_off(where, netdev)
            local.batch(
                f"ip -n {side}",
                "link set lo up",
                f"link set {netdev} up",
                f"address add 192.0.2.{number}/24 dev {netdev}",
                f"address add 2001:db8::{number}/64 dev {netdev} nodad",
            )
            if driver != "tcp":
                add_link(where, driver, device, netdev)
            hosts.append(Host(where, device, driver, f"192.0.2.{number}", f"2001:db8::{number}", netdev))
            if driver in ("tcp", "siw"):
                continue  # no GIDs derived from addresses
            for address in (hosts[-1].address, hosts[-1].address6):
                wait_for_gid(device, address)
        yield hosts
    finally:
        for host in hosts:
            host.machine.end_jobs()
        # Both links go before either namespace, which takes the whole veth with it: rdma_rxe of
        # Linux 7.2 releases its socket twice if a link is deleted while its netdev goes away
        # (rxe_net_del() in drivers/infiniband/sw/rxe/rxe_net.c).
        for words in ("rdma link delete dev_", "ip netns delete "):
            for side in ("a", "b"):
                local.try_run(f"{words}{side}")
        wait_until("the devices are gone", lambda: not any(device_exists(f"dev_{side}") for side in ("a", "b")))
