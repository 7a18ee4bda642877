# SPDX-License-Identifier: GPL-2.0
"""The checkout, and its build root."""

import os

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TARGET = os.path.join(TOP, "out/cargo")


def environment():
    """Returns the environment of cargo."""
    return {**os.environ, "CARGO_TARGET_DIR": TARGET, "CARGO_TERM_COLOR": "never"}


def in_root(*command):
    """Returns a command that runs in the build root."""
    return command if os.environ.get("IN_RRXE_ROOT") == "1" else (os.path.join(TOP, "qemu/in-root"), *command)


def cargo(*arguments):
    """Returns a cargo command that runs in the build root."""
    return in_root("cargo", *arguments)


# Nice values. Two guests wait for each other, often in loops, so a program that interrupts one of
# them costs twice the time. Single guests, and builds that guests wait for, use the CPU time that
# such a pair leaves. Programs without a guest use the rest.
SINGLE_GUEST, NO_GUEST = 5, 19


def with_priority(nice, command):
    """Returns a command that runs `command`, the first of its session, at a priority."""
    return [os.path.join(TOP, "qemu/at-priority"), str(nice), *command]
