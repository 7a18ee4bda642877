# SPDX-License-Identifier: GPL-2.0
"""Plots the results of `make bench` in a folder, and those of `make goodput` and `make profile` if
there are any."""

import argparse
import os
import subprocess
import sys

from .root import TARGET, TOP, cargo, environment


def draw(folder):
    """Plots the results in a folder.

    Raises CalledProcessError if that fails."""
    subprocess.run(cargo("build", "--quiet", "--locked", "--release", "-p", "rrxe_plots"), cwd=TOP, env=environment(), check=True)
    more = [os.path.join(TOP, file) for file in ("out/goodput/goodput.json", "out/profile/table.txt")]
    command = [os.path.join(TARGET, "release/plots"), os.path.join(folder, "bench.json"), folder]
    subprocess.run([*command, *filter(os.path.exists, more)], check=True)


def main(arguments):
    """Returns the status of the first failure, or 0."""
    parser = argparse.ArgumentParser(prog="selftests/run plots", description=__doc__)
    parser.add_argument("folder", nargs="?", default=os.path.join(TOP, "out/bench"), help="the folder of bench.json (out/bench)")
    try:
        draw(parser.parse_args(arguments).folder)
    except subprocess.CalledProcessError as error:
        print(f"plots: {os.path.basename(error.cmd[0])} ended with {error.returncode}", file=sys.stderr)
        return error.returncode
    return 0
