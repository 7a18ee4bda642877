# SPDX-License-Identifier: GPL-2.0
"""The results: a line for each test, a summary at the end, and JUnit's XML."""

import collections
import fnmatch
import os
import re
import sys
import threading
import time
import xml.etree.ElementTree as ET

from .root import TOP

PASS, FAIL, SKIP = "ok", "fail", "skip"

# Interval of progress lines, in seconds. A terminal overwrites them.
_TICK_TERMINAL = 1
_TICK_LOG = 30

# Runs whose tests took this many seconds in total print where the time went: this many suites, and
# this many tests.
_TIMES_FROM = 300
_TIMES_OF = 12
_SLOWEST = 20

# A line of the kernel's log in a reason, and the number of lines before and after it to print at
# the end.
_KERNEL_LINE = re.compile(r"\[ *\d+\.\d{6}\] .+")
_LINES_BEFORE, _LINES_AFTER = 12, 60

# Number of lines of another failed test's log to print at the end.
_LAST_LINES = 25


def matches(name, patterns):
    """Returns whether a shell pattern occurs in a test's name. No patterns match everything."""
    return not patterns or any(fnmatch.fnmatchcase(name, f"*{pattern}*") for pattern in patterns)


def excerpt(reason, log):
    """Returns a log's lines around the kernel's line that a reason quotes, or its last lines."""
    quoted = _KERNEL_LINE.search(reason)
    try:
        with open(os.path.join(TOP, log), encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        return []
    if not quoted:
        return lines[-_LAST_LINES:]
    found = next((number for number, line in enumerate(lines) if quoted.group() in line), None)
    return [] if found is None else lines[max(0, found - _LINES_BEFORE) : found + _LINES_AFTER]


def _processor_ticks():
    """Returns the idle time and the whole time of this machine's CPUs since its boot, in ticks."""
    with open("/proc/stat", encoding="ascii") as file:
        # user, nice, system, idle, iowait, irq, softirq, steal; guests are part of user.
        ticks = [int(word) for word in file.readline().split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)


class Report:
    """Collects results. Several threads use it; each works on one test at a time."""

    def __init__(self):
        self.results = []
        self._counts = {PASS: 0, FAIL: 0, SKIP: 0}
        self._cached = 0
        self._lock = threading.Lock()
        self._doing = {}
        # The CPU time in seconds of the processes that `wait` waited for, by name.
        self._processor = collections.Counter()
        # The seconds of the run that are no test's, by kind and name (`overhead`).
        self._overheads = collections.defaultdict(collections.Counter)
        self._ticks = _processor_ticks()
        # The start of the first test and the end of the last one, by lane.
        self._lanes = {}
        self._terminal = sys.stderr.isatty()
        self._shown = False
        self._stop = threading.Event()
        self._ticker = threading.Thread(target=self._tick, daemon=True)
        self._ticker.start()

    def doing(self, what):
        """Sets the progress text of this thread; None removes it."""
        with self._lock:
            self._doing.pop(threading.get_ident(), None)
            if what:
                self._doing[threading.get_ident()] = (what, time.monotonic())

    def wait(self, name, process):
        """Waits for a process, adds its CPU time to `name`, and returns its status."""
        # Popen.wait() drops the usage that wait4(2) returns.
        try:
            _, status, usage = os.wait4(process.pid, 0)
        except ChildProcessError:
            return process.wait()  # its guard reaped it first; only the usage is lost
        process.returncode = os.waitstatus_to_exitcode(status)
        with self._lock:
            self._processor[name] += usage.ru_utime + usage.ru_stime
        return process.returncode

    def overhead(self, kind, name, seconds):
        """Adds seconds that `name` spent on something other than tests, such as a boot."""
        with self._lock:
            self._overheads[kind][name] += seconds

    def _tick(self):
        while not self._stop.wait(_TICK_TERMINAL if self._terminal else _TICK_LOG):
            with self._lock:
                now = time.monotonic()
                long = [f"{what}: {now - since:.0f} s" for what, since in self._doing.values() if now - since >= 4]
                if not long:
                    continue
                text = f"… {', '.join(long)} ({len(self.results)} done)"
                if self._terminal:
                    sys.stderr.write(f"\r\x1b[K{text[:120]}")
                    self._shown = True
                else:
                    sys.stderr.write(text + "\n")
                sys.stderr.flush()

    def line(self, text):
        """Prints a line above the progress line."""
        with self._lock:
            if self._shown:
                sys.stderr.write("\r\x1b[K")
                sys.stderr.flush()
                self._shown = False
            print(text, flush=True)

    def result(self, name, status, seconds=0.0, reason="", log="", cached=False):
        """Records and prints the result of a test. `cached`: of an earlier run with its inputs."""
        with self._lock:
            self.results.append((name, status, seconds, reason, log))
            self._counts[status] += 1
            self._cached += cached
            lane = self._lanes.setdefault(name.partition("/")[0], [time.monotonic() - seconds, 0])
            lane[1] = time.monotonic()
        if status == PASS:
            self.line(f"ok {name} ({'cached' if cached else f'{seconds:.1f}'})")
        elif status == SKIP:
            self.line(f"skip {name}: {reason}")
        else:
            self.line(f"FAIL {name}: {reason}" + (f" (log: {log})" if log else ""))

    @property
    def failed(self):
        """Returns the number of tests that have failed."""
        return self._counts[FAIL]

    def finish(self, path):
        """Writes JUnit XML to `path`. Prints times, all failures again, and the closing line."""
        self._stop.set()
        self._ticker.join()
        self._tell_times()
        if self.failed:
            self.line("")
            self.line("Failed:")
            for name, status, _, reason, log in self.results:
                if status == FAIL:
                    self.line(f"  {name}: {reason}" + (f" (log: {log})" if log else ""))
                    for line in excerpt(reason, log):
                        self.line(f"    {line}")
        self._write_junit(path)
        counts = self._counts
        if self._cached:
            self.line(f"{self._cached} results are cached (RRXE_CACHED_RESULTS=off runs these tests)")
        self.line(f"{counts[PASS]} passed, {counts[FAIL]} failed, {counts[SKIP]} skipped")

    def _tell_times(self):
        """Prints times of lanes, suites, boots and builds, CPU times, and the slowest tests.

        Suites run concurrently, so their sum exceeds the time of the lane."""
        suites = collections.Counter()
        for name, _, seconds, _, _ in self.results:
            suites["/".join(name.split("/")[:2])] += seconds
        if sum(suites.values()) < _TIMES_FROM:
            return
        lanes = (f"{lane} {until - since:.0f}" for lane, (since, until) in self._lanes.items())
        self.line(f"Seconds: {', '.join(lanes)}; of them {_longest(suites)}")
        for kind, names in self._overheads.items():
            names = collections.Counter({name: seconds for name, seconds in names.items() if seconds >= 1})
            self.line(f"Seconds of {kind}: {sum(names.values()):.0f} in all, {_longest(names)}")
        processor = (f"{name} {seconds:.0f}" for name, seconds in self._processor.most_common())
        self.line(f"Processor seconds: {', '.join(processor)}")
        idle, ticks = (now - before for now, before in zip(_processor_ticks(), self._ticks))
        self.line(f"The processors were idle for {100 * idle / max(ticks, 1):.0f} % of the time")
        self.line(f"The {_SLOWEST} slowest tests:")
        for name, _, seconds, _, _ in sorted(self.results, key=lambda result: -result[2])[:_SLOWEST]:
            self.line(f"{seconds:>8.1f} s  {name}")

    def _write_junit(self, path):
        suite = ET.Element(
            "testsuite",
            name="rrxe",
            tests=str(len(self.results)),
            failures=str(self._counts[FAIL]),
            skipped=str(self._counts[SKIP]),
        )
        for name, status, seconds, reason, log in self.results:
            group, _, case = name.rpartition("/")
            test = ET.SubElement(suite, "testcase", classname=group, name=case, time=f"{seconds:.1f}")
            if status == FAIL:
                ET.SubElement(test, "failure", message=_printable(reason)).text = _printable(log)
            elif status == SKIP:
                ET.SubElement(test, "skipped", message=_printable(reason))
        ET.ElementTree(suite).write(path, encoding="unicode", xml_declaration=True)


def _longest(names):
    """Returns the names with the most seconds, each with its seconds."""
    return ", ".join(f"{name} {seconds:.0f}" for name, seconds in names.most_common(_TIMES_OF)) or "none"


def _printable(text):
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)
