# SPDX-License-Identifier: GPL-2.0
"""The kernel log during tests: warnings, splats, leaks."""

import os
import re
import time

# Messages that no healthy kernel prints. Each is the beginning of a report or a line of its own.
# "waiting for … to become free" does not count: the kernel prints it after 10 s, which a busy
# emulator may need. A leaked reference makes the deletion hang, and its case fail.
_SPLATS = re.compile(
    r"BUG:|WARNING:|Oops|kernel panic|Kernel panic|Call Trace|cut here|general protection fault|"
    r"KASAN|KCSAN|UBSAN|ODEBUG|INFO: task .* blocked|INFO: possible|INFO: trying to register|"
    r"possible recursive locking|possible circular locking|suspicious RCU|inconsistent lock state|"
    r"bad unlock balance|scheduling while atomic|sleeping function called|rcu: INFO|self-detected stall|"
    r"refcount_t:|list_add corruption|list_del corruption|"
    r"soft lockup|hard LOCKUP|Bad page|page allocation failure|double free|stack-protector|"
    r"RCU used illegally|usercopy:|rust_kernel: panicked|panicked at|"
    r"^[^ ]*(?:rrxe|ib_core|infiniband).*(?:leak|still (?:has|in use))",
    re.MULTILINE,
)

# A program that died of a signal, with two exceptions that are not ours: pyverbs may crash at the
# interpreter's exit, and qperf's server destroys the queue pair of an identifier without one
# (docs/programs.md).
_CRASHES = re.compile(r"^(?!.*(?:python3|qperf.*segfault at 0 )).*\b(?:segfault at|trap invalid opcode|traps: )", re.MULTILINE)

# The report of a program that was killed because the control group of a test is at its limit. It
# contains a call trace.
_LIMITED = re.compile(
    r"^.* invoked oom-killer: .*\n(?:(?!.*oom-kill:constraint).*\n)*?.*oom-kill:constraint=CONSTRAINT_MEMCG,.*oom_memcg=/rrxe-tests,",
    re.MULTILINE,
)


def splat_in(text):
    """Returns the first line of `text` that a healthy kernel never prints, or an empty string."""
    text = _LIMITED.sub("", text)
    for pattern in (_SPLATS, _CRASHES):
        found = pattern.search(text)
        if found:
            start = text.rfind("\n", 0, found.start()) + 1
            end = text.find("\n", found.start())
            return text[start : end if end >= 0 else len(text)].strip()
    return ""


# Written to the log by a watch at its end; the next watch starts there.
_JUDGED = "rrxe-test: judged"


class Watch:
    """Follows the kernel log from the boot, or from the end of an earlier suite's watch."""

    def __init__(self):
        self._fd = os.open("/dev/kmsg", os.O_RDWR | os.O_NONBLOCK)
        self._sections = [("the boot, before the first case", [])]

    def _read(self):
        while True:
            try:
                record = os.read(self._fd, 8192).decode("utf-8", "replace")
            except BlockingIOError:
                return
            except BrokenPipeError:  # the ring has overwritten records; continue with the next
                continue
            head, _, text = record.partition(";")
            stamp = int(head.split(",")[2]) / 1e6
            line = text.splitlines()[0] if text else ""
            if line == _JUDGED:
                self._sections[-1][1].clear()
            else:
                self._sections[-1][1].append(f"[{stamp:12.6f}] {line}")

    def mark(self, name):
        """Attributes all later messages to the case `name`."""
        self._read()
        self._sections.append((name, []))
        os.write(self._fd, f"rrxe-test: {name}\n".encode())

    def verdict(self, path):
        """Writes the log to `path`.

        Returns the first complaint and the case in which it appeared, or an empty string.
        """
        self._read()
        verdict = ""
        with open(path, "w", encoding="utf-8", errors="replace") as out:
            for name, lines in self._sections:
                text = "\n".join(lines)
                out.write(text + "\n")
                splat = splat_in(text)
                if splat and not verdict:
                    verdict = f"during {name}: {splat}"
        os.write(self._fd, f"{_JUDGED}\n".encode())
        return verdict


def lines_since(mark):
    """Returns the kernel's messages after `mark`, as one text."""
    fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    lines = []
    try:
        while True:
            try:
                record = os.read(fd, 8192).decode("utf-8", "replace")
            except BlockingIOError:
                return "\n".join(lines)
            except BrokenPipeError:
                continue
            text = record.partition(";")[2]
            line = text.splitlines()[0] if text else ""
            if line == mark:
                lines = []
            elif line:
                lines.append(line)
    finally:
        os.close(fd)


def place():
    """Marks the current end of the kernel log, for `lines_since`.

    A mark is used because no program can read the clock that stamps the log.
    """
    mark = f"rrxe-test: mark {time.monotonic_ns()}"
    with open("/dev/kmsg", "w", encoding="ascii") as log:
        log.write(mark + "\n")
    return mark


_KMEMLEAK = "/sys/kernel/debug/kmemleak"


def looks_for_leaks():
    """Returns whether this kernel looks for leaks.

    kmemleak may be disabled on the command line, which halves the run time.
    """
    with open("/proc/cmdline", encoding="ascii") as file:
        return "kmemleak=off" not in file.read().split()


def memory_leaks(path):
    """Writes the report of kmemleak to `path`. Returns a summary, or an empty string without leaks.

    An object must be unreferenced in two scans and be older than five seconds: memory in transit
    between two owners looks like a leak for a moment.
    """
    if not os.path.exists(_KMEMLEAK):
        return "the kernel has no kmemleak"
    time.sleep(6)
    for _ in range(2):
        with open(_KMEMLEAK, "w", encoding="ascii") as control:
            control.write("scan")
        time.sleep(1)
    with open(_KMEMLEAK, encoding="utf-8", errors="replace") as found:
        text = found.read()
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as out:
        out.write(text)
    count = text.count("unreferenced object")
    return f"kmemleak: {count} unreferenced objects" if count else ""
