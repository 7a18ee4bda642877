# SPDX-License-Identifier: GPL-2.0
"""How long softirqs run, and which timers expire, by the kernel's trace events."""

import contextlib
import os
import re
import time

TRACING = "/sys/kernel/tracing"
_EVENT = re.compile(r"\[(\d+)\].* (\d+\.\d+): softirq_(entry|exit): vec=\d+ \[action=(\w+)\]")
_EXPIRY = re.compile(r": hrtimer_expire_entry: .*function=\S+ \[(\w+)\]")


def _mount():
    if not os.path.exists(f"{TRACING}/trace"):
        os.system(f"mount -t tracefs none {TRACING}")


def _write(name, text):
    with open(f"{TRACING}/{name}", "w", encoding="ascii") as file:
        file.write(text)


@contextlib.contextmanager
def traced():
    """Traces the softirqs of the block. Yields a dictionary that holds the longest action of each
    softirq afterwards: {name: seconds}."""
    _mount()
    longest, begun = {}, {}
    _write("buffer_size_kb", "32768")
    _write("trace", "")
    for event in ("softirq_entry", "softirq_exit"):
        _write(f"events/irq/{event}/enable", "1")
    try:
        yield longest
    finally:
        for event in ("softirq_entry", "softirq_exit"):
            _write(f"events/irq/{event}/enable", "0")
        with open(f"{TRACING}/trace", encoding="ascii") as lines:
            for cpu, when, which, name in map(re.Match.groups, filter(None, map(_EVENT.search, lines))):
                if which == "entry":
                    begun[cpu, name] = float(when)
                elif (cpu, name) in begun:
                    longest[name] = max(longest.get(name, 0), float(when) - begun.pop((cpu, name)))
        _write("trace", "")
        _write("buffer_size_kb", "1408")


def expirations(module, seconds):
    """Returns the number of the module's timers that expire within these seconds."""
    _mount()
    _write("trace", "")
    _write("events/timer/hrtimer_expire_entry/enable", "1")
    time.sleep(seconds)
    _write("events/timer/hrtimer_expire_entry/enable", "0")
    with open(f"{TRACING}/trace", encoding="ascii") as lines:
        count = sum(found[1] == module for found in filter(None, map(_EXPIRY.search, lines)))
    _write("trace", "")
    return count
