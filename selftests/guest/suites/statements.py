# SPDX-License-Identifier: GPL-2.0
"""Statements of the conformance list (selftests/conformance/statements) that scripts do not reach.

They concern what consumers may do, the device's reported attributes, and a network with VLANs.
"""

import contextlib
import errno
import random
import struct
import time

import capabilities as claims
import harness
import packets
import privilege
import testbed
from harness import Skip, case, equal, require, wait_until
from traffic import Batch, Side, connect
from trial import Bench, Trial, refused
from vlans import ETH_P_8021Q, VLAN, TaggedWire, vlan

bed = testbed.Bed()

bench = Bench(bed.endpoints)

# Time limit in seconds for completions and events, which normally come immediately.
TIMEOUT = 30
# Seconds to watch for an unexpected event.
QUIET = 1


def timeout():
    """Returns TIMEOUT scaled for this kernel."""
    return TIMEOUT * harness.slowness()


# VLANs

ADDRESSES = ("10.78.0.1", "10.78.0.2")
DATAGRAM_QKEY = 0x11223344  # as in lib/endpoint.py, which only a guest can import


@case()
def vlan_and_icrc():
    """A-25: packets between addresses of a VLAN are tagged, and their ICRC does not cover the
    tag."""
    with vlan(bed, ADDRESSES) as both:
        rng = random.Random("vlan")
        sides = [Side(end, info, "rc", False) for end, info in both]
        connect(*sides, 1024, rng)
        wire = TaggedWire()
        try:
            batch = Batch(rng, *sides)
            for side in sides:
                for op in ("send", "write", "read", "fetch-add"):
                    batch.add(side, op, 3000)
            batch.run()
            found = wire.passing()
        finally:
            wire.close()
        for incoming in (True, False):
            count = len([1 for came, _, _ in found if came == incoming])
            require(count >= 8, f"only {count} packets {'from' if incoming else 'to'} the other host were seen")
        for incoming, tag, ip in found:
            equal("tag", tag, VLAN)
            equal("ICRC", ip[-4:].hex(), packets.icrc(ip[:20], ip[20:28], ip[28:-4]).hex())
        for side in sides:
            side.destroy()


@case()
def vlan_tag_by_hand():
    """A-25: a tagged datagram is accepted if its ICRC excludes the tag, and dropped otherwise."""
    with vlan(bed, ADDRESSES) as ((local, _), (remote, _)):
        pd, cq = remote.pd(), remote.cq()
        memory = remote.memory(pd, 4096)
        qp = remote.qp("ud", pd, cq)
        remote.to_init(qp["id"], "ud")
        remote.to_rtr(qp["id"], "ud")
        remote.post_recv(qp["id"], [{"id": 1, "sge": [[memory["address"], 512, memory["lkey"]]]}])
        payload = bytes(range(64))
        transport = packets.bth(packets.UD | packets.SEND_ONLY, qp["qpn"], 0, ack=False)
        transport += packets.deth(DATAGRAM_QKEY, 77) + payload
        maker = packets.Wire("eth0", *ADDRESSES, bed.peer.machine.read("/sys/class/net/eth0/address"))
        wire = TaggedWire()
        try:
            right = maker.frame(transport)
            tag = struct.pack(">HH", ETH_P_8021Q, VLAN)
            wrong = right[:-4] + packets.icrc(right[14:34], right[34:42], transport + tag)
            wire.put(wrong)
            equal("completions", remote.poll(cq, 1, QUIET), [])
            wire.put(right)
            equal("completions", [wc["status"] for wc in remote.poll(cq, 1, timeout())], ["SUCCESS"])
            equal("payload", remote.accept(memory["id"], [[40, 64]], 64), payload.hex())
        finally:
            wire.close()
            maker.close()


# Q_Keys

PRIVILEGED = 0x80012345


def _set_qkeys():
    """Tries to set privileged Q_Keys when entering Init and in Ready to Send.

    Returns the errno of each attempt (or 0), and the state and Q_Key afterwards.
    """
    import endpoint

    end, here = endpoint.Endpoint(), bed.here
    end.open(here.device, here.address, here.driver)
    pd, cq = end.pd(), end.cq()
    qp = end.qp("ud", pd, cq)["id"]

    def errno_of(what, *arguments, **named):
        try:
            what(*arguments, **named)
        except Exception as why:
            return why.error_code
        return 0

    found = {"init": errno_of(end.to_init, qp, "ud", qkey=PRIVILEGED)}
    found["lowest"] = errno_of(end.to_init, qp, "ud", qkey=0x80000000)
    found["state"] = end.state(qp)
    if found["state"] == "reset":
        found["plain"] = errno_of(end.to_init, qp, "ud", qkey=PRIVILEGED & 0x7FFFFFFF)
    end.to_rtr(qp, "ud")
    end.to_rts(qp, "ud")
    found["rts"] = errno_of(end.modify, qp, ("QKEY",), qkey=PRIVILEGED)
    found["qkey"] = end.query(qp, "qkey")["qkey"]
    return found


@case()
def qkey_unprivileged():
    """A-36: a user without privileges cannot set a Q_Key with the top bit in any transition.

    Each attempt fails with EPERM and changes nothing.
    """
    found = privilege.unprivileged(_set_qkeys)
    plain = PRIVILEGED & 0x7FFFFFFF
    no = errno.EPERM
    equal("errnos", found, {"init": no, "lowest": no, "state": "reset", "plain": 0, "rts": no, "qkey": plain})


# Path migration (IBA 10.4), which this device does not support

AUTO_PATH_MIG = 1 << 4
MIGRATED, REARM, ARMED = range(3)

RTR = ("STATE", "AV", "PATH_MTU", "DEST_QPN", "RQ_PSN", "MAX_DEST_RD_ATOMIC", "MIN_RNR_TIMER")
RTS = ("STATE", "SQ_PSN", "TIMEOUT", "RETRY_CNT", "RNR_RETRY", "MAX_QP_RD_ATOMIC")


@case()
def path_migration():
    """J-19: the device does not report path migration, and every transition refuses its
    attributes."""
    with Trial(bench, connected=False) as t:
        end, qp, remote = t.local.end, t.local.qp["id"], t.remote.info["gid"]
        require(not t.local.info["caps"] & AUTO_PATH_MIG, "the device claims automatic path migration")
        alternate = {"alt_gid": remote, "alt_port_num": 1, "alt_pkey_index": 0, "alt_timeout": 14}
        to_rtr = {"state": "rtr", "gid": remote, "mtu": 1024, "dest_qp_num": t.remote.qp["qpn"], "rq_psn": 5}
        to_rtr.update(max_dest_rd_atomic=8, min_rnr_timer=12)
        to_rts = {"state": "rts", "sq_psn": 5, "timeout": 18, "retry_cnt": 7, "rnr_retry": 7, "max_rd_atomic": 8}

        def none_of(state, mask, attributes):
            """Checks that this transition refuses both attributes."""
            no = errno.EINVAL
            refused(no, end.modify, qp, (*mask, "ALT_PATH"), **attributes, **alternate)
            for wanted in (REARM, ARMED, 7):
                refused(no, end.modify, qp, (*mask, "PATH_MIG_STATE"), **attributes, path_mig_state=wanted)
            equal("state", end.state(qp), state)
            equal("path migration state", end.query(qp, "path_mig_state"), {"path_mig_state": MIGRATED})

        end.to_init(qp)
        none_of("init", RTR, to_rtr)
        end.modify(qp, RTR, **to_rtr)
        none_of("rtr", RTS, to_rts)
        # The queue pair is in the state "migrated", so that value is accepted.
        end.modify(qp, (*RTS, "PATH_MIG_STATE"), **to_rts, path_mig_state=MIGRATED)
        none_of("rts", (), {})
        end.modify(qp, ("STATE",), state="sqd")
        none_of("sqd", (), {})
        end.modify(qp, ("STATE",), state="rts")
        end, qp = t.remote.end, t.remote.qp["id"]
        end.to_init(qp)
        end.to_rtr(qp, gid=t.local.info["gid"], qpn=t.local.qp["qpn"], psn=5)
        end.to_rts(qp, psn=5)
        t.still_works()


# Completion queues that overflow


class Overflow:
    """Senders and receivers of this host, some of which complete to a small queue."""

    def __init__(self, small):
        self._small = small

    def __enter__(self):
        import endpoint  # only a guest has verbs

        here = bed.here
        self.end = end = endpoint.Endpoint()
        self.info = end.open(here.device, here.address, here.driver)
        self.pd, self.cq, self.large = end.pd(), end.cq(self._small), end.cq(256)
        self.room = end.cq_size(self.cq)
        self.memory = end.memory(self.pd, 4096)
        return self

    def __exit__(self, *_):
        self.end.leave()

    def pair(self, small_send, small_recv):
        """Returns two connected queue pairs.

        The first one's sends or receives complete to the small queue.
        """
        depth = self.room + 8
        queues = [self.cq if small else self.large for small in (small_send, small_recv)]
        one = self.end.qp("rc", self.pd, *queues, send_wr=depth, recv_wr=depth)
        two = self.end.qp("rc", self.pd, self.large, self.large, send_wr=depth, recv_wr=depth)
        for qp, other in ((one, two), (two, one)):
            self.end.to_init(qp["id"])
            self.end.to_rtr(qp["id"], gid=self.info["gid"], qpn=other["qpn"])
            self.end.to_rts(qp["id"], timeout=14, retry=1)
        return one["id"], two["id"]

    def segment(self):
        """Returns a scatter list with one segment."""
        return [[self.memory["address"], 8, self.memory["lkey"]]]

    def receives(self, qp, *numbers):
        """Posts receives."""
        self.end.post_recv(qp, [{"id": number, "sge": self.segment()} for number in numbers])

    def arrives(self, sender):
        """Sends a message. Returns the status of its completion, SUCCESS unless the receiver
        failed."""
        self.end.post_send(sender, [{"id": 0, "op": "send", "sge": self.segment()}])
        (wc,) = self.end.poll(self.large, 1, timeout())
        return wc["status"]

    def in_error(self, qp):
        """Waits until the queue pair is in Error."""
        wait_until("the queue pair is in Error", lambda: self.end.state(qp) == "error", 10)

    def events(self, *wanted):
        """Checks that exactly these asynchronous events come, in any order."""
        found = []
        deadline = time.monotonic() + timeout()
        while len(found) < len(wanted) and time.monotonic() < deadline:
            found += self.end.async_events(1)
        found += self.end.async_events(QUIET)
        equal("events", sorted(found), sorted(wanted))


@case()
def overflow_of_receives():
    """K-01: completions that fit are delivered in order, and those that do not fit fail their QPs.

    The completion queue reports one error, and each failed queue pair its own event.
    """
    with Overflow(8) as o:
        first, to_first = o.pair(False, True)
        second, to_second = o.pair(False, True)
        third, to_third = o.pair(False, True)
        o.receives(first, *range(o.room))
        o.receives(second, 1000)
        o.receives(third, 2000)
        for _ in range(o.room):
            equal("a SEND that fits", o.arrives(to_first), "SUCCESS")
        o.events()
        for qp in (first, second, third):
            equal("state", o.end.state(qp), "rts")
        o.arrives(to_second)
        o.in_error(second)
        o.events("CQ_ERR", "QP_FATAL")
        # The completion queue stays unusable even when it has room again.
        found = o.end.poll(o.cq, o.room, timeout())
        equal("completions", [(wc["id"], wc["status"]) for wc in found], [(i, "SUCCESS") for i in range(o.room)])
        o.arrives(to_third)
        o.in_error(third)
        o.events("QP_FATAL")
        equal("completions", o.end.poll(o.cq, 1, 0), [])
        # Users of other completion queues are not affected.
        remote, local = o.pair(False, False)
        o.receives(remote, 7)
        o.end.post_send(local, [{"id": 8, "op": "send", "sge": o.segment()}])
        wcs = o.end.poll(o.large, 2, timeout())
        equal("completions", sorted((wc["id"], wc["status"]) for wc in wcs), [(7, "SUCCESS"), (8, "SUCCESS")])


@case()
def overflow_of_sends():
    """K-01: a send whose completion does not fit fails its queue pair; earlier completions stay."""
    with Overflow(8) as o:
        qp, _ = o.pair(True, False)
        where = {"sge": o.segment(), "rkey": o.memory["rkey"], "raddr": o.memory["address"] + 64}
        o.end.post_send(qp, [{"id": number, "op": "write", **where} for number in range(o.room)])
        o.events()
        equal("state", o.end.state(qp), "rts")
        o.end.post_send(qp, [{"id": o.room, "op": "write", **where}])
        o.in_error(qp)
        o.events("CQ_ERR", "QP_FATAL")
        found = o.end.poll(o.cq, o.room, timeout())
        equal("completions", [(wc["id"], wc["status"]) for wc in found], [(i, "SUCCESS") for i in range(o.room)])
        equal("completions", o.end.poll(o.cq, 1, 0), [])


# The key for all of the kernel's memory

LOCAL_DMA = 0  # rrxe's ib_device.local_dma_lkey, for kernel consumers only


@case(each={op: op for op in ("send", "write", "read", "fetch-add")})
def local_dma_key_in_request(op):
    """K-09: the local DMA key is not valid in a user's work request."""
    more = {"compare": 1} if op == "fetch-add" else {}
    for address in (None, 0x100000):
        with Trial(bench) as t:
            t.receive()
            t.send(op, sge=[[address or t.mine["address"], 8, LOCAL_DMA]], **more)
            t.sent("LOC_PROT_ERR")
            t.states("error", "rts")
            if op == "fetch-add":
                # The response was not stored, but the remote side may have executed the atomic.
                t.remote.end.accept(t.theirs["id"], [[0, 8]], 8)


@case()
def local_dma_key_in_receive():
    """K-09: the local DMA key is not valid in a user's receive."""
    with Trial(bench) as t:
        t.receive(sge=[t.segment(4096, 64, LOCAL_DMA, t.remote)])
        t.send("send")
        t.sent("REM_OP_ERR")
        t.received("LOC_PROT_ERR")
        t.states("error", "error")


@case(each={op: op for op in ("write", "read", "fetch-add")})
def local_dma_key_of_peer(op):
    """K-09: the local DMA key does not let a peer access memory, whatever the address."""
    more = {"compare": 1} if op == "fetch-add" else {}
    for address in (None, 0x100000):
        with Trial(bench) as t:
            t.send(op, sge=[t.segment(length=8)], rkey=LOCAL_DMA, raddr=address, **more)
            t.sent("REM_ACCESS_ERR")
            t.states("error", "error")
            t.events("QP_ACCESS_ERR")


# Attributes that the device reports


def need_rrxe():
    """Skips the case for other drivers: it tests capabilities of rrxe."""
    if bed.here.driver != "rrxe":
        raise Skip("asks for what rrxe claims")


@case()
def capabilities():
    """K-10: every capability that query_device reports has a test, and vice versa."""
    need_rrxe()
    end, _ = bench.ends()[0]
    found = {claims.NAMES.get(name, name) for name in end.claims()}
    equal("claims without a test", sorted(found - set(claims.TESTS)), [])
    equal("tests of what is not claimed", sorted(set(claims.TESTS) - found), [])


@case()
def current_state():
    """J-18: a modify with a wrong current state fails and changes nothing; the right one
    succeeds."""
    with Trial(bench) as t:
        end, qp = t.local.end, t.local.qp["id"]
        mask = ("STATE", "CUR_STATE")
        for wrong in ("reset", "init", "rtr", "sqd", "sqe", "error"):
            refused(errno.EINVAL, end.modify, qp, mask, state="rts", current=wrong)
            equal("state", end.state(qp), "rts")
        end.modify(qp, mask, state="rts", current="rts")
        t.still_works()


@case()
def system_image():
    """The system image GUID is the EUI-64 of the network device, and differs between hosts."""
    need_rrxe()
    found = []
    for (end, _), host in zip(bench.ends(), (bed.here, bed.peer)):
        mac = bytes.fromhex(host.machine.read("/sys/class/net/eth0/address").replace(":", ""))
        wanted = bytes([mac[0] ^ 2]) + mac[1:3] + b"\xff\xfe" + mac[3:]
        found.append(end.system_image())
        equal("the GUID", found[-1], wanted.hex())
    require(found[0] != found[1], "both hosts are one system")


@case()
def port_events():
    """A port that goes down and comes back reports each change once."""
    import endpoint  # only a guest has verbs

    here = bed.here.machine
    here.run("ip link add p0 type veth peer name p1 && ip link set p0 up && ip link set p1 up")
    try:
        here.run("ip address add 10.79.0.1/24 dev p0")
        testbed.add_link(here, bed.here.driver, "ports0", "p0")
        end = endpoint.Endpoint()
        try:
            testbed.wait_for_gid("ports0", "10.79.0.1")
            end.open("ports0", "10.79.0.1", bed.here.driver)

            def comes(wanted):
                found = wait_until(wanted, lambda: [name for name in end.async_events(1) if name.startswith("PORT_")])
                equal("events", found + end.async_events(QUIET), [wanted])

            end.async_events(QUIET)
            for _ in range(3):
                here.run("ip link set p1 down")
                comes("PORT_ERR")
                here.run("ip link set p1 up")
                comes("PORT_ACTIVE")
        finally:
            end.leave()
            testbed.delete_link(here, "ports0")
    finally:
        here.run("ip link delete p0")


@case(timeout=240)
def atomics_of_several():
    """Concurrent fetch-and-adds of several queue pairs to one number: none is lost or seen
    twice."""
    trials, count = [], 64
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            trials.append(stack.enter_context(Trial(bench)))
        first = trials[0]
        region, owner = first.theirs, first.remote.end
        # Each queue pair has a protection domain of its own, so the memory needs a key in each.
        keys = [owner.memory_again(region["id"], t.remote.pd) for t in trials]
        target = {"raddr": region["address"] + 2048, "compare": 1}
        owner.put_number(region["id"], 2048, 0)
        for start in range(0, count, 16):
            for t, key in zip(trials, keys):
                for number in range(start, start + 16):
                    sge = [t.segment(8 * number, 8)]
                    t.send("fetch-add", number=number, sge=sge, rkey=key["rkey"], **target)
            for t in trials:
                found = t.local.end.poll(t.local.send_cq, 16, timeout())
                equal("completions", [wc["status"] for wc in found], ["SUCCESS"] * 16)
        seen = []
        for t in trials:
            content = bytes.fromhex(t.local.end.accept(t.mine["id"], [[0, 8 * count]], 8 * count))
            seen += struct.unpack(f"={count}Q", content)
        equal("numbers that were there", sorted(seen), list(range(len(trials) * count)))
        owner.expect_number(region["id"], 2048, len(trials) * count)
        owner.drop(*(key["id"] for key in keys))


@case()
def completion_times():
    """Completions have time stamps in nanoseconds of CLOCK_MONOTONIC, in order."""
    need_rrxe()
    with Overflow(8) as o:
        o.cq = o.end.cq(64, stamped=True)
        qp, _ = o.pair(True, False)
        where = {"sge": o.segment(), "rkey": o.memory["rkey"], "raddr": o.memory["address"] + 64}
        last = time.monotonic_ns()
        for number in range(5):
            o.end.post_send(qp, [{"id": number, "op": "write", **where}])
            (wc,) = o.end.poll(o.cq, 1, timeout())
            equal("status", wc["status"], "SUCCESS")
            now = time.monotonic_ns()
            require(last <= wc["time"] <= now, f"completed at {wc['time']}, between {last} and {now}")
            last = wc["time"]
        claimed = o.end.claims()
        equal("bits that count", claimed["completion_timestamp_mask"], 2**64 - 1)
        equal("clock, in kHz", claimed["hca_core_clock"], 1_000_000)


def run():
    """Runs the suite."""
    return bed.run()
