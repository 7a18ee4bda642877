# SPDX-License-Identifier: GPL-2.0
"""librrxe does not harm the program that loads it.

A message that cannot be written is lost, and nothing else. Without memory, verbs fail with ENOMEM.
A set-user-ID program has the defaults, whatever the environment is. Memory does not grow with the
number of resizes. Unknown flags are refused.
"""

import contextlib
import errno
import os
import resource
import signal

import privilege
import testbed
from harness import Failure, Skip, case, equal, log, require

bed = testbed.Bed()

# Path of the set-user-ID program: not every file system honours the bit.
PRIVILEGED = "/usr/local/bin/devinfo-of-root"


def ours():
    """Returns this host; skips the case if its provider is not rrxe's."""
    if bed.here.driver != "rrxe":
        raise Skip("it is rrxe's provider that does so")
    return bed.here


def full():
    """Makes standard error a device that is full."""
    os.dup2(os.open("/dev/full", os.O_WRONLY), 2)


def closed():
    """Closes standard error. The next file to be opened takes its number."""
    os.close(2)


def broken(action):
    """Makes standard error a pipe without a reader, and sets the action of SIGPIPE."""
    reader, writer = os.pipe()
    os.close(reader)
    os.dup2(writer, 2)
    signal.signal(signal.SIGPIPE, action)


BAD_ERRORS = {
    "full": full,
    "closed": closed,
    "broken-pipe": lambda: broken(signal.SIG_IGN),
    "broken-pipe-with-signal": lambda: broken(signal.SIG_DFL),
}


def verbs():
    """Opens this host's device by direct calls."""
    from libibverbs import Verbs  # only a guest has verbs

    return Verbs(bed.here.device)


def _refused():
    """Returns the failure of opening the device."""
    try:
        verbs()
    except Failure as why:
        return str(why)
    return "opened"


@case(each=BAD_ERRORS)
def invalid_variable(spoil):
    """The device is not opened if a variable is invalid, also if the message cannot be written."""
    ours()

    def variable():
        os.environ["RRXE_YIELD_US"] = "often"

    found = privilege.aside(_refused, (variable, spoil))
    equal("failure", found, f"ibv_open_device: errno {errno.EINVAL}")


def _shortage():
    """Returns the errno of a completion queue that exceeds the limit of locked memory."""
    device = verbs()
    made, error = device.try_make("ibv_create_cq", device.context, 4096, None, None, 0)
    return "made" if made else error


@case(each=BAD_ERRORS)
def explanation(spoil):
    """A shortage of locked memory is an errno, also if its explanation cannot be written."""
    ours()

    def limited():
        os.environ["RRXE_DEBUG"] = "1"
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))

    equal("errno", privilege.unprivileged(_shortage, (limited, spoil)), errno.ENOMEM)


@case()
def out_of_memory():
    """Every verb that creates an object fails with ENOMEM if there is no memory."""
    here = ours()
    output = here.machine.run(f"out-of-memory {here.device} {here.gid_index()}")
    log(output)
    found = dict(line.split() for line in output.splitlines())
    require(len(found) == 10, f"results: {found}")
    for what, error in found.items():
        equal(f"errno of {what}", int(error), errno.ENOMEM)


@contextlib.contextmanager
def _copy(mode):
    """Copies ibv_devinfo, with this mode, for the duration of the block."""
    run = bed.here.machine.run
    run(f"install -m {mode} $(command -v ibv_devinfo) {PRIVILEGED}")
    try:
        yield
    finally:
        run(f"rm {PRIVILEGED}")


@case(each={"ordinary": ("755", False), "set-user-id": ("4755", True)})
def environment(what):
    """A set-user-ID program ignores the variables of its user."""
    mode, opens = what
    here = ours()
    for variable in ("RRXE_YIELD_US", "RRXE_POLL_IDLE_US"):
        with _copy(mode):
            user = f"setpriv --reuid={privilege.NOBODY} --regid={privilege.NOBODY} --clear-groups"
            end = here.machine.try_run(f"{user} env {variable}=often {PRIVILEGED} -d {here.device}")
        equal(f"{variable} was ignored", end.status == 0, opens)
        equal("message", f"librrxe: {variable} must be" in end.output, not opens)


def _size():
    """Returns the size of this process's memory in KiB."""
    with open("/proc/self/status", encoding="ascii") as lines:
        (found,) = [line.split()[1] for line in lines if line.startswith("VmSize:")]
    return int(found)


def _growth(sizes):
    """Resizes a queue of 1,000 completions 1,000 times. Returns the growth of memory in KiB."""
    device = verbs()
    cq = device.make("ibv_create_cq", device.context, 1000, None, None, 0)

    def resize(rounds):
        for turn in range(rounds):
            error = device.call("ibv_resize_cq", cq, sizes[turn % len(sizes)])
            require(not error, f"ibv_resize_cq: errno {error}")

    # Python's own memory grows at first.
    resize(20)
    before = _size()
    resize(1000)
    return _size() - before


@case(timeout=120, each={"equal": [1000], "alternating": [2000, 1000], "growing": [1, 10, 100, 1000, 4000]})
def resizes(sizes):
    """A completion queue does not keep the rings of all its sizes."""
    ours()
    growth = privilege.aside(lambda: _growth(sizes))
    log(f"{growth} KiB")
    require(growth < 68, f"1,000 resizes took {growth} KiB, and a ring of 1,000 entries takes 68")


def _flags(flags):
    """Returns the errno of creating a completion queue with these flags, or 0."""
    from pyverbs.cq import CQEX, CqInitAttrEx  # only a guest has verbs
    from pyverbs.device import Context

    try:
        CQEX(Context(name=bed.here.device), CqInitAttrEx(cqe=2, comp_mask=1, flags=flags))
    except Exception as why:
        return why.error_code
    return 0


@case()
def flags():
    """The only supported flag of a completion queue is SINGLE_THREADED (1).

    IGNORE_OVERRUN (2) is refused, because a queue that overruns always enters the error state."""
    ours()
    for bit in range(8):
        wanted = 0 if bit == 0 else errno.EOPNOTSUPP
        equal(f"errno for flag {1 << bit}", privilege.aside(lambda: _flags(1 << bit)), wanted)


def run():
    """Runs the suite."""
    return bed.run()
