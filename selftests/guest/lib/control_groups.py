# SPDX-License-Identifier: GPL-2.0
"""Control groups: their limits, and what the kernel charges them."""

import contextlib
import os

from harness import Skip, wait_until

ROOT = "/sys/fs/cgroup"


def write(path, text):
    """Writes to a file of a control group."""
    with open(f"{ROOT}/{path}", "w", encoding="ascii") as file:
        file.write(text)


def read(path):
    """Returns the contents of a file of a control group."""
    with open(f"{ROOT}/{path}", encoding="ascii") as file:
        return file.read().strip()


def statistics(group, file):
    """Returns the numbers in a file of a control group, by name."""
    return {name: int(value) for name, value in map(str.split, read(f"{group}/{file}").splitlines())}


def group_of(task):
    """Returns the name of a task's control group, relative to the root."""
    with open(f"/proc/{task}/cgroup", encoding="ascii") as file:
        return file.read().strip().partition("::/")[2]


@contextlib.contextmanager
def control_group(*controllers, process=None, name="rrxe-tests"):
    """Moves a process, by default this one, to a new control group; yields the group's name.

    The group has these controllers. Groups that exist at the same time need different names.
    """
    missing = set(controllers) - set(read("cgroup.controllers").split())
    if missing:
        raise Skip(f"this kernel has no control groups for {', '.join(missing)}")
    if controllers:
        write("cgroup.subtree_control", " ".join(f"+{name}" for name in controllers))
    process = process or os.getpid()
    os.mkdir(f"{ROOT}/{name}")
    write(f"{name}/cgroup.procs", str(process))
    try:
        yield name
    finally:
        with contextlib.suppress(ProcessLookupError):
            write("cgroup.procs", str(process))
        wait_until("the group is empty", lambda: not statistics(name, "cgroup.events")["populated"])
        os.rmdir(f"{ROOT}/{name}")
