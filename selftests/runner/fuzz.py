# SPDX-License-Identifier: GPL-2.0
"""Builds and runs the fuzz targets (fuzz/) in the build root, with libFuzzer as the engine."""

import argparse
import concurrent.futures
import functools
import os
import re
import shutil
import subprocess
import sys
import time

from . import host
from .report import FAIL, PASS, matches
from .root import NO_GUEST, TOP, in_root, with_priority

# The targets, and the number of executions of each in `make test`: about a minute of a CPU.
EXECUTIONS = {
    "parse": 5_000_000,
    "mad": 300_000,
    "responder": 1_000_000,
    "requester": 900_000,
    "wqe": 2_500_000,
    "differential": 450_000,
    "conversation": 250_000,
}
TARGETS = tuple(EXECUTIONS)

_TRIPLE = "x86_64-unknown-linux-gnu"
# LLVM's instrumentation for libFuzzer: coverage of edges, and operands of comparisons.
_COVERAGE = (
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
)
# An input is a sequence of events; long ones only take time.
_OPTIONS = ("-max_len=1024", "-timeout=20", "-rss_limit_mb=1024", "-print_final_stats=1", "-verbosity=1")

_EXECUTIONS = re.compile(r"^(?:#(\d+)\s|stat::number_of_executed_units:\s*(\d+))", re.MULTILINE)
_COVERED = re.compile(r"^#\d+\s.* cov: (\d+)", re.MULTILINE)
_FOUND = re.compile(r"Test unit written to (\S+)")
_PANIC = re.compile(r"panicked at (.*?):\n(.*)")


def _root(command, **options):
    """Starts a command in the build root, in the checkout, at the lowest priority."""
    return subprocess.Popen(with_priority(NO_GUEST, in_root(*command)), cwd=TOP, stdin=subprocess.DEVNULL, start_new_session=True, **options)


def build(log, wait=subprocess.Popen.wait):
    """Builds all targets. Returns their folder, or None if the build fails."""
    folder = os.path.join(TOP, "out/fuzz/cargo")
    # Set for the targets only, not for the build scripts that cargo runs.
    command = ["env", f"CARGO_TARGET_DIR={folder}", f"CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS={' '.join(_COVERAGE)}"]
    command += ["cargo", "build", "--locked", "--release", "--manifest-path", "fuzz/Cargo.toml", "--target", _TRIPLE]
    command += ["--features", "engine", *(word for target in TARGETS for word in ("--bin", target))]
    with open(log, "w", encoding="utf-8") as file:
        process = _root(command, stdout=file, stderr=subprocess.STDOUT)
        host.guard(process)
        status = wait(process)
    return None if status else os.path.join(folder, _TRIPLE, "release")


class Run:
    """The result of running a target."""

    def __init__(self, target, status, seconds, output):
        self.target, self.status, self.seconds = target, status, seconds
        counts = [int(a or b) for a, b in _EXECUTIONS.findall(output)]
        self.executions = max(counts, default=0)
        self.covered = int((_COVERED.findall(output) or [0])[-1])
        found = _FOUND.search(output)
        self.input = found.group(1) if found else None
        panic = _PANIC.search(output)
        self.panic = f"{panic.group(2)} ({panic.group(1)})" if panic else "no panic: see the log"

    def summary(self):
        """Returns the statistics as text."""
        rate = self.executions / max(self.seconds, 1)
        return f"{self.executions:,} executions, {rate:,.0f} a second; {self.covered} edges"


def run_target(target, binaries, limit, log, wait=subprocess.Popen.wait):
    """Runs one target, from its seeds and from the corpus of earlier runs.

    `limit` is libFuzzer's option that ends the run."""
    corpus = os.path.join(TOP, "out/fuzz/corpus", target)
    findings = os.path.join(TOP, "out/fuzz/findings", target)
    for folder in (corpus, findings):
        os.makedirs(folder, exist_ok=True)
    command = [os.path.join(binaries, target), *_OPTIONS, limit]
    command += [f"-artifact_prefix={findings}/", corpus]
    command += [folder for folder in (f"fuzz/seeds/{target}", f"fuzz/regressions/{target}") if os.path.isdir(os.path.join(TOP, folder))]
    started = time.monotonic()
    with open(log, "w", encoding="utf-8") as file:
        process = _root(command, stdout=file, stderr=subprocess.STDOUT)
        host.guard(process)
        status = wait(process)
    with open(log, encoding="utf-8", errors="replace") as file:
        return Run(target, status, time.monotonic() - started, file.read())


def replay(run):
    """Returns the command that replays the input of a finding."""
    return f"make fuzz TARGET={run.target} INPUT={os.path.relpath(run.input, TOP)}"


def lane(report, out, only):
    """Runs every target as a test of the host lane, `host/fuzz/TARGET`, one per CPU at a time."""
    targets = [target for target in TARGETS if matches(f"host/fuzz/{target}", only)]
    if not targets:
        return
    log = os.path.join(out, "host-fuzz-build.txt")
    report.doing("host/fuzz: building")
    started = time.monotonic()
    wait = functools.partial(report.wait, "host/fuzz")
    binaries = build(log, wait)
    report.doing(None)
    if host.stopping.is_set():
        return
    if not binaries:
        for target in targets:
            report.result(f"host/fuzz/{target}", FAIL, time.monotonic() - started, "does not build", os.path.relpath(log, TOP))
        return

    def one(target):
        log = os.path.join(out, f"host-fuzz-{target}.txt")
        report.doing(f"host/fuzz/{target}")
        run = run_target(target, binaries, f"-runs={EXECUTIONS[target]}", log, wait)
        report.doing(None)
        if host.stopping.is_set():
            return 0
        reason = ""
        if run.status:
            reason = f"{run.panic}; {replay(run)}" if run.input else f"ended with {run.status}"
        elif not run.executions:
            reason = "executed nothing"
        report.result(f"host/fuzz/{target}", FAIL if reason else PASS, run.seconds, reason, os.path.relpath(log, TOP))
        report.line(f"   {target}: {run.summary()}")
        return run.executions

    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        total = sum(pool.map(one, targets))
    report.line(f"   fuzz: {total:,} execs")


def main(arguments):
    """Runs `make fuzz`: longer runs, and replays."""
    parser = argparse.ArgumentParser(prog="selftests/run fuzz", description="Runs the fuzz targets of rrxe (docs/testing.md).")
    parser.add_argument("--target", action="append", choices=TARGETS, help="only this one; can be repeated")
    parser.add_argument("--seconds", type=int, default=600, help="for each target (600)")
    parser.add_argument("--input", help="run this input of one --target once, and show what happens")
    args = parser.parse_args(arguments)
    logs = os.path.join(TOP, "out/fuzz/log")
    os.makedirs(logs, exist_ok=True)
    targets = args.target or list(TARGETS)
    print("fuzz: building", file=sys.stderr)
    binaries = build(os.path.join(logs, "build.txt"))
    if not binaries:
        with open(os.path.join(logs, "build.txt"), encoding="utf-8") as file:
            shutil.copyfileobj(file, sys.stderr)
        return 1
    if args.input:
        if len(targets) != 1:
            parser.error("--input needs exactly one --target")
        return _root([os.path.join(binaries, targets[0]), *_OPTIONS, args.input]).wait()

    def one(target):
        run = run_target(target, binaries, f"-max_total_time={args.seconds}", os.path.join(logs, f"{target}.txt"))
        print(f"fuzz: {target}: {run.summary()}", flush=True)
        if run.status:
            what = f"FOUND: {run.panic}\n    {replay(run)}" if run.input else f"ended with {run.status}"
            print(f"fuzz: {target}: {what} (log: out/fuzz/log/{target}.txt)", flush=True)
        return run

    try:
        with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            runs = list(pool.map(one, targets))
    except KeyboardInterrupt:
        host.stopping.set()
        return 130
    bad = sum(1 for run in runs if run.status)
    print(f"fuzz: {sum(run.executions for run in runs):,} execs, {bad} findings")
    return 1 if bad else 0
