# SPDX-License-Identifier: GPL-2.0
"""RoCEv2 packets built by hand, bypassing the driver, and sent and captured on the network device.

Covers only what the tests need. Names and layouts follow the specification (IBA 5.2, 9.2 to 9.6,
annex A17).
"""

import ipaddress
import random
import select
import socket
import struct
import time
import zlib

ROCE_PORT = 4791

# The Q_Key of the endpoints' datagram queue pairs (lib/endpoint.py).
QKEY = 0x11223344

# Opcodes of the reliable connected service; the top three bits name the service.
SEND_FIRST, SEND_MIDDLE, SEND_LAST, SEND_LAST_IMM, SEND_ONLY, SEND_ONLY_IMM = range(6)
WRITE_FIRST, WRITE_MIDDLE, WRITE_LAST, WRITE_LAST_IMM, WRITE_ONLY, WRITE_ONLY_IMM = range(6, 12)
READ_REQUEST, READ_FIRST, READ_MIDDLE, READ_LAST, READ_ONLY, ACKNOWLEDGE = range(12, 18)
ATOMIC_ACKNOWLEDGE, COMPARE_SWAP, FETCH_ADD = range(18, 21)
UC, UD = 0x20, 0x60
CNP = 0x81

NAK_SEQUENCE, NAK_INVALID, NAK_ACCESS, NAK_OPERATION = 0x60, 0x61, 0x62, 0x63


def bth(opcode, qpn, psn, ack=True, pkey=0xFFFF, pad=0, version=0, solicited=False):
    """Returns a base transport header."""
    flags = (0x80 if solicited else 0) | 0x40 | (pad & 3) << 4 | (version & 15)
    return struct.pack(">BBHII", opcode, flags, pkey, qpn & 0xFFFFFF, (0x80000000 if ack else 0) | (psn & 0xFFFFFF))


def reth(address, rkey, length):
    """Returns an RDMA extended transport header."""
    return struct.pack(">QII", address & (2**64 - 1), rkey, length & 0xFFFFFFFF)


def aeth(syndrome, msn=0):
    """Returns an acknowledge extended transport header."""
    return struct.pack(">I", (syndrome & 0xFF) << 24 | (msn & 0xFFFFFF))


def deth(qkey, source):
    """Returns a datagram extended transport header."""
    return struct.pack(">II", qkey, source & 0xFFFFFF)


def atomic_eth(address, rkey, swap, compare):
    """Returns an atomic extended transport header."""
    return struct.pack(">QIQQ", address, rkey, swap, compare)


def icrc(ip, udp, transport):
    """Returns the invariant CRC of a packet.

    Fields that routers change are replaced by ones (IBA 7.8.1, A17.3.2).
    """
    ip, udp, transport = bytearray(ip), bytearray(udp), bytearray(transport)
    ip[1] = ip[8] = ip[10] = ip[11] = 0xFF  # type of service, time to live, checksum
    udp[6] = udp[7] = 0xFF  # checksum
    if len(transport) > 4:
        transport[4] = 0xFF  # FECN, BECN and reserved bits
    return struct.pack("<I", zlib.crc32(b"\xff" * 8 + bytes(ip) + bytes(udp) + bytes(transport)))


def datagram(transport, source, destination, port):
    """Returns the payload for a UDP socket to send from `port` to port 4791.

    The payload is a packet from the BTH on. Its ICRC matches the headers that the kernel adds. Over
    IPv4 the socket must forbid fragmentation and must not be connected, so that the Identification
    field is 0.
    """
    source, destination = ipaddress.ip_address(source), ipaddress.ip_address(destination)
    length = 8 + len(transport) + 4
    udp = struct.pack(">HHHH", port, ROCE_PORT, length, 0)
    if source.version == 4:
        ip = struct.pack(">BBHHHBBH", 0x45, 0, 20 + length, 0, 0x4000, 64, 17, 0) + source.packed + destination.packed
        return transport + icrc(ip, udp, transport)
    # Traffic class, flow label and hop limit are replaced by ones.
    ip = struct.pack(">IHBB", 0x6FFFFFFF, length, 17, 0xFF) + source.packed + destination.packed
    covered = b"\xff" * 8 + ip + udp[:6] + b"\xff\xff" + transport[:4] + b"\xff" + transport[5:]
    return transport + struct.pack("<I", zlib.crc32(covered))


def _checksum(header):
    total = sum(struct.unpack(f">{len(header) // 2}H", header))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


class Wire:
    """Sends packets to the other host as if from this one, and captures the packets that it
    sends."""

    def __init__(self, netdev, own_address, peer_address, peer_mac):
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
        self._socket.bind((netdev, 0x0800))
        self._own = own_address
        self._peer = peer_address
        self._macs = bytes.fromhex(peer_mac.replace(":", "")) + self._socket.getsockname()[4]
        self._identification = 1

    def close(self):
        """Closes the socket."""
        self._socket.close()

    def send(self, transport, **how):
        """Sends the frame that `frame` builds."""
        self.put(self.frame(transport, **how))

    def put(self, frame):
        """Sends a frame."""
        self._socket.send(frame)

    def frame(self, transport, source=None, corrupt=None, udp_extra=0, tail=b"", fragment=0, with_icrc=True, tos=0):
        """Returns a frame with the transport packet (BTH and everything after it) and its ICRC.

        `corrupt` flips that bit after the ICRC is computed; `udp_extra` is added to the UDP length;
        `tail` follows the packet inside the IP datagram; `fragment` is the IP flags and offset;
        `tos` is the type of service.
        """
        self._identification += 1
        source = socket.inet_aton(source or self._own)
        length = len(transport) + (4 if with_icrc else 0)
        udp = struct.pack(">HHHH", 0xC123, ROCE_PORT, 8 + length + udp_extra, 0)
        ip = struct.pack(
            ">BBHHHBBH4s4s",
            0x45,
            tos,
            28 + length + len(tail),
            self._identification & 0xFFFF,
            fragment or 0x4000,
            64,
            17,
            0,
            source,
            socket.inet_aton(self._peer),
        )
        ip = ip[:10] + struct.pack(">H", _checksum(ip)) + ip[12:]
        packet = bytearray(transport)
        if with_icrc:
            packet += icrc(ip, udp, transport)
        if corrupt is not None:
            packet[corrupt // 8 % len(packet)] ^= 1 << corrupt % 8
        return self._macs + b"\x08\x00" + ip + udp + bytes(packet) + tail

    def responses(self, seconds, qpn=None, first=0):
        """Returns the RoCE packets that arrive from the peer within `seconds`.

        If `first` is given, the period starts with the first packet, which may take `first`
        seconds. Each packet is [opcode, PSN, bytes after the BTH]. `qpn` selects one destination
        queue pair.
        """
        found = []
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        end = time.monotonic() + (first or seconds)
        while (left := end - time.monotonic()) > 0 and poller.poll(left * 1000):
            frame, where = self._socket.recvfrom(65536)
            if where[2] == socket.PACKET_OUTGOING:
                continue
            ip = frame[14:]
            if ip[9] != 17 or ip[12:16] != socket.inet_aton(self._peer):
                continue
            udp = ip[(ip[0] & 15) * 4 :]
            if struct.unpack(">H", udp[2:4])[0] != ROCE_PORT:
                continue
            transport = udp[8 : struct.unpack(">H", udp[4:6])[0]]
            opcode, _, _, target, psn = struct.unpack(">BBHII", transport[:12])
            if qpn is None or target & 0xFFFFFF == qpn:
                if first and not found:
                    end = time.monotonic() + seconds
                found.append([opcode, psn & 0xFFFFFF, transport[12:-4]])
        return found

    def passing(self, seconds):
        """Returns the RoCE packets seen within `seconds`, in both directions.

        Each is (came from the peer, opcode, destination queue pair, type of service, transport
        packet).
        """
        found = []
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and poller.poll(left * 1000):
            frame, where = self._socket.recvfrom(65536)
            ip = frame[14:]
            udp = ip[(ip[0] & 15) * 4 :]
            if ip[9] != 17 or len(udp) < 20 or struct.unpack(">H", udp[2:4])[0] != ROCE_PORT:
                continue
            transport = udp[8 : struct.unpack(">H", udp[4:6])[0]]
            came = where[2] != socket.PACKET_OUTGOING
            found.append((came, transport[0], int.from_bytes(transport[5:8], "big"), ip[1], transport))
        return found

    def forget(self):
        """Drops the packets received so far."""
        self._socket.setblocking(False)
        try:
            while True:
                self._socket.recv(65536)
        except BlockingIOError:
            pass
        finally:
            self._socket.setblocking(True)


def garbage(rng, qpn):
    """Returns a random transport packet: a header of any opcode, and any bytes after it.

    `Wire.frame` adds valid lengths and a valid ICRC.
    """
    rng = rng or random
    header = bytearray(bth(rng.randrange(256), qpn, rng.getrandbits(24), rng.random() < 0.5))
    if rng.random() < 0.5:
        header[0] = rng.randrange(24)  # a known opcode of the connected service
    if rng.random() < 0.2:
        header[1] = rng.randrange(256)
    if rng.random() < 0.7:
        header[9:12] = rng.randrange(16).to_bytes(3, "big")  # a PSN near the expected one
    return bytes(header) + rng.randbytes(rng.choice((0, 1, 4, 7, 8, 12, 16, 20, 28, 32, 64, 255, 256, 1024, 1025)))
