# SPDX-License-Identifier: GPL-2.0
"""What a device has counted: its statistics, and its port's key violations."""

import contextlib
import json
import re
import time

from harness import equal

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


def _risen(before, after, among, wanted):
    found = {name: after[name] - before[name] for name in after if after[name] != before[name]}
    return {
        name: n
        for name, n in found.items()
        if name in wanted or (name in among if among is not None else name not in TRAFFIC)
    }
