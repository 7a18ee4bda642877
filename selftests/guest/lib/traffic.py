# SPDX-License-Identifier: GPL-2.0
"""Work requests of every kind between two endpoints, with every byte of both memories compared.

A `Side` is an endpoint with a queue pair, two completion queues and two regions: a small one for
many requests at a time, and one that holds the longest message. A `Batch` plans requests whose
ranges do not overlap, tells both sides the expected results, posts the requests, and compares
completions and memories. All random choices come from one generator, so a seed reproduces a run.
"""

import contextlib

import harness
from harness import Failure, equal, require

SMALL = 512 * 1024
LONGEST = 8 * 1024 * 1024
LARGE = 2 * LONGEST + 64 * 1024  # one to send and one to receive

GRH = 40  # bytes before a datagram's payload
# Overhead of a datagram without immediate: IPv4 and UDP headers, BTH, DETH, ICRC.
AROUND = 20 + 8 + 12 + 8 + 4
GLOBAL = 1  # enum ib_placement_type
RANGE, REGION = 0, 1  # enum ib_selectivity_level
MAX_SGE = 16
INLINE = 256
DEPTH = 32

OPS = ("send", "send-imm", "write", "write-imm", "read", "cmp-swap", "fetch-add")
RECEIVED = {"send": "recv", "send-imm": "recv", "send-inv": "recv", "write-imm": "recv-write-imm"}
# Completion opcodes of requests that complete under another name.
COMPLETES_AS = {"send-imm": "send", "send-inv": "send", "write-imm": "write"}

ACCESS = ("local-write", "remote-write", "remote-read", "remote-atomic")


class Side:
    """One end of a connection.

    If it is `complete` (and `extended`), it also supports FLUSH and ATOMIC WRITE, and its region
    may have windows. `flags` are further access flags of its regions. It is in the protection
    domain `pd` of the endpoint, or in a new one.
    """

    def __init__(self, endpoint, info, kind, extended, depth=DEPTH, complete=False, flags=(), pd=None):
        self.end = endpoint
        self.info = info
        self.name = f"{info['device']}@{info['address']}"
        self.kind = kind
        self.access = ACCESS + (("flush-global",) if complete else ())
        self.pd = endpoint.pd() if pd is None else pd
        self.send_cq = endpoint.cq(2 * depth, extended)
        self.recv_cq = endpoint.cq(2 * depth, extended)
        self.qp = endpoint.qp(
            kind,
            self.pd,
            self.send_cq,
            self.recv_cq,
            extended=extended,
            send_wr=depth,
            recv_wr=depth,
            sge=MAX_SGE,
            inline=INLINE,
            placement=complete,
        )
        require(self.qp["inline"] >= INLINE, f"{self.name}: inline of {self.qp['inline']}, asked for {INLINE}")
        self._flags = flags
        self.small = endpoint.memory(self.pd, SMALL, self.access + (("mw-bind",) if complete else ()) + flags, 1)
        self._large = None

    @property
    def large(self):
        """The region for the longest messages, created on first use."""
        if self._large is None:
            self._large = self.end.memory(self.pd, LARGE, ACCESS + self._flags, seed=2)
        return self._large

    def region(self, large):
        """Returns the large or the small region."""
        return self.large if large else self.small

    def destroy(self):
        """Destroys everything but the endpoint."""
        regions = [self.small["id"]] + ([self._large["id"]] if self._large else [])
        self.end.drop(self.qp["id"], *regions, self.send_cq, self.recv_cq, self.pd)


def connect(left, right, mtu, rng, address=None, **sending):
    """Brings both queue pairs to Ready to Send, with initial PSNs that soon wrap.

    `address` holds "sl" and "traffic_class" of the left one's address if they are not 0, and
    `sending` further arguments of `to_rts`.
    """
    for one in (left, right):
        one.end.to_init(one.qp["id"], one.kind, one.access)
    numbers = {id(one): 0xFFFFFF - rng.randrange(200) for one in (left, right)}
    for one, other in ((left, right), (right, left)):
        more = address or {} if one is left else {}
        one.end.to_rtr(
            one.qp["id"], one.kind, gid=other.info["gid"], qpn=other.qp["qpn"], psn=numbers[id(other)], mtu=mtu, **more
        )
        one.end.to_rts(one.qp["id"], one.kind, psn=numbers[id(one)], **sending)


@contextlib.contextmanager
def connection(hosts, rng, mtu=1024, version=4, kind="rc", extended=False, apart=()):
    """Yields the two sides of a connection between one program on each of `hosts`.

    The hosts may be the same. The connection is reliable unless `kind` says otherwise. `extended`
    sides post all requests of a batch in one call; those of rdma_rxe never do. The sides whose
    indices are in `apart` run in processes of their own.
    """
    import endpoint  # only a guest has verbs

    kinds = [endpoint.Apart if index in apart else endpoint.Endpoint for index in range(len(hosts))]
    ends = [kind() for kind in kinds]
    try:
        sides = []
        for host, end in zip(hosts, ends):
            info = end.open(host.device, host.address if version == 4 else host.address6, host.driver)
            sides.append(Side(end, info, kind, extended and host.driver != "rdma_rxe"))
        connect(*sides, mtu, rng)
        yield sides
    finally:
        for end in ends:
            with contextlib.suppress(Exception):
                end.leave()


class _Room:
    """Allocates ranges of a region that do not overlap, with gaps that nothing may write to."""

    def __init__(self, region, rng):
        self._at = 0
        self._size = region["size"]
        self._rng = rng

    def take(self, length, align=1):
        at = self._at + self._rng.randrange(1, 90)
        at += -at % align
        if at + length > self._size:
            raise Failure(f"test error: the region is too small for {length} more bytes")
        self._at = at + length
        return [at, length]

    def scatter(self, length, pieces):
        """Returns `length` bytes as `pieces` ranges, in any order, some of them empty."""
        cuts = sorted(self._rng.randrange(length + 1) for _ in range(pieces - 1))
        sizes = [end - start for start, end in zip([0, *cuts], [*cuts, length])]
        order = list(range(pieces))
        self._rng.shuffle(order)
        taken = {piece: self.take(sizes[piece]) for piece in order}
        return [taken[piece] for piece in range(pieces)]


def _segments(region, ranges, key=None):
    return [[region["address"] + at, length, region["lkey"] if key is None else key] for at, length in ranges]


def _split(ranges, length):
    """Splits the ranges into the first `length` bytes and the rest."""
    head, tail = [], []
    for at, size in ranges:
        take = min(size, length)
        if take:
            head.append([at, take])
        if size > take:
            tail.append([at + take, size - take])
        length -= take
    return head, tail


class Batch:
    """Requests of both sides that are in flight together."""

    def __init__(self, rng, left, right, large=False, flags=()):
        self._rng = rng
        self._sides = (left, right)
        self._large = large
        self._flags = flags
        self._rooms = {id(side): _Room(side.region(large), rng) for side in self._sides}
        # For each side: calls before posting, the requests, and the expected results.
        self._before = {id(side): [] for side in self._sides}
        self._after = {id(side): [] for side in self._sides}
        self._sends = {id(side): [] for side in self._sides}
        self._recvs = {id(side): [] for side in self._sides}
        self._sent = {id(side): [] for side in self._sides}
        self._received = {id(side): [] for side in self._sides}
        self._wanted = {}
        self._checks = []
        self._numbers = {}

    def _other(self, side):
        return self._sides[1] if side is self._sides[0] else self._sides[0]

    def _pieces(self, maximum=MAX_SGE):
        return self._rng.choice((1, 1, 1, 2, 3, self._rng.randint(1, maximum), maximum))

    def _call(self, when, side, what, *arguments):
        when[id(side)].append([what, arguments])

    def add(self, side, op, length=0, inline=False, address_handle=None, key=None):
        """Plans a request of `side`. `key` is a key of the other side, for SEND with invalidate."""
        rng, other = self._rng, self._other(side)
        mine, theirs = side.region(self._large), other.region(self._large)
        room, peer_room = self._rooms[id(side)], self._rooms[id(other)]
        seed = rng.getrandbits(40)
        number = len(self._sends[id(side)]) + 1000 * (1 + self._sides.index(side))
        flags = [flag for flag in ("fence", "solicited") if rng.random() < 0.15] + list(self._flags)
        if "fence" in flags and (side.kind != "rc" or side.info["driver"] == "rdma_rxe"):
            flags.remove("fence")  # rdma_rxe (7.2) may hang in a fenced READ of many packets
        if inline:
            flags.append("inline")
        request = {"id": number, "op": op, "flags": flags, "imm": rng.getrandbits(32)}
        if op in ("cmp-swap", "fetch-add"):
            length = 8
            self._add_atomic(side, other, request)
        elif op == "atomic-write":
            target, value = peer_room.take(8, align=8)[0], rng.getrandbits(64)
            self._call(self._after, other, "expect_number", theirs["id"], target, value)
            request.update(sge=[], value=value.to_bytes(8, "little").hex())
            request.update(rkey=theirs["rkey"], raddr=theirs["address"] + target)
        elif op == "flush":
            # FLUSH of a range or of the whole region. It changes no memory.
            start = rng.randrange(theirs["size"] - length)
            request.update(sge=[], length=length, placement=GLOBAL, level=rng.choice((RANGE, REGION)))
            request.update(rkey=theirs["rkey"], raddr=theirs["address"] + start)
        else:
            local = room.scatter(length, self._pieces())
            # An inline payload is copied during the call, so it needs no key.
            request["sge"] = _segments(mine, local, 0xDEAD if inline else None)
            if op == "read":
                remote = peer_room.take(length)
                self._call(self._before, other, "put", theirs["id"], [remote], seed)
                self._call(self._after, side, "expect", mine["id"], local, seed, length)
            else:
                self._call(self._before, side, "put", mine["id"], local, seed)
                if op.startswith("write"):
                    remote = peer_room.take(length)
                    self._call(self._after, other, "expect", theirs["id"], [remote], seed, length)
            if op in ("read", "write", "write-imm"):
                request["rkey"] = theirs["rkey"]
                request["raddr"] = theirs["address"] + remote[0]
        if op == "send-inv":
            request["key"] = key
        if op in RECEIVED:
            self._add_receive(side, other, request, length, seed)
        if address_handle is not None:
            request["ah"] = address_handle
            request["qpn"] = other.qp["qpn"]
        self._sends[id(side)].append(request)
        self._sent[id(side)].append((number, op, length))

    def _add_receive(self, side, other, request, length, seed):
        rng, theirs = self._rng, other.region(self._large)
        header = GRH if side.kind == "ud" else 0
        number = 5000 + len(self._recvs[id(other)])
        if request["op"] == "write-imm":
            # WRITE with immediate consumes a receive and writes nothing to its buffer.
            ranges = self._rooms[id(other)].scatter(24, self._pieces()) if rng.random() < 0.5 else []
        else:
            room = length + header + rng.choice((0, 0, 1, 17))
            ranges = self._rooms[id(other)].scatter(room, self._pieces())
        self._recvs[id(other)].append({"id": number, "sge": _segments(theirs, ranges)})
        if request["op"] != "write-imm":
            head, tail = _split(ranges, header)
            if header:
                immediate = 4 if request["op"] == "send-imm" else 0
                self._checks.append((side, other, theirs["id"], head, AROUND + immediate + length + -length % 4))
            self._call(self._after, other, "expect", theirs["id"], tail, seed, length)
        self._received[id(other)].append(
            {
                "id": number,
                "status": "SUCCESS",
                "op": RECEIVED[request["op"]],
                "len": length + header,
                "qpn": other.qp["qpn"],
                "imm": request["imm"] if request["op"].endswith("imm") else None,
                "inv": request.get("key"),
            }
        )

    def _add_atomic(self, side, other, request):
        """Plans an atomic on a number that earlier requests of the batch may have changed."""
        rng, mine, theirs = self._rng, side.region(self._large), other.region(self._large)
        key = id(other)
        if key not in self._numbers or rng.random() < 0.3:
            target = self._rooms[key].take(8, align=8)[0]
            value = rng.choice((0, 1, 2**64 - 1, rng.getrandbits(64)))
            self._call(self._before, other, "put_number", theirs["id"], target, value)
            self._numbers[key] = [target, value]
        target, value = self._numbers[key]
        result = self._rooms[id(side)].take(8)[0]
        operand = value if request["op"] == "cmp-swap" and rng.random() < 0.6 else rng.getrandbits(64)
        swap = rng.getrandbits(64)
        if request["op"] == "fetch-add":
            changed = (value + operand) % 2**64
        else:
            changed = swap if operand == value else value
        self._numbers[key][1] = changed
        self._call(self._after, side, "expect_number", mine["id"], result, value)
        self._call(self._after, other, "expect_number", theirs["id"], target, changed)
        request.update(
            sge=_segments(mine, [[result, 8]]),
            rkey=theirs["rkey"],
            raddr=theirs["address"] + target,
            compare=operand,
            swap=swap,
        )

    def _signal(self, side):
        """Requests a completion for the last request, and for others at random."""
        requests = self._sends[id(side)]
        wanted = []
        for request, sent in zip(requests, self._sent[id(side)]):
            if request is requests[-1] or self._rng.random() < 0.6:
                request["flags"].append("signaled")
                wanted.append(sent)
        return wanted

    def run(self):
        """Posts everything and compares the results."""
        self.post()
        self.check()

    def post(self):
        """Tells both sides the expected results, and posts everything."""
        self.prepare()
        self.send()

    def prepare(self):
        """Tells both sides the expected results, and posts the receives."""
        for side in self._sides:
            calls = self._before[id(side)]
            calls.append(["post_recv", [side.qp["id"], self._recvs[id(side)]]])
            side.end.do(calls)

    def send(self):
        """Posts the requests."""
        self._wanted = {id(side): self._signal(side) for side in self._sides}
        try:
            for side in self._sides:
                if self._sends[id(side)]:
                    side.end.post_send(side.qp["id"], self._sends[id(side)])
        except Exception:
            self._describe()
            raise

    def check(self):
        """Compares completions and memories."""
        try:
            for side in self._sides:
                self._check_sent(side, self._wanted[id(side)])
            for side in self._sides:
                self._check_received(side)
            for check in self._checks:
                self._check_header(*check)
            for side in self._sides:
                region = side.region(self._large)["id"]
                found = side.end.do([*self._after[id(side)], ["verify", [region]]])[-1]
                require(not found, f"{side.name}: {found}")
        except Exception:
            self._describe()
            raise

    def _check_sent(self, side, wanted):
        found = side.end.poll(side.send_cq, len(wanted), 60 * harness.slowness())
        for wc, (number, op, length) in zip(found, wanted):
            what = f"{side.name}: {op} of {length} bytes"
            equal(f"{what}: status", wc["status"], "SUCCESS")
            equal(f"{what}: id", wc["id"], number)
            kind = COMPLETES_AS.get(op, op)
            equal(f"{what}: opcode", wc["op"], kind)
            equal(f"{what}: queue pair", wc["qpn"], side.qp["qpn"])
            if kind in ("read", "cmp-swap", "fetch-add"):
                equal(f"{what}: byte count", wc["len"], length)
        equal(f"{side.name}: send completions", len(found), len(wanted))
        equal(f"{side.name}: further send completions", side.end.poll(side.send_cq, 1, 0), [])

    def _check_received(self, side):
        wanted = self._received[id(side)]
        found = side.end.poll(side.recv_cq, len(wanted), 60 * harness.slowness()) if wanted else []
        for wc, want in zip(found, wanted):
            equal(f"{side.name}: receive completion", {name: wc[name] for name in want}, want)
            if side.kind == "ud":
                other = self._other(side)
                equal(f"{side.name}: source", (wc["src_qpn"], wc["grh"]), (other.qp["qpn"], True))
        equal(f"{side.name}: receive completions", len(found), len(wanted))
        equal(f"{side.name}: further receive completions", side.end.poll(side.recv_cq, 1, 0), [])

    def _check_header(self, side, other, region, ranges, length):
        """Checks the 40 bytes before a datagram of this IP length.

        For IPv4, its header is in the last 20 of them.
        """
        header = bytes.fromhex(other.end.accept(region, ranges, GRH))
        equal("length in the IPv4 header", int.from_bytes(header[22:24], "big"), length)
        packed = bytes(int(part) for part in side.info["address"].split("."))
        packed += bytes(int(part) for part in other.info["address"].split("."))
        equal("first byte of the IPv4 header", header[20], 0x45)
        equal("addresses in the IPv4 header", header[32:40].hex(), packed.hex())

    def _describe(self):
        for side in self._sides:
            harness.log(f"{side.name}: {side.info} {side.qp}")
            with contextlib.suppress(Exception):
                harness.log(f"  is in state {side.end.state(side.qp['id'])}")
                harness.log(f"  more send completions: {side.end.poll(side.send_cq, 100, 1)}")
                harness.log(f"  more receive completions: {side.end.poll(side.recv_cq, 100, 0)}")
            for request in self._recvs[id(side)]:
                harness.log(f"  recv {request}")
            for request in self._sends[id(side)]:
                harness.log(f"  send {request}")


def some_length(rng, mtu, longest):
    """Returns a message length: usually short or near a multiple of the MTU, sometimes long."""
    kind = rng.random()
    if kind < 0.1:
        length = rng.choice((0, 1, 2, 3, 4, 5, 7, 8))
    elif kind < 0.4:
        length = rng.randrange(1, 300)
    elif kind < 0.7:
        length = mtu * rng.choice((1, 1, 2, 3, 4, 8, 15, 16, 17)) + rng.choice((-2, -1, 0, 0, 1, 2))
    elif kind < 0.9:
        length = rng.randrange(1, 32 * 1024)
    else:
        length = rng.randrange(1, longest + 1)
    return min(length, longest)


def random_batches(rng, left, right, mtu, count, address_handles=None, ops=OPS):
    """Runs `count` batches of random requests by both sides. Every tenth has a long message."""
    # At a small MTU, 8 MiB would be too many packets.
    longest = min(LONGEST, 8192 * mtu)
    for turn in range(count):
        large = address_handles is None and turn % 10 == 9
        batch = Batch(rng, left, right, large=large)
        for side in (left, right):
            requests = 1 if large else rng.choice((0, 1, 2, 4, 8))
            for _ in range(requests):
                inline = rng.random() < 0.2
                if address_handles is not None:
                    op = rng.choice(("send", "send-imm"))
                    length = min(some_length(rng, mtu, mtu), mtu)
                    if inline:
                        length %= INLINE + 1
                    batch.add(side, op, length, inline, address_handles[id(side)])
                    continue
                op = rng.choice(ops)
                length = rng.randrange(longest // 2, longest + 1) if large else some_length(rng, mtu, 24 * 1024)
                inline = inline and not large and op in ("send", "send-imm", "write", "write-imm")
                batch.add(side, op, length % (INLINE + 1) if inline else length, inline)
        batch.run()


def large(rng, sides):
    """Exchanges large messages of every kind, and bursts of small messages of equal size."""
    batch = Batch(rng, *sides)
    for side in sides:
        for op in ("write", "send", "read", "write-imm"):
            batch.add(side, op, 50_000)
        for _ in range(12):
            batch.add(side, "send", 64)
    batch.run()


def boundary_lengths(mtu):
    """Returns the lengths at which something changes: near zero, packet sizes and powers of two."""
    around = {0, 1, 2, 3, 4, 5, 63, 64, 65}
    for packets in (1, 2, 3, 16):
        around |= {packets * mtu + d for d in (-1, 0, 1)}
    return sorted(around | {65535, 65536, 65537})

