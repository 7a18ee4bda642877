# SPDX-License-Identifier: GPL-2.0
"""Chains of packets: packets of one queue pair cross a stack together, at the receiver by GRO.

The hosts are namespaces joined by a veth that carries single packets. Its receiving end has NAPI,
and keeps packets for as long as a test needs to send them.
"""

import contextlib
import re

import capture
import data_cases
import netem
import packets
import testbed
import traffic
from harness import case, debug_kernel, equal, require, wait_until

bed = testbed.Bed()

PAIRS = {"alone": ("rrxe", "rrxe"), "to-rdma-rxe": ("rrxe", "rdma_rxe"), "from-rdma-rxe": ("rdma_rxe", "rrxe")}

MTU = 1024

# Opcodes of WRITE by whether a packet is the first one and whether it is the last one.
OPCODES = {
    (True, True): packets.WRITE_ONLY,
    (True, False): packets.WRITE_FIRST,
    (False, False): packets.WRITE_MIDDLE,
    (False, True): packets.WRITE_LAST,
}

# The disturbances of packets on their way; most packets have none.
DISTURBANCES = (*[""] * 20, "loss", "wrong ICRC", "mark", "fragment", "UDP length", "other number", "duplicate")

# Counts the packets that IP delivers to RoCEv2's port, and those that it sends to it. A chain is
# one packet.
COUNTERS = """
table inet roce {
    counter delivered { }
    counter sent { }
    chain input { type filter hook input priority 0; udp dport 4791 counter name delivered; }
    chain output { type filter hook output priority 0; udp dport 4791 counter name sent; }
}
"""


def receive_offload(host, state):
    """Switches GRO at a host on or off. With NAPI, GRO keeps packets for up to 2 ms."""
    device = f"/sys/class/net/{host.netdev}"
    host.machine.run(f"ethtool -K {host.netdev} gro {state}")
    host.machine.run(f"echo 2000000 > {device}/gro_flush_timeout; echo 4 > {device}/napi_defer_hard_irqs")


@contextlib.contextmanager
def connection(drivers=("rrxe", "rrxe"), version=4, seed="chains", **more):
    """Yields the hosts, the sides of a connection over a wire with GRO, and a random generator."""
    rng = data_cases.seeded(seed)
    if "rdma_rxe" in drivers:
        testbed.load(bed.here.machine, "rdma_rxe")
    with testbed.namespaces(drivers) as hosts:
        for host in hosts:
            testbed.send_gso(host.machine, host.netdev, False)
            host.machine.run(f"ethtool -K {host.netdev} tso off tx-gso-list off")
            receive_offload(host, "on")
            testbed.switch_off(host.machine, host.netdev)
            if not debug_kernel():  # it has no nf_tables
                host.machine.run(f"nft -f - <<'END'{COUNTERS}END")
        with traffic.connection(hosts, rng, version=version, **more) as sides:
            yield hosts, sides, rng


def packets_of(host, way="delivered"):
    """Returns the number of packets that the host's stack has delivered or sent, and of those that
    its device has received or sent."""
    shown = host.machine.run(f"nft list counter inet roce {way}")
    counted = int(re.search(r"packets (\d+)", shown).group(1))
    counter = {"delivered": "rcvd_pkts", "sent": "sent_pkts"}[way]
    return counted, host.machine.look("statistics", host.device)[counter]


def per_chain(hosts, sides, rng, way="delivered"):
    """Returns the number of RoCE packets in each packet of the stack, for each host."""
    before = [packets_of(host, way) for host in hosts]
    traffic.large(rng, sides)
    found = []
    for host, (counted, packets) in zip(hosts, before):
        now = packets_of(host, way)
        found.append((now[1] - packets) / (now[0] - counted))
    return found


@case(timeout=120, debug=False, each={"ipv4": 4, "ipv6": 6})
def formed(version):
    """Consecutive packets arrive as chains; without GRO each arrives alone."""
    with connection(version=version) as (hosts, sides, rng):
        found = per_chain(hosts, sides, rng)
        require(min(found) > 3, f"packets in a chain: {found}")
        for host in hosts:
            receive_offload(host, "off")
        equal("packets in a chain without GRO", per_chain(hosts, sides, rng), [1, 1])


@case(timeout=120, debug=False, each={"ipv4": 4, "ipv6": 6})
def sent(version):
    """Packets leave as chains, except while a capture or a rule of tc sees the device."""
    with connection(version=version, seed="chains/sent") as (hosts, sides, rng):
        found = per_chain(hosts, sides, rng, "sent")
        require(min(found) > 3, f"packets in a chain: {found}")
        with capture.capture(hosts[0].netdev, "a"):
            equal("packets in a chain beside a capture", per_chain(hosts, sides, rng, "sent"), [1, 1])
        found = per_chain(hosts, sides, rng, "sent")
        require(min(found) > 3, f"packets in a chain after the capture: {found}")
        netdev = hosts[0].netdev
        hosts[0].machine.batch("tc", f"qdisc add dev {netdev} clsact", f"filter add dev {netdev} egress matchall action pass")
        equal("packets in a chain beside a rule", per_chain(hosts, sides, rng, "sent")[0], 1)


@case(timeout=120, debug=False, each={"ipv4": "ip", "ipv6": "ip6"})
def rewritten(version):
    """A rule of netfilter that sets the DSCP at the sender applies to each packet of a chain."""
    with connection(version={"ip": 4, "ip6": 6}[version], seed="chains/rewritten") as (hosts, sides, rng):
        rule = f"type filter hook postrouting priority 0; udp dport 4791 {version} dscp set cs1;"
        hosts[0].machine.run(f"nft 'table inet rewrite {{ chain postrouting {{ {rule} }}; }}'")
        rule = f"type filter hook input priority 0; udp dport 4791 {version} dscp != cs1 counter name others;"
        hosts[1].machine.run(f"nft 'table inet seen {{ counter others {{ }}; chain input {{ {rule} }}; }}'")
        found = per_chain(hosts, sides, rng, "sent")
        require(min(found) > 3, f"packets in a chain: {found}")
        shown = hosts[1].machine.run("nft list counter inet seen others")
        require("packets 0 " in shown, f"packets with another DSCP: {shown}")


@case(timeout=400, debug=("alone",), each=PAIRS)
def anything(drivers):
    """Random operations of any size in both directions, with every byte compared."""
    with connection(drivers, seed="chains/anything") as (hosts, sides, rng):
        traffic.random_batches(rng, *sides, 1024, 9)
        traffic.large(rng, sides)
        for host in hosts:
            if host.driver == "rrxe":
                equal(f"{host.name}: wrong ICRCs", host.machine.look("statistics", host.device)["rx_icrc_encapsulated"], 0)


@case(timeout=200, debug=False)
def datagrams():
    """Each datagram of a chain arrives with a header of its own."""
    with connection(seed="chains/datagrams", kind="ud", extended=True) as (hosts, sides, rng):
        handles = {}
        for side, other in (sides, sides[::-1]):
            handles[id(side)] = side.end.ah(side.pd, other.info["gid"])
        before = [packets_of(host) for host in hosts]
        for length in (64, 0, 1000, 1024):
            batch = traffic.Batch(rng, *sides)
            for side in sides:
                for _ in range(12):
                    batch.add(side, "send", length, address_handle=handles[id(side)])
            batch.run()
        for host, old in zip(hosts, before):
            new = packets_of(host)
            require(new[1] - old[1] > 2 * (new[0] - old[0]), f"{host.name}: no chains: {old}, {new}")


@case(timeout=400, debug=("everything",), each=netem.BAD)
def bad_wire(words):
    """Random operations over a bad wire, with every byte compared."""
    with connection(seed=f"chains/{words}") as (hosts, sides, rng), netem.wire(hosts, words):
        traffic.random_batches(rng, *sides, 1024, 9)
        traffic.large(rng, sides)


@case(timeout=200, debug=False)
def captured():
    """While a capture sees the receiving device, packets arrive alone, and it shows each whole."""
    with connection(seed="chains/captured") as (hosts, sides, rng):
        require(min(per_chain(hosts, sides, rng)) > 3, "no chains")
        host = hosts[0]
        with capture.capture(host.netdev, "a") as seen:
            traffic.large(rng, sides)
            found = seen()
        capture.check(found, 4200, 300)
        require(min(per_chain(hosts, sides, rng)) > 3, "no chains after the capture")


@case(timeout=200, debug=False)
def cut():
    """A queue for small packets cuts a chain into the packets that it was made of."""
    bed.here.machine.run("modprobe ifb numifbs=0")
    with connection(seed="chains/cut") as (hosts, sides, rng):
        for host in hosts:
            netem.cut_on_arrival(host)
        for _ in range(3):
            traffic.large(rng, sides)
        for host in hosts:
            found = host.machine.look("statistics", host.device)
            equal(f"{host.name}: wrong ICRCs", found["rx_icrc_encapsulated"], 0)


def writes(rng, side, psn, seed, data):
    """Yields the packets of WRITEs to the region of a side, which then expects their data.

    `data(seed, length)` returns the data of a message.
    """
    offset = 0
    for number in range(24):
        length = rng.choice((1, 64, 1000, MTU, 3000, 4 * MTU))
        offset += rng.randrange(1, 90)
        side.end.expect(side.small["id"], [[offset, length]], seed + number, length)
        payload = bytes(data(seed + number, length))
        for at in range(0, length, MTU):
            piece, is_first, is_last = payload[at : at + MTU], at == 0, at + MTU >= length
            pad = -len(piece) % 4
            header = packets.bth(OPCODES[is_first, is_last], side.qp["qpn"], psn, ack=is_last, pad=pad)
            if is_first:
                header += packets.reth(side.small["address"] + offset, side.small["rkey"], length)
            yield header + piece + bytes(pad)
            psn += 1
        offset += length


def disturbed(rng, wire, transports, number):
    """Returns frames of these packets with losses, changes and forgeries, in another order, and the
    number of wrong ICRCs among them."""
    frames, wrong = [], 0
    for transport in transports:
        how = {}
        disturbance = rng.choice(DISTURBANCES)
        if disturbance == "wrong ICRC":
            how["corrupt"] = 8 * len(transport) + rng.randrange(32)
            wrong += 1
        elif disturbance == "mark":
            how["tos"] = 3
        elif disturbance == "fragment":
            how["fragment"] = 0x2000
        elif disturbance == "UDP length":
            how["udp_extra"] = -4
        elif disturbance == "other number":
            frames.append(wire.frame(packets.bth(packets.WRITE_ONLY, number ^ 1, 0) + bytes(20)))
        if disturbance != "loss":
            frames.append(wire.frame(transport, **how))
        if disturbance == "duplicate":
            frames.append(wire.frame(transport))
    for _ in range(len(frames) // 6):
        at = rng.randrange(len(frames) - 1)
        frames[at], frames[at + 1] = frames[at + 1], frames[at]
    return frames, wrong


@case(timeout=200, debug=("chains",), each={"chains": "on", "single": "off"})
def geometry(state):
    """Losses, changes, forgeries and another order within a chain have the effects that they have
    on single packets.

    After each packet has arrived once more, every byte is right.
    """
    import endpoint  # only a guest has verbs

    seed = "chains/geometry"
    psn = 0xFFFFFF - data_cases.seeded(seed).randrange(200)  # `traffic.connect` draws it first
    with connection(seed=seed) as (hosts, sides, rng):
        receive_offload(hosts[1], state)
        mac = hosts[1].machine.read(f"/sys/class/net/{hosts[1].netdev}/address")
        with hosts[0].machine.inside():
            wire = packets.Wire(hosts[0].netdev, hosts[0].address, hosts[1].address, mac)
        side, wrong = sides[1], 0
        before = None if debug_kernel() else packets_of(hosts[1])
        for turn in range(20):
            transports = list(writes(rng, side, psn, 100 * turn, endpoint.data))
            psn += len(transports)
            frames, more = disturbed(rng, wire, transports, side.qp["qpn"])
            wrong += more
            for frame in frames + [wire.frame(transport) for transport in transports]:
                wire.put(frame)
            wait_until("every byte is right", lambda: side.end.matches(side.small["id"]))
        wire.close()
        equal("state", side.end.state(side.qp["id"]), "rts")
        found = hosts[1].machine.look("statistics", hosts[1].device)
        equal("wrong ICRCs", found["rx_icrc_encapsulated"], wrong)
        if not before:
            return
        delivered, received = (new - old for new, old in zip(packets_of(hosts[1]), before))
        # A longer packet and each disturbance end a chain.
        require((4 * received > 5 * delivered) == (state == "on"), f"{received} packets in {delivered} of the stack")


def run():
    """Runs the suite without this machine's own device, which is restored afterwards."""
    return bed.run_without_device()
