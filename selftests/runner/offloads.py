# SPDX-License-Identifier: GPL-2.0
"""Repeats the suites that depend on the form of packets without each offload of a network device in
turn; `make test-offloads` calls it. WORDS choose offloads: gro, sg.

docs/testing.md lists the offloads."""

import argparse
import os

from . import main as tests
from .root import TOP

# Boots of the guest lane: data over each kind of path, both directions beside rdma_rxe, packet
# scripts, the life of links, and the hostile suites.
BOOTS = (
    "data",
    "data-loopback",
    "reordering",
    "loss",
    "interop-data",
    "interop-perftest",
    "interop-reordering",
    "conformance",
    "lifecycle",
    "bad-input",
    "bad-packets",
    "statements",
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
        for boot in BOOTS:
            words += ["--only", f"guest/{boot}/*"]
        status = tests.main(words) or status
    return status
