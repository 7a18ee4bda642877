# SPDX-License-Identifier: GPL-2.0
"""Captures of the RoCE packets that a packet socket sees on a network device."""

import contextlib
import socket
import struct

import machine
import packets
from harness import equal, require

# include/uapi/asm-generic/socket.h: a receive buffer beyond the limit.
SO_RCVBUFFORCE = 33


@contextlib.contextmanager
def capture(netdev, namespace=None):
    """Captures on a network device, like tcpdump.

    Yields a function that returns the IPv4 RoCE packets received since its last call.
    """
    with machine.Local(namespace=namespace).inside():
        tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0003))
        tap.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
        tap.bind((netdev, 0x0003))
    tap.setblocking(False)

    def seen():
        found = []
        while True:
            try:
                frame, where = tap.recvfrom(1 << 17)
            except BlockingIOError:
                return found
            # The loopback device shows each packet twice.
            if where[0] == "lo" and where[2] == socket.PACKET_OUTGOING:
                continue
            ip = frame[14:]
            if frame[12:14] == b"\x08\x00" and ip[9] == 17 and ip[22:24] == struct.pack(">H", packets.ROCE_PORT):
                found.append(ip)

    try:
        yield seen
    finally:
        tap.close()


def check(found, mtu, least):
    """Checks that these packets are as a wire carries them: within the MTU, with valid ICRCs."""
    require(len(found) >= least, f"the capture shows {len(found)} packets, not {least}")
    for ip in found:
        length = struct.unpack(">H", ip[2:4])[0]
        require(length <= mtu, f"a packet of {length} bytes, though the MTU is {mtu}")
        head, udp, transport = ip[:20], ip[20:28], ip[28:length]
        equal("the ICRC of a packet", transport[-4:].hex(), packets.icrc(head, udp, transport[:-4]).hex())
