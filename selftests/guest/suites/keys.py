# SPDX-License-Identifier: GPL-2.0
"""Memory windows, invalidation and reregistration: a key's rights and its lifetime (IBA 10.6)."""

import errno

import testbed
from harness import case, equal, require
from trial import Bench, Trial, refused

bed = testbed.Bed()
bench = Bench(bed.endpoints)

PAGE = 4096
SIZE = 4 * PAGE
TYPES = {"type1": 1, "type2": 2}
REMOTE = ("remote-write", "remote-read", "remote-atomic")


class Owner(Trial):
    """A trial whose remote side gives the local one windows to a region of its own."""

    def __init__(self, bench, **how):
        super().__init__(bench, extended=True, **how)

    def __enter__(self):
        super().__enter__()
        self.owner, self.qp = self.remote.end, self.remote.qp["id"]
        self._extra = []
        self.region = self.memory()
        return self

    def __exit__(self, *why):
        if why[0] is None:
            equal("the region", self.owner.verify(self.region["id"]), "")
            for number in reversed(self._extra):
                self.owner.drop(number)
        super().__exit__(*why)

    def memory(self, access=("local-write", "mw-bind"), pd=None):
        """Registers a region of the remote side."""
        region = self.owner.memory(self.remote.pd if pd is None else pd, SIZE, access, 9)
        self._extra.append(region["id"])
        return region

    def window(self, kind, pd=None):
        """Allocates an unbound window of the remote side."""
        window = self.owner.window(self.remote.pd if pd is None else pd, kind)
        self._extra.append(window["id"])
        return window

    def give_up(self, what):
        """Destroys a region or window."""
        self.owner.drop(what["id"])
        self._extra.remove(what["id"])

    def bind(self, window, offset=PAGE, length=PAGE, access=REMOTE, region=None, key=1, status="SUCCESS", qp=None):
        """Binds a window to a part of the region. Returns its key.

        `key` is added to the low eight bits of the window's key.
        """
        rkey = window["rkey"] & ~0xFF | window["rkey"] + key & 0xFF
        region = self.region if region is None else region
        qp = self.qp if qp is None else qp
        found = self.owner.bind(qp, window["id"], region["id"], offset, length, access, rkey)
        self.done("bind", status)
        return found

    def invalidate(self, key, status="SUCCESS"):
        """Invalidates a key locally on the remote side."""
        self.owner.post_send(self.qp, [{"id": 1, "op": "local-inv", "sge": [], "key": key}])
        self.done("local-inv", status)

    def done(self, op, status):
        """Checks the next send completion of the remote side."""
        found = self.owner.poll(self.remote.send_cq, 1, 30)
        equal(f"completion of {op}", [wc["status"] for wc in found], [status])
        if status == "SUCCESS":
            equal("opcode", found[0]["op"], op)

    def write(self, rkey, offset=PAGE, length=64, seed=70, raddr=None):
        """Checks that the local side can WRITE through a window."""
        self.local.end.put(self.mine["id"], [[0, length]], seed)
        self.owner.expect(self.region["id"], [[offset, length]], seed, length)
        raddr = self.region["address"] + offset if raddr is None else raddr
        self.send("write", rkey=rkey, raddr=raddr, sge=[self.segment(length=length)])
        self.sent("SUCCESS")
        equal("the region", self.owner.verify(self.region["id"]), "")

    def denied(self, rkey, op="write", offset=PAGE, raddr=None):
        """Checks that the local side's access is refused and breaks the connection."""
        raddr = self.region["address"] + offset if raddr is None else raddr
        self.send(op, rkey=rkey, raddr=raddr, sge=[self.segment(length=64)])
        self.sent("REM_ACCESS_ERR")
        self.states("error", "error")


# Rights of a bound window


@case(each=TYPES)
def use(kind):
    """WRITE, READ and atomics through a window, up to its boundaries."""
    with Owner(bench) as t:
        rkey = t.bind(t.window(kind))
        t.write(rkey)
        t.write(rkey, 2 * PAGE - 64, 64, 71)
        t.local.end.expect(t.mine["id"], [[0, 64]], 71, 64)
        t.send("read", rkey=rkey, raddr=t.region["address"] + 2 * PAGE - 64)
        t.sent("SUCCESS")
        t.owner.put_number(t.region["id"], PAGE, 40)
        t.local.end.expect_number(t.mine["id"], 0, 40)
        t.owner.expect_number(t.region["id"], PAGE, 42)
        where = t.region["address"] + PAGE
        t.send("fetch-add", rkey=rkey, raddr=where, compare=2, sge=[t.segment(length=8)])
        t.sent("SUCCESS")


OUTSIDE = {"before": PAGE - 1, "across-the-end": 2 * PAGE - 63, "after": 2 * PAGE}


@case(each={f"{name}-{where}": (kind, OUTSIDE[where]) for name, kind in TYPES.items() for where in OUTSIDE})
def outside(what):
    """Access to the region outside the window."""
    kind, offset = what
    with Owner(bench) as t:
        t.denied(t.bind(t.window(kind)), offset=offset)


@case(each={f"{name}-{op}": (kind, op) for name, kind in TYPES.items() for op in ("write", "read")})
def right_missing(what):
    """Access through a window that lacks the right."""
    kind, op = what
    with Owner(bench) as t:
        others = tuple(right for right in REMOTE if right != f"remote-{op}")
        t.denied(t.bind(t.window(kind), access=others), op)


@case()
def zero_based():
    """The addresses of a zero-based window start at 0."""
    with Owner(bench) as t:
        rkey = t.bind(t.window(2), access=(*REMOTE, "zero-based"))
        t.write(rkey, PAGE + 128, raddr=128)
        t.denied(rkey)


# Ends of a window


@case(each=TYPES)
def never_bound(kind):
    """A window's key before it is bound."""
    with Owner(bench) as t:
        t.denied(t.window(kind)["rkey"])


@case(each=TYPES)
def deallocated(kind):
    """A deallocated window. Its region cannot be deregistered while the window exists."""
    with Owner(bench) as t:
        window = t.window(kind)
        rkey = t.bind(window)
        t.write(rkey)
        refused(errno.EBUSY, t.owner.deregister, t.region["id"])
        t.give_up(window)
        t.denied(rkey)


@case()
def unbound():
    """A type 1 window that was unbound by a zero-length bind, and bound again."""
    with Owner(bench) as t:
        window = t.window(1)
        first = t.bind(window)
        t.write(first)
        t.bind(window, length=0)
        second = t.bind(window, 2 * PAGE)
        t.write(second, 2 * PAGE)
        t.denied(first)


@case()
def rebound():
    """The old key of a type 1 window that was bound again (K-05)."""
    with Owner(bench) as t:
        window = t.window(1)
        first, second = t.bind(window), t.bind(window)
        require(first != second and first >> 8 == second >> 8, f"keys {first:#x} and {second:#x}")
        t.write(second)
        t.denied(first)


@case()
def consumers_bits():
    """The consumer chooses the low eight bits of a type 2 window's key (K-05); no other key is
    valid."""
    with Owner(bench) as t:
        window = t.window(2)
        first = t.bind(window, key=77)
        t.write(first)
        t.invalidate(first)
        second = t.bind(window, key=200)
        t.write(second)
        t.denied(first)


@case()
def index_of_another_window():
    """A work request that binds a type 2 window sets only the low eight bits of its key (K-05)."""
    with Owner(bench) as t:
        window, other = t.window(2), t.window(2)
        rkey = other["rkey"] & ~0xFF | 99
        t.owner.bind(t.qp, window["id"], t.region["id"], PAGE, PAGE, REMOTE, rkey)
        t.done("bind", "SUCCESS")
        t.write(window["rkey"] & ~0xFF | 99)
        t.denied(rkey)


@case()
def invalidated_locally():
    """Local invalidate of a type 2 window."""
    with Owner(bench) as t:
        rkey = t.bind(t.window(2))
        t.write(rkey)
        t.invalidate(rkey)
        t.denied(rkey)


@case()
def invalidated_twice():
    """An invalid type 2 window cannot be invalidated again (o10-37.2.26)."""
    with Owner(bench) as t:
        rkey = t.bind(t.window(2))
        t.invalidate(rkey)
        t.invalidate(rkey, "LOC_QP_OP_ERR")


@case()
def invalidated_by_peer():
    """SEND with invalidate: the key is invalid before the completion that reports it (G-22)."""
    with Owner(bench) as t:
        rkey = t.bind(t.window(2))
        t.write(rkey)
        t.receive()
        t.owner.expect(t.theirs["id"], [[4096, 64]], 70, 64)
        t.local.end.post_send(t.local.qp["id"], [{"id": 1, "op": "send-inv", "sge": [t.segment()], "key": rkey}])
        t.sent("SUCCESS")
        (done,) = t.owner.poll(t.remote.recv_cq, 1, 30)
        equal("completion", (done["id"], done["status"], done["inv"]), (100, "SUCCESS", rkey))
        t.denied(rkey)


# Keys that must not be invalidated


@case(each={"region": 0, "type1": 1, "unknown": None})
def not_invalidatable_locally(kind):
    """A local invalidate of the wrong kind of key fails, and the key stays valid (K-08)."""
    with Owner(bench) as t:
        key = _key_of(t, kind)
        t.invalidate(key, "LOC_QP_OP_ERR")
        t.states("rts", "error")
        if kind == 0:
            _read_with_key_of(t, key)


@case(each={"region": 0, "type1": 1, "unknown": None})
def not_invalidatable_by_peer(kind):
    """SEND with invalidate of the wrong kind of key fails the receiver without a NAK (G-22).

    The sender's retries run out.
    """
    with Owner(bench, rts={"timeout": 10, "retry": 1}) as t:
        key = _key_of(t, kind)
        t.receive()
        t.local.end.post_send(t.local.qp["id"], [{"id": 1, "op": "send-inv", "sge": [], "key": key}])
        t.sent("RETRY_EXC_ERR")
        t.states("error", "error")
        (done,) = t.owner.poll(t.remote.recv_cq, 1, 30)
        require(done["status"] != "SUCCESS", "the receive succeeded")
        if kind == 0:
            _read_with_key_of(t, key)


def _key_of(t, kind):
    if kind == 0:
        return t.theirs["rkey"]
    return t.bind(t.window(1)) if kind else t.theirs["rkey"] ^ 0x5A00


def _second_pair(t, access=None):
    """Creates another connection in the same protection domains."""
    pair = []
    for side in (t.local, t.remote):
        pair.append(side.end.qp("rc", side.pd, side.send_cq, side.recv_cq, extended=True))
    for side, mine, other, theirs in ((t.local, pair[0], t.remote, pair[1]), (t.remote, pair[1], t.local, pair[0])):
        side.end.to_init(mine["id"])
        side.end.to_rtr(mine["id"], gid=other.info["gid"], qpn=theirs["qpn"])
        side.end.to_rts(mine["id"])
    return pair


def _read_with_key_of(t, key):
    """Checks that the remote region's key still works, over another connection."""
    local, remote = _second_pair(t)
    end = t.local.end
    request = {"id": 7, "op": "read", "sge": [t.segment()], "rkey": key, "raddr": t.theirs["address"]}
    end.post_send(local["id"], [request])
    (done,) = end.poll(t.local.send_cq, 1, 30)
    equal("READ by the key", (done["id"], done["status"]), (7, "SUCCESS"))
    end.accept(t.mine["id"], [[0, 64]], 64)
    end.drop(local["id"])
    t.owner.drop(remote["id"])


# Queue pairs of a window


@case(each=TYPES)
def other_queue_pair(kind):
    """A type 1 window is valid for all queue pairs of its domain (K-06).

    A type 2B window is valid only for the queue pair that it was bound on.
    """
    with Owner(bench) as t:
        rkey = t.bind(t.window(kind))
        local, remote = _second_pair(t)
        end = t.local.end
        if kind == 1:
            end.put(t.mine["id"], [[0, 64]], 5)
            t.owner.expect(t.region["id"], [[PAGE, 64]], 5, 64)
        request = {"id": 7, "op": "write", "sge": [t.segment()], "rkey": rkey, "raddr": t.region["address"] + PAGE}
        end.post_send(local["id"], [request])
        (done,) = end.poll(t.local.send_cq, 1, 30)
        equal("WRITE by another", done["status"], "SUCCESS" if kind == 1 else "REM_ACCESS_ERR")
        end.drop(local["id"])
        t.owner.drop(remote["id"])
        t.write(rkey)


# Bindings that must be refused


def _fails(t, *arguments, **how):
    t.bind(*arguments, status="MW_BIND_ERR", **how)
    t.states("rts", "error")


RANGES = {"before": (-1, PAGE), "across-the-end": (SIZE - PAGE + 1, PAGE), "after": (SIZE, 1), "huge": (0, 2**64 - 1)}


@case(each={f"{name}-{where}": (kind, RANGES[where]) for name, kind in TYPES.items() for where in RANGES})
def bind_outside(what):
    """A window to memory outside the region."""
    kind, (offset, length) = what
    with Owner(bench) as t:
        _fails(t, t.window(kind), offset=offset, length=length)


@case(each=TYPES)
def bind_without_right(kind):
    """A region that was not registered for windows."""
    with Owner(bench) as t:
        _fails(t, t.window(kind), region=t.memory(("local-write", "remote-write", "remote-read")))


@case(each=TYPES)
def bind_more_than_region(kind):
    """A window with write access to a region without it."""
    with Owner(bench) as t:
        _fails(t, t.window(kind), region=t.memory(("mw-bind",)))


@case(each=TYPES)
def bind_region_of_other_domain(kind):
    """The region must belong to the queue pair's protection domain."""
    with Owner(bench) as t:
        pd = t.owner.pd()
        region = t.memory(pd=pd)
        if kind == 2:
            _fails(t, t.window(kind), region=region)
        else:
            refused(errno.EPERM, t.bind, t.window(kind), region=region)
        t.give_up(region)
        t.owner.drop(pd)


@case()
def bind_window_of_other_domain():
    """The window must belong to the queue pair's protection domain."""
    with Owner(bench) as t:
        pd = t.owner.pd()
        window = t.window(2, pd)
        _fails(t, window)
        t.give_up(window)
        t.owner.drop(pd)


@case()
def bind_twice():
    """A type 2 window must be invalidated before it is bound again."""
    with Owner(bench) as t:
        window = t.window(2)
        t.bind(window)
        _fails(t, window, key=2)


@case()
def bind_to_nothing():
    """A type 2 window is unbound only by invalidation, not by a zero-length bind."""
    with Owner(bench) as t:
        _fails(t, t.window(2), length=0)


# Reregistration

ALL = ("local-write", *REMOTE, "mw-bind")
READABLE = ("local-write", "remote-read", "mw-bind")


class Change(Owner):
    """An owner whose region is reregistered."""

    def __init__(self, access):
        super().__init__(bench)
        self._rights = access

    def memory(self, access=None, pd=None):
        return super().memory(self._rights if access is None else access, pd)

    def change(self, keys="same", **how):
        """Reregisters the region and checks whether its keys change. Returns the old region."""
        before = self.region
        self.region, left = self.owner.reregister(before["id"], **how)
        equal("the memory that was the region's", left, "")
        same = [self.region[key] == before[key] for key in ("lkey", "rkey")]
        require(same == [keys == "same"] * 2, f"keys {before} became {self.region}")
        return before

    def works(self, seed=70):
        """Checks that the peer can write and read by the region's key."""
        self.write(self.region["rkey"], seed=seed)
        self.reads(seed)

    def reads(self, seed):
        """Checks that the peer reads the data that was written with this seed."""
        self.local.end.put(self.mine["id"], [[0, 64]], 1)
        self.local.end.expect(self.mine["id"], [[0, 64]], seed, 64)
        self.send("read", rkey=self.region["rkey"], raddr=self.region["address"] + PAGE)
        self.sent("SUCCESS")


@case()
def fewer_rights():
    """A region whose write access was removed can still be read."""
    with Change(ALL) as t:
        t.works()
        t.change(access=READABLE)
        t.reads(70)
        t.denied(t.region["rkey"])


@case()
def more_rights():
    """A region to which write access was added."""
    with Change(READABLE) as t:
        t.change(access=ALL)
        t.works()


@case()
def write_access_after_read_only():
    """Write access is added to memory that was pinned read-only.

    The program's own page is written to, not one that it was a copy of.
    """
    with Change(("remote-read",)) as t:
        before = t.change(keys="new", access=ALL)
        t.works()
        t.denied(before["rkey"])


@case()
def other_domain():
    """A region moved to another domain and back; only queue pairs of its domain can use it."""
    with Change(ALL) as t:
        pd = t.owner.pd()
        t.works()
        t.change(pd=pd)
        t.change(pd=t.remote.pd)
        t.works(71)
        t.change(pd=pd)
        t.denied(t.region["rkey"])
        t.change(pd=t.remote.pd)
        t.owner.drop(pd)


@case(each={"larger": 3 * SIZE, "smaller": 2 * PAGE})
def other_memory(size):
    """A region moved to other memory gets new keys, and the old ones give no access."""
    with Change(ALL) as t:
        t.works()
        before = t.change(keys="new", size=size, seed=31)
        t.works(71)
        t.write(t.region["rkey"], size - 64, 64, 72)
        t.denied(before["rkey"], raddr=before["address"] + PAGE)


@case()
def all_at_once():
    """Memory, domain and rights change in one call."""
    with Change(("local-write",)) as t:
        pd = t.owner.pd()
        t.change(pd=pd)
        t.change(keys="new", pd=t.remote.pd, access=ALL, size=SIZE, seed=33)
        t.owner.drop(pd)
        t.works()


@case()
def outside_of_other_memory():
    """Access beyond the end of a region's new memory."""
    with Change(ALL) as t:
        t.change(keys="new", size=PAGE + 64, seed=32)
        t.works()
        t.denied(t.region["rkey"], offset=PAGE + 1)


@case(each=TYPES)
def change_with_window(kind):
    """A region with a bound window cannot be changed (IBA 11.2.8.6).

    A changed region can have windows.
    """
    with Change(ALL) as t:
        window = t.window(kind)
        rkey = t.bind(window)
        for how in ({"access": READABLE}, {"pd": t.remote.pd, "access": ALL}, {"size": SIZE}):
            refused(errno.EBUSY, t.owner.reregister, t.region["id"], **how)
        t.write(rkey)
        t.give_up(window)
        t.change(access=READABLE)
        t.change(keys="new", access=ALL, size=SIZE, seed=34)
        t.write(t.bind(t.window(kind)), seed=71)


@case()
def change_refused():
    """An invalid change is refused, and the region stays as it was."""
    with Change(ALL) as t:
        number, page = t.region["id"], t.owner.read_only_page()
        # Remote write access requires local write access (ib_core).
        refused(errno.EINVAL, t.owner.reregister, number, access=("remote-write",))
        refused(errno.EOPNOTSUPP, t.owner.reregister, number, access=("local-write", "flush-persistent"))
        refused(errno.EFAULT, t.owner.reregister_at, number, page, PAGE)
        refused(errno.EFAULT, t.owner.reregister_at, number, 4096, PAGE)
        refused(errno.EINVAL, t.owner.reregister_at, number, t.region["address"], 0)
        refused(errno.EINVAL, t.owner.reregister, number)
        t.works()
        t.write(t.bind(t.window(1)))


def empty(t):
    """Registers an empty region of the remote side."""
    region = t.owner.memory_again(t.region["id"], t.remote.pd, length=0)
    t._extra.append(region["id"])
    return region


@case()
def empty_region():
    """A region of length 0 permits operations of length 0, and no other ones."""
    with Owner(bench) as t:
        region, address = empty(t), t.region["address"]
        for op in ("write", "read"):
            t.send(op, rkey=region["rkey"], raddr=address, sge=[])
            t.sent("SUCCESS")
        t.send("write", side=t.remote, sge=[[address, 0, region["lkey"]]])
        t.sent("SUCCESS", side=t.remote)
        t.denied(region["rkey"], raddr=address)


@case()
def empty_region_changed():
    """A region of length 0 that gets memory gets new keys."""
    with Owner(bench) as t:
        before = empty(t)
        now = t.owner.reregister_at(before["id"], t.region["address"] + PAGE, PAGE)
        require(now["rkey"] != before["rkey"], f"the key is still {now['rkey']:#x}")
        t.write(now["rkey"])
        t.denied(before["rkey"])


@case()
def change_while_used():
    """Changes of access rights do not disturb requests that do not need them."""
    with Change(ALL) as t:
        t.works()
        rounds, lot = 20, 16
        request = {"op": "read", "sge": [t.segment()], "rkey": t.region["rkey"], "raddr": t.region["address"] + PAGE}
        for number in range(rounds):
            t.local.end.post_send(t.local.qp["id"], [{"id": at, **request} for at in range(lot)])
            t.change(access=ALL if number % 2 else READABLE)
            found = t.local.end.poll(t.local.send_cq, lot, 30)
            equal("READs", [wc["status"] for wc in found], ["SUCCESS"] * lot)
        t.works(71)


# Consecutive objects: fewer than the reuse distance of a number.
TURNS = 500


def numbers(end, pd, cq, kind):
    """Creates and destroys an object. Returns its number, without the variable byte of a key."""
    if kind == "queue-pairs":
        made = end.qp("rc", pd, cq)
        number = made["qpn"]
    elif kind == "regions":
        made = end.memory(pd, PAGE)
        number = made["rkey"] >> 8
    else:
        made = end.window(pd, 1)
        number = made["rkey"] >> 8
    end.drop(made["id"])
    return number


@case(each={kind: kind for kind in ("queue-pairs", "regions", "windows")})
def delayed_reuse(kind):
    """The QPN or key of a destroyed object is reused only after many allocations.

    A late packet, or a peer's old key, thus refers to no object.
    """
    import endpoint  # only a guest has verbs

    here, end = bed.here, endpoint.Endpoint()
    end.open(here.device, here.address, here.driver)
    try:
        pd, cq = end.pd(), end.cq()
        found = [numbers(end, pd, cq, kind) for _ in range(TURNS)]
        equal("different numbers", len(set(found)), TURNS)
    finally:
        end.leave()


def run():
    """Runs the suite."""
    return bed.run()
