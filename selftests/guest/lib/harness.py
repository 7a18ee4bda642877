# SPDX-License-Identifier: GPL-2.0
"""Declaring, running and reporting test cases inside a guest.

A suite is a Python module in suites/ whose functions are marked with `@case`. A boot runs one
suite, or several in turn: `run_suite` announces the names of the cases, runs them in the order of
the file, and reports each. Reports are lines `@rrxe {json}` on standard output; the runner on the
host reads them (selftests/runner/boots.py).

A case fails by raising an exception: `Failure` for its own checks, `Skip` if the case cannot be
tested here. Its log, `$OUT/<case>.log`, holds every command that it ran, with the output.
"""

import contextlib
import fnmatch
import json
import os
import signal
import sys
import time
import traceback

import kernellog

OUT = os.environ.get("OUT", "/tmp/out")

# Set in the environment if another suite follows in the same boot.
MORE_FOLLOWS = "MORE_SUITES_FOLLOW"


class Failure(Exception):
    """A check of the case failed."""


class Skip(Exception):
    """The case cannot run here; the text says why."""


class Hang(BaseException):
    """The case exceeded its time limit. Derived from BaseException so that no case catches it."""


class Case:
    """A test: its name, function, time limit in seconds, and arguments.

    `debug` says whether the default run of the debug kernel includes it.
    """

    def __init__(self, name, function, timeout, debug, arguments=()):
        self.name = name
        self.function = function
        self.timeout = timeout
        self.debug = debug
        self.arguments = arguments


_cases = []
_log = None


def case(timeout=120, debug=True, each=None):
    """Marks a function as a test. Underscores in its name become hyphens.

    `timeout` only catches hangs: seconds on a slow emulator; the debug kernel gets three times as
    long. `each` declares one case per element: a mapping from the name's ending to the function's
    argument. `debug` says whether the default run of the debug kernel includes the case; a
    collection names the endings that it includes.
    """

    def mark(function):
        name = function.__name__.replace("_", "-")
        if each is None:
            _cases.append(Case(name, function, timeout, debug))
        else:
            for suffix, argument in each.items():
                core = debug if isinstance(debug, bool) else suffix in debug
                _cases.append(Case(f"{name}-{suffix}", function, timeout, core, (argument,)))
        return function

    return mark


def declare(name, timeout, function, *arguments):
    """Adds a case at run time, for suites whose cases are known only in the guest."""
    _cases.append(Case(name, function, timeout, True, arguments))


def log(text):
    """Writes a line to the log of the running case, with the seconds since the guest's boot."""
    if _log:
        _log.write(f"[{time.monotonic():.1f}] {text.rstrip()}\n")
        _log.flush()


def require(condition, text):
    """Raises a Failure with `text` unless `condition` holds."""
    if not condition:
        raise Failure(text)


def equal(what, found, wanted):
    """Raises a Failure unless `found` equals `wanted`."""
    if found != wanted:
        raise Failure(f"{what}: {found!r}, not {wanted!r}")


def wait_until(what, condition, seconds=60):
    """Waits until `condition()` is true, and returns its result."""
    end = time.monotonic() + seconds * slowness()
    pause = 0.05
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise Failure(f"{what}: not within {seconds * slowness()} s")
        # A condition on the other host costs the CPU time of two machines.
        time.sleep(pause)
        pause = min(1.2 * pause, 0.3)


def slowness():
    """Returns the factor by which time limits are extended for this kernel."""
    return 3 if debug_kernel() else 1


def debug_kernel():
    """Returns whether this is the debug kernel."""
    return os.environ.get("KERNEL") == "debug"


def more_follows():
    """Returns whether another suite follows in this boot.

    If so, that suite looks for leaks, and the other host stays up.
    """
    return MORE_FOLLOWS in os.environ


def leaks_matter():
    """Returns whether to look for leaks at the end of this suite."""
    return debug_kernel() and not more_follows() and kernellog.looks_for_leaks()


def report(**fields):
    """Sends one report to the host."""
    sys.stdout.write("\n@rrxe " + json.dumps(fields) + "\n")
    sys.stdout.flush()


@contextlib.contextmanager
def time_limit(seconds):
    """Raises Hang in the block after this many seconds."""

    def expired(_signal, _frame):
        raise Hang(f"not done after {seconds} s")

    old = signal.signal(signal.SIGALRM, expired)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)


@contextlib.contextmanager
def _log_to(name):
    global _log
    with open(os.path.join(OUT, name + ".log"), "w", encoding="utf-8", errors="replace") as _log:
        try:
            yield
        finally:
            _log = None


def _run_case(one):
    """Runs a case. Returns its status, and the reason if that is not `ok`."""
    with _log_to(one.name):
        try:
            with time_limit(one.timeout * slowness()):
                one.function(*one.arguments)
            return "ok", ""
        except Skip as why:
            return "skip", str(why)
        except Failure as why:
            log(traceback.format_exc())
            return "fail", str(why)
        except Hang as why:
            log(traceback.format_exc())
            return "fail", str(why)
        except Exception as why:  # an exception of a library fails only this case
            log(traceback.format_exc())
            return "fail", f"{type(why).__name__}: {why}"


_choice = ("", (), False)


def choose(prefix, only, core):
    """Sets the selection of cases.

    A case is chosen if `prefix` and its name contain one of the patterns `only`, or if there are
    no patterns. `core` limits the selection to the default run of the debug kernel.
    """
    global _choice
    _choice = (prefix, only, core)


def core_only():
    """Returns whether only the default run of the debug kernel was chosen."""
    return _choice[2]


def chosen():
    """Yields the cases to run."""
    prefix, only, core = _choice
    for one in _cases:
        if core and not one.debug:
            continue
        if not only or any(fnmatch.fnmatchcase(prefix + one.name, f"*{pattern}*") for pattern in only):
            yield one


def run_suite(after_each=None, finish=None):
    """Runs the chosen cases. Returns whether all passed.

    `after_each` is called after every case to clean up; `finish` is called after all of them,
    before the kernel log is judged. The harness adds two cases of its own: `kernel-log`, and, in
    the last suite of a boot with the debug kernel, `memory-leaks`.
    """
    cases = list(chosen())
    look_for_leaks = leaks_matter()
    own = ["kernel-log"] + (["memory-leaks"] if look_for_leaks else [])
    report(plan=[one.name for one in cases] + own)
    watch = kernellog.Watch()
    good = True

    def done(name, started, status, reason):
        nonlocal good
        good = good and status != "fail"
        report(case=name, status=status, seconds=round(time.monotonic() - started, 1), reason=reason)

    for one in cases:
        started = time.monotonic()
        report(start=one.name, limit=one.timeout * slowness())
        watch.mark(one.name)
        status, reason = _run_case(one)
        if after_each:
            with contextlib.suppress(Exception):
                after_each()
        done(one.name, started, status, reason)

    started = time.monotonic()
    report(start="kernel-log", limit=120 * slowness())
    watch.mark("finish")
    reason = ""
    if finish:
        try:
            with _log_to("finish"):
                finish()
        except Exception as why:
            reason = f"clearing away: {why}"
    if look_for_leaks:
        leaks = kernellog.memory_leaks(os.path.join(OUT, "memory-leaks.log"))
        done("memory-leaks", started, "fail" if leaks else "ok", leaks)
    reason = watch.verdict(os.path.join(OUT, "kernel-log.log")) or reason
    done("kernel-log", started, "fail" if reason else "ok", reason)
    return good
