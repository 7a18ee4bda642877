# SPDX-License-Identifier: GPL-2.0
"""The host lane: cargo's tests, in the build root."""

import os
import re
import subprocess
import time

from .report import FAIL, PASS, SKIP, matches

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

_RUNNING = re.compile(r"^\s*(?:Running (?:unittests )?\S+ \((?:.*/)?([a-z0-9_]+)-[0-9a-f]+\)|Doc-tests (\S+))")
_TEST = re.compile(r"^test (.+?) \.\.\. (ok|FAILED|ignored)(?:, (.*))?$")


def cargo(*arguments):
    """A cargo command in the build root."""
    command = ["cargo", *arguments]
    if os.environ.get("IN_RRXE_ROOT") != "1":
        command = [os.path.join(TOP, "qemu/in-root"), *command]
    return command


def run(report, out, only):
    """Run all tests of the workspace, reporting each as `host/crate/test`."""
    if only and not any("host" in pattern or "*" in pattern for pattern in only):
        return
    log = os.path.join(out, "host-cargo.txt")
    short = os.path.relpath(log, TOP)
    report.doing("host: cargo test")
    environment = {**os.environ, "CARGO_TARGET_DIR": os.path.join(TOP, "out/cargo"), "CARGO_TERM_COLOR": "never"}
    started = time.monotonic()
    crate, seen = "workspace", 0
    process = subprocess.Popen(
        cargo("test", "--workspace", "--locked", "--no-fail-fast"),
        cwd=TOP,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    with open(log, "w", encoding="utf-8") as file:
        for line in process.stdout:
            file.write(line)
            running = _RUNNING.match(line)
            if running:
                crate = running.group(1) or running.group(2) + "-doc"
                report.doing(f"host/{crate}")
            test = _TEST.match(line.strip())
            if not test:
                continue
            name = f"host/{crate}/{test.group(1).replace(' - should panic', '')}"
            if not matches(name, only):
                continue
            seen += 1
            now = time.monotonic()
            status = {"ok": PASS, "FAILED": FAIL, "ignored": SKIP}[test.group(2)]
            report.result(name, status, now - started, test.group(3) or "see its output", short)
            started = now
    status = process.wait()
    report.doing(None)
    if status and not any(result[1] == FAIL for result in report.results):
        report.result("host/cargo-test", FAIL, reason=f"cargo test ended with {status}", log=short)
    elif not seen and not only:
        report.result("host/cargo-test", FAIL, reason="cargo test ran no test", log=short)
