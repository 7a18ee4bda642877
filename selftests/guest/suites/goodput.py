# SPDX-License-Identifier: GPL-2.0
"""Measures, and judges nothing: the share of its own undisturbed goodput that a driver keeps on a bad
wire. 64 KiB WRITE and READ, one queue pair. The figures are in the case's log and on the console."""

import re
import statistics

import harness
import loss
import programs
import testbed
from harness import case

bed = loss.bed

# Name: what netem does each way without the disturbance, and the disturbance.
WIRES = {
    "loss 0.1 %": ("delay 0.1ms", "loss 0.1%"),
    "loss 1 %": ("delay 0.1ms", "loss 1%"),
    "loss 5 %": ("delay 0.1ms", "loss 5%"),
    "reorder 25 %": ("delay 1ms", "reorder 25% 50%"),
    "corrupt 1 %": ("delay 0.1ms", "corrupt 1%"),
    "10 ms, loss 0.1 %": ("delay 5ms", "loss 0.1%"),
}


def bandwidth(program, netem, iterations):
    """MB/s of a run, by the guest's clock."""
    port = programs.next_port()

    def command(host):
        return f"{program} -d {host.device} -x {host.gid_index()} -F -u 14 -s 65536 -n {iterations} -p {port}"

    with loss.wire(netem):
        _, output = programs.run_pair(
            bed.peer,
            bed.here,
            command(bed.peer),
            f"{command(bed.here)} {bed.peer.address}",
            testbed.tcp_listens,
            port,
            200,
        )
    return float(re.search(r"^\s*65536\s+\d+\s+\S+\s+(\S+)", output, re.M).group(1))


@case(timeout=1500, each={"write": "ib_write_bw", "read": "ib_read_bw"})
def goodput(program):
    """The table."""
    clean = {}
    for name, (delay, disturbance) in WIRES.items():
        if delay not in clean:
            clean[delay] = statistics.median(bandwidth(program, delay, 1000) for _ in range(3))
        try:
            bad = statistics.median(bandwidth(program, f"{delay} {disturbance}", 600) for _ in range(3))
            share = f"{100 * bad / clean[delay]:4.0f} %"
        except harness.Failure as failure:
            bad, share = 0, f"failed: {failure}"
        print(f"GOODPUT {bed.here.driver} {program} {name}: {bad:.1f} of {clean[delay]:.1f} MB/s: {share}", flush=True)


def run():
    """Run the suite."""
    return bed.run()
