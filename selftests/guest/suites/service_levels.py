# SPDX-License-Identifier: GPL-2.0
"""Service level and traffic class of addresses: in packets, VLAN tags and queueing disciplines."""

import errno
import json
import random

import privilege
import testbed
from harness import Skip, case, equal, log, require
from programs import rping
from traffic import Batch, Side, connect
from trial import refused
from vlans import TaggedWire, vlan

bed = testbed.Bed()

ADDRESSES = ("10.79.0.1", "10.79.0.2")
# The tag of service level 3 has priority 5, and so on.
EGRESS = "egress-qos-map 3:5 6:4 4:4"
DSCP = 26 << 2


def need_rrxe():
    """Skips the case for other drivers, which ignore the service level."""
    if bed.here.driver != "rrxe":
        raise Skip("the other driver ignores service levels")


def found_in(wire):
    """Returns the priorities of tags and the types of service: of sent and of received packets."""
    sent, received = set(), set()
    for incoming, tag, ip in wire.passing():
        (received if incoming else sent).add((tag >> 13, ip[1]))
    return sent, received


def exchange(sides, kind, address):
    """Exchanges messages, of which those of the left side use this address."""
    batch = Batch(random.Random(kind), *sides)
    left, right = sides
    for side, other, more in ((left, right, address), (right, left, {})):
        handle = side.end.ah(side.pd, other.info["gid"], **more) if kind == "ud" else None
        for _ in range(5):
            batch.add(side, "send", 900, address_handle=handle)
    batch.run()


@case(each={"rc": "rc", "uc": "uc", "ud": "ud"})
def vlan_priority(kind):
    """The tag of a VLAN has the priority of the service level, and the packet the traffic class."""
    need_rrxe()
    with vlan(bed, ADDRESSES, EGRESS) as both:
        sides = [Side(end, info, kind, False) for end, info in both]
        address = {"sl": 3, "traffic_class": DSCP}
        connect(*sides, 1024, random.Random(kind), address=None if kind == "ud" else address)
        wire = TaggedWire()
        try:
            exchange(sides, kind, address)
            sent, received = found_in(wire)
        finally:
            wire.close()
        # Packets of a reaction point are ECN-capable, if they are of a connection.
        ecn = 0 if kind == "ud" else 2
        equal("sent: priority and type of service", sent, {(5, DSCP | ecn)})
        equal("received: priority and type of service", received, {(0, ecn)})
        for side in sides:
            side.destroy()


@case()
def queueing_discipline():
    """A prio queueing discipline sees the service level: 6 leaves in the first band."""
    need_rrxe()
    run = bed.here.machine.run
    bands = {0: "1:2", 2: "1:3", 6: "1:1", 14: "1:1"}
    both = bed.endpoints()
    try:
        run("tc qdisc add dev eth0 root handle 1: prio")
        try:
            for sl, band in bands.items():
                sides = [Side(end, info, "rc", False) for end, info in both]
                connect(*sides, 1024, random.Random(sl), address={"sl": sl})
                before = packets_of(run)
                batch = Batch(random.Random(sl), *sides)
                for _ in range(30):
                    batch.add(sides[0], "write", 4096)
                batch.run()
                new = {name: count - before[name] for name, count in packets_of(run).items()}
                log(f"service level {sl}: {new}")
                require(new[band] >= 40, f"the packets of service level {sl} have not left in band {band}: {new}")
                for side in sides:
                    side.destroy()
        finally:
            run("tc qdisc del dev eth0 root")
    finally:
        for end, _ in both:
            end.leave()


def packets_of(run):
    """Returns the packets that each band of eth0 has sent."""
    found = json.loads(run("tc -s -j class show dev eth0"))
    return {one["handle"]: one["stats"]["packets"] for one in found}


@case()
def network_control():
    """Service level 7 is for privileged programs, as SO_PRIORITY 7 is."""
    need_rrxe()

    def body(is_allowed):
        import endpoint  # only a guest has verbs

        end = endpoint.Endpoint()
        info = end.open(bed.here.device, bed.here.address, bed.here.driver)
        pd, cq = end.pd(), end.cq(8)
        qp = end.qp("rc", pd, cq)
        end.to_init(qp["id"])
        for sl in (7, 15):
            if is_allowed:
                end.ah(pd, info["gid"], sl=sl)
                continue
            refused(errno.EPERM, end.ah, pd, info["gid"], sl=sl)
            refused(errno.EPERM, end.to_rtr, qp["id"], gid=info["gid"], qpn=qp["qpn"], sl=sl)
        for sl in range(7):
            end.ah(pd, info["gid"], sl=sl)
        end.to_rtr(qp["id"], gid=info["gid"], qpn=qp["qpn"], sl=7 if is_allowed else 6)
        end.leave()

    privilege.unprivileged(lambda: body(False))
    privilege.aside(lambda: body(True))
    privilege.aside(lambda: body(True), (lambda: privilege.become(privilege.NOBODY, privilege.CAP_NET_ADMIN),))


@case()
def default_of_the_connection_manager():
    """The connection manager's default type of service is in packets, and its priority in tags.

    The kernel maps type of service 0x10 to priority 6, and this to the VLAN's priority 4.
    """
    need_rrxe()
    run = bed.here.machine.run
    run("mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config; modprobe rdma_cm")
    folder = f"/sys/kernel/config/rdma_cm/{bed.here.device}"
    with vlan(bed, ADDRESSES, EGRESS):
        run(f"mkdir {folder} && echo 0x10 > {folder}/ports/1/default_roce_tos")
        wire = TaggedWire()
        try:
            rping(bed.peer, bed.here, 20, ADDRESSES[1])
            sent, _ = found_in(wire)
        finally:
            wire.close()
            run(f"rmdir {folder}")
        require((4, 0x10 | 2) in sent, f"no packet of a connection has type of service and priority: {sent}")
        require(all(priority == 4 for priority, _ in sent), f"packets have other priorities: {sent}")


def run():
    """Runs the suite."""
    return bed.run()
