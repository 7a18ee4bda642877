# SPDX-License-Identifier: GPL-2.0
"""The GSO packets that network devices are given, by the trace event net_dev_start_xmit."""

import contextlib
import dataclasses
import os
import re

import machine
from harness import log, require

TRACING = "/sys/kernel/tracing"
INSTANCE = f"{TRACING}/instances/gso"
EVENT = f"{INSTANCE}/events/net/net_dev_start_xmit"

# include/linux/skbuff.h; the event shows the lower 16 bits of the type.
SKB_GSO_UDP_TUNNEL = 1 << 10


@dataclasses.dataclass
class Seen:
    """The GSO packets that a device was given, and how many of them have the tunnel bit."""

    packets: int = 0
    tunnelled: int = 0


def _write(path, text):
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


@contextlib.contextmanager
def traced():
    """Traces the GSO packets of all namespaces.

    Yields a function that returns what each device was given since its last call: {name: Seen}.
    """
    if not os.path.exists(f"{TRACING}/instances"):
        machine.Local().run(f"mount -t tracefs none {TRACING}")
    os.mkdir(INSTANCE)
    try:
        _write(f"{INSTANCE}/buffer_size_kb", "4096")
        _write(f"{EVENT}/filter", "gso_size > 0")
        _write(f"{EVENT}/enable", "1")
        yield _seen
        _write(f"{EVENT}/enable", "0")
    finally:
        os.rmdir(INSTANCE)


def _seen():
    """Returns what each device was given, and empties the trace."""
    with open(f"{INSTANCE}/trace", encoding="utf-8", errors="replace") as file:
        text = file.read()
    _write(f"{INSTANCE}/trace", "")
    lost = re.search(r"entries-in-buffer/entries-written: (\d+)/(\d+)", text)
    require(lost and lost[1] == lost[2], f"the trace is incomplete: {lost and lost[0]}")
    found = {}
    for device, kind in re.findall(r"dev=(\S+) .*gso_type=(0x[0-9a-f]+|0)", text):
        seen = found.setdefault(device, Seen())
        seen.packets += 1
        seen.tunnelled += bool(int(kind, 0) & SKB_GSO_UDP_TUNNEL)
    log(f"GSO packets: {found}")
    return found
