# SPDX-License-Identifier: GPL-2.0
"""Counts the instructions per message of each kernel function, and prints them; `make profile`
calls it. WORDS choose one driver and one case of `make bench`: rdma_rxe SEND 4.

A plugin of the emulator counts every instruction that the guest executes. Nothing is sampled, and
no measuring code runs in the guest. The cost of the messages is the difference of two runs, the
second of which has more messages. In the native lane, perf samples the time of one run instead."""

import argparse
import collections
import json
import os
import shutil
import subprocess
import sys

from .figures import COMMAND_LINE
from .root import TARGET, TOP, cargo, environment

OUT = os.path.join(TOP, "out/profile")


def build():
    """Builds the plugin and the program that prints the table. Returns their folder."""
    subprocess.run(cargo("build", "--quiet", "--locked", "--release", "-p", "rrxe_profile"), cwd=TOP, env=environment(), check=True)
    return os.path.join(TARGET, "release")


def run(programs, lane, group, words, times):
    """Runs `times` times the usual number of messages. Returns the folder and the result."""
    folder = os.path.join(OUT, str(times))
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    plugin = os.path.join(programs, "librrxe_profile.so")
    command = [os.path.join(TOP, "qemu/vm.py"), "--icount", "--driver", "rrxe", "--timeout", "3600", "--out", folder]
    command += ["--emulator", f"-plugin file={plugin},out={folder}/counts.txt", "--env", f"TIMES={times}", "--env", "RUNS=1"]
    command += ["--env", f"DRIVERS={words[0]}", "--env", f"CASE_GROUPS={group}", "--append", COMMAND_LINE]
    if lane == "wire":
        command += ["--env", "WIRE=1"]
    subprocess.run([*command, os.path.join(TOP, "selftests/guest/bench"), *words], check=True)
    return folder, only_row(folder, words)


# The event of perf whose samples are counted, and its period in nanoseconds (qemu/vm.py,
# RECORD_FREQUENCY).
PERIOD = 200_000


def sample(words):
    """Runs a case of the native lane once and samples the kernel's code.

    Returns two folders whose difference is its time in nanoseconds, and the result."""
    none, folder = (os.path.join(OUT, name) for name in ("none", "native"))
    for name in (none, folder):
        shutil.rmtree(name, ignore_errors=True)
        os.makedirs(name)
    record = os.path.join(folder, "perf.data")
    command = [os.path.join(TOP, "qemu/vm.py"), "--kernel", "native", "--cpus", "1", "--driver", "rrxe", "--out", folder]
    command += ["--record", record, "--env", "TIMES=1", "--env", "RUNS=1", "--env", f"DRIVERS={words[0]}"]
    command += ["--env", "CASE_GROUPS=native", "--env", "WIRE=1"]
    subprocess.run([*command, os.path.join(TOP, "selftests/guest/bench"), *words], check=True)
    script = ["perf", "script", "--input", record, "--fields", "ip"]
    addresses = subprocess.run(script, stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    with open(os.path.join(folder, "counts.txt"), "w", encoding="ascii") as file:
        for address, count in collections.Counter(addresses).items():
            file.write(f"{address} {count * PERIOD}\n")
    shutil.copy(os.path.join(folder, "kallsyms.txt"), none)
    with open(os.path.join(none, "counts.txt"), "w", encoding="ascii"):
        pass
    return none, folder, only_row(folder, words)


def only_row(folder, words):
    """Returns the only result of a run. Ends the program if the words choose none, or several."""
    with open(os.path.join(folder, "measured.json"), encoding="utf-8") as file:
        rows = [row for row in json.load(file) if row["runs"]]
    if len(rows) != 1:
        found = "; ".join(f"{row['driver']} {row['case']}" for row in rows) or "nothing"
        sys.exit(f"profile: {' '.join(words)} chooses {found}: choose one case of one driver")
    return rows[0]


def main(arguments):
    """Returns the status of the first failure, or 0."""
    parser = argparse.ArgumentParser(prog="selftests/run profile", description=__doc__)
    parser.add_argument("words", nargs="+", help="a driver and words of a case")
    parser.add_argument("--lane", choices=("deterministic", "wire", "native"), default="deterministic", help="the lane (deterministic)")
    parser.add_argument("--group", default="table", help="the group of the case (table)")
    parser.add_argument("--times", type=int, default=5, help="factor for the number of messages in the second run (5)")
    args = parser.parse_args(arguments)
    if args.times < 2:
        parser.error("the second run must have more messages")
    try:
        programs = build()
        if args.lane == "native":
            short, long, row = sample(args.words)
            messages, unit = row["messages"], "nanoseconds"
        else:
            short, row = run(programs, args.lane, args.group, args.words, 1)
            long, _ = run(programs, args.lane, args.group, args.words, args.times)
            messages, unit = row["messages"] * (args.times - 1), "instructions"
        command = [os.path.join(programs, "profile"), short, long, str(messages)]
        table = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        head = f"{row['driver']}, {row['case']}, {args.lane} lane: {row['runs'][0]} {row['unit']}; {unit} for a message"
        print(f"{head}\n{table}", end="")
        # `make bench` plots this file.
        with open(os.path.join(OUT, "table.txt"), "w", encoding="utf-8") as file:
            file.write(f"{head}\n{table}")
        return 0
    except subprocess.CalledProcessError as failure:
        print(f"profile: {os.path.basename(failure.cmd[0])} ended with {failure.returncode}", file=sys.stderr)
        return failure.returncode
