# SPDX-License-Identifier: GPL-2.0
"""Direct calls of libibverbs, for functions that pyverbs lacks or implements differently."""

import ctypes

from harness import require


class QpCap(ctypes.Structure):
    """struct ibv_qp_cap."""

    _fields_ = [(name, ctypes.c_uint32) for name in ("send", "recv", "send_sge", "recv_sge", "inline")]


class QpInit(ctypes.Structure):
    """struct ibv_qp_init_attr."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("context", "send_cq", "recv_cq", "srq")),
        ("cap", QpCap),
        ("kind", ctypes.c_uint32),
        ("all", ctypes.c_int),
    ]


class Verbs:
    """The library with a device open."""

    def __init__(self, device):
        self._lib = ctypes.CDLL("libibverbs.so.1", use_errno=True)
        count = ctypes.c_int()
        self._lib.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
        devices = self._lib.ibv_get_device_list(ctypes.byref(count))
        self._lib.ibv_get_device_name.restype = ctypes.c_char_p
        (found,) = [
            devices[i]
            for i in range(count.value)
            if self._lib.ibv_get_device_name(ctypes.c_void_p(devices[i])) == device.encode()
        ]
        self.context = self.make("ibv_open_device", ctypes.c_void_p(found))

    def make(self, what, *arguments):
        """Calls a function that returns an object."""
        made, error = self.try_make(what, *arguments)
        require(made, f"{what}: errno {error}")
        return made

    def try_make(self, what, *arguments):
        """Calls a function that returns an object. Returns it, or None, with the errno or 0."""
        function = getattr(self._lib, what)
        function.restype = ctypes.c_void_p
        made = function(*arguments)
        return (ctypes.c_void_p(made), 0) if made else (None, ctypes.get_errno())

    def call(self, what, *arguments):
        """Calls a function that returns an errno."""
        return getattr(self._lib, what)(*arguments)
