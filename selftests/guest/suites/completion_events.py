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
        self.send_cq, self.recv_cq = end.cq(), end.cq(64, channel=self.channel)
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

    def send(self, *flags):
        """A message that arrives: when this returns, its receive completion is in the queue."""
        self._number += 1
        segment = [[self.memory["address"], 64, self.memory["lkey"]]]
        self.end.post_recv(self.receiver["id"], [{"id": self._number, "sge": segment}])
        request = {"id": self._number, "op": "send", "sge": segment, "flags": ["signaled", *flags]}
        self.end.post_send(self.sender["id"], [request])
        self._one(self.send_cq, "SUCCESS")
        self._one(self.recv_cq, "SUCCESS")

    def fail(self):
        """A receive that is flushed."""
        self.end.post_recv(self.receiver["id"], [{"id": 99, "sge": []}])
        self.end.modify(self.receiver["id"], ("STATE",), state="error")
        self._one(self.recv_cq, "WR_FLUSH_ERR")

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


def run():
    """Run the suite."""
    return bed.run()
