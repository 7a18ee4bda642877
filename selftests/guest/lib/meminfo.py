# SPDX-License-Identifier: GPL-2.0
"""Memory usage of this machine."""

import gc
import re
import time

# Fields of /proc/meminfo: the free memory, and the uses that the kernel accounts for.
KINDS = ("MemFree", "AnonPages", "Slab", "VmallocUsed", "PageTables", "KernelStack", "Percpu")
PAGE = 4096


def settled():
    """Returns the machine's memory by kind, in bytes.

    VmPin is the memory of this program that devices have pinned: the rings, for drivers that
    place them in program memory.
    """
    gc.collect()
    # RCU and the per-CPU lists delay the accounting of freed memory.
    for name, value in (("drop_caches", "3"), ("compact_memory", "1")):
        with open(f"/proc/sys/vm/{name}", "w", encoding="ascii") as file:
            file.write(value)
        time.sleep(1)
    with open("/proc/meminfo", encoding="ascii") as file:
        machine = re.findall(r"^(\w+):\s+(\d+) kB", file.read(), re.M)
    with open("/proc/self/status", encoding="ascii") as file:
        program = re.findall(r"^(VmPin):\s+(\d+) kB", file.read(), re.M)
    with open("/proc/zoneinfo", encoding="ascii") as file:
        # MemFree does not include the free pages in per-CPU lists.
        at_hand = sum(map(int, re.findall(r"^\s+count:\s+(\d+)$", file.read(), re.M)))
    found = {name: 1024 * int(size) for name, size in machine + program if name in (*KINDS, "VmPin")}
    found["MemFree"] += at_hand * PAGE
    return found
