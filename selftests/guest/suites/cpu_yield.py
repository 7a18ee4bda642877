# SPDX-License-Identifier: GPL-2.0
"""A program whose polls find no completions yields its CPU (docs/performance.md)."""

import os

import programs
import testbed
from harness import Skip, case, equal, log, require

bed = testbed.Bed()


def ours():
    """Returns this host; skips the case if its provider is not rrxe's."""
    if bed.here.driver != "rrxe":
        raise Skip("it is rrxe's provider that does so")
    return bed.here


def calls(host, path):
    """Returns the number of sched_yield calls in strace's record of the program."""
    return sum("sched_yield(" in line for line in host.machine.read(path).splitlines())


@case(timeout=240, each={"by-default": ("", True), "at-once": ("1", True), "never": ("0", False)})
def on_one_processor(asked):
    """Two programs that only poll share a CPU and exchange messages.

    Each must yield to the other, or wait until the scheduler preempts it. With RRXE_YIELD_US=0 a
    program never yields.
    """
    after, yields = asked
    here, port = ours(), programs.next_port()
    processor = max(os.sched_getaffinity(0))
    record = "/tmp/yields"

    def command(name):
        words = f"taskset -c {processor} strace -f --seccomp-bpf -e trace=sched_yield -o {record}.{name} ib_send_lat"
        return f"RRXE_YIELD_US={after} {words} -F -s 8 -n 200 -u 20 -d {here.device} -x {here.gid_index()} -p {port}"

    client = f"{command('client')} {here.address}"
    programs.run_pair(here, here, command("server"), client, testbed.tcp_listens, port, 200)
    for name in ("client", "server"):
        count = calls(here, f"{record}.{name}")
        log(f"{name}: {count} calls")
        require((count > 0) == yields, f"the {name} has called sched_yield {count} times")


@case()
def settings():
    """Values of RRXE_YIELD_US. An invalid one is reported, and the device is not opened."""
    here = ours()

    def opened(value):
        return here.machine.try_run(f"RRXE_YIELD_US={value} ibv_devinfo -d {here.device}")

    for good in ("", "0", "1", "1000000"):
        equal(f"status with {good!r}", opened(good).status, 0)
    for bad in ("1000001", "-1", "10us", "often", "99999999999999999999"):
        end = opened(bad)
        require(end.status != 0, f"{bad} was taken")
        require("librrxe: RRXE_YIELD_US must be" in end.output, f"{bad}: nothing says why: {end.output}")


def run():
    """Runs the suite."""
    return bed.run()
