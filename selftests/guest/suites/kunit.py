# SPDX-License-Identifier: GPL-2.0
"""The module's own unit tests (KUnit), run by the kernel on request."""

import re

import testbed
from harness import Skip, case, equal, log, require

bed = testbed.Bed()

FOLDER = "/sys/kernel/debug/kunit/{}"

# A line of the results, in the kernel's variant of TAP; nesting is shown by spaces.
_RESULT = re.compile(r"^\s+(ok|not ok) \d+ (\S+)(.*)$", re.M)


SUITES = (
    "linux-rdma-blocks-of-memory",
    "linux-rdma-memory",
    "linux-rdma-ops",
    "linux-rdma-packet-owners",
    "linux-rdma-payload-arena",
    "linux-rdma-sync",
    "linux-rdma-crc32",
    "linux-rdma-shared-bytes",
    "rrxe-quota",
    "rrxe-state",
    "rrxe-doorbell-moderation",
    "rrxe-memory",
    "rrxe-windows",
    "rrxe-cq",
    "rrxe-tables",
)


@case(timeout=120, each={suite: suite.replace("-", "_") for suite in SUITES})
def passes(suite):
    """All tests of a KUnit suite pass, and none is skipped."""
    here = bed.here
    if here.driver != "rrxe":
        raise Skip(f"{here.driver} has no such tests")
    here.machine.try_run("mountpoint -q /sys/kernel/debug || mount -t debugfs none /sys/kernel/debug")
    folder = FOLDER.format(suite)
    here.machine.run(f"echo > {folder}/run")
    text = here.machine.read(f"{folder}/results")
    log(text)
    results = _RESULT.findall(text)
    require(results, "no test has run")
    bad = [name for outcome, name, rest in results if outcome != "ok" or "SKIP" in rest]
    require(not bad, f"not passed: {', '.join(bad)}")


@case(timeout=60)
def all_listed():
    """The module has no other KUnit suites than those above."""
    here = bed.here
    if here.driver != "rrxe":
        raise Skip(f"{here.driver} has no such tests")
    here.machine.try_run("mountpoint -q /sys/kernel/debug || mount -t debugfs none /sys/kernel/debug")
    names = here.machine.run("ls /sys/kernel/debug/kunit").split()
    own = sorted(name.replace("_", "-") for name in names if name.startswith(("linux_rdma_", "rrxe_")))
    equal("suites of the module", own, sorted(SUITES))


def run():
    """Runs the suite."""
    return bed.run()
