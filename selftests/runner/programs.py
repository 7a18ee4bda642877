# SPDX-License-Identifier: GPL-2.0
"""The simulation and the model, which print one line per test as cargo does."""

import subprocess

from .root import TOP, cargo, environment

# Package, binary, and arguments that precede all others.
_PROGRAMS = {
    "simulation": ("rrxe_simulation", "simulate"),
    "efficiency": ("rrxe_simulation", "simulate", "--efficiency"),
    "model": ("rrxe_model", "explore"),
}


def command(name, *arguments):
    """Returns the command that builds and runs a program."""
    package, program, *first = _PROGRAMS[name]
    options = ["--quiet", "--locked", "--profile", "simulation", "-p", package, "--bin", program]
    return cargo("run", *options, "--", *first, *arguments)


def _run(name, arguments):
    return subprocess.run(command(name, *arguments), cwd=TOP, env=environment(), check=False).returncode


def simulation(arguments):
    """Runs the simulation. Returns its exit status."""
    return _run("simulation", arguments)


def efficiency(arguments):
    """Runs the simulation of flows through a bottleneck. Returns its exit status."""
    return _run("efficiency", arguments)


def model(arguments):
    """Runs the model. Returns its exit status."""
    return _run("model", arguments)
