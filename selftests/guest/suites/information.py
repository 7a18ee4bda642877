# SPDX-License-Identifier: GPL-2.0
"""Query responses contain no uninitialised kernel memory.

The kernel of this suite fills freed memory (slab_debug=P), so that a byte that was never written is
0x6b.
"""

import testbed
from harness import case, equal, require

bed = testbed.Bed()

# Queries of each queue pair. Each uses memory that another allocation has left.
QUERIES = 50


def check_poison():
    """Fails if the kernel does not fill freed memory."""
    with open("/sys/kernel/slab/kmalloc-256/poison", encoding="ascii") as flag:
        equal("kmalloc-256 is filled when freed", flag.read().strip(), "1")


@case(each={kind: kind for kind in ("rc", "uc", "ud")})
def query_qp(kind):
    """QUERY_QP returns zeros for attributes that the queue pair lacks.

    The alternate path is always zero, and so is the address until one is set.
    """
    import endpoint  # only a guest has verbs

    check_poison()
    here, end = bed.here, endpoint.Endpoint()
    info = end.open(here.device, here.address, here.driver)
    try:
        pd, cq = end.pd(), end.cq()
        qp = end.qp(kind, pd, cq)

        def check(state):
            for _ in range(QUERIES):
                attributes = end.unused_attributes(qp["id"])
                nonzero = {name: value for name, value in attributes.items() if value}
                equal(f"what a queue pair in {state} lacks", nonzero, {})

        check("reset")
        end.to_init(qp["id"], kind)
        check("init")
        end.to_rtr(qp["id"], kind, gid=info["gid"], qpn=qp["qpn"])
        end.to_rts(qp["id"], kind)
        check("rts")
    finally:
        end.leave()


@case()
def query_srq():
    """QUERY_SRQ returns the attributes of the queue."""
    import endpoint  # only a guest has verbs

    check_poison()
    here, end = bed.here, endpoint.Endpoint()
    end.open(here.device, here.address, here.driver)
    try:
        srq = end.srq(end.pd(), 64)
        for _ in range(QUERIES):
            attributes = end.query_srq(srq["id"])
            require(attributes["max_wr"] >= 64 and attributes["limit"] == 0, f"the attributes are {attributes}")
    finally:
        end.leave()


def run():
    """Runs the suite."""
    return bed.run()
