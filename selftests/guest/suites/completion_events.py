# SPDX-License-Identifier: GPL-2.0
"""Completion events: one per arming, for the requested kind, and always for failures (IBA
11.4.2)."""

import ctypes
import errno
import time

import harness
import testbed
from harness import Skip, case, equal, require, wait_until

bed = testbed.Bed()

# Time limit in seconds for an event, and how long to watch for an unexpected one.
COMES, STAYS_AWAY = 30, 1


class Connection:
    """A sender and a receiver on this host; the receiver waits for events."""

    def __enter__(self):
        import endpoint  # only a guest has verbs

        here = bed.here
        self.end = end = endpoint.Endpoint()
        info = end.open(here.device, here.address, here.driver)
        self.pd = end.pd()
        self.channel = end.channel()
        self.send_cq, self.queue = end.cq(), end.cq_with_ring(self.pd, 64, self.channel)
        self.recv_cq = self.queue["id"]
        self.memory = end.memory(self.pd, 4096)
        self.sender = end.qp("rc", self.pd, self.send_cq)
        self.receiver = end.qp("rc", self.pd, self.recv_cq)
        for one, other in ((self.sender, self.receiver), (self.receiver, self.sender)):
            end.to_init(one["id"])
            end.to_rtr(one["id"], gid=info["gid"], qpn=other["qpn"])
            end.to_rts(one["id"])
        self._number = 0
        return self

    def __exit__(self, *_):
        self.end.leave()

    def send(self, *flags, stays=False):
        """Sends a message and waits for its completions.

        With `stays` the receive completion stays in the queue. It was there before the ACK left.
        """
        self._number += 1
        segment = [[self.memory["address"], 64, self.memory["lkey"]]]
        self.end.post_recv(self.receiver["id"], [{"id": self._number, "sge": segment}])
        request = {"id": self._number, "op": "send", "sge": segment, "flags": ["signaled", *flags]}
        self.end.post_send(self.sender["id"], [request])
        self._one(self.send_cq, "SUCCESS")
        if not stays:
            self.take()

    def take(self, status="SUCCESS"):
        """Polls the oldest receive completion."""
        self._one(self.recv_cq, status)

    def fail(self, stays=False):
        """Generates a flushed receive completion."""
        self.end.post_recv(self.receiver["id"], [{"id": 99, "sge": []}])
        self.end.modify(self.receiver["id"], ("STATE",), state="error")
        if not stays:
            self.take("WR_FLUSH_ERR")

    def _one(self, cq, status):
        found = self.end.poll(cq, 1, COMES * harness.slowness())
        equal("completions", [wc["status"] for wc in found], [status])

    def arm(self, solicited=False):
        """Requests an event."""
        self.end.arm(self.recv_cq, solicited)

    def event_at_once(self):
        """Reads the event of a completion that was polled: the kernel raised it before that."""
        wait_until("an event", lambda: self.end.wait_event(self.channel, self.recv_cq, 0), seconds=COMES)

    def events(self, count):
        """Checks that exactly `count` events of polled completions wait."""
        for _ in range(count):
            self.event_at_once()
        self.event(False)

    def event(self, wanted):
        """Checks that an event arrives, or that none does."""
        seconds = COMES * harness.slowness() if wanted else STAYS_AWAY
        came = self.end.wait_event(self.channel, self.recv_cq, seconds)
        equal("an event came", came, wanted)


@case()
def none_without_arming():
    """An unarmed queue raises no event."""
    with Connection() as c:
        c.send()
        c.event(False)


@case()
def one_for_each_arming():
    """The first completion after arming raises one event, the next none (K-02)."""
    with Connection() as c:
        for _ in range(3):
            c.arm()
            c.send()
            c.event(True)
            c.send("solicited")
            c.event(False)


@case()
def solicited_only():
    """Armed for solicited, unsolicited completions raise no event and do not disarm (G-21)."""
    with Connection() as c:
        c.arm(solicited=True)
        c.send()
        c.event(False)
        c.send("solicited")
        c.event(True)
        c.send("solicited")
        c.event(False)


@case()
def failure_counts_as_solicited():
    """Armed for solicited, a failure raises an event (G-21)."""
    with Connection() as c:
        c.arm(solicited=True)
        c.fail()
        c.event(True)


@case()
def arm_any_after_solicited():
    """Armed for solicited and then for any, any completion raises an event (K-02)."""
    with Connection() as c:
        c.arm(solicited=True)
        c.arm()
        c.send()
        c.event(True)


@case()
def arm_solicited_after_any():
    """Armed for any and then for solicited, any completion still raises an event (K-02)."""
    with Connection() as c:
        c.arm()
        c.arm(solicited=True)
        c.send()
        c.event(True)


# Arming a queue that is not empty. A program that does not poll between arming and sleeping relies
# on the event that mlx5 hardware raises immediately.


@case()
def waiting_when_armed():
    """Completions already in the queue when it is armed raise one event."""
    with Connection() as c:
        c.send(stays=True)
        c.send(stays=True)
        c.arm()
        c.event(True)
        c.event(False)


@case()
def waiting_when_armed_twice():
    """Arming again without polling raises no second event for the same completions."""
    with Connection() as c:
        c.send(stays=True)
        c.arm()
        c.arm()
        c.event(True)
        c.event(False)
        c.send(stays=True)
        c.event(True)
        c.event(False)


@case()
def armed_before_polling():
    """The usual loop reads the event, arms, and then polls: one event for each completion."""
    with Connection() as c:
        c.arm()
        for _ in range(3):
            c.send(stays=True)
            c.event(True)
            c.arm()
            c.event(False)
            c.take()


@case()
def one_polled_for_each_event():
    """A program that reads the event, polls one completion and arms gets an event for each."""
    with Connection() as c:
        c.arm()
        for _ in range(4):
            c.send(stays=True)
        for _ in range(4):
            c.event(True)
            c.take()
            c.arm()
        c.event(False)


@case()
def polled_before_the_event_is_taken():
    """If a completion is polled before its event is read, the next one has its own event."""
    with Connection() as c:
        c.arm()
        c.send()
        c.send(stays=True)
        c.event(True)
        c.arm()
        c.event(True)
        c.event(False)


@case()
def solicited_waits():
    """Armed for solicited, only a solicited completion already queued raises an event (G-21)."""
    with Connection() as c:
        c.send(stays=True)
        c.arm(solicited=True)
        c.event(False)
        c.send("solicited", stays=True)
        c.event(True)
        c.event(False)
        # Nothing has been polled since.
        c.arm(solicited=True)
        c.event(False)
        # The solicited completion is still in the queue.
        c.take()
        c.arm(solicited=True)
        c.event(True)
        c.take()
        c.send(stays=True)
        c.arm(solicited=True)
        c.event(False)


@case()
def failure_waits():
    """Armed for solicited, a failed completion already queued raises an event (G-21)."""
    with Connection() as c:
        c.send(stays=True)
        c.fail(stays=True)
        c.arm(solicited=True)
        c.event(True)
        c.event(False)


# Offsets of words in a ring's header, and the largest number of events between two calls
# (drivers/rrxe/ring/abi.rs).
CONSUMER, ARM, EVENTS, FLAGS = 64, 192, 200, 204
MAX_EVENTS = 16


@case()
def counter_wound_back():
    """A program that moves its consumer counter back gets no second event for a completion."""
    with Connection() as c:
        for _ in range(3):
            c.send(stays=True)
        c.arm()
        c.event(True)
        told = []
        for consumer in (0, 1, 0, 1, 2, 0, 3, 7, 0xFFFFFFFF, 2):
            c.end.poke(c.queue["ring"] + CONSUMER, consumer)
            c.end.poke(c.queue["ring"] + ARM, 1)
            c.end.request_event(c.queue["handle"])
            if c.end.wait_event(c.channel, c.recv_cq, 0):
                told.append(consumer)
        equal("completions that events came for", told, [1, 2])
        c.end.poke(c.queue["ring"] + CONSUMER, 0)
        for _ in range(3):
            c.take()
        c.arm()
        c.send()
        c.event(True)


# The limit of events: a program that reads none must not fill the kernel's memory.


def _only_rrxe():
    if bed.here.driver != "rrxe":
        raise Skip("the other driver has no ring that arms")


@case(timeout=300)
def hundreds_of_armings():
    """One event for each of hundreds of armings: the limit has no visible effect.

    The provider calls the kernel at each 16th event, and not more often.
    """
    _only_rrxe()
    with Connection() as c:
        counts = []
        for _ in range(300):
            c.arm()
            c.send()
            c.event_at_once()
            counts.append(c.end.peek(c.queue["ring"] + EVENTS))
        c.event(False)
        cycle = list(range(1, MAX_EVENTS + 1))
        equal("events since the last call", counts, (cycle * 20)[:300])


@case(timeout=300)
def events_that_wait():
    """Consecutive armings with events that are read late: no event is lost."""
    _only_rrxe()
    with Connection() as c:
        for _ in range(5):
            for _ in range(MAX_EVENTS + 4):
                c.arm()
                c.send()
            c.events(MAX_EVENTS + 4)


@case(timeout=120)
def unread_events():
    """A program that arms by stores and reads no event has 16 in the kernel at most.

    A call of the kernel raises the event that was withheld.
    """
    _only_rrxe()
    with Connection() as c:
        for calls in range(2):
            for _ in range(100):
                c.end.poke(c.queue["ring"] + ARM, 1)
                c.send()
            # The event that was withheld counts, too.
            c.events(MAX_EVENTS - calls)
            c.end.request_event(c.queue["handle"])
            c.events(1)
        # Unsolicited completions do not disarm a queue that is armed for solicited ones.
        for _ in range(MAX_EVENTS):
            c.end.poke(c.queue["ring"] + ARM, 2)
            c.send("solicited")
        c.events(MAX_EVENTS - 1)
        c.end.request_event(c.queue["handle"])
        c.events(1)
        c.end.poke(c.queue["ring"] + ARM, 2)
        c.send()
        c.event(False)


@case(timeout=120)
def events_of_a_resized_queue():
    """Resizing a queue changes neither its count of events nor its arming."""
    _only_rrxe()
    with Connection() as c:
        for depth in (256, 512, 1024):
            for _ in range(MAX_EVENTS + 4):
                c.arm()
                c.send()
                c.event_at_once()
            c.end.resize(c.recv_cq, depth)


@case(timeout=300)
def previous_provider():
    """A provider that does not know the limit arms by stores only, and gets all events."""
    _only_rrxe()
    with Connection() as c:
        c.end.poke(c.queue["ring"] + FLAGS, 0)
        for _ in range(3 * MAX_EVENTS):
            c.end.poke(c.queue["ring"] + ARM, 1)
            c.send()
            c.event_at_once()
        c.event(False)


# The longest period of moderation, in microseconds and seconds.
PERIOD, PERIOD_S = 65535, 0.065


@case()
def moderated_by_time():
    """One completion raises its event when the period has passed, unless it is polled before."""
    _only_rrxe()
    with Connection() as c:
        c.end.moderate(c.recv_cq, 1000, PERIOD)
        for _ in range(2):
            began = time.monotonic()
            c.arm()
            c.send(stays=True)
            c.event(True)
            took = time.monotonic() - began
            require(took >= PERIOD_S, f"the event came after {took:.3f} s")
            c.take()
        # An older completion, of which the program was notified, waits, too.
        c.arm()
        c.send(stays=True)
        c.event(True)
        c.arm()
        c.send(stays=True)
        c.event(True)
        c.take()
        c.take()
        # The completion waits when the queue is armed.
        c.send(stays=True)
        began = time.monotonic()
        c.arm()
        c.event(True)
        took = time.monotonic() - began
        require(took >= PERIOD_S, f"the event came after {took:.3f} s")
        c.take()


@case()
def moderated_and_polled():
    """Completions that the program polls within the period raise at most one event together."""
    _only_rrxe()
    with Connection() as c:
        c.end.moderate(c.recv_cq, 1000, PERIOD)
        c.arm()
        for _ in range(20):
            c.send()
        came = 0
        while c.end.wait_event(c.channel, c.recv_cq, STAYS_AWAY):
            came += 1
        require(came <= 1, f"{came} events for one arming")
        c.arm()
        c.send()
        c.send(stays=True)
        c.event(True)
        c.take()


@case()
def moderated_by_count():
    """Enough completions raise the event, and moderation can be switched off."""
    _only_rrxe()
    with Connection() as c:
        for count, period, messages in ((3, PERIOD, 3), (1, PERIOD, 1), (0, PERIOD, 1), (1000, 0, 1), (0, 0, 1)):
            c.end.moderate(c.recv_cq, count, period)
            c.arm()
            for _ in range(messages):
                c.send(stays=True)
            # The kernel has raised it, or does so when the period has passed.
            c.event(True)
            for _ in range(messages):
                c.take()
            c.event(False)


@case()
def moderated_by_the_library():
    """ibv_modify_cq() accepts any moderation, and no other attribute."""
    _only_rrxe()
    from libibverbs import Verbs  # only a guest has verbs

    verbs = Verbs(bed.here.device)
    inline = ctypes.CDLL("/guest/bin/libinline-verbs.so")
    cq = verbs.make("ibv_create_cq", verbs.context, 16, None, None, 0)
    for mask, count, period, error in ((1, 65535, 65535, 0), (1, 0, 0, 0), (0, 1, 1, errno.EINVAL), (2, 1, 1, errno.EINVAL)):
        equal(f"mask {mask}", inline.call_modify_cq(cq, mask, count, period), error)
    equal("errno", verbs.call("ibv_destroy_cq", cq), 0)
    equal("errno", verbs.call("ibv_close_device", verbs.context), 0)


@case()
def destroyed_while_moderated():
    """A queue is destroyed while its event is deferred."""
    _only_rrxe()
    for _ in range(20):
        with Connection() as c:
            c.end.moderate(c.recv_cq, 1000, PERIOD)
            c.arm()
            c.send(stays=True)


@case()
def waiting_without_a_channel():
    """Arming a queue without a channel does nothing, even with completions in it."""
    with Connection() as c:
        segment = [[c.memory["address"], 64, c.memory["lkey"]]]
        c.end.post_recv(c.receiver["id"], [{"id": 7, "sge": segment}])
        c.arm()
        c.end.post_send(c.sender["id"], [{"id": 7, "op": "send", "sge": segment}])
        c.event(True)
        c.end.arm(c.send_cq)
        found = c.end.poll(c.send_cq, 1, COMES * harness.slowness())
        equal("completions", [wc["status"] for wc in found], ["SUCCESS"])


def run():
    """Runs the suite."""
    return bed.run()
