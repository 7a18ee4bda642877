# SPDX-License-Identifier: GPL-2.0
"""Management datagrams (MADs) of a program, by /dev/infiniband/umad*."""

import contextlib
import fcntl
import glob
import ipaddress
import os
import struct

from harness import Failure, equal, require

# include/uapi/rdma/ib_user_mad.h: struct ib_user_mad_reg_req, and struct ib_user_mad_hdr in three
# parts, because its fields have different byte orders.
_REGISTER = struct.Struct("=I16x3B4x1x")
_REGISTER_AGENT = 3 << 30 | _REGISTER.size << 16 | 0x1B << 8 | 1
_ENABLE_PKEY = 0x1B << 8 | 3
_LOCAL = struct.Struct("=5I")
_REMOTE = struct.Struct(">IIH6B16sI")
_PKEY = struct.Struct("=H6x")
_HEADER = _LOCAL.size + _REMOTE.size + _PKEY.size

GSI = 1
GSI_QKEY = 0x80010000

# A MAD's header (IBA 13.4.2): version, class, class version, method, status, class specific,
# transaction, attribute, modifier.
_MAD = struct.Struct(">4BHHQH2xI")
MAD_LEN = 256

PERF_MGMT = 4
GET, SET, GET_RESP = 1, 2, 0x81
CLASS_PORT_INFO, PORT_SAMPLES_CONTROL, PORT_COUNTERS, PORT_COUNTERS_EXTENDED = 0x01, 0x10, 0x12, 0x1D
# Statuses (IBA 13.4.7).
SUCCESS, UNSUPPORTED, INVALID_FIELD = 0, 0x0C, 0x1C

# The fields of the attributes that have counters: name, offset and format.
FIELDS = {
    PORT_COUNTERS: {
        "port_rcv_errors": (8, ">H"),
        "port_xmit_discards": (14, ">H"),
        "port_xmit_data": (24, ">I"),
        "port_rcv_data": (28, ">I"),
        "port_xmit_packets": (32, ">I"),
        "port_rcv_packets": (36, ">I"),
    },
    PORT_COUNTERS_EXTENDED: {
        "port_xmit_data": (8, ">Q"),
        "port_rcv_data": (16, ">Q"),
        "port_xmit_packets": (24, ">Q"),
        "port_rcv_packets": (32, ">Q"),
    },
}


class Agent:
    """A registered user of MADs of one class on a host's device.

    It uses IPv6. Over IPv4, no program gets a response, whatever the adapter: ib_core compares its
    own GID with a part of the received header that is a GID only if the packet is IPv6
    (drivers/infiniband/core/mad.c, `rcv_has_same_gid()`).
    """

    def __init__(self, host, management_class=PERF_MGMT):
        (path,) = [
            path
            for path in glob.glob("/sys/class/infiniband_mad/umad*")
            if _contents(f"{path}/ibdev") == host.device
        ]
        self._file = os.open(f"/dev/infiniband/{os.path.basename(path)}", os.O_RDWR)
        self._class = management_class
        self._gid_index = host.gid_index(host.address6)
        self._transaction = 0
        # Without this, the kernel logs a warning about an old program.
        fcntl.ioctl(self._file, _ENABLE_PKEY)
        registered = fcntl.ioctl(self._file, _REGISTER_AGENT, _REGISTER.pack(0, GSI, management_class, 1))
        self._id = _REGISTER.unpack(registered)[0]

    def close(self):
        """Ends the registration."""
        os.close(self._file)

    def ask(self, host, attribute, method=GET, port=1):
        """Sends a request to a host's port; returns status and attribute of the response."""
        self._transaction += 1
        mad = _MAD.pack(1, self._class, 1, method, 0, 0, self._transaction, attribute, 0)
        mad = mad.ljust(65, b"\0") + bytes([port])
        self._send(host.address6, mad.ljust(MAD_LEN, b"\0"))
        response = self._receive()
        _, _, _, found, status, _, transaction, about, _ = _MAD.unpack_from(response)
        equal("method of the response", found, GET_RESP)
        equal("transaction of the response", transaction & 0xFFFFFFFF, self._transaction)
        equal("attribute of the response", about, attribute)
        return status, response[64:]

    def counters(self, host, attribute):
        """Returns the counters of a host's port: {name: value}."""
        status, found = self.ask(host, attribute)
        equal("status", status, SUCCESS)
        equal("PortSelect", found[1], 1)
        return {name: struct.unpack_from(form, found, at)[0] for name, (at, form) in FIELDS[attribute].items()}

    def _send(self, address, mad):
        gid = ipaddress.IPv6Address(address).packed
        header = _LOCAL.pack(self._id, 0, 5000, 3, 0)
        header += _REMOTE.pack(GSI, GSI_QKEY, 0, 0, 0, 1, self._gid_index, 64, 0, gid, 0)
        os.write(self._file, header + _PKEY.pack(0) + mad)

    def _receive(self):
        data = os.read(self._file, _HEADER + MAD_LEN)
        _, status, *_ = _LOCAL.unpack_from(data)
        if status:
            raise Failure(f"no response: {os.strerror(status)}")
        require(len(data) == _HEADER + MAD_LEN, f"{len(data)} bytes")
        return data[_HEADER:]


@contextlib.contextmanager
def agent(host, management_class=PERF_MGMT):
    """Yields an agent on this host for the block."""
    one = Agent(host, management_class)
    try:
        yield one
    finally:
        one.close()


def _contents(path):
    with open(path, encoding="ascii") as file:
        return file.read().strip()
