# SPDX-License-Identifier: GPL-2.0
"""Measures how long this machine does not run at all.

An emulated machine on a busy host may stand still for half a second, in which hardware would answer
millions of packets. A peer with a retry count of 7 and a timeout of 67 ms then rightly gives up.
"""

import contextlib
import os
import threading
import time

# Seconds between two looks at the clock.
INTERVAL = 0.01


class _Watch(threading.Thread):
    """Sleeps for short times, and notes the longest that it took."""

    def __init__(self):
        super().__init__(daemon=True)
        self.longest = 0.0

    def run(self):
        with contextlib.suppress(OSError):
            # Before all programs of this machine.
            os.sched_setscheduler(threading.get_native_id(), os.SCHED_FIFO, os.sched_param(1))
        last = time.monotonic()
        while True:
            time.sleep(INTERVAL)
            now = time.monotonic()
            self.longest = max(self.longest, now - last - INTERVAL)
            last = now


_watch = None


def begin():
    """Begins to measure, or begins again."""
    global _watch  # One for each process.
    if _watch is None:
        _watch = _Watch()
        _watch.start()
    _watch.longest = 0.0


def longest():
    """Returns the longest time in seconds since `begin` in which this machine did not run."""
    return _watch.longest
