# SPDX-License-Identifier: GPL-2.0
"""Addresses of devices stacked on the RDMA device's network device.

Covers VLANs, QinQ, macvlan, bridges and bonds. The connection manager and its users must work over
each of them.
"""

import contextlib
import dataclasses
import re

import testbed
from harness import case, log, require, wait_until
from nvme import write_and_read
from programs import next_port, rping, run_pair

bed = testbed.Bed()

# Commands that build each stack over a host's network device.
STACKS = {
    "vlan": ["link add link {dev} name s5 type vlan id 5"],
    "vlan-priority": ["link add link {dev} name s0 type vlan id 0"],
    "qinq": [
        "link add link {dev} name s6 type vlan protocol 802.1ad id 6",
        "link add link s6 name s6.7 type vlan id 7",
    ],
    "macvlan": ["link add link {dev} name s8 type macvlan mode bridge"],
    "macvlan-on-vlan": [
        "link add link {dev} name s9 type vlan id 9",
        "link add link s9 name s9m type macvlan mode bridge",
    ],
    "bridge-on-vlan": [
        "link add link {dev} name s10 type vlan id 10",
        "link add s10b type bridge",
        "link set s10 master s10b",
    ],
}


def names(commands):
    """Returns the devices that the commands create, the lowest first."""
    return [re.search(r"(?:name|add) (s\S+)", command)[1] for command in commands if " add " in f" {command}"]


@contextlib.contextmanager
def stack(host, number, commands, address, address6):
    """Builds a stack over a host's network device; yields the host with the stack's addresses."""
    made = names(commands)
    top = made[-1]
    where = host.machine
    # By default, the device below a macvlan replies to ARP requests for the macvlan's address, too.
    # If the macvlan's reply comes a second later, the neighbour's address changes, and the
    # connection manager reports UNREACHABLE for connections to it (cma.c,
    # cma_netevent_callback()).
    where.run("sysctl -qw net.ipv4.conf.all.arp_ignore=1")
    try:
        where.batch(
            "ip",
            *(command.format(dev=host.netdev) for command in commands),
            *(f"link set {name} up" for name in made),
            f"address add {address}/24 dev {top}",
            f"address add {address6}/64 dev {top} nodad",
        )
        for one in (address, address6):
            gid = testbed.gid_of(one)
            wait_until(f"{host.name} has a GID for {one}", lambda: where.look("has_gid", host.device, gid))
        yield dataclasses.replace(Stacked.of(host), top=top, address=address, address6=address6, number=number)
    finally:
        for name in reversed(made):
            where.try_run(f"ip link delete {name}")


@dataclasses.dataclass
class Stacked:
    """A host with the addresses of a stack."""

    machine: object
    name: str
    device: str
    driver: str
    netdev: str
    top: str = ""
    address: str = ""
    address6: str = ""
    number: int = 0

    @classmethod
    def of(cls, host):
        """Returns the host without addresses."""
        return cls(host.machine, host.name, host.device, host.driver, host.netdev)


@contextlib.contextmanager
def both(commands):
    """Builds the same stack on both hosts; yields server and client."""
    with stack(bed.peer, 2, commands, "10.55.0.2", "fd55::2") as server:
        with stack(bed.here, 1, commands, "10.55.0.1", "fd55::1") as client:
            yield server, client


@case(timeout=240, each=STACKS, debug=("vlan",))
def connections(commands):
    """rping over IPv4 and IPv6."""
    with both(commands) as (server, client):
        rping(server, client, 20)
        rping(server, client, 20, server.address6)
        found = client.machine.run(f"ip neigh show {server.address} dev {client.top}")
        own = server.machine.read(f"/sys/class/net/{server.top}/address")
        require(f"lladdr {own} " in found, f"the server's device has the address {own}, the client found {found}")


@case(timeout=240, debug=False, each={"ipv4": False, "ipv6": True})
def write_bw(ipv6):
    """ib_write_bw connects through the connection manager over a VLAN."""
    with both(STACKS["vlan"]) as (server, client):
        port = next_port()
        common = f"ib_write_bw -R -F -n 50 -s 4096 -u 20 -p {port} {'--ipv6-addr' if ipv6 else ''}"
        address = server.address6 if ipv6 else server.address
        run_pair(server, client, common, f"{common} {address}", testbed.cm_listens, port, 180)


@case(timeout=240, debug=False)
def datagrams():
    """udaddy exchanges datagrams over a VLAN."""
    with both(STACKS["vlan"]) as (server, client):
        ends = run_pair(
            server,
            client,
            "udaddy -c 1 -C 20 -S 100",
            f"udaddy -s {server.address} -c 1 -C 20 -S 100",
            testbed.cm_listens,
            7174,
            180,
        )
        for output in ends:
            require("return status 0" in output, "the status is not 0")


@case(timeout=240, debug=False)
def on_one_host():
    """A connection between addresses of one VLAN on this host."""
    with stack(bed.here, 1, STACKS["vlan"], "10.55.0.1", "fd55::1") as here:
        rping(here, here, 20)
        rping(here, here, 20, here.address6)


@case(timeout=900, debug=False)
def storage():
    """The kernel's NVMe target and host connect over a VLAN."""
    with both(STACKS["vlan"]) as (server, client):
        write_and_read(server, client)


# Commands that build a stack over a namespace's network device, the device with the link, and the
# device with the address.
MASTERS = {
    "bridge": (["link add top type bridge", "link set {dev} master top"], "{dev}", "top"),
    "bond": (["link add top type bond mode active-backup", "link set {dev} down", "link set {dev} master top"], "{dev}", "top"),
    "on-bond": (["link add top type bond mode active-backup", "link set {dev} down", "link set {dev} master top"], "top", "top"),
    "vlan-on-bond": (
        [
            "link add top type bond mode active-backup",
            "link set {dev} down",
            "link set {dev} master top",
            "link add link top name top.5 type vlan id 5",
        ],
        "top",
        "top.5",
    ),
    "vlan-on-bridge": (
        ["link add top type bridge", "link set {dev} master top", "link add link top name top.5 type vlan id 5"],
        "top",
        "top.5",
    ),
}


@case(timeout=240, debug=False, each=MASTERS)
def masters(how):
    """The network device with the link is a port of a bridge or bond, or is a bond."""
    commands, on, top = how
    with testbed.namespaces(("tcp", "tcp")) as hosts:
        ends = []
        for number, host in enumerate(hosts, 1):
            where = host.machine
            where.batch(
                "ip",
                f"address flush dev {host.netdev}",
                *(command.format(dev=host.netdev) for command in commands),
                *(f"link set {name} up" for name in (host.netdev, "top", top)),
            )
            testbed.add_link(where, bed.here.driver, host.device, on.format(dev=host.netdev))
            address, address6 = f"10.56.0.{number}", f"fd56::{number}"
            where.batch("ip", f"address add {address}/24 dev {top}", f"address add {address6}/64 dev {top} nodad")
            for one in (address, address6):
                testbed.wait_for_gid(host.device, one)
            ends.append(dataclasses.replace(Stacked.of(host), address=address, address6=address6, number=number))
        client, server = ends
        log(where.run("rdma link show"))
        rping(server, client, 20)
        rping(server, client, 20, server.address6)


def run():
    """Runs the suite."""
    return bed.run()
