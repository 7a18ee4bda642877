# SPDX-License-Identifier: GPL-2.0
"""Memory that a program's objects lock.

Covers the amount per object, the provider's explanation of failures with RRXE_DEBUG set
(librrxe(7)), that a region can be deregistered once its windows are gone, and that nothing touches
its memory after that.
"""

import contextlib
import errno
import json
import os
import resource
import tempfile

import counted
import privilege
import testbed
from harness import Skip, case, debug_kernel, equal, log, require

bed = testbed.Bed()

KIB = 1024
PAGE = 4096

# Each limit in KiB, and the number of queue pairs that fit: of depth 128, with one data segment,
# and a small completion queue.
LIMITS = {"64-kib": (64, 3), "8-mib": (8192, 511)}

# Objects that exceed a limit of 64 KiB, by the provider's name for them.
OBJECTS = {
    "queue pair": lambda end, pd, cq: end.qp("rc", pd, cq, send_wr=1024, recv_wr=1024),
    "completion queue": lambda end, pd, cq: end.cq(4096),
    "shared receive queue": lambda end, pd, cq: end.srq(pd, 4096),
    "memory region": lambda end, pd, cq: end.memory(pd, 128 * KIB),
}


def pages(*rings):
    """Returns the page-aligned size in bytes of consecutive rings, given as (entries, entry
    size)."""
    end = 0
    for entries, stride in rings:
        end = -(-end // 64) * 64 + 256 + entries * stride
    return -(-end // PAGE) * PAGE


def locked():
    """Returns the bytes that the kernel counts as pinned for this process."""
    with open("/proc/self/status", encoding="ascii") as lines:
        (found,) = [line.split()[1] for line in lines if line.startswith("VmPin:")]
    return int(found) * KIB


def opened():
    """Returns an endpoint of this host's device."""
    import endpoint  # only a guest has verbs

    here = bed.here
    end = endpoint.Endpoint()
    end.open(here.device, here.address, here.driver)
    return end


def errno_of(make, *arguments):
    """Returns the errno of a call, or 0."""
    try:
        make(*arguments)
    except Exception as why:
        return why.error_code
    return 0


def limited(kib, body, *arguments):
    """Calls `body` as an unprivileged user with a limit of `kib`, and returns its result."""

    if bed.here.driver != "rrxe":
        raise Skip(f"{bed.here.driver} counts otherwise")
    hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (kib * KIB, hard[1]))
    try:
        return privilege.unprivileged(lambda: body(*arguments))
    finally:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, hard)


def _sizes():
    """Returns the locked and the expected bytes of each kind of object."""
    end = opened()
    pd, found = end.pd(), {}
    before = locked()

    def add(name, wanted):
        nonlocal before
        now = locked()
        found[name] = [now - before, wanted]
        before = now

    cq = end.cq(100)
    add("completion queue", pages((128, 64)))
    end.qp("rc", pd, cq, send_wr=128, recv_wr=128)
    add("queue pair", pages((128, 80), (128, 32)))
    end.qp("rc", pd, cq, send_wr=32, recv_wr=32)
    add("small queue pair", PAGE)
    end.qp("rc", pd, cq, send_wr=100, recv_wr=16, sge=4, inline=100)
    add("queue pair with segments", pages((128, 176), (16, 80)))
    srq = end.srq(pd, 64, 2)
    add("shared receive queue", pages((64, 48)))
    end.qp("rc", pd, cq, send_wr=16, recv_wr=16, srq=srq["id"])
    add("queue pair of it", pages((16, 80)))
    end.memory(pd, 3 * PAGE)
    add("memory region", 3 * PAGE)
    return found


@case()
def sizes():
    """Each object locks exactly the pages that its rings need."""
    for name, (found, wanted) in limited(8192, _sizes).items():
        equal(f"bytes of a {name}", found, wanted)


def _count():
    """Creates queue pairs until one fails; returns their number and the errno."""
    end = opened()
    pd, cq = end.pd(), end.cq(1)
    count = 0
    while True:
        error = errno_of(lambda: end.qp("rc", pd, cq, send_wr=128, recv_wr=128))
        if error:
            return count, error
        count += 1


@case(each=LIMITS)
def queue_pairs(limit):
    """The number of queue pairs under the default limits of old and new distributions."""
    kib, wanted = limit
    count, error = limited(kib, _count)
    log(f"{count} queue pairs in {kib} KiB")
    equal("queue pairs and error", (count, error), (wanted, errno.ENOMEM))


def _failures(value):
    """Returns the errno for each object that exceeds the limit, and the provider's output."""
    os.environ.pop("RRXE_DEBUG", None)
    if value is not None:
        os.environ["RRXE_DEBUG"] = value
    found = {}
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        end = opened()
        pd, cq = end.pd(), end.cq(1)
        for name, make in OBJECTS.items():
            file.seek(0)
            file.truncate()
            error = errno_of(make, end, pd, cq)
            file.seek(0)
            found[name] = [error, file.read().decode()]
    return found


@case()
def explained():
    """With RRXE_DEBUG, the provider names the limit that an object exceeds and how to raise it."""
    for name, (error, text) in limited(64, _failures, "1").items():
        log(text)
        equal(f"error for the {name}", error, errno.ENOMEM)
        equal("lines", text.count("\n"), 1)
        parts = ("is 64 KiB", "of which 4 KiB are in use", "ulimit -l", "LimitMEMLOCK=")
        for part in (f"librrxe: a {name} needs ", *parts):
            require(part in text, f"{name}: no {part!r} in {text!r}")


@case(each={"not-set": None, "empty": "", "zero": "0"})
def not_explained(value):
    """Without RRXE_DEBUG nothing is printed."""
    for name, found in limited(64, _failures, value).items():
        equal(f"error and output for the {name}", found, [errno.ENOMEM, ""])


def _objects():
    """Returns the kernel's counts of objects."""
    words = bed.here.machine.run(f"rdma resource show {bed.here.device}").split()
    return {kind: words[words.index(kind) + 1] for kind in ("pd", "cq", "qp", "mr")}


@case(timeout=400)
def concurrent_window_binding():
    """Windows are deallocated while other threads bind them to a region.

    The region can be deregistered afterwards. BIND_SECONDS is the duration.
    """
    here = bed.here
    if here.driver != "rrxe":
        raise Skip("the program uses what rrxe's provider checks")
    before = _objects()
    seconds = int(os.environ.get("BIND_SECONDS", "8"))
    log(here.machine.run(f"bind-race {here.device} {here.gid_index()} {seconds}", seconds + 120))
    equal("objects afterwards", _objects(), before)


def _late_bytes(device, gid_index, *forged):
    """Runs late-bytes for LATE_ROUNDS, and returns what it prints."""
    rounds = os.environ.get("LATE_ROUNDS", "50" if debug_kernel() else "500")
    words = " ".join(("late-bytes", device, str(gid_index), rounds, *forged))
    output = bed.here.machine.run(words, 200 + int(rounds))
    log(output)
    found = json.loads(output)
    equal("rounds", found["rounds"], int(rounds))
    require(found["early"] < found["rounds"], "traffic always failed too early")


# Parameters of the module, and whether packets bypass the stack.
OWN = {"bypass": ("", True), "stack": ("same_host_icrc=1", False)}


@case(timeout=1800, each=OWN)
def late_bytes_of_own(how):
    """After ibv_dereg_mr() has returned, no queue pair of the program accesses the memory.

    WRITEs, READs, receives and SENDs of one thread, while another one deregisters the region.
    LATE_ROUNDS is the number of regions.
    """
    parameters, bypasses = how
    here = bed.here
    if here.driver != "rrxe":
        raise Skip("rrxe promises this")
    with testbed.parameters_of(here, parameters) if parameters else contextlib.nullcontext():
        before = counted.read(here)["same_device_pkts"]
        _late_bytes(here.device, here.gid_index())
        after = counted.read(here)["same_device_pkts"]
        equal("packets bypass the stack", after > before, bypasses)


@contextlib.contextmanager
def _victim(here):
    """Makes a device at one end of a veth pair. Yields its name, its GID's index, and where to send
    forged packets for it."""
    run = here.machine.run
    run("ip link add late0 mtu 4400 type veth peer name late1 mtu 4400")
    try:
        for name in ("late0", "late1"):
            run(f"ip link set {name} up")
        run("ip address add 10.99.0.1/24 dev late1")
        run("ip neighbour add 10.99.0.2 lladdr 02:00:00:00:00:02 dev late1 nud permanent")
        testbed.add_link(here.machine, here.driver, "late", "late1")
        index = testbed.wait_for_gid("late", "10.99.0.1")
        mac = here.machine.read("/sys/class/net/late1/address").strip()
        yield "late", index, "late0", mac, "10.99.0.2"
        testbed.delete_link(here.machine, "late")
    finally:
        here.machine.try_run("ip link delete late0")


@case(timeout=1800)
def late_bytes_forged():
    """After ibv_dereg_mr() has returned, no late packet accesses the memory."""
    if bed.here.driver != "rrxe":
        raise Skip("rrxe promises this")
    with _victim(bed.here) as where:
        _late_bytes(*where)


def run():
    """Runs the suite."""
    return bed.run()
