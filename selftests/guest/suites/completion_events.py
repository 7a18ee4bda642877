# SPDX-License-Identifier: GPL-2.0
"""Completion events: one for each arming, for what it was armed for, and for failures always (IBA 11.4.2)."""

import harness
import testbed
from harness import case, equal

bed = testbed.Bed()

# How long an event may take, and how long to wait for one that must not come, in seconds.
COMES, STAYS_AWAY = 30, 1


class Connection:
    """A sender on this host, and a receiver on it that waits for events."""

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
        """A message that arrives. When this returns, its receive completion is polled, or with
        `stays` is in the queue: the acknowledgement leaves after it."""
        self._number += 1
        segment = [[self.memory["address"], 64, self.memory["lkey"]]]
        self.end.post_recv(self.receiver["id"], [{"id": self._number, "sge": segment}])
        request = {"id": self._number, "op": "send", "sge": segment, "flags": ["signaled", *flags]}
        self.end.post_send(self.sender["id"], [request])
        self._one(self.send_cq, "SUCCESS")
        if not stays:
            self.take()

    def take(self, status="SUCCESS"):
        """Poll the oldest receive completion."""
        self._one(self.recv_cq, status)

    def fail(self, stays=False):
        """A receive that is flushed."""
        self.end.post_recv(self.receiver["id"], [{"id": 99, "sge": []}])
        self.end.modify(self.receiver["id"], ("STATE",), state="error")
        if not stays:
            self.take("WR_FLUSH_ERR")

    def _one(self, cq, status):
        found = self.end.poll(cq, 1, COMES * harness.slowness())
        equal("completions", [wc["status"] for wc in found], [status])

    def arm(self, solicited=False):
        """Ask for an event."""
        self.end.arm(self.recv_cq, solicited)

    def event(self, wanted):
        """An event must come, or must not."""
        seconds = COMES * harness.slowness() if wanted else STAYS_AWAY
        came = self.end.wait_event(self.channel, self.recv_cq, seconds)
        equal("an event came", came, wanted)


@case()
def none_without_arming():
    """Who did not ask gets none."""
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
    """Armed for solicited: others do not count, and do not disarm (G-21)."""
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
    """Armed for solicited, a failure notifies (G-21)."""
    with Connection() as c:
        c.arm(solicited=True)
        c.fail()
        c.event(True)


@case()
def arming_for_more():
    """Armed for solicited and then for any: any counts (K-02)."""
    with Connection() as c:
        c.arm(solicited=True)
        c.arm()
        c.send()
        c.event(True)


@case()
def arming_for_less():
    """Armed for any and then for solicited: any still counts (K-02)."""
    with Connection() as c:
        c.arm()
        c.arm(solicited=True)
        c.send()
        c.event(True)


# Arming a queue that is not empty. A program that does not poll between arming and sleeping relies
# on the event that mlx5 hardware raises at once.


@case()
def waiting_when_armed():
    """Completions that wait when the queue is armed raise one event."""
    with Connection() as c:
        c.send(stays=True)
        c.send(stays=True)
        c.arm()
        c.event(True)
        c.event(False)


@case()
def waiting_when_armed_twice():
    """Arming once more without polling raises no second event for the same completions."""
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
    """The usual loop takes the event, arms, and then polls: one event for each completion."""
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
    """A program that takes the event, polls one completion and arms gets an event for each."""
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
    """A program that takes an event and arms is about to poll, and gets no further event until it has, also if it had
    polled the completion of that event before it took it."""
    with Connection() as c:
        c.arm()
        c.send()
        c.send(stays=True)
        c.send(stays=True)
        c.event(True)
        c.arm()
        c.event(False)
        c.take()
        c.arm()
        c.event(True)
        c.event(False)


@case()
def solicited_waits():
    """Armed for solicited: one that waits raises an event, others that wait do not (G-21)."""
    with Connection() as c:
        c.send(stays=True)
        c.arm(solicited=True)
        c.event(False)
        c.send("solicited", stays=True)
        c.event(True)
        c.event(False)
        # Nothing was polled since.
        c.arm(solicited=True)
        c.event(False)
        # The solicited one is still there.
        c.take()
        c.arm(solicited=True)
        c.event(True)
        c.take()
        c.send(stays=True)
        c.arm(solicited=True)
        c.event(False)


@case()
def failure_waits():
    """Armed for solicited: a failure that waits raises an event (G-21)."""
    with Connection() as c:
        c.send(stays=True)
        c.fail(stays=True)
        c.arm(solicited=True)
        c.event(True)
        c.event(False)


# Words of a ring's header (drivers/rrxe/abi.rs).
CONSUMER, ARM = 64, 192


@case()
def counter_wound_back():
    """A program that winds its consumer counter back gets no second event for a completion."""
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


@case()
def waiting_without_a_channel():
    """Arming a queue without a channel does nothing, whatever waits in it."""
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
    """Run the suite."""
    return bed.run()
