# SPDX-License-Identifier: GPL-2.0
"""Invalid packets from the wire: malformed, forged, out of order.

Packets that must be dropped have no effect and get no response, packets that must be refused get
the right NAK, and other connections are not affected.
"""

import contextlib
import random
import re
import struct
import time

import harness
import packets
import testbed
from counted import rise
from attacker import FIRST, PAYLOAD, Attacker
from harness import case, equal, require
from packets import QKEY, UD, aeth, atomic_eth, bth, deth, reth
from trial import Bench

bed = testbed.Bed()
bench = Bench(bed.endpoints)

# Seconds to watch for a response that must not come.
SILENCE = 0.5
# Time limit in seconds for a response; it only catches missing ones, since the machine may be busy.
TIMEOUT = 60


class Attack(Attacker):
    """A trial of one or more forged packets."""

    def __init__(self, bench, **how):
        super().__init__(bed, bench, **how)

    def dropped(self, transports, **how):
        """Checks that none of these causes a response, a completion or a change."""
        self.receive()
        self.wire.forget()
        for transport in transports:
            self.wire.send(transport, **how)
        equal("responses", self.wire.responses(SILENCE, self.local.qp["qpn"]), [])
        equal("completions", self.remote.end.poll(self.remote.recv_cq, 1, 0), [])
        self.states("rts", "rts")
        self._use_up_receive()
        self.still_works()

    def _use_up_receive(self):
        self.local.end.put(self.mine["id"], [[0, 64]], 90)
        self.remote.end.expect(self.theirs["id"], [[4096, 64]], 90, 64)
        self.send("send")
        self.sent("SUCCESS")
        self.received("SUCCESS")

    def expect_response(self, transport, opcode, psn, syndrome=None):
        """Checks that the packet gets exactly one response, with this opcode and PSN (and
        syndrome)."""
        self.wire.forget()
        self.wire.send(transport)
        found = self.wire.responses(SILENCE, self.local.qp["qpn"], TIMEOUT)
        equal("responses", len(found), 1)
        equal("response", found[0][:2], [opcode, psn])
        if syndrome is not None:
            equal("syndrome", hex(found[0][2][0]), hex(syndrome))

    def refused(self, transport, syndrome, psn=FIRST):
        """Checks that a NAK refuses the packet, and that the remote queue pair enters Error."""
        self.expect_response(transport, packets.ACKNOWLEDGE, psn, syndrome)
        harness.wait_until("the remote queue pair is in error", lambda: self.remote.end.state(self.remote.qp["id"]) == "error")

    def write_header(self, length, offset=0):
        """Returns the RETH of a WRITE to the remote region."""
        return reth(self.theirs["address"] + offset, self.theirs["rkey"], length)


# Controls: the other cases prove nothing unless correct packets made in the same way are accepted


@case()
def right_request():
    """Control: a correctly forged SEND is executed and acknowledged."""
    with Attack(bench) as t:
        t.receive()
        t.expect_response(bth(packets.SEND_ONLY, t.qpn, FIRST) + PAYLOAD, packets.ACKNOWLEDGE, FIRST)
        t.received("SUCCESS")
        taken = t.remote.end.accept(t.theirs["id"], [[4096, 64]], 64)
        equal("what arrived", taken, PAYLOAD.hex())


@case()
def right_datagram():
    """Control: a correctly forged datagram is received."""
    with Attack(bench, kind="ud") as t:
        t.receive()
        t.wire.send(bth(UD | packets.SEND_ONLY, t.qpn, 0, ack=False) + deth(QKEY, 77) + PAYLOAD)
        t.received("SUCCESS")
        taken = t.remote.end.accept(t.theirs["id"], [[4096, 104]], 104)
        equal("what arrived", taken[80:], PAYLOAD.hex())


# Packets to be dropped silently


@case(each={"uc": packets.UC, "rd": 0x40, "ud": UD})
def other_service(service):
    """An opcode of another service than the queue pair's (A-06)."""
    with Attack(bench) as t:
        extra = deth(QKEY, 7) if service == UD else b""
        t.dropped([bth(service | packets.SEND_ONLY, t.qpn, FIRST) + extra + PAYLOAD])


@case()
def manufacturer_opcodes():
    """The manufacturers' opcodes, 0xc0 to 0xff (A-09)."""
    with Attack(bench) as t:
        t.dropped([bth(opcode, t.qpn, FIRST) + PAYLOAD for opcode in range(0xC0, 0x100)])


@case()
def reserved_services():
    """Service classes that do not exist, or that no RoCE device supports."""
    with Attack(bench) as t:
        classes = [0x80, *range(0x82, 0xC0)]
        t.dropped([bth(opcode, t.qpn, FIRST) + PAYLOAD for opcode in classes])


@case()
def congestion_notification():
    """A CNP is not a request (A-08)."""
    with Attack(bench) as t:
        t.dropped([bth(packets.CNP, t.qpn, FIRST, ack=False) + bytes(16)])


@case()
def transport_version():
    """Transport versions other than 0 (A-02)."""
    with Attack(bench) as t:
        t.dropped([bth(packets.SEND_ONLY, t.qpn, FIRST, version=v) + PAYLOAD for v in range(1, 16)])


@case()
def other_network_device():
    """A request with correct addresses on a network device other than the queue pair's.

    A host accepts packets to its addresses on all its devices, so any network could send them.
    """
    machine = bed.here.machine
    machine.run("ip link add stray0 type veth peer name stray1 && ip link set stray0 up && ip link set stray1 up")
    machine.run("sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.stray1.rp_filter=0")
    try:
        mac = machine.read("/sys/class/net/stray1/address")
        with Attack(bench) as t, contextlib.closing(
            packets.Wire("stray0", bed.peer.address, bed.here.address, mac)
        ) as wire:
            t.receive(side=t.local)
            for _ in range(3):
                wire.send(bth(packets.SEND_ONLY, t.local.qp["qpn"], FIRST) + PAYLOAD)
            t.quiet(side=t.local)
            # The receive is still available to the peer.
            t.send("send", side=t.remote, sge=[])
            t.sent("SUCCESS", side=t.remote)
            t.received("SUCCESS", side=t.local)
            t.states("rts", "rts")
    finally:
        machine.run("ip link delete stray0")


@case()
def wrong_icrc():
    """One flipped bit anywhere outside the masked fields (A-14, A-22)."""
    with Attack(bench) as t:
        transport = bth(packets.SEND_ONLY, t.qpn, FIRST) + PAYLOAD
        bits = [bit for bit in range(0, (len(transport) + 4) * 8, 7) if bit // 8 != 4]
        t.receive()
        t.wire.forget()
        for bit in bits:
            t.wire.send(transport, corrupt=bit)
        equal("responses", t.wire.responses(SILENCE, t.local.qp["qpn"]), [])
        equal("completions", t.remote.end.poll(t.remote.recv_cq, 1, 0), [])
        t._use_up_receive()
        t.still_works()


@case()
def truncated():
    """Packets shorter than their opcode's headers (A-10)."""
    with Attack(bench) as t:
        whole = {
            packets.SEND_ONLY_IMM: bytes(4),
            packets.WRITE_ONLY: t.write_header(0),
            packets.READ_REQUEST: t.write_header(64),
            packets.FETCH_ADD: atomic_eth(t.theirs["address"], t.theirs["rkey"], 1, 1),
            packets.ACKNOWLEDGE: aeth(0x1F),
            packets.ATOMIC_ACKNOWLEDGE: aeth(0x1F) + bytes(8),
            packets.READ_ONLY: aeth(0x1F),
        }
        pieces = []
        for opcode, extension in whole.items():
            pieces += [bth(opcode, t.qpn, FIRST) + extension[:cut] for cut in range(0, len(extension), 3)]
        pieces += [bth(packets.SEND_ONLY, t.qpn, FIRST)[:cut] for cut in range(12)]
        t.dropped(pieces)


@case()
def no_room_for_icrc():
    """Datagrams too short for the ICRC."""
    with Attack(bench) as t:
        t.dropped([bth(packets.SEND_ONLY, t.qpn, FIRST)[:cut] for cut in range(13)], with_icrc=False)


@case()
def pad_beyond_payload():
    """A pad count larger than the payload."""
    with Attack(bench) as t:
        t.dropped([bth(packets.SEND_ONLY, t.qpn, FIRST, pad=pad) + bytes(pad - 1) for pad in (1, 2, 3)])


@case()
def unknown_numbers():
    """Queue pair numbers that do not exist or are invalid (A-04, A-05)."""
    with Attack(bench) as t:
        numbers = (0, 0xFFFFFF, t.qpn ^ 0x10, t.qpn ^ 0x800000, 0x123456)
        t.dropped([bth(packets.SEND_ONLY, number, FIRST) + PAYLOAD for number in numbers])


@case()
def wrong_pkey():
    """A P_Key other than the port's (A-26)."""
    with Attack(bench) as t:
        t.dropped([bth(packets.SEND_ONLY, t.qpn, FIRST, pkey=key) + PAYLOAD for key in (0x1234, 0x9234, 0, 0x8000)])


@case()
def wrong_source():
    """A source address other than that of the connection's peer (A-32)."""
    with Attack(bench) as t:
        t.dropped([bth(packets.SEND_ONLY, t.qpn, FIRST) + PAYLOAD], source="10.77.0.77")


@case(each={"longer": 8, "shorter": -4, "none": -80})
def udp_length(extra):
    """A UDP length that differs from the datagram's (A-12)."""
    with Attack(bench) as t:
        t.dropped([bth(packets.SEND_ONLY, t.qpn, FIRST) + PAYLOAD], udp_extra=extra)


@case()
def fragments():
    """A first and a last IP fragment of incomplete datagrams (A-13)."""
    with Attack(bench) as t:
        packet = bth(packets.SEND_ONLY, t.qpn, FIRST) + PAYLOAD
        t.dropped([packet], fragment=0x2000)
        t.dropped([packet], fragment=0x0010)


@case()
def forged_responses():
    """Responses without a request (F-10), and undefined syndromes (D-07)."""
    with Attack(bench) as t:
        forged = []
        for psn in (FIRST - 1, FIRST, FIRST + 1, FIRST + 1000, 0xFFFFFF, 0x800000):
            for syndrome in (0x1F, 0x00, 0x25, 0x40, 0x5F, 0x60, 0x61, 0x62, 0x63, 0x64, 0x65, 0x7F, 0x80, 0xFF):
                forged.append(bth(packets.ACKNOWLEDGE, t.qpn, psn, ack=False) + aeth(syndrome, psn))
            forged.append(bth(packets.READ_ONLY, t.qpn, psn, ack=False) + aeth(0x1F) + PAYLOAD)
            forged.append(bth(packets.READ_FIRST, t.qpn, psn, ack=False) + aeth(0x1F) + bytes(1024))
            forged.append(bth(packets.READ_MIDDLE, t.qpn, psn, ack=False) + bytes(1024))
            forged.append(bth(packets.READ_LAST, t.qpn, psn, ack=False) + aeth(0x1F) + PAYLOAD)
            forged.append(bth(packets.ATOMIC_ACKNOWLEDGE, t.qpn, psn, ack=False) + aeth(0x1F) + bytes(8))
        t.dropped(forged)


@case(each={"reset": "reset", "init": "init"})
def not_ready(state):
    """Requests to a queue pair that is not ready to receive (A-37)."""
    with Attack(bench, connected=False) as t:
        end, qp = t.remote.end, t.remote.qp["id"]
        if state == "init":
            end.to_init(qp)
            t.receive()
        t.wire.forget()
        for opcode in (packets.SEND_ONLY, packets.ACKNOWLEDGE):
            t.wire.send(bth(opcode, t.qpn, FIRST) + aeth(0x1F) + PAYLOAD)
        equal("responses", t.wire.responses(SILENCE, t.local.qp["qpn"]), [])
        equal("state", end.state(qp), state)


# Packets that require a response


@case()
def future_number():
    """A PSN ahead of the expected one causes one sequence NAK with the expected PSN (B-08).

    No second NAK follows (B-09), and the connection continues (B-10).
    """
    with Attack(bench) as t:
        t.receive()
        future = bth(packets.SEND_ONLY, t.qpn, FIRST + 10) + PAYLOAD
        t.expect_response(future, packets.ACKNOWLEDGE, FIRST, packets.NAK_SEQUENCE)
        t.wire.send(future)
        equal("responses to the second", t.wire.responses(SILENCE, t.local.qp["qpn"]), [])
        equal("completions", t.remote.end.poll(t.remote.recv_cq, 1, 0), [])
        t._use_up_receive()
        t.still_works()


def packet_buffers():
    """Returns the number of packet buffers in use on the remote host.

    slabinfo also counts those that the allocator keeps for each CPU, and those in KASAN's
    quarantine. Shrinking the cache returns them (mm/slub.c and mm/kasan/quarantine.c).
    """
    bed.peer.machine.run("echo 1 >/sys/kernel/slab/skbuff_head_cache/shrink")
    return int(re.search(r"^skbuff_head_cache\s+(\d+)", bed.peer.machine.read("/proc/slabinfo"), re.M)[1])


@case()
def future_numbers_expire():
    """Out-of-order packets are freed soon, even if no other packet arrives."""
    count = 1500
    with Attack(bench) as t:
        before = packet_buffers()
        frames = [t.wire.frame(bth(packets.SEND_ONLY, t.qpn, FIRST + 1 + n) + PAYLOAD) for n in range(count)]
        for frame in frames:
            t.wire.put(frame)
        harness.log(f"{packet_buffers() - before} packet buffers more")
        # Packet buffers of other programs and protocols are counted, too.
        harness.wait_until("they are freed", lambda: packet_buffers() - before < count / 10, seconds=10)
        t.receive()
        t._use_up_receive()
        t.still_works()


@case()
def duplicate_send():
    """A duplicate SEND is acknowledged again, but not executed again (C-01)."""
    with Attack(bench) as t:
        t.receive()
        t._use_up_receive()
        t.receive()
        t.expect_response(bth(packets.SEND_ONLY, t.qpn, FIRST) + PAYLOAD, packets.ACKNOWLEDGE, FIRST, None)
        equal("completions", t.remote.end.poll(t.remote.recv_cq, 1, 0), [])
        t._use_up_receive()
        t.still_works()


@case()
def duplicate_atomic():
    """A duplicate atomic returns its first result although memory has changed (C-10, C-11)."""
    with Attack(bench) as t:
        t.remote.end.put_number(t.theirs["id"], 0, 1000)
        t.send("fetch-add", sge=[t.segment(length=8)], compare=5)
        t.sent("SUCCESS")
        t.local.end.expect_number(t.mine["id"], 0, 1000)
        t.remote.end.put_number(t.theirs["id"], 0, 77)
        again = bth(packets.FETCH_ADD, t.qpn, FIRST) + atomic_eth(t.theirs["address"], t.theirs["rkey"], 5, 0)
        t.wire.forget()
        t.wire.send(again)
        found = t.wire.responses(SILENCE, t.local.qp["qpn"], TIMEOUT)
        equal("responses", [response[:2] for response in found], [[packets.ATOMIC_ACKNOWLEDGE, FIRST]])
        equal("the value returned", struct.unpack(">Q", found[0][2][4:12])[0], 1000)
        t.still_works()


@case(each={"send": (packets.SEND_MIDDLE, packets.SEND_LAST), "write": (packets.WRITE_MIDDLE, packets.WRITE_LAST)})
def middle_without_first(opcodes):
    """A message that starts with a middle or last packet (G-01)."""
    for opcode in opcodes:
        with Attack(bench) as t:
            t.receive()
            size = 1024 if opcode in (packets.SEND_MIDDLE, packets.WRITE_MIDDLE) else 64
            t.refused(bth(opcode, t.qpn, FIRST) + bytes(size), packets.NAK_INVALID)
            t.received("WR_FLUSH_ERR")


@case(each={"write": packets.WRITE_MIDDLE, "only": packets.SEND_ONLY, "read": packets.READ_REQUEST})
def message_in_a_message(opcode):
    """Another request inside an unfinished SEND (G-01, G-02)."""
    with Attack(bench) as t:
        t.receive()
        t.wire.send(bth(packets.SEND_FIRST, t.qpn, FIRST, ack=False) + bytes(1024))
        extension = t.write_header(64) if opcode == packets.READ_REQUEST else bytes(1024)
        t.refused(bth(opcode, t.qpn, FIRST + 1) + extension, packets.NAK_INVALID, FIRST + 1)
        t.remote.end.accept(t.theirs["id"], [[4096, 1024]], 1024)  # the SEND's first packet


@case()
def longer_than_path_mtu():
    """A packet larger than the path MTU, but smaller than the port's (G-04)."""
    with Attack(bench) as t:
        t.receive()
        t.refused(bth(packets.SEND_ONLY, t.qpn, FIRST) + bytes(2048), packets.NAK_INVALID)


@case()
def first_shorter_than_path_mtu():
    """A first packet shorter than the path MTU."""
    with Attack(bench) as t:
        t.receive()
        t.refused(bth(packets.SEND_FIRST, t.qpn, FIRST) + bytes(512), packets.NAK_INVALID)


@case(each={"write": packets.WRITE_ONLY, "read": packets.READ_REQUEST})
def dma_length_over_limit(opcode):
    """A RETH length over 2^31 (G-08, C9-94)."""
    with Attack(bench) as t:
        payload = PAYLOAD if opcode == packets.WRITE_ONLY else b""
        t.refused(bth(opcode, t.qpn, FIRST) + t.write_header(0x80000001) + payload, packets.NAK_INVALID)


@case(each={"more": 128, "less": 32})
def write_length_mismatch(length):
    """A WRITE with more or less payload than its RETH says."""
    with Attack(bench) as t:
        t.refused(bth(packets.WRITE_ONLY, t.qpn, FIRST) + t.write_header(length) + PAYLOAD, packets.NAK_INVALID)
        t.remote.end.accept(t.theirs["id"], [[0, min(length, 64)]], min(length, 64))


@case()
def wrong_key():
    """A forged WRITE with a guessed R_Key."""
    with Attack(bench) as t:
        header = reth(t.theirs["address"], t.theirs["rkey"] ^ 0x01010101, 64)
        t.refused(bth(packets.WRITE_ONLY, t.qpn, FIRST) + header + PAYLOAD, packets.NAK_ACCESS)


@case()
def guessed_keys():
    """A UC queue pair survives invalid R_Keys, but checks only eight in a second.

    Further WRITEs in that second have no effect even if their key is right, unless the queue pair
    has accepted it before. All are counted.
    """

    def write(psn, guess):
        header = reth(t.theirs["address"], t.theirs["rkey"] ^ guess, 64)
        return t.wire.frame(bth(packets.UC | packets.WRITE_ONLY, t.qpn, psn, ack=False) + header + PAYLOAD)

    with Attack(bench, kind="uc") as t:
        t.remote.end.put(t.theirs["id"], [[0, 64]], 7)
        frames = [write(FIRST + n, n + 1) for n in range(8)] + [write(FIRST + 8, 0)]
        with rise(bed.peer, resp_remote_access_errors=9, rx_write_requests=9):
            for frame in frames:
                t.wire.put(frame)
        equal("what the region has", t.remote.end.verify(t.theirs["id"]), "")
        t.states("rts", "rts")
        time.sleep(1.1)
        t.wire.put(write(FIRST + 9, 0))
        harness.wait_until("the right key is taken", lambda: t.remote.end.verify(t.theirs["id"]) != "")
        equal("what arrived", t.remote.end.accept(t.theirs["id"], [[0, 64]], 64), PAYLOAD.hex())
        # Now the invalid keys do not block the valid one.
        t.remote.end.put(t.theirs["id"], [[0, 64]], 7)
        for n in range(10, 20):
            t.wire.put(write(FIRST + n, n))
        t.wire.put(write(FIRST + 20, 0))
        harness.wait_until("the accepted key is taken", lambda: t.remote.end.verify(t.theirs["id"]) != "")
        equal("what arrived", t.remote.end.accept(t.theirs["id"], [[0, 64]], 64), PAYLOAD.hex())


# Random packets


@case(timeout=300)
def garbage():
    """Random packets to a connection of their own, which may fail; nothing else may."""
    rng = random.Random("garbage")
    for turn in range(6):
        harness.log(f"turn {turn}")
        with Attack(bench) as t:
            t.receive()
            for _ in range(150):
                t.wire.send(packets.garbage(rng, t.qpn))
            for _ in range(30):
                t.wire.send(packets.garbage(rng, rng.getrandbits(24)))
            t.wire.forget()
            t.remote.end.accept(t.theirs["id"], [[4096, 4096]], 4096)


@case(timeout=300)
def garbage_datagrams():
    """Random datagrams to a UD queue pair and to the connection manager's."""
    rng = random.Random("datagrams")
    with Attack(bench, kind="ud") as t:
        t.receive()
        for number, qkey in ((t.qpn, 0x99), (1, 0x80010000), (1, 0), (0, 0)):
            for _ in range(60):
                opcode = rng.choice((0x64, 0x65, rng.randrange(0x60, 0x80)))
                body = rng.randbytes(rng.choice((0, 3, 24, 256, 256, 1000)))
                t.wire.send(bth(opcode, number, rng.getrandbits(24)) + deth(qkey, rng.getrandbits(24)) + body)
        t.quiet()


@case()
def connection_manager_after():
    """Connections can still be made after all these packets."""
    import programs

    programs.rping(bed.peer, bed.here, 10)
    require(testbed.device_exists(bed.here.device), "the device is gone")


def run():
    """Runs the suite."""
    return bed.run()
