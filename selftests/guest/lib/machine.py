# SPDX-License-Identifier: GPL-2.0
"""Running commands on this machine, in one of its network namespaces, or on the other host.

`Local` and `Remote` have one interface, so that a test of two ends is written once: it takes a
server and a client, and does not know on which machine each is. The other host runs `serve`, a
small agent that takes orders over TCP. The agent forks for each connection; a connection's jobs
die with it.
"""

import contextlib
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import harness
import kernellog
import looks
from harness import Failure

AGENT_PORT = 4790


class Result:
    """The result of a command: `status` as in a shell (128 + n for signal n), and its output."""

    def __init__(self, status, output):
        self.status = status
        self.output = output


# A program and arguments without shell metacharacters.
_PLAIN = re.compile(r"(?:exec )?([A-Za-z0-9_./-]+(?: [A-Za-z0-9_.,:/@+=-]+)*)")


def _plain(command):
    """Returns the words of a command that needs no shell, or None.

    With the debug kernel, each program takes half a second to start, and a shell would add one.
    """
    found = _PLAIN.fullmatch(command)
    words = found.group(1).split(" ") if found else []
    return words if words and shutil.which(words[0]) else None


def _argv(command):
    return _plain(command) or ["/bin/sh", "-c", command]


class _Jobs:
    """The processes started by this agent or this machine."""

    def __init__(self):
        self._jobs = {}

    def start(self, command, environment=None, terminal=False):
        """Starts a shell command in a session of its own; returns its number.

        With `terminal`, its standard input is a terminal on which nobody types.
        """
        # The file is closed here, or a program that never ends its jobs (bench) would run out of
        # file descriptors. `output` opens it again.
        file, output = tempfile.mkstemp(prefix="job.")
        keyboard, standard_input = os.openpty() if terminal else (None, os.open(os.devnull, os.O_RDONLY))
        try:
            process = subprocess.Popen(
                _argv(command),
                stdin=standard_input,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )
        except OSError:
            if terminal:
                os.close(keyboard)
            raise
        finally:
            os.close(file)
            os.close(standard_input)
        self._jobs[process.pid] = (process, output, keyboard)
        return process.pid

    def output(self, job):
        """Returns the output of a job so far."""
        with open(self._jobs[job][1], encoding="utf-8", errors="replace", newline="") as file:
            return file.read()

    def wait(self, job, seconds):
        """Returns the exit status, or None if the job still runs after this many seconds."""
        process = self._jobs[job][0]
        status = process.poll()
        if status is None:
            # Popen.wait() would wake up twenty times a second.
            ended = os.pidfd_open(job)
            try:
                select.select([ended], [], [], seconds)
            finally:
                os.close(ended)
            status = process.poll()
        return 128 - status if status is not None and status < 0 else status

    def signal(self, job, number):
        """Sends a signal to the command and all processes that it started."""
        try:
            os.killpg(job, number)
        except ProcessLookupError:
            pass

    def end(self):
        """Kills all jobs that still run."""
        for job, (process, output, keyboard) in self._jobs.items():
            if process.poll() is None:
                self.signal(job, signal.SIGKILL)
                process.wait()
            os.unlink(output)
            if keyboard is not None:
                os.close(keyboard)
        self._jobs.clear()


def _short(text):
    """Shortens long lines for the log.

    rping prints all data that it sends, and may append its error message; the line's end is kept.
    """
    return "\n".join(line if len(line) <= 400 else f"{line[:200]} ... {line[-150:]}" for line in text.splitlines())


class Job:
    """A command started on some machine."""

    def __init__(self, machine, number, command):
        self._machine = machine
        self._number = number
        self.command = command

    @property
    def process(self):
        """The identifier of its process on the machine."""
        return self._number

    def output(self):
        """Returns its output so far."""
        return self._machine.ask("output", self._number)

    def wait(self, seconds=120):
        """Waits for its end. At the time limit it is killed and the case fails."""
        seconds *= harness.slowness()
        status = self._machine.ask("wait", self._number, seconds)
        output = self.output()
        if status is None:
            self.kill()
            harness.log(f"{self._machine.name}: {self.command}: still running after {seconds} s\n{_short(output)}")
            raise Failure(f"{self._machine.name}: '{self.command}' hangs ({seconds} s)")
        harness.log(f"{self._machine.name}: {self.command}: status {status}\n{_short(output)}")
        return Result(status, output)

    def running(self):
        """Returns whether it still runs."""
        return self._machine.ask("wait", self._number, 0) is None

    def kill(self, number=signal.SIGKILL):
        """Kills it with all processes that it started."""
        self._machine.ask("signal", self._number, int(number))


class Machine:
    """A place where commands run."""

    name = "?"

    def ask(self, what, *arguments):
        """Calls a method of `_Jobs` on the machine."""
        raise NotImplementedError

    def start(self, command, terminal=False, **environment):
        """Starts a shell command in the background, with a terminal as its input if asked to."""
        harness.log(f"{self.name}& {command}")
        return Job(self, self.ask("start", self.wrapped(command), environment, terminal), command)

    def wrapped(self, command):
        """Returns the command in the form in which it runs here."""
        return command

    def try_run(self, command, seconds=60, **environment):
        """Runs a shell command to its end and returns its result, whatever its status."""
        return self.start(command, **environment).wait(seconds)

    def run(self, command, seconds=60, **environment):
        """Runs a shell command that must succeed; returns its output."""
        result = self.try_run(command, seconds, **environment)
        if result.status:
            lines = result.output.strip().splitlines()
            raise Failure(
                f"{self.name}: '{command}' ended with {result.status}: {lines[-1] if lines else '(no output)'}"
            )
        return result.output

    def look(self, what, *arguments):
        """Calls a function of `looks` on the machine, which starts no program."""
        raise NotImplementedError

    def read(self, path):
        """Returns the text of a file, without white space at both ends."""
        harness.log(f"{self.name}: read {path}")
        return self.look("read", path).strip()

    def tcp_listens(self, port):
        """Returns whether a program here listens for TCP connections on the port."""
        return self.look("tcp_listens", port)

    def end_jobs(self):
        """Kills all jobs that still run."""
        self.ask("end")

    def batch(self, program, *commands):
        """Runs `ip` or `tc` once for several commands, which stop at the first error."""
        return self.run("\n".join([f"{program} -batch - <<END", *commands, "END"]))


class Local(Machine):
    """This machine, or one of its network namespaces."""

    def __init__(self, name="host1", namespace=None):
        self.name = name
        self._namespace = namespace
        self._jobs = _Jobs()

    def ask(self, what, *arguments):
        return getattr(self._jobs, what)(*arguments)

    def look(self, what, *arguments):
        try:
            return getattr(looks, what)(*arguments)
        except OSError as why:
            raise Failure(f"{self.name}: {what}: {why}") from why

    # A network namespace has its own sysfs and list of sockets.

    def read(self, path):
        return super().read(path) if self._namespace is None else self.run(f"cat {path}").strip()

    def tcp_listens(self, port):
        if self._namespace is None:
            return super().tcp_listens(port)
        return bool(self.try_run(f"ss -Hltn sport = :{port}").output.strip())

    @contextlib.contextmanager
    def inside(self):
        """Enters the namespace for the block. sysfs stays that of this machine."""
        before = os.open("/proc/self/ns/net", os.O_RDONLY)
        try:
            if self._namespace:
                with open(f"/run/netns/{self._namespace}", encoding="ascii") as file:
                    os.setns(file.fileno(), os.CLONE_NEWNET)
            yield
        finally:
            os.setns(before, os.CLONE_NEWNET)
            os.close(before)

    def wrapped(self, command):
        if self._namespace is None:
            return command
        inside = f"exec ip netns exec {self._namespace}"
        words = _plain(command)
        if words:
            return " ".join([inside, *words])
        quoted = command.replace("'", "'\\''")
        return f"{inside} /bin/sh -c '{quoted}'"


class _Connection:
    """A stream of requests and replies, one line of JSON each."""

    def __init__(self, connection):
        self._file = connection.makefile("rwb")
        self._connection = connection

    def send(self, message):
        self._file.write(json.dumps(message).encode() + b"\n")
        self._file.flush()

    def receive(self):
        line = self._file.readline()
        return json.loads(line) if line else None

    def close(self):
        self._file.close()
        self._connection.close()


class RemoteError(Failure):
    """A call on the other host raised an exception; `code` is its errno, if it has one."""

    def __init__(self, text, code):
        super().__init__(text)
        self.error_code = code


def dial(address, seconds=120):
    """Connects to the agent at `address`, waiting for it to start."""
    end = time.monotonic() + seconds
    while True:
        try:
            connection = socket.create_connection((address, AGENT_PORT), timeout=10)
            connection.settimeout(None)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return _Connection(connection)
        except OSError as why:
            if time.monotonic() > end:
                raise Failure(f"no agent at {address}: {why}") from why
            time.sleep(0.2)


def call(connection, target, what, *arguments, **named):
    """Calls a method of the agent's object `target`."""
    connection.send([target, what, arguments, named])
    reply = connection.receive()
    if reply is None:
        raise Failure(f"the other host's agent died in {target}.{what}")
    if "error" in reply:
        raise RemoteError(reply["error"], reply["code"])
    return reply["value"]


class Remote(Machine):
    """The other host, through its agent."""

    def __init__(self, address, name="host2"):
        self.name = name
        self.address = address
        self._connection = dial(address)

    def ask(self, what, *arguments):
        return call(self._connection, "jobs", what, *arguments)

    def look(self, what, *arguments):
        return call(self._connection, "looks", what, *arguments)

    def kernel(self, what, *arguments):
        """Calls a function of kernellog on the other host."""
        return call(self._connection, "kernel", what, *arguments)

    def dismiss(self):
        """Ends the agent and its guest."""
        self._connection.send(["agent", "end", [], {}])
        self._connection.close()


def serve():
    """Runs the agent: serves connections until told to end."""
    import endpoint  # noqa: F401  imported once, not in each process; only a guest has verbs

    listener = socket.create_server(("::", AGENT_PORT), family=socket.AF_INET6, dualstack_ipv6=True)
    parent = os.getpid()
    ended = []
    signal.signal(signal.SIGUSR1, lambda *_: ended.append(True))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listener.settimeout(0.5)
    # The launcher and its init create this file when the first host's script ends for any reason.
    while not ended and not os.path.exists("/guest/ended.1"):
        try:
            connection, _ = listener.accept()
        except (TimeoutError, InterruptedError):
            continue
        if os.fork() == 0:
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            connection.settimeout(None)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            status = 0
            try:
                _execute_calls(_Connection(connection), parent)
            except BrokenPipeError:
                pass
            except Exception as why:
                sys.stdout.write(f"agent: {why!r}\n")
                status = 1
            sys.stdout.flush()
            os._exit(status)  # skip the interpreter's exit, where pyverbs crashes
        connection.close()


def apart():
    """Forks a process that executes calls like the other host's agent.

    Returns a connection to it, and its process identifier.
    """
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            ours.close()
            _execute_calls(_Connection(theirs), os.getppid())
            status = 0
        finally:
            os._exit(status)  # as in `serve`
    theirs.close()
    return _Connection(ours), child


def _execute_calls(connection, parent):
    jobs = _Jobs()
    objects = {"jobs": jobs, "kernel": kernellog, "looks": looks}
    while (question := connection.receive()) is not None:
        target, what, arguments, named = question
        if target == "agent":
            os.kill(parent, signal.SIGUSR1)
            break
        if target == "endpoint" and target not in objects:
            import endpoint

            objects[target] = endpoint.Endpoint()
        try:
            value = getattr(objects[target], what)(*arguments, **named)
            connection.send({"value": value})
        except Exception as why:
            connection.send({"error": f"{type(why).__name__}: {why}", "code": getattr(why, "error_code", None)})
    jobs.end()
