# SPDX-License-Identifier: GPL-2.0
"""Runs a boot: starts the machines with qemu/vm.py, reads the reports of the suites, and fails the
cases that a crash or a hang left without a result."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

from . import host, results
from .report import FAIL, matches
from .root import SINGLE_GUEST, TOP, with_priority

SUITE = os.path.join(TOP, "selftests/guest/suite")
LAUNCHER = os.path.join(TOP, "qemu/vm.py")

# Maximum time from the launcher's start to the first report, in seconds. It may have to build an
# image.
START_LIMIT = 1200
# The launcher's time limit for a whole boot, in seconds. The limits of the cases are shorter.
BOOT_LIMIT = 5400
# Seconds beyond the limit of a case, which the guest enforces. After that the guest itself hangs.
GRACE = 90

# Set to end all boots.
stopping = threading.Event()

# Kernel parameters that turn off what no test needs in Debian's kernels: security modules,
# auditing, the random offset of kernel stacks, and the clearing of allocated memory, which hides
# bugs. The guests of `make vm`, of the bench and of the packages' test start without them.
UNUSED = ("lsm=", "audit=0", "randomize_kstack_offset=off", "init_on_alloc=0")

_MARK = "@rrxe "

# The launcher's exit status if an error of the emulator crashed a guest.
_EMULATOR = 123

# Meanings of the launcher's exit status if the suite has reported none.
_STATUSES = {
    99: "kernel log",
    _EMULATOR: "errors of QEMU crashed two guests",
    124: "the time for the boot was up",
    125: "a guest could not be set up, or crashed",
}


class _Suite:
    """The state of a suite in a boot."""

    def __init__(self, lane, boot, report, folder):
        self.prefix = f"{lane}/{boot.name}"
        self.boot = boot
        self.report = report
        self.logs = folder
        self.planned = []
        self.seen = set()
        self.current = None

    def took(self, message):
        """Handles a report of the guest. Returns the time limit of the next report, if known."""
        if "plan" in message:
            self.planned = message["plan"]
        elif "start" in message:
            self.current = message["start"]
            self.report.doing(f"{self.prefix}/{self.current}")
            return message["limit"]
        elif "case" in message:
            name = message["case"]
            self.seen.add(name)
            self.current = None
            log = os.path.join(self.logs, name + ".log")
            self.report.result(
                f"{self.prefix}/{name}", message["status"], message["seconds"], message["reason"], _short(log)
            )
        return None

    def missing(self):
        """Returns the planned cases without a result."""
        return [name for name in self.planned if name not in self.seen]


class _Run:
    """The state of one boot."""

    def __init__(self, name, suites, report):
        self.name = name
        self.report = report
        self.begin(suites)

    def begin(self, suites):
        """Prepares for a launch that runs these suites."""
        self.suites = suites
        self.suite = suites[0]
        self.heard = time.monotonic()
        # When the launcher started; `None` once a suite has reported.
        self.launched = self.heard
        self.limit = START_LIMIT
        self.words = []

    def line(self, text):
        """Handles a line of the launcher's output."""
        self.heard = time.monotonic()
        if text.startswith("h1| "):
            text = text[4:]
        if not text.startswith(_MARK):
            if text.strip():
                self.words.append(text)
            if text.startswith("rrxe: ") and text.endswith("; once more"):
                self.report.line(f"note: {self.name}: {text[6:]}")
            return
        try:
            message = json.loads(text[len(_MARK) :])
        except ValueError:
            return
        if self.launched is not None:
            self.report.overhead("boots", self.name, time.monotonic() - self.launched)
            self.launched = None
        if "suite" in message:
            self.suite = self.suites[message["suite"]]
            return
        limit = self.suite.took(message)
        if limit is not None:
            self.limit = limit + GRACE


def _short(path):
    return os.path.relpath(path, TOP)


def run_boot(lane, boots, kernel, modules, driver, report, out, only, core, without):
    """Runs suites in one boot, and reports each case as `lane/boot/case`.

    `without` is the name of an offload that the guests do not have, or empty."""
    boot = boots[0]
    drivers = [driver if name == "test" else name for name in boot.drivers[: boot.hosts]]
    environment = {**os.environ, "ROLES": "both" if len(set(drivers)) > 1 else "client"}
    more = ["--core"] if core else []
    choice = [f"--only={pattern}" for pattern in only] + more
    name = boot.together if len(boots) > 1 else boot.name
    folder = os.path.join(out, f"{lane}-{name}")
    suites = _chosen(lane, boots, report, folder, only, choice, environment)
    if not suites:
        return

    run = _Run(f"{lane}/{name}", suites, report)
    # Results of the default set only, with the default seed.
    by_default = driver == "rrxe" and not only and not without and "RRXE_SEED" not in environment
    repeats = boot.repeats or lane == "guest-7.3"
    image = ("--suite", boot.release, *boot.packages)
    result = results.path_of("boot", f"/{run.name}/{kernel}", kernel, image) if by_default and repeats else None
    passed = results.kept(result)
    if passed is not None:
        for line in passed:
            test, status, reason = json.loads(line)
            report.result(test, status, reason=reason, cached=True)
        return

    os.makedirs(folder, exist_ok=True)
    started = time.monotonic()
    why = modules.wait(kernel)
    report.overhead("waiting for modules", run.name, time.monotonic() - started)
    if why and not stopping.is_set():
        report.result(f"{run.name}/module", FAIL, reason=why)
    if why or stopping.is_set():
        return
    command = with_priority(0 if boot.hosts == 2 else SINGLE_GUEST, [LAUNCHER])
    command += [*_settings(lane, boot, kernel, drivers, core, without), "--out", folder]
    for variable in ("ROLES", "BIND_SECONDS", "LATE_ROUNDS"):
        command += ["--env", f"{variable}={environment[variable]}"] if variable in environment else []
    if boot.scripts:
        share, why = host.scripts(folder)
        if why:
            report.result(f"{run.name}/interpreter", FAIL, reason=why)
            return
        command += ["--share", share]
    report.doing(f"{run.name}: booting")
    run.begin(suites)
    status, hung = _launch(run, command, choice, folder)
    left = [suite for suite in suites if suite.missing() or not suite.seen]
    if status == _EMULATOR and left and not stopping.is_set():
        report.line(f"note: {run.name}: an error of QEMU crashed a guest; its remaining cases run in another one")
        rest = [f"{suite.prefix}/{name}" for suite in left for name in suite.missing() or [""]]
        run.begin(left)
        status, hung = _launch(run, command, [f"--only={name}" for name in rest] + more, folder)
    report.doing(None)
    if stopping.is_set():
        return
    for suite in suites:
        _account(suite, run, status, hung, folder)
    found = [one[:2] + one[3:4] for one in report.results if any(one[0].startswith(f"{suite.prefix}/") for suite in suites)]
    if result and found and all(status != FAIL for _, status, _ in found):
        results.keep(result, [json.dumps(one) for one in found])


def _chosen(lane, boots, report, folder, only, choice, environment):
    """Returns the suites of a boot that have chosen cases."""
    logs = os.path.join(folder, "h1") if boots[0].hosts == 2 else folder
    suites = []
    for boot in boots:
        suite = _Suite(lane, boot, report, logs)
        if not boot.dynamic:
            command = [SUITE, f"{boot.suite}:{suite.prefix}/", *choice, "--list"]
            listed = subprocess.run(command, capture_output=True, text=True, env=environment)
            if listed.returncode:
                report.result(f"{suite.prefix}/list", FAIL, reason=listed.stderr.strip().splitlines()[-1])
            suite.planned = listed.stdout.split()
            if listed.returncode or not suite.planned:
                continue
        elif not any(boot.name in pattern for pattern in only) and not matches(f"{lane}/{boot.name}/", only):
            continue
        suites.append(suite)
    if len(suites) > 1:
        for suite in suites:
            suite.logs = os.path.join(logs, suite.boot.name)
    return suites


def _settings(lane, boot, kernel, drivers, core, without):
    """Returns the launcher's options for a boot."""
    options = ["--hosts", str(boot.hosts), "--kernel", kernel, "--driver", ",".join(drivers)]
    # The lane guest-7.3 repeats suites of the lane guest.
    cpus = 1 if lane == "guest-7.3" else boot.cpus
    options += ["--cpus", str(cpus), "--klog", "off", "--timeout", str(BOOT_LIMIT)]
    options += ["--guest", boot.release, "--packages", " ".join(boot.packages)]
    options += ["--extra"] if boot.extra else []
    options += ["--icount"] if boot.icount else []
    options += ["--env", f"WITHOUT={without or boot.without}"]
    words = ["slab_debug=P,kmalloc-*"] if boot.poison else []
    if kernel == "debug":
        # The module's unit tests wait for the suite that runs them.
        words += ["kunit.enable=1", "kunit.autorun=0", *([] if boot.leaks or not core else ["kmemleak=off"])]
        # A device's thousand sysfs files take a second there, and again in each namespace.
        options += ["--env", "RRXE_PARAMETERS=gid_table_len=32"]
    else:
        words += UNUSED
    return options + (["--append", " ".join(words)] if words else [])


def _launch(run, command, choice, folder):
    """Runs the launcher once. Returns its exit status, and whether it had to be stopped."""
    command = [*command, SUITE, *(f"{suite.boot.suite}:{suite.prefix}/" for suite in run.suites), *choice]
    with open(os.path.join(folder, "launcher.txt"), "w", encoding="utf-8") as words:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )
        hung = threading.Event()
        guard = threading.Thread(target=_guard, args=(run, process, hung), daemon=True)
        guard.start()
        try:
            for raw in process.stdout:
                text = raw.decode("utf-8", "replace").rstrip("\r\n")
                words.write(text + "\n")
                run.line(text)
            return run.report.wait(run.name, process), hung.is_set()
        except BaseException:
            _stop(process)
            raise


def _guard(run, process, hung):
    while process.poll() is None:
        if time.monotonic() - run.heard > run.limit:
            hung.set()
        if hung.is_set() or stopping.is_set():
            _stop(process)
            return
        time.sleep(1)


def _stop(process):
    """Stops the launcher, which ends its guests."""
    try:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(20)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _account(suite, run, status, hung, folder):
    """Fails each case without a result, or the suite itself if only its boot failed."""
    missing = suite.missing()
    why = "the guest hung" if hung else _STATUSES.get(status, f"the boot ended with status {status}")
    said = _complaint(folder) or next((text for text in reversed(run.words) if text.startswith("rrxe: ")), "")
    log = _short(os.path.join(folder, "launcher.txt"))
    for name in missing:
        what = "in this case" if name == suite.current else "before this case"
        suite.report.result(f"{suite.prefix}/{name}", FAIL, reason=f"{why} {what}: {said}", log=log)
    if not missing and (status not in (0, 1) or not suite.seen):
        suite.report.result(f"{suite.prefix}/boot", FAIL, reason=f"{why}: {said}", log=log)


def _complaint(folder):
    """Returns the first splat in the guests' console logs."""
    sys.path.insert(0, os.path.join(TOP, "selftests/guest/lib"))
    try:
        import kernellog
    finally:
        sys.path.pop(0)
    for host in ("", "h1", "h2"):
        path = os.path.join(folder, host, "console.log")
        if os.path.exists(path):
            with open(path, encoding="utf-8", errors="replace") as console:
                splat = kernellog.splat_in(console.read())
            if splat:
                return f"{host or 'kernel'}: {splat}"
    return ""
