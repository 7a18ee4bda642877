# SPDX-License-Identifier: GPL-2.0
"""Packets between queue pairs of one device, which bypass the network stack.

The bypass must be used without any other difference, and captures and queues on the loopback device
must still get the packets.
"""

import contextlib
import types

import capture
import data_cases
import netem
import testbed
import traffic
from counted import read
from harness import Skip, case, equal, require

bed = testbed.Bed()

BOTH = {"ipv4": 4, "ipv6": 6}


@contextlib.contextmanager
def connection(version=4, seed="same_device", mtu=1024):
    """Yields the sides of a connection between two contexts of this host's device, and a
    generator."""
    here, rng = bed.here, data_cases.seeded(seed)
    if here.driver != "rrxe":
        raise Skip(f"{here.driver} has another way")
    with traffic.connection([here, here], rng, mtu, version) as sides:
        yield sides, rng


def some(rng, sides):
    """Exchanges messages of every kind in both directions, some of them long."""
    batch = traffic.Batch(rng, *sides)
    for side in sides:
        for op in ("write", "send", "read", "write-imm"):
            for length in (0, 1, 500, 3000, 50_000):
                batch.add(side, op, length)
    batch.run()


# The loopback device passes on chains of up to this number of packets whole.
CHAIN = 64


def sent():
    """Returns the packets sent, those that bypassed the stack, and frames of the loopback
    device."""
    found = read(bed.here)
    frames = int(bed.here.machine.read("/sys/class/net/lo/statistics/tx_packets"))
    return found["sent_pkts"], found["same_device_pkts"], frames


def rises(rng, sides):
    """Exchanges messages and returns the increases of these counts."""
    before = sent()
    some(rng, sides)
    return [new - old for new, old in zip(sent(), before)]


@case(timeout=120, each=BOTH)
def bypasses_stack(version):
    """All packets of a connection bypass the stack from the first, without loopback frames."""
    before = sent()
    with connection(version) as (sides, rng):
        some(rng, sides)
        packets, bypassed, frames = [new - old for new, old in zip(sent(), before)]
        require(packets > 200, f"only {packets} packets were sent")
        equal("packets without the stack", bypassed, packets)
        require(frames < packets / 10, f"{frames} frames for {packets} packets")


@case(timeout=200, debug=False, each=BOTH)
def anything(version):
    """Random operations of any size in both directions, with every byte compared."""
    with connection(version, f"same_device/anything/{version}", 4096) as (sides, rng):
        traffic.random_batches(rng, *sides, 4096, 9)


@case(timeout=200)
def captured():
    """A capture on the loopback device shows the packets of a connection while it lasts."""
    with connection() as (sides, rng):
        with capture.capture("lo") as seen:
            packets, bypassed, _ = rises(rng, sides)
            equal("packets without the stack", bypassed, 0)
            capture.check(seen(), 65536, 200)
        packets, bypassed, _ = rises(rng, sides)
        equal("packets without the stack after the capture", bypassed, packets)


@case(timeout=200)
def loopback_qdisc():
    """While the loopback device has a queueing discipline, here a lossy one, it is used."""
    lo = types.SimpleNamespace(netdev="lo", machine=bed.here.machine)
    with connection() as (sides, rng):
        packets, bypassed, _ = rises(rng, sides)
        equal("packets without the stack", bypassed, packets)
        with netem.wire([lo], "loss 3%"):
            packets, bypassed, frames = rises(rng, sides)
            equal("packets without the stack, beside a queue", bypassed, 0)
            require(frames > packets / CHAIN, f"{frames} frames for {packets} packets")
        packets, bypassed, _ = rises(rng, sides)
        equal("packets without the stack, after that", bypassed, packets)


@case(timeout=120)
def switched_off():
    """With the module parameter same_host_icrc, all packets pass through the stack."""
    here = bed.here
    if here.driver != "rrxe":
        raise Skip(f"{here.driver} has another way")
    with testbed.parameters_of(here, "same_host_icrc=1"), connection() as (sides, rng):
        packets, bypassed, frames = rises(rng, sides)
        equal("packets without the stack", bypassed, 0)
        require(frames > packets / CHAIN, f"{frames} frames for {packets} packets")


@case(timeout=60, each={"up": 64, "down": -64})
def overlapping_write(shift):
    """A WRITE that overlaps its source leaves undefined data there, but changes nothing else."""
    with connection(mtu=4096) as (sides, _):
        side, end = sides[0], sides[0].end
        # Both queue pairs belong to one program, so that they can use one region.
        pair = [end.qp("rc", side.pd, side.send_cq, side.recv_cq) for _ in range(2)]
        for qp in pair:
            end.to_init(qp["id"], "rc", side.access)
        for qp, peer in zip(pair, pair[::-1]):
            end.to_rtr(qp["id"], "rc", gid=side.info["gid"], qpn=peer["qpn"], mtu=4096)
            end.to_rts(qp["id"], "rc")
        region = end.memory(side.pd, 16384, side.access)
        start, length = 4096, 4096
        end.put(region["id"], [[0, 16384]], 7)
        request = {"id": 1, "op": "write", "sge": [[region["address"] + start, length, region["lkey"]]]}
        request |= {"rkey": region["rkey"], "raddr": region["address"] + start + shift}
        end.post_send(pair[0]["id"], [request])
        equal("status", end.poll(side.send_cq, 1)[0]["status"], "SUCCESS")
        end.accept(region["id"], [[start + shift, length]], length)
        equal("what else has changed", end.verify(region["id"]), "")


@case(timeout=60)
def source_deregistered():
    """A SEND whose region is deregistered before it is sent fails, and the peer receives
    nothing."""
    with connection() as (sides, _):
        side, other = sides
        region = side.end.memory(side.pd, 65536, side.access)
        request = {"id": 1, "op": "send", "sge": [[region["address"], 65536, region["lkey"]]]}
        # The peer has posted no receive yet, so the request waits.
        side.end.post_send(side.qp["id"], [request])
        side.end.deregister(region["id"])
        target = other.end.memory(other.pd, 65536, other.access)
        receive = {"id": 2, "sge": [[target["address"], 65536, target["lkey"]]]}
        other.end.post_recv(other.qp["id"], [receive])
        equal("status", side.end.poll(side.send_cq, 1)[0]["status"], "LOC_PROT_ERR")
        equal("what has changed", other.end.verify(target["id"]), "")
        equal("the peer's state", other.end.state(other.qp["id"]), "rts")


def run():
    """Runs the suite."""
    return bed.run()
