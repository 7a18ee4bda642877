# SPDX-License-Identifier: GPL-2.0
"""Acknowledgements that leave with the answer: that they do where each request is answered, and that nobody who waits for one
waits for ever, whatever becomes of the answer.

How long they wait is a parameter of the module. Where that is longer than anything takes, who asks is rdma_rxe: rrxe asks again as soon as an
acknowledgement takes longer than usual."""

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

# How long an acknowledgement waits, in microseconds: the most there is.
LONG = 1_000_000

# Answers in a row after which acknowledgements wait (drivers/rrxe/limits.rs).
ANSWERS = 8

# How long anything may take, in seconds: this only catches what never happens.
PATIENCE = 60

# How a queue pair may end after its program has received a message.
MODIFIED = ("error", "reset")
ENDS = {end: end for end in (*MODIFIED, "destroy", "killed", "link-deleted", "module-unloaded")}

# How a queue pair may enter the Error state during a stream of messages; the number of attempts.
ERRORS = {"modify": "error", "own-request": "own"}
TIMES = 25

# Messages of the stream, which are posted at once, and bytes of each.
STREAM, LENGTH = 32, 8000


def loaded(wait):
    """The module with acknowledgements that wait so long."""
    return testbed.loaded_with(bed.here.machine, f"answer_wait_us={wait}")


class Talk:
    """Two programs that talk over a connection: what one says, the other has posted a receive for."""

    def __init__(self, hosts, sides):
        self.hosts = hosts
        self.sides = sides
        self.number = 0

    def say(self, who, length=8, op="send", completes=True):
        """One of them sends a message, and the other receives it; `completes`: and the sender hears that it has."""
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
            self.heard(who, number)
        return number

    def heard(self, who, number, status="SUCCESS"):
        """What one has sent completes so."""
        self._completed(self.sides[who], self.sides[who].send_cq, number, status)

    @staticmethod
    def _completed(side, queue, number, status="SUCCESS"):
        found = side.end.poll(queue, 1, PATIENCE * harness.slowness())
        equal("completion", [(wc["id"], wc["status"]) for wc in found], [(number, status)])

    def exchange(self, count, length=8, op="send"):
        """One asks, and the other answers, so often. Who answers hears that his answer has arrived with the next question; the last has none."""
        last = None
        for _ in range(count):
            asked = self.say(0, length, op, completes=False)
            if last:
                self.heard(1, last)
            last = self.say(1, length, op, completes=False)
            self.heard(0, asked)
        self.heard(1, last)

    def verify(self):
        """All bytes are where they should be, and no others."""
        for side in self.sides:
            equal(f"{side.name}'s memory", side.end.verify(side.small["id"]), "")


@contextlib.contextmanager
def talk(drivers=ASKED, wait=LONG, **more):
    """Two programs that talk, each in a namespace of its own."""
    if "rdma_rxe" in drivers:
        testbed.load(bed.here.machine, "rdma_rxe")
    rng = data_cases.seeded("answers")
    with loaded(wait), testbed.namespaces(drivers) as hosts:
        with traffic.connection(hosts, rng, **more) as sides:
            found = Talk(hosts, sides)
            yield found
            found.verify()


def carried(host):
    """Acknowledgements of the host that have left with an answer."""
    return read(host)["acks_with_answers"]


KINDS = {"send": ("send", 8), "nothing": ("send", 0), "packets": ("send-imm", 3000), "write": ("write-imm", 700)}


@case(timeout=200, debug=("packets",), each=KINDS)
def with_the_answer(kind):
    """Once enough requests were answered, an acknowledgement waits for the answer, and leaves with it; no byte is wrong."""
    op, length = kind
    with talk() as found:
        host, count = found.hosts[1], 3 * ANSWERS
        found.exchange(count, length, op)
        # The first must be seen to be answered before any waits.
        equal("acknowledgements that left with answers", carried(host), count - ANSWERS)
        if op == "send" and length:
            before = read(host)["sent_pkts"], host.frames()
            found.exchange(count, length, op)
            after = read(host)["sent_pkts"], host.frames()
            packets, sent = (new - old for new, old in zip(after, before))
            log(f"{packets} packets in {sent} frames")
            require(sent <= count + 4, f"{sent} frames for {count} answers and what acknowledges the questions")


@case(timeout=400, debug=False, each={"ipv4": 4, "ipv6": 6})
def of_both(version):
    """Where rrxe asks, too, each frame has an acknowledgement and a message. (It does not wait as long as the other cases' module, so a program
    must answer soon: perftest's does, where the other one does not keep it from running.)"""
    here = bed.here
    with loaded(400), testbed.namespaces(ALONE) as hosts:
        for attempt in range(20):
            port = next_port()
            words = [f"taskset 1 ib_send_lat -e -d {host.device} -x {host.gid_index(host.address if version == 4 else host.address6)} -F -n 2000 -p {port}" for host in hosts]
            server, client = hosts
            run_pair(server, client, words[0], f"{words[1]} {server.address}", testbed.tcp_listens, port, 300)
            found = [carried(host) for host in hosts]
            log(f"acknowledgements that left with answers, attempt {attempt}: {found}")
            if all(found):
                return
    require(False, f"{here.name}: no acknowledgement left with an answer")


@case(timeout=200, debug=False)
def without_an_answer():
    """Where none comes, the acknowledgement leaves by itself, and the next ones do so at once."""
    with talk() as found:
        found.exchange(2 * ANSWERS)
        before = carried(found.hosts[1])
        for _ in range(3):
            found.say(0)
        equal("acknowledgements that left with answers", carried(found.hosts[1]), before)
        # Until it has answered often enough again.
        found.exchange(2 * ANSWERS)
        equal("and then", carried(found.hosts[1]), before + ANSWERS)


@case(timeout=200, debug=False)
def a_second_question():
    """Who asks again before he has an answer hears of both."""
    with talk() as found:
        found.exchange(2 * ANSWERS)
        asked = [found.say(0, completes=False) for _ in range(5)]
        for number in asked:
            found.heard(0, number)
        found.heard(1, found.say(1, completes=False))


@case(timeout=200, debug=("destroy", "killed"), each=ENDS)
def last_words(end):
    """A queue pair that ends before its program answers has acknowledged the question."""
    with talk(apart=(1,)) as found:
        found.exchange(2 * ANSWERS)
        host, side = found.hosts[1], found.sides[1]
        before = read(host)["sent_pkts"]
        asked = found.say(0, completes=False)
        owed = read(host)["sent_pkts"] == before
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
        # On a slow machine the wait may have ended before.
        log(f"acknowledgement owed at the end of the queue pair: {owed}")
        found.heard(0, asked)


@case(timeout=600, debug=False, each=ERRORS)
def last_words_of_a_stream(end):
    """A queue pair enters the Error state while messages arrive on another CPU: the sender's and
    the receiver's numbers of successful completions are equal."""
    rng = data_cases.seeded("answers/stream")
    with loaded(400), testbed.namespaces(ALONE) as hosts:
        with traffic.connection(hosts, rng, extended=True, apart=(0,)) as (sender, taker):
            for _ in range(TIMES):
                _connect_again(sender, taker, rng)
                found = _break_in_a_stream(sender, taker, end)
                patience = PATIENCE * harness.slowness()
                found += taker.end.poll(taker.recv_cq, STREAM - len(found), patience)
                others = sender.end.poll(sender.send_cq, STREAM, patience)
                taken, sent = (_successes(completions) for completions in (found, others))
                log(f"{taken} messages were taken, {sent} sent")
                equal("messages that were acknowledged", sent, taken)


def _successes(completions):
    """Count the successful completions of a stream. All messages must have completed."""
    equal("completions", len(completions), STREAM)
    return sum(wc["status"] == "SUCCESS" for wc in completions)


def _connect_again(sender, taker, rng):
    """Reset both queue pairs and connect them, with a timeout of 67 ms: the sender fails soon."""
    for side in (sender, taker):
        side.end.modify(side.qp["id"], ["STATE"], state="reset")
    traffic.connect(sender, taker, 1024, rng, timeout=14)


def _break_in_a_stream(sender, taker, end):
    """Send a stream. When the first message has arrived, put the receiver's queue pair into the
    Error state: by ibv_modify_qp, or by a request with a bad key. Return the completions until
    then."""
    segment = [[taker.small["address"], LENGTH, taker.small["lkey"]]]
    receives = [{"id": number, "sge": segment} for number in range(STREAM)]
    taker.end.post_recv(taker.qp["id"], receives)
    wrong = {"id": STREAM, "op": "send", "sge": [[taker.small["address"], 8, 0]]}
    segment = [[sender.small["address"], LENGTH, sender.small["lkey"]]]
    requests = [{"id": number, "op": "send", "sge": segment} for number in range(STREAM)]
    sender.end.begin("post_send", sender.qp["id"], requests)
    found = taker.end.poll(taker.recv_cq, 1, PATIENCE * harness.slowness())
    if end == "own":
        taker.end.post_send(taker.qp["id"], [wrong])
    else:
        taker.end.modify(taker.qp["id"], ["STATE"], state="error")
    sender.end.finish()
    return found


@case(timeout=200, debug=False)
def switched_off():
    """With the module's parameter answer_wait_us=0 each leaves by itself, at once."""
    with talk(wait=0) as found:
        found.exchange(3 * ANSWERS)
        equal("acknowledgements that left with answers", carried(found.hosts[1]), 0)


@case(timeout=400, debug=("everything",), each={"loss-5": "loss 5%", "everything": "delay 1ms reorder 25% 50% loss 1% duplicate 5% corrupt 1%"})
def bad_wire(words):
    """What is lost, late or spoiled is sent again, and no message is lost or comes twice."""
    with talk(drivers=ALONE, wait=20_000) as found:
        with netem.wire(found.hosts, words):
            for length in (8, 3000):
                found.exchange(60, length)


def run():
    """Run the suite, without the device of the machine itself; the next one has it again."""
    return bed.run_without_device()
