# SPDX-License-Identifier: GPL-2.0
"""Repeats the suites that depend on the form of packets without each offload of a network device in
turn; `make test-offloads` calls it. WORDS choose offloads: gro, sg.

docs/testing.md lists the offloads."""

import argparse
import os

from . import main as tests
from .root import TOP

# Cases of the guest lane: data over each kind of path, both directions beside rdma_rxe, packet
# scripts, the life of links, and the hostile suites. The Ethernet device of the guests sends no
# chains, but the veths of `chains` do. Its other cases require that chains are formed.
CASES = (
    "chains/anything-*",
    "chains/bad-wire-*",
    "data/*",
    "data-loopback/*",
    "reordering/*",
    "loss/*",
    "interop-data/*",
    "interop-perftest/*",
    "interop-reordering/*",
    "conformance/*",
    "lifecycle/*",
    "bad-input/*",
    "bad-packets/*",
    "statements/*",
)


def main(arguments):
    """Returns the status of the first failure, or 0."""
    parser = argparse.ArgumentParser(prog="selftests/run offloads", description=__doc__)
    parser.add_argument("words", nargs="*", choices=[[], *tests.OFFLOADS], help="only without these")
    args = parser.parse_args(arguments)
    status = 0
    for offload in args.words or tests.OFFLOADS:
        print(f"rrxe: without {offload}", flush=True)
        words = ["--lane", "guest", "--without", offload, "--out", os.path.join(TOP, "out/test-offloads", offload)]
        for case in CASES:
            words += ["--only", f"guest/{case}"]
        status = tests.main(words) or status
    return status
