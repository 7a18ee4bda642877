# SPDX-License-Identifier: GPL-2.0
"""The remote end of a scripted conversation (selftests/script).

Drives verbs and a raw socket on request, one line per request, and knows nothing of scripts.

The device under test is on one end of a veth pair; the script sends and receives on the other. The
peer's address belongs to no machine: a neighbour entry leads there.
"""

import contextlib
import re
import select
import socket
import struct
import subprocess
import time

from pyverbs.pyverbs_error import PyverbsRDMAError

import endpoint
import harness
import testbed
import verbs_enums as e
from harness import Failure

OWN, PEER = "10.9.0.1", "10.9.0.2"
LOCAL, REMOTE = "cf0", "cf1"
DEVICE = "conf0"

# How long to wait for an expected event, in seconds; only a hang takes that long.
TIMEOUT = 20
# Wait for scripts that are known to fail: the expected event will not come.
SHORT_TIMEOUT = 4
# How long to watch for an unexpected event, in seconds. A later one fails the next step.
SILENCE = 0.05

# Bytes for the buffers of work requests.
ARENA = 1 << 20

_SO_TIMESTAMPNS = 35
_CLOCK_REALTIME_COARSE = 5

_RIGHTS = {
    "l": "local-write",
    "w": "remote-write",
    "r": "remote-read",
    "a": "remote-atomic",
    "f": "flush-global",
    "p": "flush-persistent",
}

# Steps that need the extended posting interface.
_EXTENDED = re.compile(r"^post (flush|atomic-write)\b", re.MULTILINE)


@contextlib.contextmanager
def device(where, driver):
    """Creates the device under test and the wire to it; yields the `Server`."""
    where.run(f"ip link add {LOCAL} mtu 4500 type veth peer name {REMOTE} mtu 4500")
    try:
        # Each packet is a frame of its own here, as on any wire.
        testbed.send_gso(where, LOCAL, False)
        where.run(f"ip addr add {OWN}/24 dev {LOCAL}; ip link set {REMOTE} up; ip link set {LOCAL} up")
        mac = where.read(f"/sys/class/net/{REMOTE}/address").strip()
        where.run(f"ip neigh replace {PEER} lladdr {mac} dev {LOCAL} nud permanent")
        testbed.add_link(where, driver, DEVICE, LOCAL)
        try:
            testbed.wait_for_gid(DEVICE, OWN)
            server = Server(where, driver)
            try:
                yield server
            finally:
                server.close()
        finally:
            testbed.delete_link(where, DEVICE)
    finally:
        where.run(f"ip link del {LOCAL}")


def _code(why):
    return getattr(why, "error_code", None)


class Server:
    """Responds to the requests of scripts, one script at a time."""

    def __init__(self, where, driver):
        local = where.read(f"/sys/class/net/{LOCAL}/address").strip()
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
        self._socket.bind((REMOTE, 0x0800))
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        self._ethernet = bytes.fromhex(local.replace(":", "")) + self._socket.getsockname()[4] + b"\x08\x00"
        self._end = endpoint.Endpoint()
        self._end.open(DEVICE, OWN, driver)
        self._pd = self._end.pd()
        self._arena = self._end.memory(self._pd, ARENA)
        self._free = 0
        self._regions = []
        self._qp = None
        self._kind = None
        self._buffers = {}
        self._events = []
        self._before = {}
        self._ah = None
        self._extended = False
        self._timeout = TIMEOUT
        # The timers of rdma_rxe count ticks. If the emulator runs late, ticks come late, and such a
        # timer may run for less than its time. The coarse clock is the time of the last tick.
        self._clock = time.CLOCK_REALTIME if driver == "rrxe" else _CLOCK_REALTIME_COARSE

    def prepare(self, script, fails):
        """Prepares for the script in this file. `fails` says whether it is known to fail."""
        self._timeout = (SHORT_TIMEOUT if fails else TIMEOUT) * harness.slowness()
        with open(script, encoding="utf-8") as file:
            self._extended = bool(_EXTENDED.search(file.read()))

    def close(self):
        """Releases all resources."""
        self._end.close()
        self._socket.close()

    def reply(self, line):
        """Returns the response to a line."""
        what, *words = line.split()
        try:
            return "ok " + (getattr(self, "_do_" + what.replace("-", "_"))(*words) or "")
        except PyverbsRDMAError as why:
            if _code(why) is None:
                return f"error {why}".replace("\n", " ")
            return f"errno {_code(why)}"
        except Exception as why:  # ends the run of the script with this message
            return f"error {type(why).__name__}: {why}".replace("\n", " ")

    # Time

    def _do_hello(self):
        """Starts a script: removes everything that the last one left."""
        self._drop_qp()
        self._end.drop(*self._regions)
        self._regions = []
        while self._do_packet("now"):
            pass
        return f"{PEER} {OWN}"

    def _do_now(self):
        return str(time.clock_gettime_ns(self._clock))

    @staticmethod
    def _do_sleep(nanoseconds):
        time.sleep(int(nanoseconds) / 1e9)

    # Memory

    def _map(self, number):
        return self._end._objects[number].map

    def _do_region(self, rights, digits):
        names = {_RIGHTS[letter] for letter in rights if letter != "-"}
        if names & {"remote-write", "remote-atomic"}:
            names.add("local-write")  # verbs requires it with these
        content = _bytes(digits)
        region = self._end.memory(self._pd, len(content), sorted(names))
        self._map(region["id"])[:] = content
        self._regions.append(region["id"])
        return f"{len(self._regions) - 1} {region['address']} {region['rkey']}"

    def _do_memory(self, region, length):
        return self._map(self._regions[int(region)])[: int(length)].hex()

    def _do_set_memory(self, region, offset, digits):
        content = _bytes(digits)
        self._map(self._regions[int(region)])[int(offset) : int(offset) + len(content)] = content

    def _do_deregister(self, region):
        self._end.deregister(self._regions[int(region)])

    def _buffer(self, content):
        at = self._free
        self._free += (len(content) + 63) & ~63
        if self._free > ARENA:
            raise Failure("the script has used up the memory for its buffers")
        self._map(self._arena["id"])[at : at + len(content)] = content
        return at

    # Queue pair

    def _drop_qp(self):
        if self._qp:
            self._end.drop(self._qp["id"], self._send_cq, self._recv_cq)
            self._qp = None

    def _do_qp(self, kind):
        self._drop_qp()
        self._free = 0
        self._buffers = {}
        self._kind = kind
        self._send_cq, self._recv_cq = self._end.cq(256), self._end.cq(256)
        extended = self._extended and kind == "rc"
        queues = (self._send_cq, self._recv_cq)
        self._qp = self._end.qp(kind, self._pd, *queues, extended, send_wr=64, recv_wr=64, placement=extended)
        self._end.async_events()
        self._events = []
        self._before = {}
        for name in ("icrc-errors", "pkey-violations", "qkey-violations"):
            self._before[name] = self._counter(name)
        return str(self._qp["qpn"])

    def _do_modify(self, state, kind, sq_psn, rq_psn, mtu, timeout, retry, rnr_retry, rnr_timer, rd, dest_rd, access, qkey, qpn):
        qp = self._qp["id"]
        rights = [_RIGHTS[letter] for letter in access if letter != "-"]
        if state == "init":
            self._end.to_init(qp, kind, access=rights, qkey=int(qkey))
        elif state == "rtr":
            self._end.to_rtr(
                qp,
                kind,
                gid=testbed.gid_of(PEER),
                qpn=int(qpn),
                psn=int(rq_psn),
                mtu=int(mtu),
                dest_rd_atomic=int(dest_rd),
                rnr_timer=int(rnr_timer),
            )
        elif state == "rts" and self._end.state(qp) == "rtr":
            self._end.to_rts(
                qp,
                kind,
                psn=int(sq_psn),
                timeout=int(timeout),
                retry=int(retry),
                rnr_retry=int(rnr_retry),
                rd_atomic=int(rd),
            )
        elif state == "sqd":
            self._end.modify(qp, ("STATE", "EN_SQD_ASYNC_NOTIFY"), state=state, en_sqd_async_notify=1)
        else:
            self._end.modify(qp, ("STATE",), state=state)

    def _do_query(self):
        qp = self._qp["id"]
        found = self._end.query(qp, "sq_psn", "rq_psn")
        return f"{self._end.state(qp)} {found['sq_psn']} {found['rq_psn']}"

    def _segment(self, at, length, bad):
        lkey = self._arena["lkey"]
        return [self._arena["address"] + at, length, lkey ^ 1 if bad else lkey]

    def _do_recv(self, number, length, bad):
        length = int(length)
        at = self._buffer(b"\xee" * length)
        sge = [self._segment(at, length, bad == "1")] if length else []
        self._end.post_recv(self._qp["id"], [{"id": int(number), "sge": sge}])
        self._buffers["recv", int(number)] = (at, length)

    def _do_send(self, number, op, flags, va, rkey, imm, compare, swap, qpn, qkey, digits):
        content = _bytes(digits)
        at = self._buffer(content)
        letters = {"s": "signaled", "e": "solicited", "f": "fence"}
        request = {
            "id": int(number),
            "op": op,
            "sge": [self._segment(at, len(content), "b" in flags)] if content else [],
            "flags": [letters[letter] for letter in flags if letter in letters],
            "imm": int(imm),
        }
        if op == "send-inv":
            request["op"] = e.IBV_WR_SEND_WITH_INV
            request["imm"] = socket.htonl(int(imm))  # the key is in host byte order
        if self._kind == "ud":
            if self._ah is None:
                self._ah = self._end.ah(self._pd, testbed.gid_of(PEER))
            request |= {"ah": self._ah, "qpn": int(qpn), "qkey": int(qkey)}
        elif op not in ("send", "send-imm", "send-inv"):
            request |= {"rkey": int(rkey), "raddr": int(va)}
        if op in ("cmp-swap", "fetch-add"):
            request |= {"compare": int(compare), "swap": int(swap)}
        elif op == "flush":
            # In the layout of the FETH.
            request |= {"length": len(content), "placement": int(imm) & 15, "level": int(imm) >> 4 & 3}
        elif op == "atomic-write":
            request["value"] = content.hex()
        self._end.post_send(self._qp["id"], [request])
        self._buffers["send", int(number)] = (at, len(content))

    def _do_completion(self, queue, wait):
        cq = self._send_cq if queue == "send" else self._recv_cq
        found = self._end.poll(cq, 1, self._timeout if wait == "due" else SILENCE)
        if not found:
            return ""
        wc = found[0]
        at, length = self._buffers.get((queue, wc["id"]), (0, 0))
        good = wc["status"] == "SUCCESS"
        return " ".join(
            str(word)
            for word in (
                wc["id"],
                str(wc["status"]).lower().replace("_", "-").removesuffix("-err"),
                wc["op"] if good else "-",
                wc["len"] if good else 0,
                "-" if wc["imm"] is None or not good else wc["imm"],
                wc["src_qpn"] if good else 0,
                self._map(self._arena["id"])[at : at + length].hex() or "-",
            )
        )

    def _do_event(self, wait):
        if not self._events:
            seconds = self._timeout if wait == "due" else SILENCE
            found = self._end.async_events(seconds)
            self._events += [n for n in found if n.startswith(("QP_", "SQ_", "COMM_", "CQ_"))]
        if not self._events:
            return ""
        return self._events.pop(0).lower().replace("_", "-")

    # Counters

    def _counter(self, name):
        if name == "icrc-errors":
            path = f"/sys/class/infiniband/{DEVICE}/ports/1/hw_counters/rx_icrc_encapsulated"
            try:
                with open(path, encoding="ascii") as file:
                    return int(file.read())
            except OSError:
                return None
        port = self._end._context.query_port(1)
        return port.bad_pkey_cntr if name == "pkey-violations" else port.qkey_viol_cntr

    def _do_counter(self, name):
        now = self._counter(name)
        if now is None:
            raise Failure(f"the device has no counter of {name}")
        return str(now - self._before[name])

    # Packets

    def _do_inject(self, digits):
        self._socket.send(self._ethernet + _bytes(digits))

    def _do_packet(self, wait):
        timeouts = {"due": self._timeout, "silence": SILENCE, "now": 0}
        end = time.monotonic() + timeouts[wait]
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        while poller.poll(max(0, end - time.monotonic()) * 1000):
            frame, more, _, where = self._socket.recvmsg(65536, 256)
            ip = frame[14:]
            if where[2] == socket.PACKET_OUTGOING or len(ip) < 28 or ip[9] != 17:
                continue
            if struct.unpack(">H", ip[22:24])[0] != 4791:
                continue
            stamp = time.time_ns()
            for level, kind, value in more:
                if (level, kind) == (socket.SOL_SOCKET, _SO_TIMESTAMPNS):
                    seconds, nanoseconds = struct.unpack("qq", value[:16])
                    # rdma_rxe's packets may carry time stamps of another clock.
                    if abs(seconds - stamp // 10**9) < 3600:
                        stamp = seconds * 10**9 + nanoseconds
            return f"{stamp} {ip.hex()}"
        return ""


def _bytes(digits):
    return b"" if digits == "-" else bytes.fromhex(digits)


def run(program, script, server, fails=False):
    """Runs a script. Returns an empty string, or how it failed.

    `fails` says whether the script is known to fail.
    """
    server.prepare(script, fails)
    process = subprocess.Popen(
        [program, "--remote", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        for line in process.stdout:
            line = line.rstrip("\n")
            if line.startswith("done"):
                rest = process.stdout.read()
                return "" if line == "done ok" else rest
            reply = server.reply(line)
            if len(line) < 300 and len(reply) < 300:
                harness.log(f"{line} = {reply}")
            process.stdin.write(reply + "\n")
            process.stdin.flush()
        return f"the interpreter ended with {process.wait()}"
    finally:
        process.kill()
        process.wait()
