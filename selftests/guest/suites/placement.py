# SPDX-License-Identifier: GPL-2.0
"""The memory placement extensions (IBA A19): FLUSH and ATOMIC WRITE, with every byte compared."""

import errno

import data_cases
import harness
import testbed
from harness import Skip, case, equal, require
from programs import both_roles
from traffic import GLOBAL, RANGE, REGION
from trial import refused

bed = testbed.Bed()

PERSISTENT = 2  # enum ib_placement_type
SIZE = 256 * 1024
DEPTH = 64
RIGHTS = ("local-write", "remote-write", "remote-read", "remote-atomic", "flush-global")
TIMEOUT = 60

ends = data_cases.Ends(bed.endpoints)


class Target:
    """A region of the server, and a connection to it, which a refused request breaks."""

    def __init__(self, server, rights=RIGHTS, qp_rights=(*RIGHTS, "flush-persistent")):
        self._server = server
        self._rights = rights
        self._qp_rights = qp_rights

    def __enter__(self):
        here, peer = ends.get()
        (self.end, info), (self.remote, remote_info) = (peer, here) if self._server is bed.here else (here, peer)
        self.made = []
        for end in (self.end, self.remote):
            pd, cq = end.pd(), end.cq(2 * DEPTH)
            qp = end.qp("rc", pd, cq, extended=True, send_wr=DEPTH, placement=True)
            self.made.append((end, pd, cq, qp))
        (_, pd, self.cq, self.qp), (_, remote_pd, _, remote_qp) = self.made
        self.source = self.end.memory(pd, SIZE, seed=1)
        self.memory = self.remote.memory(remote_pd, SIZE, access=self._rights, seed=2)
        for end, qp, other, other_info in (
            (self.end, self.qp, remote_qp, remote_info),
            (self.remote, remote_qp, self.qp, info),
        ):
            end.to_init(qp["id"], access=self._qp_rights)
            end.to_rtr(qp["id"], gid=other_info["gid"], qpn=other["qpn"], psn=0xFFFFF0)
            end.to_rts(qp["id"], psn=0xFFFFF0)
        return self

    def __exit__(self, kind, value, trace):
        if kind is not None:
            ends.abandon()
            return
        for end, pd, cq, qp in self.made:
            memory = self.source if end is self.end else self.memory
            end.drop(qp["id"], memory["id"], cq, pd)

    def request(self, op, offset=0, **more):
        """Returns a request that targets `offset` of the region."""
        request = {"op": op, "rkey": self.memory["rkey"], "raddr": self.memory["address"] + offset, **more}
        return {"sge": [], "flags": ["signaled"], **request}

    @property
    def flushes(self):
        """Whether FLUSH works between these drivers.

        rdma_rxe (7.2) includes the headers of a FLUSH twice in its ICRC. It therefore accepts only
        its own FLUSHes, and others do not accept those (docs/conformance-notes.md).
        """
        drivers = [info["driver"] for _, info in ends.get()]
        return drivers.count("rdma_rxe") != 1

    def flush(self, offset=0, length=SIZE, placement=GLOBAL, level=RANGE, **more):
        """Returns a FLUSH."""
        return self.request("flush", offset, length=length, placement=placement, level=level, **more)

    def atomic_write(self, offset, value, **more):
        """Returns an ATOMIC WRITE of a number."""
        return self.request("atomic-write", offset, value=value.to_bytes(8, "little").hex(), **more)

    def write(self, offset, length, seed):
        """Returns a WRITE of the data of `seed`, from the same offset of the local region."""
        self.end.put(self.source["id"], [[offset, length]], seed)
        self.remote.expect(self.memory["id"], [[offset, length]], seed, length)
        segment = [self.source["address"] + offset, length, self.source["lkey"]]
        return self.request("write", offset, sge=[segment], one_segment=True)

    def run(self, requests, *wanted):
        """Posts the requests together, and checks the statuses (by default all successful)."""
        for number, request in enumerate(requests):
            request["id"] = number
        self.end.post_send(self.qp["id"], requests)
        found = self.end.poll(self.cq, len(requests), TIMEOUT * harness.slowness())
        equal("statuses", [wc["status"] for wc in found], list(wanted) or ["SUCCESS"] * len(requests))
        equal("order", [wc["id"] for wc in found], list(range(len(requests))))
        for wc, request in zip(found, requests):
            if wc["status"] == "SUCCESS":
                equal("opcode", wc["op"], request["op"])

    def verify(self):
        """Checks that only the expected bytes have changed."""
        found = self.remote.verify(self.memory["id"])
        require(not found, found)


def need_flush(target):
    """Skips the case if FLUSH does not work between these drivers."""
    if not target.flushes:
        raise Skip("rdma_rxe's ICRC of a FLUSH is wrong")


@both_roles(bed, timeout=300)
def flush_of_ranges(server, _client):
    """WRITEs and FLUSHes of many ranges, including empty ones and the whole region."""
    rng = data_cases.seeded("flush")
    with Target(server) as target:
        need_flush(target)
        for length in (0, 1, 8, 1023, 1024, 1025, 4096, 65537):
            offset = rng.randrange(SIZE - length)
            requests = [target.write(offset, length, rng.getrandbits(40)), target.flush(offset, length)]
            target.run(requests)
            target.verify()
        target.run([target.flush(0, SIZE)])
        target.verify()


@both_roles(bed, timeout=300)
def flush_of_the_region(server, _client):
    """A FLUSH of the whole region ignores its range."""
    with Target(server) as target:
        need_flush(target)
        for offset, length in ((0, 0), (0, SIZE), (12345, 0), (SIZE, 12345678)):
            target.run([target.write(100, 5000, offset + length), target.flush(offset, length, level=REGION)])
        target.verify()


@both_roles(bed, timeout=300)
def atomic_writes(server, _client):
    """ATOMIC WRITEs of eight bytes in memory order, at aligned addresses."""
    rng = data_cases.seeded("atomic-write")
    with Target(server) as target:
        for _ in range(8):
            requests = []
            for _ in range(32):
                offset, value = 8 * rng.randrange(SIZE // 8), rng.getrandbits(64)
                target.remote.expect_number(target.memory["id"], offset, value)
                requests.append(target.atomic_write(offset, value))
            target.run(requests)
            target.verify()


@both_roles(bed, timeout=300)
def interleaved(server, _client):
    """WRITEs, ATOMIC WRITEs and FLUSHes to the same bytes, in order, with many in flight."""
    rng = data_cases.seeded("interleaved")
    with Target(server) as target:
        for _ in range(10):
            requests = []
            for _ in range(40):
                kind = rng.randrange(3)
                # Many requests target the same place, and the last must win. Each has a source of
                # its own, because data is read when it is sent.
                offset = 8 * rng.randrange(64)
                if kind == 0:
                    value = rng.getrandbits(64)
                    target.remote.expect_number(target.memory["id"], offset, value)
                    requests.append(target.atomic_write(offset, value))
                elif kind == 1 and target.flushes:
                    requests.append(target.flush(offset, 8, level=rng.choice((RANGE, REGION))))
                else:
                    seed, place = rng.getrandbits(40), 4096 + 64 * len(requests)
                    length = rng.randrange(1, 64)
                    target.end.put(target.source["id"], [[place, length]], seed)
                    target.remote.expect(target.memory["id"], [[offset, length]], seed, length)
                    segment = [target.source["address"] + place, length, target.source["lkey"]]
                    requests.append(target.request("write", offset, sge=[segment], one_segment=True))
            target.run(requests)
            target.verify()


# Requests that the server must refuse: rights of the region and of the queue pair, request, status.
REFUSED = {
    "region-without-flush": (
        ("local-write", "remote-write"),
        RIGHTS,
        lambda t: t.flush(0, 64),
        "REM_ACCESS_ERR",
    ),
    "region-not-persistent": (
        RIGHTS,
        (*RIGHTS, "flush-persistent"),
        lambda t: t.flush(0, 64, placement=PERSISTENT),
        "REM_ACCESS_ERR",
    ),
    "queue-pair-without-flush": (
        RIGHTS,
        ("local-write", "remote-write"),
        lambda t: t.flush(0, 64),
        "REM_INV_REQ_ERR",
    ),
    "queue-pair-not-persistent": (
        RIGHTS,
        RIGHTS,
        lambda t: t.flush(0, 64, placement=PERSISTENT | GLOBAL),
        "REM_INV_REQ_ERR",
    ),
    "flush-beyond-the-end": (RIGHTS, RIGHTS, lambda t: t.flush(SIZE - 8, 9), "REM_ACCESS_ERR"),
    "flush-with-a-wrong-key": (RIGHTS, RIGHTS, lambda t: t.flush(0, 8, rkey=0x5A5A5A), "REM_ACCESS_ERR"),
    "write-not-aligned": (RIGHTS, RIGHTS, lambda t: t.atomic_write(4, 1), "REM_INV_REQ_ERR"),
    "write-beyond-the-end": (RIGHTS, RIGHTS, lambda t: t.atomic_write(SIZE, 1), "REM_ACCESS_ERR"),
    "write-to-read-only": (
        ("local-write", "remote-read"),
        RIGHTS,
        lambda t: t.atomic_write(0, 1),
        "REM_ACCESS_ERR",
    ),
    "queue-pair-without-write": (
        RIGHTS,
        ("local-write", "remote-atomic"),
        lambda t: t.atomic_write(0, 1),
        "REM_INV_REQ_ERR",
    ),
}


@both_roles(bed, each=REFUSED, timeout=120)
def refuses(server, _client, what):
    """A refused request writes nothing, and its queue pair fails with the right status."""
    rights, qp_rights, make, status = what
    with Target(server, rights, qp_rights) as target:
        request = make(target)
        if request["op"] == "flush":
            need_flush(target)
        target.run([request, target.atomic_write(64, 8)], status, "WR_FLUSH_ERR")
        target.verify()


@case(timeout=60)
def no_persistent_regions():
    """Ordinary memory is not persistent, so no region of it may be registered as such."""
    end, info = ends.get()[0]
    if info["driver"] != "rrxe":
        raise Skip("of rrxe only")
    pd = end.pd()
    try:
        address = end.memory(pd, 4096)["address"]
        rights = ["local-write", "remote-write", "flush-persistent"]
        refused(errno.EOPNOTSUPP, end.register, pd, address, 4096, rights)
        end.register(pd, address, 4096, ["local-write", "remote-write", "flush-global"])
    finally:
        ends.abandon()


def run():
    """Runs the suite."""
    return bed.run()
