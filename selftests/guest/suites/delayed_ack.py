# SPDX-License-Identifier: GPL-2.0
"""Delayed ACKs.

If the program replies to each request, the ACK must be sent together with the reply. A requester
that waits for an ACK must get it in time whatever happens to the reply.

The delay is a module parameter. In cases with a delay longer than any reply takes, the requester is
rdma_rxe, because rrxe retransmits as soon as an ACK takes longer than usual. Cases with the same
delay follow each other, so that the module is seldom loaded.
"""

import contextlib

import data_cases
import harness
import netem
import testbed
import traffic
from counted import read
from harness import case, equal, log, require
from programs import next_port, run_pair

bed = testbed.Bed()

ALONE, ASKED = ("rrxe", "rrxe"), ("rdma_rxe", "rrxe")

# The longest ACK delay, in microseconds.
LONG_DELAY = 1_000_000

# Number of consecutive replies after which ACKs are delayed (drivers/rrxe/limits.rs).
PROMPT_REPLIES = 8

# Time limit in seconds; only catches hangs.
TIMEOUT = 60

# Ways in which a queue pair may end after its program has received a message.
MODIFIED = ("error", "reset")
ENDS = {end: end for end in (*MODIFIED, "destroy", "killed", "link-deleted", "module-unloaded")}

# Ways to put a queue pair into Error during a stream of messages, and the number of attempts.
ERRORS = {"modify": "error", "own-request": "own"}
TIMES = 25

# Number of messages of a stream, which are posted together, and bytes of each.
STREAM, LENGTH = 32, 8000

# The module as a case has loaded it, and the ACK delay that the case has given to it, or None.
_module = contextlib.ExitStack()
_delay = None


@contextlib.contextmanager
def loaded(wait):
    """Loads the module with this ACK delay in microseconds for the block.

    The next block with the same delay takes over the module, unless this one fails or unloads it.
    """
    global _delay
    if wait != _delay:
        restore()
        _module.enter_context(testbed.loaded_with(bed.here.machine, f"ack_delay_us={wait}"))
        _delay = wait
    stays = False
    try:
        yield
        stays = testbed.is_loaded(bed.here.machine, "rrxe")
    finally:
        if not stays:
            restore()


def restore():
    """Loads the module as it was before the cases."""
    global _delay
    _delay = None
    _module.close()


class Dialogue:
    """Two programs that exchange messages; a receive is posted before each message."""

    def __init__(self, hosts, sides):
        self.hosts = hosts
        self.sides = sides
        self.number = 0

    def send(self, who, length=8, op="send", completes=True):
        """Sends a message from one side and checks that the other side receives it.

        With `completes` it also waits for the send completion.
        """
        side, other = self.sides[who], self.sides[1 - who]
        self.number += 1
        seed, number = self.number, self.number
        at = number * 4096 % 65536
        side.end.put(side.small["id"], [[at, length]], seed)
        other.end.expect(other.small["id"], [[at, length]], seed, length)
        segment = [[other.small["address"] + at, length, other.small["lkey"]]]
        other.end.post_recv(other.qp["id"], [{"id": number, "sge": segment}])
        segment = [[side.small["address"] + at, length, side.small["lkey"]]]
        request = {"id": number, "op": op, "sge": segment, "imm": number}
        if op == "write-imm":
            request |= {"rkey": other.small["rkey"], "raddr": other.small["address"] + at}
        side.end.post_send(side.qp["id"], [request])
        self._completed(other, other.recv_cq, number)
        if completes:
            self.completed(who, number)
        return number

    def completed(self, who, number, status="SUCCESS"):
        """Checks the next send completion of a side."""
        self._completed(self.sides[who], self.sides[who].send_cq, number, status)

    @staticmethod
    def _completed(side, queue, number, status="SUCCESS"):
        found = side.end.poll(queue, 1, TIMEOUT * harness.slowness())
        equal("completion", [(wc["id"], wc["status"]) for wc in found], [(number, status)])

    def exchange(self, count, length=8, op="send"):
        """Exchanges `count` requests and replies.

        The send completion of a reply is awaited after the next request, or after the last
        exchange.
        """
        last = None
        for _ in range(count):
            asked = self.send(0, length, op, completes=False)
            if last:
                self.completed(1, last)
            last = self.send(1, length, op, completes=False)
            self.completed(0, asked)
        self.completed(1, last)

    def verify(self):
        """Checks that all memory is as expected."""
        for side in self.sides:
            equal(f"{side.name}'s memory", side.end.verify(side.small["id"]), "")


@contextlib.contextmanager
def dialogue(drivers=ASKED, wait=LONG_DELAY, **more):
    """Yields two programs that exchange messages, each in a namespace of its own."""
    if "rdma_rxe" in drivers:
        testbed.load(bed.here.machine, "rdma_rxe")
    rng = data_cases.seeded("delayed_ack")
    with loaded(wait), testbed.namespaces(drivers) as hosts:
        with traffic.connection(hosts, rng, **more) as sides:
            found = Dialogue(hosts, sides)
            yield found
            found.verify()


def one_cpu():
    """Takes all CPUs but one offline for the block, so that each ACK is sent with its reply.

    If another CPU holds the receive lock when the reply is sent, the ACK stays delayed. User Mode
    Linux cannot take CPUs offline, so these cases are not for the debug kernel.
    """
    return testbed.one_cpu(bed.here.machine)


def piggybacked(host):
    """Returns the number of the host's ACKs that were sent with a reply."""
    return read(host)["acks_piggybacked"]


KINDS = {"send": ("send", 8), "nothing": ("send", 0), "packets": ("send-imm", 3000), "write": ("write-imm", 700)}


@case(timeout=200, debug=False, each=KINDS)
def with_the_reply(kind):
    """After enough replies, an ACK is delayed and sent with the reply; all data is correct."""
    op, length = kind
    with one_cpu(), dialogue() as found:
        host, count = found.hosts[1], 3 * PROMPT_REPLIES
        found.exchange(count, length, op)
        # ACKs are delayed only after the first requests had replies.
        equal("acknowledgements that left with replies", piggybacked(host), count - PROMPT_REPLIES)
        if op == "send" and length:
            before = read(host)["sent_pkts"], host.frames()
            found.exchange(count, length, op)
            after = read(host)["sent_pkts"], host.frames()
            packets, sent = (new - old for new, old in zip(after, before))
            log(f"{packets} packets in {sent} frames")
            require(sent <= count + 4, f"{sent} frames for {count} replies and acknowledgements of the requests")


@case(timeout=200, debug=False)
def without_a_reply():
    """Without a reply the ACK is sent after the delay, and later ACKs are sent immediately."""
    with one_cpu(), dialogue() as found:
        found.exchange(2 * PROMPT_REPLIES)
        before = piggybacked(found.hosts[1])
        for _ in range(3):
            found.send(0)
        equal("acknowledgements that left with replies", piggybacked(found.hosts[1]), before)
        # Until there were enough replies again.
        found.exchange(2 * PROMPT_REPLIES)
        equal("and then", piggybacked(found.hosts[1]), before + PROMPT_REPLIES)


@case(timeout=200, debug=False)
def a_second_request():
    """A requester that sends again before the reply gets the completions of all requests."""
    with dialogue() as found:
        found.exchange(2 * PROMPT_REPLIES)
        asked = [found.send(0, completes=False) for _ in range(5)]
        for number in asked:
            found.completed(0, number)
        found.completed(1, found.send(1, completes=False))


@case(timeout=200, debug=("destroy", "killed"), each=ENDS)
def ack_at_the_end(end):
    """A queue pair that ends (`ENDS`) before its program replies has acknowledged the request."""
    with dialogue(apart=(1,)) as found:
        found.exchange(2 * PROMPT_REPLIES)
        host, side = found.hosts[1], found.sides[1]
        before = read(host)["sent_pkts"]
        asked = found.send(0, completes=False)
        pending = read(host)["sent_pkts"] == before
        if end == "destroy":
            side.end.drop(side.qp["id"])
        elif end == "killed":
            side.end.die()
            del found.sides[1]
        elif end == "link-deleted":
            testbed.delete_link(host.machine, host.device)
        elif end == "module-unloaded":
            testbed.unload(bed.here.machine, host.driver)
        else:
            side.end.modify(side.qp["id"], ["STATE"], state=end)
        # On a slow machine the delay may have expired before.
        log(f"acknowledgement pending at the end of the queue pair: {pending}")
        found.completed(0, asked)


@case(timeout=400, debug=False, each={"ipv4": 4, "ipv6": 6})
def rrxe_at_both_ends(version):
    """With rrxe at both ends, frames carry both an ACK and a message.

    The delay is shorter than in other cases, so a program must reply soon. perftest's does, unless
    the other program keeps it off the CPU.
    """
    here = bed.here
    with loaded(400), testbed.namespaces(ALONE) as hosts:
        for attempt in range(20):
            port = next_port()
            words = [f"taskset 1 ib_send_lat -e -d {host.device} -x {host.gid_index(host.address if version == 4 else host.address6)} -F -n 2000 -p {port}" for host in hosts]
            server, client = hosts
            run_pair(server, client, words[0], f"{words[1]} {server.address}", testbed.tcp_listens, port, 300)
            found = [piggybacked(host) for host in hosts]
            log(f"acknowledgements that left with replies, attempt {attempt}: {found}")
            if all(found):
                return
    require(False, f"{here.name}: no acknowledgement left with a reply")


@case(timeout=600, debug=False, each=ERRORS)
def ack_at_the_end_of_a_stream(end):
    """A queue pair enters the Error state while messages arrive on another CPU.

    The sender and the receiver have equal numbers of successful completions.
    """
    rng = data_cases.seeded("delayed_ack/stream")
    with loaded(400), testbed.namespaces(ALONE) as hosts:
        with traffic.connection(hosts, rng, extended=True, apart=(0,)) as (sender, taker):
            for _ in range(TIMES):
                _connect_again(sender, taker, rng)
                found = _break_in_a_stream(sender, taker, end)
                timeout = TIMEOUT * harness.slowness()
                found += taker.end.poll(taker.recv_cq, STREAM - len(found), timeout)
                others = sender.end.poll(sender.send_cq, STREAM, timeout)
                taken, sent = (_successes(completions) for completions in (found, others))
                log(f"{taken} messages were taken, {sent} sent")
                equal("messages that were acknowledged", sent, taken)


def _successes(completions):
    """Returns the number of successful completions of a stream. All messages must have
    completed."""
    equal("completions", len(completions), STREAM)
    return sum(wc["status"] == "SUCCESS" for wc in completions)


def _connect_again(sender, taker, rng):
    """Resets both queue pairs and connects them, with a timeout of 67 ms so that errors show
    soon."""
    for side in (sender, taker):
        side.end.modify(side.qp["id"], ["STATE"], state="reset")
    traffic.connect(sender, taker, 1024, rng, timeout=14)


def _break_in_a_stream(sender, taker, end):
    """Sends a stream and breaks the receiver's queue pair once the first message has arrived.

    It enters the Error state by ibv_modify_qp, or by a request with a bad key. Returns the
    completions until then.
    """
    segment = [[taker.small["address"], LENGTH, taker.small["lkey"]]]
    receives = [{"id": number, "sge": segment} for number in range(STREAM)]
    taker.end.post_recv(taker.qp["id"], receives)
    wrong = {"id": STREAM, "op": "send", "sge": [[taker.small["address"], 8, 0]]}
    segment = [[sender.small["address"], LENGTH, sender.small["lkey"]]]
    requests = [{"id": number, "op": "send", "sge": segment} for number in range(STREAM)]
    sender.end.begin("post_send", sender.qp["id"], requests)
    found = taker.end.poll(taker.recv_cq, 1, TIMEOUT * harness.slowness())
    if end == "own":
        taker.end.post_send(taker.qp["id"], [wrong])
    else:
        taker.end.modify(taker.qp["id"], ["STATE"], state="error")
    sender.end.finish()
    return found


@case(timeout=200, debug=False)
def switched_off():
    """With ack_delay_us=0, each ACK is sent immediately, in a packet of its own."""
    with dialogue(wait=0) as found:
        found.exchange(3 * PROMPT_REPLIES)
        equal("acknowledgements that left with replies", piggybacked(found.hosts[1]), 0)


@case(timeout=400, debug=("everything",), each={"loss-5": "loss 5%", "everything": "delay 1ms reorder 25% 50% loss 1% duplicate 5% corrupt 1%"})
def bad_wire(words):
    """On a bad wire, messages are retransmitted, and none is lost or received twice."""
    with dialogue(drivers=ALONE, wait=20_000) as found:
        with netem.wire(found.hosts, words):
            for length in (8, 3000):
                found.exchange(60, length)


def run():
    """Runs the suite without this machine's own device, which is restored afterwards."""
    return bed.run_without_device(restore)
