# SPDX-License-Identifier: GPL-2.0
"""Programs that end while the kernel has no memory.

Each allocation during the closing of a device fails in turn (fail-nth in
Documentation/fault-injection), and nothing may be left.

ib_core ignores the result of some operations when it destroys a program's objects. If one of them
failed for lack of memory, live objects would be left with pointers to freed ones.
"""

import contextlib
import json
import os

import testbed
from harness import case, equal, log, require

bed = testbed.Bed()

FAULTS = "/sys/kernel/debug/failslab"

# An upper bound for the allocations of a close.
MAX_ALLOCATIONS = 400

GROUPS = ("::ffff:239.7.1.2", "::ffff:239.7.1.3", "ff0e::7:1")


def connected(end, kind, pd, cq, info, **more):
    """Creates a queue pair that is connected to itself."""
    qp = end.qp(kind, pd, cq, **more)
    end.to_init(qp["id"], kind)
    end.to_rtr(qp["id"], kind, gid=info["gid"], qpn=qp["qpn"])
    end.to_rts(qp["id"], kind)
    return qp


def groups(end, info):
    """Attaches queue pairs to multicast groups, alone and together."""
    pd, cq = end.pd(), end.cq()
    first, second = (connected(end, "ud", pd, cq, info) for _ in range(2))
    for gid in GROUPS:
        end.attach(first["id"], gid)
    end.attach(second["id"], GROUPS[0])


def windows(end, info):
    """Creates windows of both types, bound to a region, and an unbound one."""
    import endpoint  # only a guest has verbs

    pd, cq = end.pd(), end.cq()
    qp = connected(end, "rc", pd, cq, info, extended=True)
    memory = end.memory(pd, 8192, access=endpoint.ALL_ACCESS + ("mw-bind",))
    for kind in (1, 2):
        window = end.window(pd, kind)
        # The consumer chooses the key's low byte for type 2; the rest is the window's number.
        key = window["rkey"] ^ 1
        end.bind(qp["id"], window["id"], memory["id"], 0, 4096, ("remote-read",), key)
        (found,) = end.poll(cq, 1, 30)
        equal("the binding", found["status"], "SUCCESS")
    end.window(pd, 2)


def queues(end, info):
    """Creates queue pairs of each kind with work posted, and the objects that go with them.

    These are shared receive queues, address handles, completion channels and XRC objects.
    """
    pd = end.pd()
    channel = end.channel()
    cq, extended = end.cq(channel=channel), end.cq(extended=True)
    srq = end.srq(pd)
    memory = end.memory(pd, 8192)
    end.arm(cq)
    for kind in ("rc", "uc", "ud"):
        qp = connected(end, kind, pd, extended, info)
        sge = [[memory["address"], 64, memory["lkey"]]]
        end.post_recv(qp["id"], [{"id": 1, "sge": sge}])
        if kind == "rc":
            end.post_send(qp["id"], [{"id": 2, "op": "send", "sge": sge}] * 3)
    connected(end, "rc", pd, cq, info, srq=srq["id"])
    end.ah(pd, info["gid"])
    xrcd = end.xrcd()
    end.xrc_srq(pd, xrcd, cq)
    end.xrc_qp(xrcd=xrcd)
    end.xrc_qp(pd, cq)


def xrc(end, info):
    """Creates an XRC connection with work posted, its domain, and its shared receive queue."""
    pd, cq = end.pd(), end.cq()
    xrcd, memory = end.xrcd(), end.memory(pd, 8192)
    sge = [[memory["address"], 64, memory["lkey"]]]
    srq = end.xrc_srq(pd, xrcd, cq)
    end.post_srq(srq["id"], [{"id": 1, "sge": sge}])
    sender, target = end.xrc_qp(pd, cq), end.xrc_qp(xrcd=xrcd)
    path = {"gid": info["gid"], "mtu": 1024, "rq_psn": 0}
    common = ("STATE", "AV", "PATH_MTU", "DEST_QPN", "RQ_PSN")
    end.to_init(target["id"])
    mask = (*common, "MAX_DEST_RD_ATOMIC", "MIN_RNR_TIMER")
    more = {"max_dest_rd_atomic": 4, "min_rnr_timer": 5}
    end.modify(target["id"], mask, state="rtr", dest_qp_num=sender["qpn"], **more, **path)
    end.modify(target["id"], ("STATE", "SQ_PSN", "TIMEOUT"), state="rts", sq_psn=0, timeout=18)
    end.to_init(sender["id"])
    end.modify(sender["id"], common, state="rtr", dest_qp_num=target["qpn"], **path)
    end.to_rts(sender["id"])
    # More than the one receive; the others wait.
    end.post_send(sender["id"], [{"id": 2, "op": "send", "sge": sge, "srqn": srq["number"]}] * 3)


def failed(end, info):
    """Creates queue pairs of each kind in the Error state, with flushed work."""
    pd, cq = end.pd(), end.cq()
    memory = end.memory(pd, 8192)
    sge = [[memory["address"], 64, memory["lkey"]]]
    for kind in ("rc", "uc", "ud"):
        qp = connected(end, kind, pd, cq, info)
        end.post_recv(qp["id"], [{"id": 1, "sge": sge}] * 2)
        end.modify(qp["id"], ("STATE",), state="error")
        end.post_recv(qp["id"], [{"id": 1, "sge": sge}])


def everything(end, info):
    """Creates objects of every kind, in all relevant states."""
    for fill in (groups, windows, queues, xrc, failed):
        fill(end, info)


# Each program, and the idle time in microseconds of its poll thread, if it has one. Poll mode
# concerns queue pairs only.
PROGRAMS = {"everything": (everything, None), "queues-polled": (queues, 1_000_000)}


def open_files():
    """Returns this process's files of RDMA devices and of their events, and their names.

    The device comes last, because closing it destroys all objects.
    """
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            name = os.readlink(f"/proc/self/fd/{fd}")
            if "infiniband" in name:
                found.append((int(fd), name))
    return sorted(found, key=lambda file: file[1].startswith("/dev/"))


def close_with_fault(program, number):
    """Creates objects in a child process, which closes its device with allocation `number` failing.

    Returns how many further allocations it would have taken to reach that number.
    """
    import endpoint  # only a guest has verbs

    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        result = {"why": "the process failed"}
        try:
            end = endpoint.Endpoint()
            fill, idle = program
            fill(end, end.open(bed.here.device, bed.here.address, bed.here.driver, idle))
            # The command file is closed last, because that destroys all objects.
            files = open_files()
            control = os.open("/proc/thread-self/fail-nth", os.O_RDWR)
            word = str(number).encode()
            os.write(control, word)
            for fd, _ in files:
                os.close(fd)
            left = int(os.pread(control, 20, 0).split()[0])
            os.write(control, b"0")
            result = {"left": left, "files": [name for _, name in files]}
        except Exception as why:  # reported by the parent
            result = {"why": repr(why)}
        finally:
            os.write(writing, json.dumps(result).encode())
            os._exit(0)
    os.close(writing)
    try:
        with os.fdopen(reading) as pipe:
            result = json.loads(pipe.read() or "{}")
    finally:
        os.waitpid(child, 0)
    require("left" in result, f"allocation {number}: {result.get('why', 'the process died')}")
    require(result["files"], "the process has no device open")
    return result["left"]


def objects():
    """Returns the number of objects of each kind, as counted by the kernel."""
    return bed.here.machine.look("objects", bed.here.device)


@case(timeout=900, each=PROGRAMS)
def closing(program):
    """Each allocation during the close fails once."""
    import endpoint  # noqa: F401  imported once, not in each process

    machine = bed.here.machine
    machine.run(f"echo N > {FAULTS}/ignore-gfp-wait; echo 0 > {FAULTS}/verbose")
    before = objects()
    number = 1
    while True:
        left = close_with_fault(program, number)
        equal(f"objects after allocation {number} failed", objects(), before)
        if left:
            break
        number += 1
        require(number < MAX_ALLOCATIONS, "the close has no end")
    log(f"{number - 1} allocations failed")


def run():
    """Runs the suite."""
    return bed.run()
