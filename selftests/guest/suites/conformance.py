# SPDX-License-Identifier: GPL-2.0
"""Scripted packets (selftests/conformance) against the driver of this machine, one case per script.

With rdma_rxe, the scripts that it is known to fail (selftests/conformance/rdma_rxe) must fail, and
all others must pass. Each run thus verifies what docs/conformance.md says about it.
"""

import contextlib
import os

import harness
import testbed
from harness import Failure, Skip

PROGRAM = "/share/rrxe_script"

bed = testbed.Bed()

# The device of the cases, created by the first of those with the same module parameters.
_device = contextlib.ExitStack()
_server = {}


def _folder():
    here = os.path.dirname(os.path.abspath(__file__))
    for path in ("/share/conformance", os.path.join(here, "../../conformance")):
        if os.path.isdir(path):
            return path
    raise Failure("no scripts")


def _head(path):
    """Returns the statements in the head of a script: {word: rest of its line}."""
    found = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            word, _, rest = line.strip().partition(" ")
            if word in ("tests", "core-only", "guest-only", "recovery"):
                found[word] = rest
    return found


def _known():
    """Returns the known differences of rdma_rxe: {script: words}.

    The script's name has a leading ! if the script is not run.
    """
    found = {}
    with open(os.path.join(_folder(), "rdma_rxe"), encoding="utf-8") as file:
        for line in file:
            name, colon, words = line.partition(":")
            if colon and not line.startswith("#"):
                found[name.split()[0]] = words.strip()
    return found


def _conversation(name):
    import scripts  # only a guest has verbs

    path = os.path.join(_folder(), name + ".rrx")
    head = _head(path)
    why = head.get("core-only")
    if why:
        raise Skip(f"over the core only: {why}")
    driver = bed.here.driver
    if driver != "rrxe" and "recovery" in head:
        raise Skip(f"{driver} has one recovery mode only")
    differences = _known() if driver == "rdma_rxe" else {}
    if "!" + name in differences:
        raise Skip(f"not with rdma_rxe: {differences['!' + name]}")
    parameters = "strict_recovery=1" if "recovery" in head else ""
    if parameters not in _server:
        _device.close()
        _server.clear()
        if parameters:
            _device.enter_context(testbed.loaded_with(bed.here.machine, parameters))
        _server[parameters] = _device.enter_context(scripts.device(bed.here.machine, driver))
    known = differences.get(name)
    failure = scripts.run(PROGRAM, path, _server[parameters], fails=bool(known))
    if failure:
        harness.log(failure)
    if known and not failure:
        raise Failure(f"rdma_rxe does as the script says, but is known not to: {known}")
    if failure and not known:
        lines = failure.splitlines()
        raise Failure("; ".join(line.strip() for line in lines[:2]))


def _order(name):
    """Sort key that groups cases by module parameters, so that the module is loaded only twice."""
    return "recovery" in _head(os.path.join(_folder(), name + ".rrx")), name


for _name in sorted((name[:-4] for name in os.listdir(_folder()) if name.endswith(".rrx")), key=_order):
    harness.declare(_name, 120, _conversation, _name)


def run():
    """Runs the suite."""
    return bed.run(_device.close)
