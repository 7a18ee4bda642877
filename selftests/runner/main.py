# SPDX-License-Identifier: GPL-2.0
"""The command line: selects lanes and tests, and runs them."""

import argparse
import concurrent.futures
import dataclasses
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import typing

from . import bytecode, fuzz, guest, host
from .boots import BOOTS, grouped
from .modules import Modules
from .report import Report, matches
from .root import TOP

# The packages are the longest job, so they start before the boots of one guest.
LANES = ("host", "packages", "guest", "guest-7.3", "debug")

# Kernels of the lanes that have a fixed one (qemu/kernel/build); the lane `guest` uses --kernel.
_KERNELS = {"guest-7.3": "7.3", "debug": "debug"}

# The offloads of --without (selftests/guest/lib/testbed.py).
OFFLOADS = ("gro", "gso", "tso", "sg", "tx", "rx")

# Maximum memory in KiB that the guests of a boot need: two debug kernels.
_BOOT_MEMORY = 5 << 20


# Signals that end a run. The results so far are still reported.
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _interrupt(_number, _frame):
    """Raises KeyboardInterrupt once: make and timeout both signal all of their descendants."""
    for number in _ENDS:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def parse(arguments):
    """Parses the command line."""
    parser = argparse.ArgumentParser(prog="selftests/run test", description="Runs the tests of rrxe (docs/testing.md).")
    parser.add_argument("--lane", action="append", choices=LANES, help="only this lane; can be repeated")
    parser.add_argument("--only", action="append", default=[], metavar="PATTERN", help="only tests whose name matches")
    parser.add_argument("--list", action="store_true", help="print the names of the tests and end")
    parser.add_argument("--all-debug", action="store_true", help="all cases in the debug kernel, not only the core")
    parser.add_argument("--kernel", default="default", choices=("default", "7.3"), help="of the guest lane")
    parser.add_argument("--driver", default="rrxe", choices=("rrxe", "rdma_rxe"), help="the driver under test")
    parser.add_argument("--without", default="", choices=OFFLOADS, help="switch this offload off in all guests")
    parser.add_argument("--jobs", type=int, metavar="N", help="guests and programs at a time (processors and one, if memory allows)")
    parser.add_argument("--out", default=os.path.join(TOP, "out/test"), help="folder for logs and results")
    return parser.parse_args(arguments)


def kernel_of(lane, args):
    """Returns the kernel of a guest lane."""
    return _KERNELS.get(lane, args.kernel)


def only_core(lane, args):
    """Returns whether a guest lane runs the core only."""
    return lane == "guest-7.3" or lane == "debug" and not args.all_debug


def boots_of(lane, args):
    """Yields the boots of a guest lane."""
    for boot in BOOTS:
        if only_core(lane, args) and not (boot.debug if lane == "debug" else boot.port):
            continue
        if lane != "debug" and not boot.default:
            continue
        if args.driver != "rrxe" and boot.mixed:
            continue  # a driver paired with itself is no interoperability test
        yield boot


def jobs_for_this_machine():
    """Returns the number of concurrent jobs: CPUs plus one, as far as memory allows.

    Guests spend much of their time waiting for each other and for timers."""
    with open("/proc/meminfo", encoding="ascii") as file:
        available = next(int(line.split()[1]) for line in file if line.startswith("MemAvailable:"))
    return max(1, min(len(os.sched_getaffinity(0)) + 1, available // _BOOT_MEMORY))


def hold(folder):
    """Locks the folder against other runs while the returned file is open.

    Returns None if another run uses it."""
    os.makedirs(os.path.dirname(os.path.abspath(folder)), exist_ok=True)
    lock = open(folder.rstrip("/") + ".lock", "w", encoding="ascii")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    return lock


def list_tests(lanes, args):
    """Prints the names of the tests."""
    for lane in lanes:
        if lane == "host":
            print("host/… (cargo test decides)")
            names = [f"host/fuzz/{target}" for target in fuzz.TARGETS]
            print("\n".join(name for name in names if matches(name, args.only)))
            for program in host.ALL_PROGRAMS:
                print(f"host/{program}/… (the program decides)")
            continue
        if lane == host.PACKAGES:
            print("packages/… (the program decides)")
            continue
        core = ["--core"] if only_core(lane, args) else []
        for boot in boots_of(lane, args):
            if boot.dynamic:
                print(f"{lane}/{boot.name}/… (the guest decides)")
                continue
            roles = "both" if boot.mixed else "client"
            names = subprocess.run(
                [guest.SUITE, f"{boot.suite}:{lane}/{boot.name}/", "--list", *core],
                stdout=subprocess.PIPE,
                text=True,
                check=True,
                env={**os.environ, "ROLES": roles},
            ).stdout
            for name in names.split():
                full = f"{lane}/{boot.name}/{name}"
                if matches(full, args.only):
                    print(full)


@dataclasses.dataclass(frozen=True)
class Job:
    """A call of `run` with `arguments`, which starts up to `guests` virtual machines at a time."""

    guests: int
    run: typing.Callable
    arguments: tuple


def run_all(work, jobs, report):
    """Runs all jobs, those with most guests first.

    At most `jobs` run at a time. Together they have at most `jobs` guests, unless one has more.
    Guests that share a CPU wait for each other in loops: three boots of two guests on two CPUs took
    as long together as one after the other, and a third more CPU time.

    Returns False if the user interrupts it. Propagates the exception of a job."""
    waiting = sorted(work, key=lambda job: -job.guests)
    running = {}
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        try:
            while waiting or running:
                for job in list(waiting):
                    guests = sum(running.values())
                    if len(running) < jobs and (guests + job.guests <= jobs or not guests):
                        waiting.remove(job)
                        running[pool.submit(job.run, *job.arguments)] = job.guests
                ended, _ = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
                for one in ended:
                    del running[one]
                    one.result()
        except BaseException as end:
            guest.stopping.set()
            host.stopping.set()
            pool.shutdown(cancel_futures=True)
            if not isinstance(end, KeyboardInterrupt):
                raise
            report.line("interrupted")
            return False
    return True


def main(arguments):
    """Runs the chosen tests. Returns the exit status: 0 if nothing failed."""
    args = parse(arguments)
    # If the guest lane runs all tests with 7.3, the lane with its core is redundant.
    lanes = args.lane or [lane for lane in LANES if lane != f"guest-{args.kernel}"]
    if args.list:
        list_tests(lanes, args)
        return 0
    # A shell that runs this in the background makes it ignore SIGINT otherwise.
    for number in _ENDS:
        signal.signal(number, _interrupt)
    lock = hold(args.out)
    if lock is None:
        print(f"another run of the tests writes to {args.out}: let it end, or choose another folder by --out")
        return 2
    if not args.only:
        shutil.rmtree(args.out, ignore_errors=True)
    os.makedirs(args.out, exist_ok=True)
    report = Report()
    kernels = dict.fromkeys(kernel_of(lane, args) for lane in lanes if lane not in ("host", host.PACKAGES))
    modules = Modules(kernels, report, args.out)
    if kernels:
        bytecode.compile_for_guests()
    work = []
    for lane in lanes:
        if lane == "host":
            work.append(Job(0, host.run, (report, args.out, args.only)))
            work.append(Job(0, fuzz.lane, (report, args.out, args.only)))
            for program in host.ALL_PROGRAMS:
                work.append(Job(0, host.run_program, (program, report, args.out, args.only)))
            continue
        if lane == host.PACKAGES:
            work.append(Job(1, host.run_program, (host.PACKAGES, report, args.out, args.only)))
            continue
        kernel, core = kernel_of(lane, args), only_core(lane, args)
        boots = list(boots_of(lane, args))
        for group in grouped(boots):
            arguments = (lane, group, kernel, modules, args.driver, report, args.out, args.only, core, args.without)
            work.append(Job(group[0].hosts, guest.run_boot, arguments))
    interrupted = not run_all(work, args.jobs or jobs_for_this_machine(), report)
    host.stopping.set()
    modules.join()
    report.finish(os.path.join(args.out, "junit.xml"))
    if not report.results and not interrupted:
        print("no test matches", file=sys.stderr)
    return 1 if report.failed or interrupted or not report.results else 0
