# SPDX-License-Identifier: GPL-2.0
"""The constants of libibverbs by name, as in pyverbs of rdma-core 56.1.

In pyverbs of 65.0 each enumeration is a class; its members are copied here.
"""

import enum

try:
    from pyverbs.enums import *  # noqa: F401,F403
except ModuleNotFoundError:
    import pyverbs.libibverbs_enums as _classes

    for _class in vars(_classes).values():
        if isinstance(_class, type) and issubclass(_class, enum.Enum):
            globals().update({name: int(member) for name, member in _class.__members__.items()})
