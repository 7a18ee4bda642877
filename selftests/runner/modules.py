# SPDX-License-Identifier: GPL-2.0
"""Builds the modules that the guest lanes load, and their kernels, while other tests run."""

import os
import subprocess
import threading
import time

from . import host
from .root import SINGLE_GUEST, TOP, with_priority


class Modules:
    """Builds rrxe.ko for several kernels, one after the other, in a separate thread."""

    def __init__(self, kernels, report, out):
        self._report = report
        self._out = out
        self._built = {kernel: threading.Event() for kernel in kernels}
        self._errors = {}
        self._thread = threading.Thread(target=self._build_all, daemon=True)
        self._thread.start()

    def wait(self, kernel):
        """Waits for the module for `kernel`. Returns None, or an error message."""
        self._built[kernel].wait()
        return self._errors.get(kernel)

    def join(self):
        """Waits until no build runs. `host.stopping` ends builds that nothing waits for."""
        self._thread.join()

    def _build_all(self):
        for kernel, built in self._built.items():
            if host.stopping.is_set():
                self._errors[kernel] = "interrupted"
            else:
                self._build(kernel)
            built.set()

    def _build(self, kernel):
        log = os.path.join(self._out, f"module-{kernel}.txt")
        self._report.doing(f"rrxe.ko for the {kernel} kernel")
        started = time.monotonic()
        with open(log, "w", encoding="utf-8") as file:
            process = subprocess.Popen(
                with_priority(SINGLE_GUEST, [os.path.join(TOP, "qemu/build-module"), kernel]),
                cwd=TOP,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            host.guard(process)
            status = self._report.wait(f"{kernel} kernel's module", process)
        self._report.doing(None)
        if status:
            short = os.path.relpath(log, TOP)
            self._errors[kernel] = f"qemu/build-module {kernel} ended with {status} (log: {short})"
        elif time.monotonic() - started > 30:
            self._report.line(f"built rrxe.ko for the {kernel} kernel in {time.monotonic() - started:.0f} s")
