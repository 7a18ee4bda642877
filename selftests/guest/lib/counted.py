# SPDX-License-Identifier: GPL-2.0
"""What a device has counted: its statistics, and its port's key violations."""

import contextlib
import json
import re
import time

from harness import equal, require

# What all traffic changes.
TRAFFIC = {
    "sent_pkts",
    "sent_bytes",
    "rcvd_pkts",
    "rcvd_bytes",
    "sq_doorbells",
    "same_host_pkts",
    "same_device_pkts",
    "acks_with_answers",
}

# How long a packet may take to be counted, in seconds: this only catches what never is.
PATIENCE = 20

VIOLATIONS = ("bad_pkey_cntr", "qkey_viol_cntr")


def read(host):
    """All counters of a host's device: {name: value}."""
    entry = json.loads(host.machine.run(f"rdma -j statistic show link {host.device}/1"))[0]
    found = {name: value for name, value in entry.items() if name not in ("ifindex", "ifname", "port")}
    text = host.machine.run(f"ibv_devinfo -v -d {host.device}")
    for name in VIOLATIONS:
        found[name] = int(re.search(rf"{name}:\s*(\S+)", text)[1], 0)
    return found


@contextlib.contextmanager
def rise(host, among=None, **wanted):
    """By the block these counters must rise by so much, and no other (of `among`, where said: what
    depends on timers may change in any traffic). Those of all packets are looked at only where they are
    named."""
    before = read(host)
    yield
    wanted = {name: n for name, n in wanted.items() if n}
    end = time.monotonic() + PATIENCE
    while (found := _risen(before, read(host), among, wanted)) != wanted and time.monotonic() < end:
        time.sleep(0.1)
    equal(f"what {host.name} has counted", found, wanted)


def of_queue_pairs(host):
    """The counters bound to queue pairs of a host's device, as `rdma` shows them: {number: entry}."""
    text = host.machine.run(f"rdma -j statistic qp show link {host.device}/1")
    return {entry["cntn"]: entry for entry in json.loads(text or "[]")}


class Watch:
    """The counters of both ends of a link, on which nothing but queue pairs of these sends."""

    def __init__(self, here, peer):
        self._hosts = (here, peer)
        self._first = self._last = self._read()

    def _read(self):
        return [read(host) for host in self._hosts]

    def rise(self):
        """Returns the counts of this host's device since the start. No counter may go backwards."""
        now = self._read()
        for host, before, after in zip(self._hosts, self._last, now):
            for name, value in after.items():
                require(value >= before[name], f"{host.name}: {name} went from {before[name]} to {value}")
        self._last = now
        return {name: value - self._first[0][name] for name, value in now[0].items()}

    def _differences(self):
        self.rise()
        here, peer = ({name: now[name] - then[name] for name in now} for now, then in zip(self._last, self._first))
        for one, other in ((here, peer), (peer, here)):
            for sent, received in (("sent_pkts", "rcvd_pkts"), ("sent_bytes", "rcvd_bytes")):
                if one[sent] != other[received]:
                    yield f"{sent}: {one[sent]}, {received} at the other end: {other[received]}"

    def agree(self):
        """Each end must have received what the other has sent: counted once, and by one end like the other."""
        end = time.monotonic() + PATIENCE
        while (found := list(self._differences())) and time.monotonic() < end:
            time.sleep(0.1)
        equal("differences between the ends", found, [])


def _risen(before, after, among, wanted):
    found = {name: after[name] - before[name] for name in after if after[name] != before[name]}
    return {
        name: n
        for name, n in found.items()
        if name in wanted or (name in among if among is not None else name not in TRAFFIC)
    }
