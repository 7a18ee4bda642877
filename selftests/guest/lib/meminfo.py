# SPDX-License-Identifier: GPL-2.0
"""Where this machine's memory is."""

import gc
import re
import time

# Of /proc/meminfo: all that is left, and where it went as far as the kernel tells.
KINDS = ("MemFree", "AnonPages", "Slab", "VmallocUsed", "PageTables", "KernelStack", "Percpu")
PAGE = 4096


def settled():
    """The machine's memory by kind, and VmPin, what devices have pinned of this program's own: the rings of drivers that
    take them from programs. In bytes."""
    gc.collect()
    # What is free already is counted as free only after a while: RCU, and lists of each processor.
    for name, value in (("drop_caches", "3"), ("compact_memory", "1")):
        with open(f"/proc/sys/vm/{name}", "w", encoding="ascii") as file:
            file.write(value)
        time.sleep(1)
    with open("/proc/meminfo", encoding="ascii") as file:
        machine = re.findall(r"^(\w+):\s+(\d+) kB", file.read(), re.M)
    with open("/proc/self/status", encoding="ascii") as file:
        program = re.findall(r"^(VmPin):\s+(\d+) kB", file.read(), re.M)
    with open("/proc/zoneinfo", encoding="ascii") as file:
        # What a processor has at hand is as free, and MemFree does not count it.
        at_hand = sum(map(int, re.findall(r"^\s+count:\s+(\d+)$", file.read(), re.M)))
    found = {name: 1024 * int(size) for name, size in machine + program if name in (*KINDS, "VmPin")}
    found["MemFree"] += at_hand * PAGE
    return found
