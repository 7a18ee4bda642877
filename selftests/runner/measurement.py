# SPDX-License-Identifier: GPL-2.0
"""Measurements in a guest whose clock counts instructions, and their tables."""

import argparse
import json
import os
import subprocess
import sys

from .root import TOP


def measure(name, description, table, arguments):
    """Runs selftests/guest/NAME, and prints and keeps the table of its results.

    `table` yields the lines of the table from the content of NAME.json. Returns the exit status of
    the guest.
    """
    parser = argparse.ArgumentParser(prog=f"selftests/run {name}", description=description)
    parser.add_argument("words", nargs="*", help="measure only what has these in its name")
    args = parser.parse_args(arguments)
    out = os.path.join(TOP, "out", name)
    command = [os.path.join(TOP, "qemu/vm.py"), "--icount", "--driver", "rrxe", "--timeout", "7200", "--out", out]
    status = subprocess.run([*command, os.path.join(TOP, "selftests/guest", name), *args.words], check=False).returncode
    if status:
        print(f"{name}: the guest ended with {status}: see {os.path.relpath(out)}/output.txt", file=sys.stderr)
        return status
    with open(os.path.join(out, f"{name}.json"), encoding="utf-8") as file:
        lines = list(table(json.load(file)))
    with open(os.path.join(out, "table.md"), "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    print("\n".join(lines))
    return 0
