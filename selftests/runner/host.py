# SPDX-License-Identifier: GPL-2.0
"""The host lane: cargo test, simulation, model and mutation check, in the build root."""

import os
import re
import shutil
import signal
import subprocess
import threading
import time

from . import programs, results
from .report import FAIL, PASS, SKIP, matches
from .root import NO_GUEST, SINGLE_GUEST, TARGET, TOP, cargo, environment, in_root, with_priority

# Set to end all processes of the lane.
stopping = threading.Event()

_RUNNING = re.compile(r"^\s*(?:Running (?:unittests )?\S+ \((?:.*/)?([a-z0-9_]+)-[0-9a-f]+\)|Doc-tests (\S+))")
_TEST = re.compile(r"^test (.+?) \.\.\. (ok|FAILED|ignored)(?:, (.*))?$")


def run(report, out, only):
    """Runs all tests of the workspace, and reports each as `host/crate/test`."""
    if only and not any(("host" in pattern or "*" in pattern) and "host/fuzz" not in pattern for pattern in only):
        return
    log = os.path.join(out, "host-cargo.txt")
    short = os.path.relpath(log, TOP)
    report.doing("host: cargo test")
    started = time.monotonic()
    crate, seen = "workspace", 0
    process = subprocess.Popen(
        with_priority(NO_GUEST, cargo("test", "--workspace", "--locked", "--no-fail-fast")),
        cwd=TOP,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    guard(process)
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
    status = report.wait("host/cargo", process)
    report.doing(None)
    if stopping.is_set():
        return
    if status and not any(result[1] == FAIL for result in report.results):
        report.result("host/cargo-test", FAIL, reason=f"cargo test ended with {status}", log=short)
    elif not seen and not only:
        report.result("host/cargo-test", FAIL, reason="cargo test ran no test", log=short)


def guard(process):
    """Ends a process, which leads its own session, when `stopping` is set."""
    threading.Thread(target=_guard, args=(process,), daemon=True).start()


# Programs that print one line per test as cargo does, and that `make soak` runs for longer
# (docs/testing.md), with their arguments.
PROGRAMS = {
    "simulation": ["--seeds", "0..100000"],
    "efficiency": ["--seeds", "0..500", "--group", "100"],
    "model": ["--duplicates", "0", "--overtakes", "0"],
}

# The provider's tests with other private ABIs of libibverbs; `cargo test` runs them with 34. 59 has
# two layouts.
PROVIDERS = {"provider-59": "59", "provider-65": "65"}

# The comparison of the provider's declarations with the headers of Debian's releases.
LAYOUTS = "layouts"

# The tests of the scripts in qemu/ and of the bench.
SCRIPTS = "scripts"

# The programs of the host lane.
ALL_PROGRAMS = (LAYOUTS, *PROVIDERS, *PROGRAMS, "mutants", SCRIPTS)

# The program of the lane "packages": Debian packages, installed on a separate system.
PACKAGES = "packages"


def run_program(name, report, out, only):
    """Runs one of ALL_PROGRAMS or PACKAGES, and reports each of its tests.

    The tests are named `host/NAME/test`, or `packages/test`. If a result for the same inputs is
    kept, it is reported instead."""
    prefix = "packages/" if name == PACKAGES else f"host/{name}/"
    if only and not any(pattern in prefix or prefix in pattern or "*" in pattern for pattern in only):
        return
    result = results.path_of(name, kernel="default" if name == PACKAGES else "")
    passed = results.kept(result)
    if passed is not None:
        for test in passed:
            if matches(prefix + test, only):
                report.result(prefix + test, PASS, cached=True)
        return
    passed = []
    if name in PROVIDERS:
        # The number is not part of cargo's hash: in a shared folder, each build would replace the
        # others' tests.
        pabi = PROVIDERS[name]
        variables = (f"RRXE_PABI={pabi}", f"CARGO_TARGET_DIR={TARGET}/rdmav{pabi}")
        command = in_root("env", *variables, "cargo", "test", "--quiet", "--locked", "--package", "rrxe-provider", "--", "--format=pretty")
    elif name == LAYOUTS:
        command = [os.path.join(TOP, "selftests/layouts")]
    elif name == PACKAGES:
        command = [os.path.join(TOP, "selftests/packages/run")]
    elif name == SCRIPTS:
        command = [os.path.join(TOP, "selftests/host-scripts")]
    elif name == "mutants":
        command = [os.path.join(TOP, "selftests/run"), "mutants"]
    else:
        command = programs.command(name, *PROGRAMS[name])
    log = os.path.join(out, f"host-{name}.txt")
    short = os.path.relpath(log, TOP)
    report.doing(prefix.rstrip("/"))
    started = time.monotonic()
    process = subprocess.Popen(
        with_priority(SINGLE_GUEST if name == PACKAGES else NO_GUEST, command),
        cwd=TOP,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    guard(process)
    seen = failed = 0
    with open(log, "w", encoding="utf-8") as file:
        for line in process.stdout:
            file.write(line)
            test = _TEST.match(line.strip())
            if not test:
                continue
            seen += 1
            failed += test.group(2) == "FAILED"
            passed += [test.group(1)] if test.group(2) == "ok" else []
            now = time.monotonic()
            if matches(prefix + test.group(1), only):
                status = PASS if test.group(2) == "ok" else FAIL
                report.result(prefix + test.group(1), status, now - started, test.group(3) or "see its output", short)
            started = now
    status = report.wait(prefix.rstrip("/"), process)
    report.doing(None)
    if stopping.is_set():
        return
    if status and not failed:
        report.result(prefix.rstrip("/"), FAIL, reason=f"it ended with {status}", log=short)
    elif not seen:
        report.result(prefix.rstrip("/"), FAIL, reason="it ran no test", log=short)
    elif result and len(passed) == seen:
        results.keep(result, passed)


def _guard(process):
    while process.poll() is None:
        if stopping.wait(1):
            try:
                os.killpg(process.pid, signal.SIGTERM)
            except ProcessLookupError:
                pass
            return


def scripts(folder):
    """Copies the scripts and their interpreter to `folder` for guests.

    Returns the folder and None, or None and an error message."""
    command = cargo("build", "--package", "rrxe_script", "--locked", "--quiet")
    built = subprocess.run(command, cwd=TOP, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if built.returncode:
        return None, f"cargo build: {built.stderr.strip()[-500:]}"
    share = os.path.join(folder, "scripts")
    shutil.rmtree(share, ignore_errors=True)
    shutil.copytree(os.path.join(TOP, "selftests/conformance"), os.path.join(share, "conformance"))
    shutil.copy(os.path.join(TARGET, "debug/rrxe_script"), share)
    return share, None
