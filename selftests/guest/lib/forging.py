# SPDX-License-Identifier: GPL-2.0
"""Datagrams of sockets that a queue pair would accept as packets of its peer."""

import os
import socket

import packets
from packets import ROCE_PORT, aeth, atomic_eth, bth, reth

# The UDP source port of forged packets.
SOURCE_PORT = 0xC123

PAYLOAD = bytes(range(64))

IP_MTU_DISCOVER, IP_PMTUDISC_DO = 10, 2  # linux/in.h


def enter(namespace):
    """Enters a network namespace for good."""
    with open(f"/run/netns/{namespace}", encoding="ascii") as file:
        os.setns(file.fileno())


def opened(version, source=None, connected=None, device=None):
    """Returns a UDP socket bound to the source port of an address, and to a device.

    Its datagrams have Identification 0 unless it is connected.
    """
    sock = socket.socket(socket.AF_INET if version == 4 else socket.AF_INET6, socket.SOCK_DGRAM)
    if version == 4:
        sock.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO)
    if device:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode())
    if source:
        sock.bind((source, SOURCE_PORT))
    if connected:
        sock.connect((connected, ROCE_PORT))
    return sock


def attempt(send):
    """Returns the errno of a call, or 0 if it succeeds."""
    try:
        send()
    except OSError as why:
        return why.errno
    return 0


def send_all(version, source, destination, datagrams, device=None):
    """Sends each of the datagrams. Returns {name: errno}."""
    with opened(version, source, device=device) as sock:
        return {name: attempt(lambda: sock.sendto(made, (destination, ROCE_PORT))) for name, made in datagrams.items()}


def requests(qpn, psn, region):
    """Returns transport packets, by name, that a reliable queue pair would execute.

    `region` is memory of the queue pair's domain. Each has the PSN, so that one of them is executed
    at most.
    """

    def target(offset):
        return region["address"] + offset, region["rkey"]

    return {
        "send": bth(packets.SEND_ONLY, qpn, psn) + PAYLOAD,
        "send-imm": bth(packets.SEND_ONLY_IMM, qpn, psn) + b"imm!" + PAYLOAD,
        "write": bth(packets.WRITE_ONLY, qpn, psn) + reth(*target(64), len(PAYLOAD)) + PAYLOAD,
        "write-imm": bth(packets.WRITE_ONLY_IMM, qpn, psn) + reth(*target(128), len(PAYLOAD)) + b"imm!" + PAYLOAD,
        "read": bth(packets.READ_REQUEST, qpn, psn) + reth(*target(0), 64),
        "fetch-add": bth(packets.FETCH_ADD, qpn, psn) + atomic_eth(*target(256), 1, 0),
        "future": bth(packets.SEND_ONLY, qpn, psn + 1) + PAYLOAD,
    }


def responses(qpn, psn):
    """Returns transport packets, by name, that would end the outstanding request with the PSN."""
    return {
        "ack": bth(packets.ACKNOWLEDGE, qpn, psn, ack=False) + aeth(0x1F, 1),
        "nak": bth(packets.ACKNOWLEDGE, qpn, psn, ack=False) + aeth(packets.NAK_ACCESS, 1),
        "cnp": bth(packets.CNP, qpn, 0, ack=False) + bytes(16),
    }


def datagrams(transports, source, destination):
    """Returns the payloads of datagrams with these packets, which arrive with this source."""
    return {name: packets.datagram(made, source, destination, SOURCE_PORT) for name, made in transports.items()}
