# SPDX-License-Identifier: GPL-2.0
"""Compiles the guests' Python modules.

Guests see the checkout read-only, so each would compile every module that it imports: a minute of
CPU time in all of `make test`. The build root has the Python version of a trixie guest. Guests of
other releases ignore its files.
"""

import glob
import os
import py_compile
import subprocess

from .root import TOP, in_root


def compile_for_guests():
    """Compiles the modules in the build root, into the folders `__pycache__` beside them.

    If a module cannot be compiled, the guest that imports it reports the error."""
    command = in_root("python3", "-B", "-m", "runner.bytecode")
    subprocess.run(command, cwd=os.path.join(TOP, "selftests"), stderr=subprocess.DEVNULL, check=False)


def _compile():
    for path in glob.glob(os.path.join(TOP, "selftests/guest/*/*.py")):
        # Guests see the checkout at /src.
        py_compile.compile(path, dfile=path.replace(TOP, "/src", 1))


if __name__ == "__main__":
    _compile()
