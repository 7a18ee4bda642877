# SPDX-License-Identifier: GPL-2.0
"""A device and its network device.

Covers what `rdma link add` accepts and refuses, the port's state and MTU, GIDs, and namespaces. The
suite needs one machine; the other ends are veth devices.
"""

import contextlib
import errno
import os
import re
import socket

import harness
import kernellog
import privilege
import programs
import testbed
from harness import Skip, case, equal, require, wait_until
from machine import Local

bed = testbed.Bed()

DEVICE = "rrxe1"


def sh(command, seconds=60):
    """Runs a command that must succeed on this host."""
    return bed.here.machine.run(command, seconds)


def ip(*commands):
    """Runs commands of `ip`, which must succeed, in one program on this host."""
    bed.here.machine.batch("ip", *commands)


def driver():
    """Returns the driver under test."""
    return bed.here.driver


def need_rrxe():
    """Skips the case for other drivers: it tests guarantees of rrxe."""
    if driver() != "rrxe":
        raise Skip("asks for what rrxe promises")


@contextlib.contextmanager
def netdev(name, *make):
    """Creates a network device by these commands of `ip` and sets it up.

    It is removed afterwards, with its RDMA device.
    """
    try:
        ip(*make, f"link set {name} up")
        yield name
    finally:
        bed.here.machine.try_run(f"ip link delete {name}")
        wait_until(f"{DEVICE} is gone", lambda: not testbed.device_exists(DEVICE))


def veth(name="v0", mtu=None):
    """Creates a veth pair with both ends up; the other end is `name`p."""
    size = [f"link set {name} mtu {mtu}"] if mtu else []
    return netdev(name, f"link add {name} type veth peer name {name}p", f"link set {name}p up", *size)


@contextlib.contextmanager
def link(on, device=DEVICE):
    """Creates an RDMA device over a network device."""
    testbed.add_link(bed.here.machine, driver(), device, on)
    try:
        yield device
    finally:
        if testbed.device_exists(device):
            testbed.delete_link(bed.here.machine, device)


def refused(device, on, number, words):
    """Checks that adding a link fails with this errno.

    The kernel log must have one line that gives the reason and contains these words.
    """
    since = kernellog.place()
    before = sorted(os.listdir("/sys/class/infiniband"))
    kind = testbed.LINK_TYPES[driver()]
    end = bed.here.machine.try_run(f"rdma link add {device} type {kind} netdev {on}")
    require(end.status != 0, f"a link over {on} was made")
    equal("devices after the refusal", sorted(os.listdir("/sys/class/infiniband")), before)
    equal("the error", end.output.strip().rpartition(": ")[2].rstrip("."), os.strerror(number))
    if not words or driver() != "rrxe":
        return
    said = [line for line in kernellog.lines_since(since).splitlines() if line.startswith("rrxe: ")]
    equal("lines of rrxe in the kernel's log", len(said), 1)
    for word in words:
        require(re.search(word, said[0]), f"the log line says '{said[0]}', without '{word}'")


@case(debug=False)
def module_alias():
    """`rdma link add` loads the module by this alias."""
    need_rrxe()
    aliases = sh("modinfo -F alias /guest/rrxe/rrxe.ko").split()
    require("rdma-link-rrxe" in aliases, f"aliases: {aliases}")


@case()
def add_and_delete():
    """A device can be added and deleted three times with one name and network device."""
    with veth() as name:
        for _ in range(3):
            with link(name):
                text = sh("rdma link show")
                require(re.search(rf"link {DEVICE}/1 state ACTIVE physical_state LINK_UP netdev {name}", text), text)
            require(not testbed.device_exists(DEVICE), f"{DEVICE} exists after its deletion")


@case(debug=False, each={"loopback": "lo", "netlink": "nlmon0"})
def refuse_no_ip(kind):
    """A network device that cannot carry IP to other hosts is refused."""
    need_rrxe()
    if kind == "lo":
        refused(DEVICE, "lo", errno.EOPNOTSUPP, ["lo", "Ethernet"])
        return
    with netdev("nlmon0", "link add nlmon0 type nlmon") as name:
        refused(DEVICE, name, errno.EOPNOTSUPP, ["nlmon0", "Ethernet"])


@case(debug=False)
def identity():
    """ibv_devinfo, ibstat and rdma show the device's type, version and port rate."""
    need_rrxe()
    with veth() as name, link(name) as device:
        version = sh("modinfo -F version /guest/rrxe/rrxe.ko").strip() or "0.1.0"
        text = sh(f"ibv_devinfo -d {device}")
        for field, wanted in (("fw_ver", version), ("board_id", "RRXE_SOFT_ROCE_V2"), ("hw_ver", "0x0")):
            require(re.search(rf"^\s*{field}:\s+{wanted}$", text, re.M), f"no line '{field}: {wanted}' in {text}")
        files = f"/sys/class/infiniband/{device}"
        for file, wanted in (("hca_type", "rrxe"), ("fw_ver", version), ("hw_rev", "0")):
            equal(file, bed.here.machine.read(f"{files}/{file}"), wanted)
        require(f"fw {version}" in sh(f"rdma -d dev show {device}"), "rdma shows no version")
        speed = int(bed.here.machine.read(f"/sys/class/net/{name}/speed"))
        rate = float(testbed.port_attribute(device, "rate").split()[0])
        require(rate >= speed / 1000, f"the port's rate is {rate} Gb/s, its network device's speed {speed} Mb/s")


@case(timeout=120, debug=False)
def exclusive_namespaces():
    """In exclusive mode a device belongs to its network device's namespace and is visible only
    there."""
    sh("rdma system set netns exclusive")
    try:
        ip("netns add e1", "link add v1 type veth peer name v1p", "link set v1 netns e1", "link set v1p up")
        try:
            kind = testbed.LINK_TYPES[driver()]
            sh("ip -n e1 link set v1 up")
            sh(f"ip netns exec e1 rdma link add x1 type {kind} netdev v1")
            require("link x1/1" in sh("ip netns exec e1 rdma link show"), "its own namespace does not show it")
            require("x1" not in sh("rdma link show"), "the initial namespace shows it")
            sh("ip netns exec e1 rdma link delete x1")
            sh(f"ip netns exec e1 rdma link add x1 type {kind} netdev v1")
        finally:
            sh("ip netns delete e1")
    finally:
        wait_until("shared again", lambda: bed.here.machine.try_run("rdma system set netns shared").status == 0)
    # Now devices of all namespaces are visible. `rdma link show` would fail: it lists the devices,
    # and then asks for each, which may be gone.
    wait_until("the device is gone with its namespace", lambda: not testbed.device_exists("x1"))


@case()
def refuse_second_link():
    """A second RDMA device on a network device is refused."""
    with veth() as name, link(name):
        refused("rrxe2", name, errno.EEXIST, [name])


@case(debug=False)
def refuse_name_taken():
    """A name in use is refused, by ib_core."""
    with veth() as name, veth("w0") as other, link(name):
        refused(DEVICE, other, errno.ENFILE, None)


@case(debug=False)
def refuse_unknown_netdev():
    """An unknown network device is refused."""
    refused(DEVICE, "nowhere0", errno.ENODEV, None)


@case(debug=False)
def refuse_vlan_device():
    """A VLAN device is refused: it is reached through the GIDs of the device below it."""
    need_rrxe()
    with veth() as name:
        ip(f"link add link {name} name {name}.5 type vlan id 5", f"link set {name}.5 up")
        refused(DEVICE, f"{name}.5", errno.EPERM, [rf"{name}\.5", "VLAN"])


@case()
def refuse_port_taken():
    """UDP port 4791 belongs to one driver in a namespace."""
    need_rrxe()
    where = bed.here.machine
    testbed.delete_link(where, bed.here.device)
    try:
        testbed.load(where, "rdma_rxe")
        testbed.add_link(where, "rdma_rxe", "rxe9", "eth0")
        try:
            with veth() as name:
                refused(DEVICE, name, errno.EADDRINUSE, ["4791", "rdma_rxe"])
        finally:
            testbed.delete_link(where, "rxe9")
            testbed.unload(where, "rdma_rxe")
        with veth() as name, link(name):
            pass
    finally:
        testbed.add_link(where, driver(), bed.here.device, "eth0")


@case(debug=False, each={"ipv4": (socket.AF_INET, "0.0.0.0"), "ipv6": (socket.AF_INET6, "::1")})
def refuse_port_of_a_program(how):
    """A program without privileges can bind UDP port 4791.

    The log line says which command shows the program.
    """
    need_rrxe()
    family, address = how

    @contextlib.contextmanager
    def bound():
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.bind((address, 4791))
            yield os.getpid()

    testbed.delete_link(bed.here.machine, bed.here.device)
    try:
        with privilege.beside(bound, (privilege.give_up,)) as pid, veth() as name:
            refused(DEVICE, name, errno.EADDRINUSE, ["4791", "ss -lunp 'sport = 4791'"])
            found = sh("ss -lunp 'sport = 4791'")
            require(f"pid={pid}," in found, f"that command shows {found}")
        with veth() as name, link(name):
            pass
    finally:
        testbed.add_link(bed.here.machine, driver(), bed.here.device, "eth0")


@case()
def state_follows_netdev():
    """The port goes down and up with the network device, by command and by loss of carrier."""
    with veth() as name, link(name) as device:

        def state():
            return testbed.port_attribute(device, "state")

        equal("state", state(), "4: ACTIVE")
        sh(f"ip link set {name} down")
        wait_until("the port is down", lambda: state() == "1: DOWN")
        sh(f"ip link set {name} up")
        wait_until("the port is active", lambda: state() == "4: ACTIVE")
        sh(f"ip link set {name}p down")
        wait_until("the port is down without carrier", lambda: state() == "1: DOWN")
        sh(f"ip link set {name}p up")
        wait_until("the port is active again", lambda: state() == "4: ACTIVE")


# The network device's MTU, and the largest IB MTU that fits.
MTUS = ((1280, 1024), (1500, 1024), (2200, 2048), (4200, 4096), (9000, 4096))


@case(debug=False, each={str(mtus[0]): mtus for mtus in MTUS})
def mtu_follows_netdev(what):
    """The active MTU is the largest IB MTU that fits with all headers."""
    mtu, wanted = what
    with veth(mtu=9000) as name, link(name) as device:
        sh(f"ip link set {name} mtu {mtu}")

        def shown():
            return bed.here.machine.look("active_mtu", device)

        wait_until(f"the IB MTU is {wanted} (it is {shown()})", lambda: shown() == wanted, 10)


@case(debug=("ipv4",), each={"ipv4": ("192.0.2.7", 24), "ipv6": ("2001:db8::7", 64)})
def gid_of_address(what):
    """A GID appears and disappears with its IP address."""
    address, length = what
    with veth() as name, link(name) as device:
        gid = testbed.gid_of(address)
        require(gid not in testbed.gids(device), "a GID for an address that is not there")
        sh(f"ip address add {address}/{length} dev {name}")
        testbed.wait_for_gid(device, address)
        sh(f"ip address delete {address}/{length} dev {name}")
        wait_until("the GID is gone", lambda: gid not in testbed.gids(device))


@case(debug=False)
def gid_of_link_local():
    """Every port has a link-local GID derived from the MAC address."""
    with veth() as name, link(name) as device:
        wait_until("a link-local GID", lambda: any(gid.startswith("fe80:") for gid in testbed.gids(device)))


@case()
def gid_of_vlan():
    """The addresses of a VLAN are in the GID table of the device below it."""
    with veth() as name, link(name) as device:
        ip(
            f"link add link {name} name {name}.5 type vlan id 5",
            f"link set {name}.5 up",
            f"address add 198.51.100.7/24 dev {name}.5",
        )
        index = testbed.wait_for_gid(device, "198.51.100.7")
        path = f"/sys/class/infiniband/{device}/ports/1/gid_attrs/ndevs/{index}"
        equal("the GID's network device", bed.here.machine.read(path), f"{name}.5")


@case(debug=False)
def gid_of_another_namespace():
    """Packets with the GID of a macvlan in another namespace leave through that macvlan.

    Its interface index there is that of another device in this namespace, which sends nothing.
    """
    need_rrxe()
    with veth("v0") as name, veth("v1") as other, contextlib.ExitStack() as stack:
        sh("ip netns add c")
        stack.callback(sh, "ip netns delete c")
        index = 1234
        ip(f"link add link {name} name m0 index {index} type macvlan mode bridge", "link set m0 netns c")
        with Local(namespace="c").inside():
            with open("/proc/sys/net/ipv6/conf/m0/accept_dad", "w", encoding="ascii") as file:
                file.write("0")
            equal("index in the other namespace", socket.if_nametoindex("m0"), index)
        sh("ip -n c link set m0 up")
        ip(f"link add index {index} link {other} name m1 type macvlan mode bridge", "link set m1 up")
        equal("index in this namespace", socket.if_nametoindex("m1"), index)
        stack.enter_context(link(name))
        here, there = "2001:db8:99::1", "2001:db8:99::2"
        for program, dev, address in (("ip -n c", "m0", here), ("ip", "m1", "2001:db8:99::9")):
            bed.here.machine.batch(
                program,
                f"address add {address}/64 dev {dev} nodad",
                f"neighbour add {there} lladdr 02:00:00:00:00:07 dev {dev} nud permanent",
            )
        testbed.wait_for_gid(DEVICE, here)
        import endpoint  # only a guest has verbs

        end = endpoint.Endpoint()
        stack.callback(end.close)
        end.open(DEVICE, here, "rrxe")
        pd = end.pd()
        send_cq, recv_cq = end.cq(8, False), end.cq(8, False)
        qp = end.qp("ud", pd, send_cq, recv_cq)["id"]
        end.to_init(qp, "ud")
        end.to_rtr(qp, "ud")
        end.to_rts(qp, "ud")
        region = end.memory(pd, 4096)
        handle = end.ah(pd, testbed.gid_of(there))
        with packets_of("m1") as wrong, packets_of("m0", Local(namespace="c")) as right:
            segment = [region["address"], 64, region["lkey"]]
            end.post_send(qp, [{"id": 1, "op": "send", "sge": [segment], "ah": handle, "qpn": 77}])
            equal("completions", [wc["status"] for wc in end.poll(send_cq, 1, 30)], ["SUCCESS"])
            equal("packets of the container's device", right(), 1)
            equal("packets of this namespace's device", wrong(), 0)


@contextlib.contextmanager
def packets_of(netdev, where=None):
    """Yields a function that counts the IPv6 RoCE packets that a network device has sent.

    `where` is the namespace of the device, by default this one.
    """
    with (where or bed.here.machine).inside():
        opened = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x0003))
    with opened as sock:
        sock.bind((netdev, 0x0003))
        sock.settimeout(1)

        def count():
            found = 0
            with contextlib.suppress(TimeoutError):
                while True:
                    packet = sock.recv(2048)
                    found += packet[0] >> 4 == 6 and packet[6] == 17 and packet[42:44] == b"\x12\xb7"
            return found

        yield count


@case()
def netdev_removed():
    """The RDMA device is removed with its network device."""
    with veth() as name:
        testbed.add_link(bed.here.machine, driver(), DEVICE, name)
        sh(f"ip link delete {name}")
        wait_until(f"{DEVICE} is gone", lambda: not testbed.device_exists(DEVICE))
        sh(f"ip link add {name} type veth peer name {name}p")
        # The name is available immediately.
        with link(name):
            pass


@case(debug=False)
def netdev_renamed():
    """The RDMA device stays on its network device if that is renamed."""
    with veth() as name, link(name):
        ip(f"link set {name} down", f"link set {name} name renamed0", "link set renamed0 up")
        try:
            text = sh("rdma link show")
            require(re.search(rf"link {DEVICE}/1 .*netdev renamed0", text), text)
        finally:
            ip("link set renamed0 down", f"link set renamed0 name {name}")


@case(timeout=240, debug=False)
def two_namespaces():
    """Each namespace has a socket of its own: rping between two, over IPv4 and IPv6."""
    with testbed.namespaces((driver(),) * 2) as (one, two):
        for address in (two.address, two.address6):
            programs.rping(two, one, 20, address)


@case()
def namespace_deleted():
    """Deleting a namespace deletes its network device and the RDMA device on it."""
    with testbed.namespaces((driver(),) * 2):
        sh("ip netns delete a")
        wait_until("its device is gone", lambda: not testbed.device_exists("dev_a"))
        sh("ip netns add a")


@case(timeout=180, debug=False)
def loopback():
    """A connection of the host with itself."""
    programs.rping(bed.here, bed.here, 20)
    programs.rping(bed.here, bed.here, 20, bed.here.address6)


@case(timeout=120, debug=False)
def unload_and_load():
    """The module unloads once its devices are gone, and loads again."""
    here = bed.here
    programs.rping(here, here, 5)
    name = driver()
    testbed.delete_link(here.machine, here.device)
    testbed.unload(here.machine, name)
    require(not os.path.exists(f"/sys/module/{name}"), "the module is still there")
    testbed.bring_up(here)


def clear_away():
    """Deletes all devices, since they would hide leaks, and restores them for a following suite."""
    here = bed.here
    for device in os.listdir("/sys/class/infiniband"):
        here.machine.try_run(f"rdma link delete {device}")
    testbed.unload(here.machine, driver())
    if harness.more_follows():
        testbed.bring_up(here)


def run():
    """Runs the suite."""
    return bed.run(clear_away)

