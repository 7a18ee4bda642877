# SPDX-License-Identifier: GPL-2.0
"""GSO packets over a veth.

Bursts of packets must cross the veth as GSO packets without any other difference, and receivers
that cannot handle these must get single packets.
"""

import contextlib

import capture
import data_cases
import looks
import netem
import packets
import testbed
import traffic
from harness import case, equal, require

bed = testbed.Bed()

# The drivers at both ends. The stack segments GSO packets for the socket of rdma_rxe.
PAIRS = {"alone": ("rrxe", "rrxe"), "to-rdma-rxe": ("rrxe", "rdma_rxe")}


@contextlib.contextmanager
def connection(drivers=("rrxe", "rrxe"), version=4, seed="gso", **more):
    """Yields the hosts, the sides of a connection between two namespaces, and a random
    generator."""
    rng = data_cases.seeded(seed)
    if "rdma_rxe" in drivers:
        testbed.load(bed.here.machine, "rdma_rxe")
    with testbed.namespaces(drivers) as hosts, traffic.connection(hosts, rng, version=version, **more) as sides:
        yield hosts, sides, rng


def read(host):
    """Returns the statistics of the host's device."""
    return host.machine.look("statistics", host.device)


def frames(host):
    """Returns the number of frames that the host's network device has sent."""
    with host.machine.inside():
        return looks.sent_frames(host.netdev)


def cut(host):
    """Makes the stack segment the host's GSO packets: tbf does so above its burst size."""
    host.machine.run(f"tc qdisc add dev {host.netdev} root tbf rate 10gbit burst 4600 limit 10000000")


def per_frame(host, sides, rng):
    """Returns the RoCE packets per frame of the host while large messages are exchanged."""
    before = read(host)["sent_pkts"], frames(host)
    traffic.large(rng, sides)
    after = read(host)["sent_pkts"], frames(host)
    return (after[0] - before[0]) / (after[1] - before[1])


@case(timeout=120, debug=("ipv4",), each={"ipv4": 4, "ipv6": 6})
def whole(version):
    """Both ends send GSO packets, which arrive whole; without the device's support they send
    none."""
    with connection(version=version) as (hosts, sides, rng):
        for host in hosts:
            found = per_frame(host, sides, rng)
            require(found > 3, f"{host.name}: {found:.1f} packets a frame: they do not leave in GSO packets")
        for host in hosts:
            testbed.send_gso(host.machine, host.netdev, False)
        for host in hosts:
            found = per_frame(host, sides, rng)
            require(found <= 1, f"{host.name}: {found:.1f} packets a frame, though its device takes no GSO packets")


@case(timeout=400, debug=("alone",), each=PAIRS)
def anything(drivers):
    """Random operations of any size in both directions, with every byte compared."""
    with connection(drivers, seed="gso/anything") as (hosts, sides, rng):
        traffic.random_batches(rng, *sides, 1024, 9)
        traffic.large(rng, sides)
        for host in hosts:
            if host.driver == "rrxe":
                equal(f"{host.name}: wrong ICRCs", read(host)["rx_icrc_encapsulated"], 0)


@case(timeout=200, debug=("alone",), each=PAIRS)
def datagrams(drivers):
    """Datagrams to one destination leave as GSO packets, and each arrives with a header of its own.

    Datagrams to several destinations are not mixed.
    """
    with connection(drivers, seed="gso/datagrams", kind="ud", extended=True) as (hosts, sides, rng):
        handles = {}
        for side, other in (sides, sides[::-1]):
            handles[id(side)] = [side.end.ah(side.pd, other.info["gid"]) for _ in range(3)]
        before = [(read(host).get("sent_pkts"), frames(host)) for host in hosts]
        for length in (64, 0, 1000, 1024):
            _datagrams(rng, sides, [length] * 12, lambda side: handles[id(side)][0])
        for host, old in zip(hosts, before):
            if host.driver == "rrxe":
                found = (read(host)["sent_pkts"] - old[0]) / (frames(host) - old[1])
                require(found > 3, f"{host.name}: {found:.1f} packets a frame: they do not leave in GSO packets")
        for _ in range(8):
            lengths = [rng.choice((64, 64, 64, 65, 700)) for _ in range(12)]
            _datagrams(rng, sides, lengths, lambda side: rng.choice(handles[id(side)]), ("send", "send-imm"))


def _datagrams(rng, sides, lengths, handle, ops=("send",)):
    batch = traffic.Batch(rng, *sides)
    for side in sides:
        for length in lengths:
            batch.add(side, rng.choice(ops), length, address_handle=handle(side))
    batch.run()


@case(timeout=200, debug=False, each={"ipv4": 4, "ipv6": 6})
def segmented_on_arrival(version):
    """A queue at the receiving device makes the stack segment GSO packets. Each is right."""
    bed.here.machine.run("modprobe ifb numifbs=0")
    with connection(version=version, seed="gso/segmented-on-arrival") as (hosts, sides, rng):
        for host in hosts:
            netem.cut_on_arrival(host)
        traffic.large(rng, sides)
        traffic.large(rng, sides)
        equal("packets with a wrong ICRC", [read(host)["rx_icrc_encapsulated"] for host in hosts], [0, 0])


@case(timeout=200, debug=("ipv4",), each={"ipv4": 4, "ipv6": 6})
def segmented_on_the_way(version):
    """A queue for small packets only makes the stack segment GSO packets.

    Each resulting packet is whole and has its ICRC.
    """
    with connection(version=version) as (hosts, sides, rng):
        for host in hosts:
            cut(host)
        before = [read(host) for host in hosts]
        found = per_frame(hosts[0], sides, rng)
        # A short GSO packet fits into the burst and is not segmented.
        require(found < 2, f"{found:.1f} packets a frame: nothing was segmented")
        for host, old in zip(hosts, before):
            new = read(host)
            bad = {name: new[name] - old[name] for name in ("rx_icrc_encapsulated", "rx_roce_error_pkts")}
            require(not any(bad.values()), f"{host.name}: {bad}")


@case(timeout=200, debug=False)
def switched():
    """The device's GSO support is switched on and off under traffic."""
    with connection() as (hosts, sides, rng):
        words = [f"ethtool -K {hosts[0].netdev} {testbed.ROWS} {state}; sleep 0.05" for state in ("off", "on")]
        switching = hosts[0].machine.start(f"while true; do {'; '.join(words)}; done")
        for _ in range(6):
            traffic.large(rng, sides)
        require(switching.running(), "nothing was switched")


@case(timeout=300, debug=("everything",), each=netem.BAD)
def bad_wire(words):
    """netem drops and reorders whole GSO packets, and segments those in which it corrupts a
    byte."""
    with connection(seed=f"gso/{words}") as (hosts, sides, rng):
        with netem.wire(hosts, words, cut=False):
            for _ in range(4):
                traffic.large(rng, sides)


@case(timeout=200)
def captured():
    """A capture at either end shows single packets with their ICRCs, as on a wire.

    GSO packets return when the capture ends.
    """
    with connection(seed="gso/captured") as (hosts, sides, rng):
        require(per_frame(hosts[0], sides, rng) > 3, "no GSO packets")
        for host, namespace in zip(hosts, "ab"):
            with capture.capture(host.netdev, namespace) as seen:
                traffic.large(rng, sides)
                capture.check(seen(), 4200, 100)
        found = per_frame(hosts[0], sides, rng)
        require(found > 3, f"{found:.1f} packets a frame after the capture")


def run():
    """Runs the suite without this machine's own device, which is restored afterwards."""
    return bed.run_without_device()
