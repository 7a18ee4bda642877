# SPDX-License-Identifier: GPL-2.0
"""A VLAN between both hosts, and the tags of its frames."""

import contextlib
import select
import socket
import struct

import packets
import testbed
from harness import wait_until

VLAN = 25

_SOL_PACKET, _PACKET_AUXDATA, _VLAN_VALID = 263, 8, 1 << 4
_ETH_P_ALL, ETH_P_8021Q = 3, 0x8100


@contextlib.contextmanager
def vlan(bed, addresses, options=""):
    """Creates a VLAN between both hosts; yields the endpoints of its addresses."""
    import endpoint  # only a guest has verbs

    hosts = (bed.here, bed.peer)
    made = []
    try:
        for host, address in zip(hosts, addresses):
            name = f"eth0.{VLAN}"
            host.machine.run(
                f"modprobe 8021q; ip link add link eth0 name {name} type vlan id {VLAN} {options} && ip link set {name} up && "
                f"ip address add {address}/24 dev {name}"
            )
            gids = f"/sys/class/infiniband/{host.device}/ports/1/gids"
            wait_until(
                f"{host.name} has a GID of the VLAN",
                lambda: host.machine.try_run(f"grep -qs {testbed.gid_of(address)} {gids}/*").status == 0,
            )
        for host, address, end in zip(hosts, addresses, (endpoint.Endpoint(), endpoint.Peer(bed.peer.address))):
            made.append((end, end.open(host.device, address, host.driver)))
        yield made
    finally:
        for end, _ in made:
            end.leave()
        for host in hosts:
            host.machine.try_run(f"ip link delete eth0.{VLAN}")


class TaggedWire:
    """Frames with VLAN tags on eth0, below the VLAN's device."""

    def __init__(self):
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
        self._socket.bind(("eth0", _ETH_P_ALL))
        self._socket.setsockopt(_SOL_PACKET, _PACKET_AUXDATA, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)

    def close(self):
        """Closes the socket."""
        self._socket.close()

    def put(self, frame):
        """Sends a frame with the VLAN's tag."""
        self._socket.send(frame[:12] + struct.pack(">HH", ETH_P_8021Q, VLAN) + frame[12:])

    def passing(self):
        """Returns the RoCE packets seen: (whether it is incoming, tag or None, IP packet) each."""
        found = []
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        while poller.poll(200):
            frame, more, _, where = self._socket.recvmsg(65536, 256)
            tag = None
            for level, kind, value in more:
                if (level, kind) == (_SOL_PACKET, _PACKET_AUXDATA):
                    status, tci = struct.unpack("=I", value[:4])[0], struct.unpack("=H", value[16:18])[0]
                    tag = tci if status & _VLAN_VALID else None
            if frame[12:14] == struct.pack(">H", ETH_P_8021Q):
                tag = struct.unpack(">H", frame[14:16])[0]
                frame = frame[:12] + frame[16:]
            ip = frame[14:]
            if frame[12:14] == b"\x08\x00" and ip[9] == 17 and ip[22:24] == struct.pack(">H", packets.ROCE_PORT):
                length = struct.unpack(">H", ip[2:4])[0]
                found.append((where[2] != socket.PACKET_OUTGOING, tag, ip[:length]))
        return found
