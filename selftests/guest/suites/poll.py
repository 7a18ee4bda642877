# SPDX-License-Identifier: GPL-2.0
"""Poll mode: a kernel thread in the program's process polls the send queues of a context.

Programs make no system call to send while the thread is awake (docs/performance.md).
"""

import contextlib
import ctypes
import errno
import os
import random
import resource
import signal
import struct
import time
import traceback

import control_groups
import data_cases
import harness
import looks
import privilege
import programs
import testbed
from harness import Failure, Skip, case, equal, log, require, wait_until
from traffic import OPS, Batch, Side, connect

bed = testbed.Bed()

# The longest idle time, in microseconds: a thread stays awake for a second after it was woken.
LONGEST = 1_000_000
# An idle time so short that the thread sleeps between the requests of a test.
SHORT = 50

# Time limit in seconds; only catches hangs.
TIMEOUT = 60


# The kernel's own threads, which are never poll threads: the children of kthreadd.
_kernel_threads = set()


def tasks():
    """Returns the thread IDs of the poll threads of all processes."""
    found = []
    for process in set(filter(str.isdigit, os.listdir("/proc"))) - _kernel_threads:
        with contextlib.suppress(OSError):
            if looks.read(f"/proc/{process}/stat").rpartition(")")[2].split()[1] == "2":
                _kernel_threads.add(process)
                continue
            for task in os.listdir(f"/proc/{process}/task"):
                if looks.read(f"/proc/{process}/task/{task}/comm") == "rrxe-poll\n":
                    found.append(int(task))
    return found


def threads():
    """Returns the number of poll threads."""
    return len(tasks())


def counter(name):
    """Returns a counter of the device."""
    return bed.here.machine.look("statistics", bed.here.device)[name]


def doorbells():
    """Returns the number of doorbell system calls of all programs."""
    return counter("sq_doorbells")


def opened(idle):
    """Returns a new endpoint and the result of opening it, in poll mode if `idle` is not None.

    `idle` is the idle time in microseconds.
    """
    import endpoint  # only a guest has verbs

    here, end = bed.here, endpoint.Endpoint()
    return end, end.open(here.device, here.address, here.driver, idle)


@contextlib.contextmanager
def context(idle):
    """Yields what `opened` returns. Afterwards the context is closed and no thread is left."""
    if bed.here.driver != "rrxe":
        raise Skip("poll mode is rrxe's")
    end, info = opened(idle)
    try:
        yield end, info
    finally:
        with contextlib.suppress(Exception):
            end.leave()
    wait_until("the threads are gone", lambda: threads() == 0)


@contextlib.contextmanager
def ends(idle):
    """Yields a context in poll mode, which is closed first, and one in the normal mode."""
    with context(None) as other, context(idle) as one:
        yield one, other


def pair(both, extended=False, kind="rc"):
    """Returns the two sides of a connection between two endpoints."""
    left, right = (Side(end, info, kind, extended) for end, info in both)
    connect(left, right, 1024, random.Random(1))
    return left, right


@contextlib.contextmanager
def called(most=None, at_least=0):
    """Checks the number of doorbell calls in the block.

    By default it is at most one, plus one for each second of the block, since the thread of a
    context may go to sleep that often. A program without a thread makes a call for each request,
    except in the moderated streams that the kernel tries now and then (qp/moderation.rs). In a
    stream, the provider defers the doorbell until a poll finds nothing, and the kernel may have
    found and completed the request by then.
    """
    began, before = time.monotonic(), doorbells()
    yield
    count = doorbells() - before
    if most is None:
        most = 1 + int((time.monotonic() - began) * 1_000_000 / LONGEST)
    log(f"{count} calls")
    require(at_least <= count <= most, f"{count} calls, not {at_least} to {most}")


def write(left, right, number, flags=("signaled",), at=None, length=64):
    """Posts a WRITE of `length` bytes to the same offset of the other region."""
    at = number * 64 % 65536 if at is None else at
    request = {
        "id": number,
        "op": "write",
        "sge": [[left.small["address"] + at, length, left.small["lkey"]]],
        "rkey": right.small["rkey"],
        "raddr": right.small["address"] + at,
        "flags": list(flags),
    }
    left.end.post_send(left.qp["id"], [request])


def completed(side, count=1, status="SUCCESS"):
    """Checks that `count` requests of a side complete with this status. Returns their ids."""
    found = side.end.poll(side.send_cq, count, TIMEOUT * harness.slowness())
    equal("completions", [wc["status"] for wc in found], [status] * count)
    return [wc["id"] for wc in found]


@case()
def one_call_without():
    """Control: without poll mode, a program makes a call for each signaled request."""
    with ends(None) as both:
        left, right = pair(both)
        with called(most=100, at_least=50):
            for number in range(100):
                write(left, right, number)
                completed(left)


@case(timeout=240, debug=("extended",), each=data_cases.KINDS)
def no_calls(extended):
    """Signaled requests of every kind, single and in lists, need no calls while the thread is
    awake."""
    with ends(LONGEST) as both:
        left, right = pair(both, extended)
        rng = random.Random(2)
        with called():
            for turn in range(10):
                batch = Batch(rng, left, right)
                for op in OPS:
                    batch.add(left, op, rng.randrange(1, 3000))
                for op in ("send", "write"):
                    batch.add(left, op, rng.randrange(1, 200), inline=True)
                batch.run()
                log(f"turn {turn}")


@case(timeout=240, debug=False)
def no_calls_for_many():
    """Unsignaled requests posted at full speed need no calls."""
    count = 4096
    with ends(LONGEST) as both:
        left, right = pair(both)
        left.end.put(left.small["id"], [[0, count * 64]], 5)
        right.end.expect(right.small["id"], [[0, count * 64]], 5, count * 64)
        with called():
            for number in range(count):
                last = number % 16 == 15
                write(left, right, number, ["signaled"] if last else [], at=number * 64)
                if last:
                    completed(left)
        equal("memory", right.end.verify(right.small["id"]), "")


@case(timeout=240, debug=False)
def several_queue_pairs():
    """The queue pairs of a context share its thread, including those created while it is awake."""
    with ends(LONGEST) as both:
        pairs = [pair(both) for _ in range(4)]
        with called():
            for turn in range(50):
                for left, right in pairs:
                    write(left, right, turn)
                for left, _ in pairs:
                    completed(left)
                if turn == 25:
                    pairs.append(pair(both))
        for left, right in pairs:
            left.destroy()
            right.destroy()


@case(timeout=300, debug=("1", "300"), each={str(idle): idle for idle in (1, 50, 300)})
def wakes_up(idle):
    """No wake-up is lost, whether the thread is awake, asleep, or about to sleep."""
    rounds = 300 if harness.debug_kernel() else 2000
    rng = random.Random(idle)
    with ends(idle) as both:
        left, right = pair(both)
        with called(most=rounds, at_least=2):
            for number in range(rounds):
                write(left, right, number)
                completed(left)
                end = time.monotonic() + rng.random() * 2 * idle / 1_000_000
                if number % 50 == 0:
                    time.sleep(0.01)
                while time.monotonic() < end:
                    pass


@case(timeout=240)
def error_and_back():
    """In the Error state, queued and new requests are flushed without a call.

    The queue pair works after it is set up again.
    """
    with ends(LONGEST) as both:
        left, right = pair(both)
        _, bystander = other = pair(both)
        write(left, right, 1)
        completed(left)
        with called(most=60):
            for turn in range(5):
                left.end.modify(left.qp["id"], ("STATE",), state="error")
                for number in range(8):
                    write(left, right, number)
                equal("flushed", completed(left, 8, "WR_FLUSH_ERR"), list(range(8)))
                write(*other, turn)
                completed(other[0])
                for side in (left, right):
                    side.end.modify(side.qp["id"], ("STATE",), state="reset")
                connect(left, right, 1024, random.Random(turn))
                write(left, right, 9)
                completed(left)
        require(bystander.end.state(bystander.qp["id"]) == "rts", "the other queue pair has suffered")


@case(timeout=240)
def posted_and_paused():
    """Requests posted in the Send Queue Drain state are queued, and sent afterwards."""
    with ends(LONGEST) as both:
        left, right = pair(both)
        write(left, right, 1)
        completed(left)
        left.end.modify(left.qp["id"], ("STATE",), state="sqd")
        write(left, right, 2)
        time.sleep(0.2)
        equal("completions in SQD", left.end.poll(left.send_cq, 1, 0), [])
        left.end.modify(left.qp["id"], ("STATE",), state="rts")
        completed(left)


@case(timeout=300)
def destroyed_under_way():
    """Queue pairs, and then the context, are destroyed while the thread works on them."""
    with context(None) as other:
        for turn in range(10 if harness.debug_kernel() else 40):
            with context(LONGEST if turn % 2 else SHORT) as one:
                pairs = [pair((one, other)) for _ in range(2)]
                for number in range(16):
                    for left, right in pairs:
                        write(left, right, number, [], length=8192)
                if turn % 4 < 2:
                    for left, right in pairs:
                        left.destroy()
                        right.destroy()
                    pairs.clear()
            for _, right in pairs:
                right.destroy()


@contextlib.contextmanager
def perftest():
    """Starts two programs in poll mode, one of which sends to the other until killed.

    Yields their jobs.
    """
    here, port = bed.here, programs.next_port()
    # The programs and their threads use the CPU time that no others want. With autogroup, the
    # scheduler shares it between sessions; without, by the nice value.
    modest = "2>/dev/null echo 19 >/proc/self/autogroup; exec nice -n 19"
    common = f"-F -s 4096 -d {here.device} -x {here.gid_index()} --run_infinitely -p {port}"
    command = f"export RRXE_POLL_IDLE_US={LONGEST}; {modest} ib_send_bw {common}"
    jobs = [here.machine.start(command)]
    wait_until("the server listens", lambda: testbed.tcp_listens(here.machine, port))
    jobs.append(here.machine.start(f"{command} {here.address}"))
    before = counter("sent_pkts")
    wait_until("traffic flows", lambda: jobs[1].running() and counter("sent_pkts") > before + 200)
    equal("threads", threads(), 2)
    try:
        yield jobs
    finally:
        for job in jobs:
            if job.running():
                job.kill(signal.SIGKILL)
            job.wait(60)
    wait_until("the threads are gone", lambda: threads() == 0)


@case(timeout=300)
def killed():
    """Programs are killed by kill -9 while their threads work."""
    for _ in range(2 if harness.debug_kernel() else 6):
        with perftest() as jobs:
            for job in jobs:
                job.kill(signal.SIGKILL)


class Program:
    """A process that keeps its poll thread awake until it is killed.

    It sends a request every 50 ms. `prepare` and `then` are called in the process: before it opens
    the devices, and after the first request.
    """

    def __init__(self, prepare=None, then=None):
        self._reading, writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            self._run(writing, prepare, then)
        os.close(writing)

    @staticmethod
    def _run(writing, prepare, then):
        try:
            if prepare:
                prepare()
            left, right = pair([opened(LONGEST), opened(None)])
            number = 0
            while True:
                write(left, right, number)
                completed(left)
                os.write(writing, b".")
                if then:
                    then()
                number += 1
                time.sleep(0.05)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)

    def goes_on(self):
        """Waits until the program has sent a further request."""
        for _ in range(3):  # the first read also returns earlier requests
            require(os.read(self._reading, 1 << 16), "the program has ended")

    def task(self):
        """Returns the thread ID of its poll thread."""
        return wait_until("the thread is there", lambda: [t for t in tasks() if self.has(t)])[0]

    def has(self, task):
        """Returns whether a task is one of its threads."""
        return os.path.exists(f"/proc/{self.pid}/task/{task}")

    def status(self, field):
        """Returns a field of the status of its poll thread."""
        with open(f"/proc/{self.task()}/status", encoding="ascii") as file:
            return next(line.split()[1] for line in file if line.startswith(f"{field}:"))

    def used(self):
        """Returns the CPU time of its poll thread in seconds."""
        with open(f"/proc/{self.pid}/task/{self.task()}/stat", encoding="ascii") as file:
            user, system = file.read().rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def signal(self, number):
        """Sends it a signal."""
        os.kill(self.pid, number)

    def wait(self):
        """Waits for its end. Returns the status as waitpid() does."""
        pid, self.pid = self.pid, None
        return os.waitpid(pid, 0)[1]

    def end(self):
        """Kills it, if it still runs."""
        if self.pid:
            self.signal(signal.SIGKILL)
            self.wait()
        os.close(self._reading)


@contextlib.contextmanager
def program(**calls):
    """Yields a `Program` that has sent a request."""
    if bed.here.driver != "rrxe":
        raise Skip("poll mode is rrxe's")
    one = Program(**calls)
    try:
        require(os.read(one._reading, 1), "the program has failed")
        yield one
    finally:
        one.end()
    wait_until("the threads are gone", lambda: threads() == 0)


@case(timeout=240)
def cpu_time_charged():
    """The CPU time of the thread is charged to its program's control group, which limits it."""
    limit = 0.1
    with program() as one, control_groups.control_group("cpu", process=one.pid) as group:
        equal("control group", control_groups.group_of(one.task()), group)

        def usage():
            return control_groups.statistics(group, "cpu.stat")["usage_usec"] / 1e6

        def measure(seconds):
            began, thread, all_of_it = time.monotonic(), one.used(), usage()
            time.sleep(seconds)
            thread, all_of_it = one.used() - thread, usage() - all_of_it
            elapsed = time.monotonic() - began
            log(f"{elapsed:.2f} s: the group used {all_of_it:.2f} s, its thread {thread:.2f} s")
            require(0 < thread <= all_of_it + 0.1, "the group was not charged")
            return all_of_it / elapsed

        free = measure(1)
        require(free > 2 * limit, "the thread was not awake")
        # On a busy host the guest's clock jumps, and a jump counts as CPU time of the thread that
        # ran. A thread without a limit uses most of the CPU in each try.
        for _ in range(10):
            control_groups.write(f"{group}/cpu.max", f"{int(limit * 100_000)} 100000")
            # At once: the thread would go to sleep after a second without requests.
            limited = measure(1)
            control_groups.write(f"{group}/cpu.max", "max")
            one.goes_on()
            if limited < 3 * limit:
                break
        else:
            raise Failure(f"the group used {limited:.2f} of a CPU and may use {limit}")


@case(timeout=240)
def stopped_and_frozen():
    """A thread is stopped, continued, frozen and thawed with its program."""
    with program() as one, control_groups.control_group(process=one.pid) as group:

        def rests(what):
            before = one.used()
            time.sleep(0.3)
            equal(f"CPU time while it is {what}", one.used(), before)

        one.signal(signal.SIGSTOP)
        wait_until("the thread is stopped", lambda: one.status("State") == "T")
        rests("stopped")
        one.signal(signal.SIGCONT)
        one.goes_on()
        control_groups.write(f"{group}/cgroup.freeze", "1")
        wait_until("the group is frozen", lambda: control_groups.statistics(group, "cgroup.events")["frozen"])
        rests("frozen")
        control_groups.write(f"{group}/cgroup.freeze", "0")
        one.goes_on()
        equal("threads", threads(), 1)


@case(timeout=240)
def removed_while_stopped():
    """The device of a stopped program is removed, and after its end the module is unloaded."""
    here = bed.here
    with program() as one:
        one.signal(signal.SIGSTOP)
        wait_until("the thread is stopped", lambda: one.status("State") == "T")
        testbed.delete_link(here.machine, here.device)
    testbed.unload(here.machine, here.driver)
    testbed.bring_up(here)


@case(timeout=240)
def exec_ends_thread():
    """The thread ends when its program executes another program."""

    def execute():
        os.execv("/bin/sleep", ["sleep", "1000"])

    with program(then=execute) as one:
        wait_until("the threads are gone", lambda: threads() == 0)
        equal("the program", os.waitpid(one.pid, os.WNOHANG), (0, 0))


@case(timeout=240)
def dumps_core():
    """A program in poll mode that crashes leaves a core file."""
    pattern, core = "/proc/sys/kernel/core_pattern", "/tmp/core-of-poll"

    def prepare():
        resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY,) * 2)
        with open("/proc/self/coredump_filter", "w", encoding="ascii") as file:
            file.write("0")  # a core file without memory

    with open(pattern, encoding="ascii") as file:
        before = file.read()
    with open(pattern, "w", encoding="ascii") as file:
        file.write(core)
    try:
        with program(prepare=prepare) as one:
            one.signal(signal.SIGSEGV)
            status = one.wait()
            require(os.WIFSIGNALED(status) and os.WCOREDUMP(status), f"it ended with {status:#x}")
        with open(core, "rb") as file:
            equal("the core file", file.read(4), b"\x7fELF")
    finally:
        with open(pattern, "w", encoding="ascii") as file:
            file.write(before)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(core)


@case(timeout=240)
def traced():
    """A debugger attaches to all threads of a program, which goes on, and detaches."""
    with program() as one:
        job = bed.here.machine.start(f"exec strace -f -o /dev/null -p {one.pid}")
        wait_until("the thread is traced", lambda: one.status("TracerPid") != "0")
        one.goes_on()
        job.kill(signal.SIGINT)
        job.wait()
        wait_until("the thread is free", lambda: one.status("TracerPid") == "0")
        one.goes_on()


@case(timeout=240)
def forked():
    """A child of the program has no effect on it, and the thread ends with the last of them."""
    with ends(LONGEST) as both:
        left, right = pair(both)
        write(left, right, 1)
        completed(left)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(writing)
            os.read(reading, 1)
            os._exit(0)
        os.close(reading)
        try:
            with called():
                for number in range(200):
                    write(left, right, number)
                    completed(left)
                    if number % 100 == 50:
                        bed.here.machine.run("true")
            for end, _ in both:
                end.leave()
        finally:
            os.close(writing)
            os.waitpid(child, 0)


@case()
def idle_times():
    """Valid and invalid idle times in the environment."""
    import pyverbs.pyverbs_error

    for good, wanted in (("", 0), ("0", 0), ("1", 1), (str(LONGEST), 1)):
        with context(good):
            equal(f"threads for {good!r}", threads(), wanted)
    for bad in (str(LONGEST + 1), "-1", "1ms", "much", "99999999999999999999"):
        try:
            end, _ = opened(bad)
        except pyverbs.pyverbs_error.PyverbsError as why:
            log(f"{bad}: {why}")
            require(getattr(why, "error_code", errno.EINVAL) == errno.EINVAL, f"{bad}: {why}")
        else:
            end.leave()
            raise harness.Failure(f"an idle time of {bad!r} was taken")
        equal("threads", threads(), 0)


@case()
def inherited_scheduling():
    """The thread has the program's nice value and CPU affinity."""
    processors = os.sched_getaffinity(0)
    try:
        os.setpriority(os.PRIO_PROCESS, 0, 7)
        os.sched_setaffinity(0, {max(processors)})
        with context(SHORT):
            (task,) = tasks()
            equal("nice value", os.getpriority(os.PRIO_PROCESS, task), 7)
            equal("processors", os.sched_getaffinity(task), {max(processors)})
            equal("control group", control_groups.group_of(task), control_groups.group_of("self"))
    finally:
        os.sched_setaffinity(0, processors)
        os.setpriority(os.PRIO_PROCESS, 0, 0)


# GET_CONTEXT in the format of ib_user_verbs.h, followed by the driver's part.
GET_CONTEXT = 0


def get_context(path, driver_part):
    """Opens a context of a device file by a command of its own.

    Returns 0 or the errno, and whether the kernel polls (`POLLED`, or 0).
    """
    response = ctypes.create_string_buffer(24)
    size = 16 + len(driver_part)
    command = struct.pack("=IHHQ", GET_CONTEXT, size // 4, len(response) // 4, ctypes.addressof(response))
    file = os.open(path, os.O_RDWR)
    try:
        os.write(file, command + driver_part)
    except OSError as why:
        return why.errno, None
    finally:
        os.close(file)
    return 0, struct.unpack_from("=Q", response, 8)[0] & POLLED


def uverbs():
    """Returns the path of the device's device file."""
    for name in os.listdir("/sys/class/infiniband_verbs"):
        path = f"/sys/class/infiniband_verbs/{name}/ibdev"
        if os.path.exists(path):
            with open(path, encoding="ascii") as file:
                if file.read().strip() == bed.here.device:
                    return f"/dev/infiniband/{name}"
    raise harness.Failure("no device file")


# The feature of a context in poll mode (drivers/rrxe/ring/abi.rs).
POLLED = 1


@case()
def invalid_commands():
    """The kernel checks GET_CONTEXT commands of any length and content."""
    if bed.here.driver != "rrxe":
        raise Skip("poll mode is rrxe's")
    path = uverbs()
    for part, wanted in (
        (b"", (0, 0)),
        (struct.pack("=I", 5), (0, POLLED)),
        (struct.pack("=II", 5, 0), (0, POLLED)),
        (struct.pack("=II", 0, 0), (0, 0)),
        (struct.pack("=IIQ", 5, 0, 0), (0, POLLED)),
        (struct.pack("=II", LONGEST, 0), (0, POLLED)),
        (struct.pack("=II", LONGEST + 1, 0), (errno.EINVAL, None)),
        (struct.pack("=II", 0xFFFFFFFF, 0), (errno.EINVAL, None)),
        (struct.pack("=II", 5, 1), (errno.EOPNOTSUPP, None)),
        (struct.pack("=IIQ", 5, 0, 1), (errno.EOPNOTSUPP, None)),
    ):
        equal(f"response to {part.hex()}", get_context(path, part), wanted)
    wait_until("the threads are gone", lambda: threads() == 0)


@case(timeout=240)
def no_more_threads():
    """At the limit of its control group, a program works by system calls."""
    with control_groups.control_group("pids") as group, context(None) as other:
        control_groups.write(f"{group}/pids.max", control_groups.read(f"{group}/pids.current"))
        late = opened(LONGEST)
        control_groups.write(f"{group}/pids.max", "max")
        try:
            equal("threads", threads(), 0)
            left, right = pair((late, other))
            with called(most=20, at_least=10):
                for number in range(20):
                    write(left, right, number)
                    completed(left)
        finally:
            late[0].leave()


@case()
def limit_of_its_user():
    """At the limit of processes of its user, a program works by system calls."""
    if bed.here.driver != "rrxe":
        raise Skip("poll mode is rrxe's")
    path = uverbs()

    def check():
        os.setgroups([])
        os.setresuid(privilege.NOBODY, privilege.NOBODY, privilege.NOBODY)
        part = struct.pack("=I", SHORT)
        equal("without a limit", get_context(path, part), (0, POLLED))
        resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
        equal("at the limit", get_context(path, part), (0, 0))

    privilege.aside(check)
    wait_until("the threads are gone", lambda: threads() == 0)


@case()
def opened_and_closed():
    """Contexts are opened and closed at once, while signals arrive."""
    if bed.here.driver != "rrxe":
        raise Skip("poll mode is rrxe's")
    path, parent, caught = uverbs(), os.getpid(), []
    before = signal.signal(signal.SIGUSR1, lambda *_: caught.append(1))
    child = os.fork()
    if child == 0:
        while os.getppid() == parent:
            os.kill(parent, signal.SIGUSR1)
            time.sleep(0.0005)
        os._exit(0)
    try:
        for _ in range(50 if harness.debug_kernel() else 300):
            equal("response", get_context(path, struct.pack("=I", SHORT)), (0, POLLED))
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        signal.signal(signal.SIGUSR1, before)
    log(f"{len(caught)} signals")
    wait_until("the threads are gone", lambda: threads() == 0)


def keep_awake(pair_of_sides):
    """Makes the thread poll all rings of the context, whether it is asleep or not."""
    write(*pair_of_sides, 1)
    completed(pair_of_sides[0])


# Indices of 32-bit words in the 256 bytes at the start of a ring, as in the driver's ABI.
PRODUCER, DOORBELL, DUE = 0, 32, 33


@case(timeout=240)
def malformed_entries():
    """A program that corrupts the ring polled by the thread harms at most its own queue pair."""
    mark = 0x5EED_0F_C0FFEE
    with ends(LONGEST) as both:
        other = pair(both)
        bits = random.Random(3).getrandbits
        for turn in range(4 if harness.debug_kernel() else 12):
            left, right = pair(both)
            write(left, right, mark + turn, at=0)
            completed(left)
            at = left.end.send_ring(mark + turn)
            ring = (ctypes.c_uint32 * 64).from_address(at)
            log(f"the ring is at {at:#x}: producer {ring[PRODUCER]}")
            keep_awake(other)
            for _ in range(2000):
                ring[PRODUCER] = bits(32) if bits(1) else bits(32) % 40
                ring[DOORBELL] = bits(1)
                ring[DUE] = bits(32)

            def failed():
                # In case this took so long that the thread sleeps, make it poll once more.
                keep_awake(other)
                return left.end.state(left.qp["id"]) == "error"

            ring[PRODUCER] = 0x7FFF_FFFF
            wait_until("the queue pair fails", failed)
            keep_awake(other)
            left.destroy()
            right.destroy()


@case(timeout=300)
def device_removed():
    """The device and the module are removed while threads work, and loaded again."""
    here = bed.here
    for what in ("link", "module"):
        with perftest():
            if what == "link":
                testbed.delete_link(here.machine, here.device)
            testbed.unload(here.machine, here.driver)
            # A thread exits slightly after the module has seen its end.
            wait_until("the threads are gone", lambda: threads() == 0)
        testbed.bring_up(here)


@case(timeout=240)
def switched_off():
    """With poll_mode=0 there are no threads, and programs that request one use system calls."""
    here = bed.here
    if here.driver != "rrxe":
        raise Skip("poll mode is rrxe's")
    with testbed.parameters_of(here, "poll_mode=0"), ends(LONGEST) as both:
        equal("threads", threads(), 0)
        said = here.machine.run(f"RRXE_DEBUG=1 RRXE_POLL_IDLE_US={SHORT} ibv_devinfo -d {here.device} 2>&1")
        require("librrxe: no poll mode" in said, "the provider does not explain it")
        left, right = pair(both)
        with called(most=100, at_least=50):
            for number in range(100):
                write(left, right, number)
                completed(left)


# Declared last, since these cases keep their contexts.
data_cases.declare(lambda: [opened(SHORT), opened(SHORT)], core=("extended-mtu-4096",))


def run():
    """Runs the suite."""
    return bed.run()
