#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""A bridge that joins two machines, each by a tap device, in a network namespace of its own.

This is the network that a hypervisor gives its guests: with `vnet_hdr`, machine and device
negotiate checksums, segmentation and receive offloads (TSO, USO, GRO). The namespace belongs to a
user namespace, so this needs no privileges but access to /dev/net/tun.
"""

import contextlib
import fcntl
import os
import socket
import struct
import subprocess
import sys
from typing import Iterator, List

# Names of the bridge and of its ports.
_BRIDGE = b"br0"
_TAPS = (b"tap1", b"tap2")
_MTU = 9000

# From include/uapi/linux/if_tun.h and sockios.h.
_TUNSETIFF = 0x400454CA
_IFF_TAP, _IFF_NO_PI, _IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
_SIOCSIFFLAGS, _SIOCSIFMTU, _SIOCGIFINDEX = 0x8914, 0x8922, 0x8933
_SIOCBRADDBR, _SIOCBRADDIF = 0x89A0, 0x89A2
_IFF_UP = 1


@contextlib.contextmanager
def joined(offloads: bool) -> Iterator[List[int]]:
    """Yields the open files of two tap devices that a bridge joins.

    Without `offloads`, each packet is a frame of its own with all checksums. Raises OSError if the
    host allows no network namespace or no tap device.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    command = ["unshare", "--user", "--map-root-user", "--net", sys.executable, __file__, str(int(offloads))]
    with ours, subprocess.Popen(command, stdin=theirs, stderr=subprocess.PIPE, text=True) as keeper:
        theirs.close()
        try:
            _, files, _, _ = socket.recv_fds(ours, 1, len(_TAPS))
            if len(files) != len(_TAPS):
                words = keeper.communicate()[1].strip().splitlines()
                raise OSError(f"no tap devices: {words[-1] if words else 'the namespace ended'}")
            try:
                yield files
            finally:
                for file in files:
                    os.close(file)
        finally:
            # The namespace ends when its process reads the end of the connection.
            ours.shutdown(socket.SHUT_RDWR)


def _keep(offloads: bool) -> None:
    """Makes the devices, passes the files of the taps on, and keeps the namespace."""
    flags = _IFF_TAP | _IFF_NO_PI | (_IFF_VNET_HDR if offloads else 0)
    files = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:

        def ask(what: int, name: bytes, value: bytes = b"") -> bytes:
            return fcntl.ioctl(control, what, struct.pack("16s24s", name, value))

        fcntl.ioctl(control, _SIOCBRADDBR, _BRIDGE + bytes(1))
        for name in _TAPS:
            files.append(os.open("/dev/net/tun", os.O_RDWR))
            fcntl.ioctl(files[-1], _TUNSETIFF, struct.pack("16sH22x", name, flags))
            ask(_SIOCSIFMTU, name, struct.pack("i", _MTU))
            (index,) = struct.unpack_from("i", ask(_SIOCGIFINDEX, name), 16)
            ask(_SIOCBRADDIF, _BRIDGE, struct.pack("i", index))
            ask(_SIOCSIFFLAGS, name, struct.pack("h", _IFF_UP))
        ask(_SIOCSIFFLAGS, _BRIDGE, struct.pack("h", _IFF_UP))
    with socket.socket(fileno=0) as parent:
        socket.send_fds(parent, [b"."], files)
        for file in files:
            os.close(file)
        parent.recv(1)


if __name__ == "__main__":
    try:
        _keep(sys.argv[1] == "1")
    except OSError as error:
        sys.exit(f"taps: {error}")
