# SPDX-License-Identifier: GPL-2.0
"""Keeps the results of programs and boots for later runs with the same inputs.

Simulation, model and mutants are deterministic. The packages' test and the boots that repeat suites
(Boot.repeats, and the lane `guest-7.3`) are not, so a kept result can hide a rare failure. The key
is a hash of the sources, the lock file, the build root's list of packages, and the kernel and the
image that a guest starts.
"""

import contextlib
import hashlib
import os
import subprocess
import tempfile

from .root import TOP

# The scripts that make kernels. The key has the name of a kernel, which contains their hash.
_KERNELS = "qemu/kernel"

# The folders that each program is built from, and the build files and arguments of all programs.
_CORE = ("drivers/rrxe/core", "selftests/testkit")
_PRODUCT = ("Kbuild", "drivers", "rust-bindings", "provider", "qemu")
_INPUTS = {
    "simulation": (*_CORE, "selftests/simulation"),
    "efficiency": (*_CORE, "selftests/simulation"),
    "model": (*_CORE, "selftests/model"),
    "mutants": (*_CORE, "selftests/simulation", "selftests/mutants", "selftests/runner/mutants.py"),
    "packages": (*_PRODUCT, "packaging", "selftests/packages", "Makefile", "README.md"),
    "boot": (*_PRODUCT, "selftests/guest", "selftests/programs", "selftests/conformance", "selftests/script",
             "selftests/testkit", "selftests/runner/boots.py", "selftests/runner/guest.py"),
}
_ALWAYS = ("Cargo.toml", "Cargo.lock", "qemu/in-root", "selftests/runner/host.py", "selftests/runner/programs.py",
           "selftests/runner/root.py")


def path_of(name, which="", kernel="", image=()):
    """Returns the path of the result of a program, or of the boot `which`, for the present inputs.

    `kernel` is an argument of qemu/kernel/build, and `image` are those of qemu/image. Returns None
    if no result is kept. `RRXE_CACHED_RESULTS=off` makes every program and boot run.
    """
    if name not in _INPUTS or os.environ.get("RRXE_CACHED_RESULTS") == "off":
        return None
    key = hashlib.sha256(which.encode())
    for path in sorted(_files(_INPUTS[name] + _ALWAYS)):
        with open(os.path.join(TOP, path), "rb") as file:
            key.update(f"{path}\0{hashlib.sha256(file.read()).hexdigest()}\n".encode())
    inside = os.environ.get("IN_RRXE_ROOT") == "1"
    with open(("" if inside else _output_of("buildroot")) + "/var/lib/dpkg/status", "rb") as file:
        key.update(file.read())
    if kernel:
        # The name of the folder contains the version and a hash of the inputs.
        key.update(os.path.basename(_output_of("kernel/build", kernel)).encode())
    if image:
        # An image that is built again contains other versions of its packages.
        made = os.stat(_output_of("image", *image))
        key.update(f"{made.st_size} {made.st_mtime_ns}".encode())
    return os.path.join(_output_of("cache-folder"), "results", f"{name}{which.replace('/', '-')}-{key.hexdigest()[:16]}")


def kept(path):
    """Returns the lines of a kept result, or None."""
    with contextlib.suppress(OSError, TypeError), open(path, encoding="utf-8") as file:
        return file.read().splitlines()
    return None


def keep(path, lines):
    """Keeps the lines of a program that has passed."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=os.path.dirname(path), delete=False, encoding="utf-8") as file:
        file.writelines(line + "\n" for line in lines)
    os.replace(file.name, path)


def _files(names):
    """Yields the paths of the files in these folders, relative to the top; `names` may be files."""
    for name in names:
        whole = os.path.join(TOP, name)
        if os.path.isfile(whole):
            yield name
        for folder, folders, files in os.walk(whole):
            at = os.path.relpath(folder, TOP)
            folders[:] = [one for one in folders if one != "__pycache__" and os.path.join(at, one) != _KERNELS]
            yield from (os.path.relpath(os.path.join(folder, file), TOP) for file in files)


def _output_of(script, *arguments):
    """Returns what a script of qemu/ prints."""
    command = [os.path.join(TOP, "qemu", script), *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
