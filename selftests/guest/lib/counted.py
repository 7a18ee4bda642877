# SPDX-License-Identifier: GPL-2.0
"""The counters of a device: its statistics, and its port's key violations."""

import contextlib
import json
import time

from harness import equal, require, slowness

# Counters that all traffic changes.
TRAFFIC = {
    "sent_pkts",
    "sent_bytes",
    "rcvd_pkts",
    "rcvd_bytes",
    "sq_doorbells",
    "same_device_pkts",
    "acks_piggybacked",
}

# Time limit in seconds for a packet to be counted.
TIMEOUT = 20

VIOLATIONS = ("bad_pkey_cntr", "qkey_viol_cntr")


def read(host):
    """Returns all counters of a host's device: {name: value}."""
    found = host.machine.look("statistics", host.device)
    found.update(zip(VIOLATIONS, host.machine.look("key_violations", host.device)))
    return found


@contextlib.contextmanager
def rise(host, among=None, **wanted):
    """Checks that the block increments these counters by these amounts, and no others.

    `among` limits the check to some counters, since those that depend on timers may change with any
    traffic. The counters in TRAFFIC are checked only if they are named.
    """
    before = read(host)
    yield
    wanted = {name: n for name, n in wanted.items() if n}
    end = time.monotonic() + TIMEOUT * slowness()
    while (found := _risen(before, read(host), among, wanted)) != wanted and time.monotonic() < end:
        time.sleep(0.1)
    equal(f"what {host.name} has counted", found, wanted)


# The counters of monitoring (the folder `counters` in sysfs) that show statistics, and these
# statistics. The others are 0.
MONITORED = {
    "port_xmit_data": ("sent_bytes",),
    "port_xmit_packets": ("sent_pkts",),
    "port_xmit_discards": ("send_err",),
    "port_rcv_data": ("rcvd_bytes",),
    "port_rcv_packets": ("rcvd_pkts",),
    "port_rcv_errors": ("rx_roce_error_pkts", "rx_icrc_encapsulated"),
}


def monitored_from(statistics):
    """Returns the counters in MONITORED that these statistics give: {name: value}."""
    sums = {name: sum(statistics[one] for one in of) for name, of in MONITORED.items()}
    return {name: value // 4 if name.endswith("_data") else value for name, value in sums.items()}


def monitored(where, device):
    """Returns the counters of monitoring of a device's port: {name: value}."""
    folder = f"/sys/class/infiniband/{device}/ports/1/counters"
    return {name: int(where.read(f"{folder}/{name}")) for name in where.look("listed", folder, ".*")}


def check_monitored(host):
    """Checks that the counters of monitoring of a host's device equal its statistics."""
    end = time.monotonic() + TIMEOUT * slowness()
    while True:
        before, shown, after = read(host), monitored(host.machine, host.device), read(host)
        wanted = dict.fromkeys(shown, 0) | monitored_from(after)
        # Counters may change during the reading, and ib_core may show the values of a counter
        # twice while that loses its last queue pair.
        if before == after and shown == wanted or time.monotonic() > end:
            break
        time.sleep(0.1)
    equal(f"counters of monitoring on {host.name}", shown, wanted)


def of_queue_pairs(host):
    """Returns the counters bound to queue pairs of a host's device: {number: entry of `rdma`}."""
    text = host.machine.run(f"rdma -j statistic qp show link {host.device}/1")
    return {entry["cntn"]: entry for entry in json.loads(text or "[]")}


class Watch:
    """The counters of both ends of a link that carries only packets of their queue pairs."""

    def __init__(self, here, peer):
        self._hosts = (here, peer)
        self._first = self._last = self._read()

    def _read(self):
        return [read(host) for host in self._hosts]

    def rise(self):
        """Returns the counts of this host's device since the start. No counter may decrease."""
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
        """Checks that each end has received what the other sent, counted equally by both."""
        end = time.monotonic() + TIMEOUT * slowness()
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
