# SPDX-License-Identifier: GPL-2.0
"""Running commands on this machine, in one of its network namespaces, or on the other host.

`Local` and `Remote` have one interface, so that a test of two ends is written once: it takes a
server and a client, and does not know which of them is where. The other host runs `serve`, a small
agent that does as it is told over TCP; it forks for each connection, and what a connection started
dies with it.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import harness
import kernellog
from harness import Failure

AGENT_PORT = 4790


class Result:
    """How a command ended: `status` as the shell counts (128 + n for signal n), and its output."""

    def __init__(self, status, output):
        self.status = status
        self.output = output


# A program and words that mean nothing to a shell.
_PLAIN = re.compile(r"(?:exec )?([A-Za-z0-9_./-]+(?: [A-Za-z0-9_.,:/@+=-]+)*)")


def _plain(command):
    """The words of a command that needs no shell, or None. In a debug kernel a program takes half a second to start, and
    a shell is one more."""
    found = _PLAIN.fullmatch(command)
    words = found.group(1).split(" ") if found else []
    return words if words and shutil.which(words[0]) else None


def _argv(command):
    return _plain(command) or ["/bin/sh", "-c", command]


class _Jobs:
    """The processes that this agent, or this machine, has started."""

    def __init__(self):
        self._jobs = {}

    def start(self, command, environment=None):
        """Start a shell command in a session of its own; returns its number."""
        # Not open for as long as somebody may ask for it: who never ends it all starts more than may be open (bench).
        file, output = tempfile.mkstemp(prefix="job.")
        try:
            process = subprocess.Popen(
                _argv(command),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )
        finally:
            os.close(file)
        self._jobs[process.pid] = (process, output)
        return process.pid

    def output(self, job):
        """What it has printed so far."""
        with open(self._jobs[job][1], encoding="utf-8", errors="replace", newline="") as file:
            return file.read()

    def wait(self, job, seconds):
        """Its exit status, or None where it still runs after this long."""
        try:
            status = self._jobs[job][0].wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        return status if status >= 0 else 128 - status

    def signal(self, job, number):
        """Send a signal to the command and all that it started."""
        try:
            os.killpg(job, number)
        except ProcessLookupError:
            pass

    def end(self):
        """Kill whatever is left."""
        for job, (process, output) in self._jobs.items():
            if process.poll() is None:
                self.signal(job, signal.SIGKILL)
                process.wait()
            os.unlink(output)
        self._jobs.clear()


def _short(text):
    """The text with its lines cut to what a log needs: rping prints all that it sends, and what it complains of may
    stand at the end of that."""
    return "\n".join(line if len(line) <= 400 else f"{line[:200]} ... {line[-150:]}" for line in text.splitlines())


class Job:
    """A running command on some machine."""

    def __init__(self, machine, number, command):
        self._machine = machine
        self._number = number
        self.command = command

    def output(self):
        """What it has printed so far."""
        return self._machine.ask("output", self._number)

    def wait(self, seconds=120):
        """Wait for its end. Running into the time limit kills it and fails the case."""
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
        """Whether it has not ended yet."""
        return self._machine.ask("wait", self._number, 0) is None

    def kill(self, number=signal.SIGKILL):
        """Kill it with all that it started."""
        self._machine.ask("signal", self._number, int(number))


class Machine:
    """Where commands run."""

    name = "?"

    def ask(self, what, *arguments):
        """Call a method of `_Jobs` where the commands run."""
        raise NotImplementedError

    def start(self, command, **environment):
        """Start a shell command in the background."""
        harness.log(f"{self.name}& {command}")
        return Job(self, self.ask("start", self.wrapped(command), environment), command)

    def wrapped(self, command):
        """The command as it has to be run here."""
        return command

    def try_run(self, command, seconds=60, **environment):
        """Run a shell command to its end, whatever its status."""
        return self.start(command, **environment).wait(seconds)

    def run(self, command, seconds=60, **environment):
        """Run a shell command that must succeed; returns its output."""
        result = self.try_run(command, seconds, **environment)
        if result.status:
            lines = result.output.strip().splitlines()
            raise Failure(
                f"{self.name}: '{command}' ended with {result.status}: {lines[-1] if lines else '(no output)'}"
            )
        return result.output

    def read(self, path):
        """A file's text, less white space at both ends."""
        return self.run(f"cat {path}").strip()

    def end_jobs(self):
        """Kill what is still running."""
        self.ask("end")


class Local(Machine):
    """This machine, or one of its network namespaces."""

    def __init__(self, name="host1", namespace=None):
        self.name = name
        self._namespace = namespace
        self._jobs = _Jobs()

    def ask(self, what, *arguments):
        return getattr(self._jobs, what)(*arguments)

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
    """Questions and answers, a line of JSON each."""

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
    """A call on the other host raised; `code` is the errno where it had one."""

    def __init__(self, text, code):
        super().__init__(text)
        self.error_code = code


def dial(address, seconds=120):
    """Connect to the agent at `address`, waiting for it to start."""
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
    """Call a method of the agent's object `target`."""
    connection.send([target, what, arguments, named])
    answer = connection.receive()
    if answer is None:
        raise Failure(f"the other host's agent died in {target}.{what}")
    if "error" in answer:
        raise RemoteError(answer["error"], answer["code"])
    return answer["value"]


class Remote(Machine):
    """The other host, through its agent."""

    def __init__(self, address, name="host2"):
        self.name = name
        self.address = address
        self._connection = dial(address)

    def ask(self, what, *arguments):
        return call(self._connection, "jobs", what, *arguments)

    def kernel(self, what, *arguments):
        """Call a function of kernellog there."""
        return call(self._connection, "kernel", what, *arguments)

    def dismiss(self):
        """Let the agent end, and its guest with it."""
        self._connection.send(["agent", "end", [], {}])
        self._connection.close()


def serve():
    """Be the agent: until told to end, do as each connection asks."""
    listener = socket.create_server(("::", AGENT_PORT), family=socket.AF_INET6, dualstack_ipv6=True)
    parent = os.getpid()
    ended = []
    signal.signal(signal.SIGUSR1, lambda *_: ended.append(True))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listener.settimeout(0.5)
    # The launcher and its init leave this file when the first host's script has ended, in whatever way.
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
                _answer(_Connection(connection), parent)
            except BrokenPipeError:
                pass
            except Exception as why:
                sys.stdout.write(f"agent: {why!r}\n")
                status = 1
            sys.stdout.flush()
            os._exit(status)  # no interpreter exit: it is where pyverbs crashes
        connection.close()


def apart():
    """Fork a process that answers calls like the other host's agent. Returns a connection to it,
    and its process identifier."""
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            ours.close()
            _answer(_Connection(theirs), os.getppid())
            status = 0
        finally:
            os._exit(status)  # as in `serve`
    theirs.close()
    return _Connection(ours), child


def _answer(connection, parent):
    jobs = _Jobs()
    objects = {"jobs": jobs, "kernel": kernellog}
    while (question := connection.receive()) is not None:
        target, what, arguments, named = question
        if target == "agent":
            os.kill(parent, signal.SIGUSR1)
            break
        if target == "endpoint" and target not in objects:
            import endpoint  # only here: the commands' agent needs no verbs

            objects[target] = endpoint.Endpoint()
        try:
            value = getattr(objects[target], what)(*arguments, **named)
            connection.send({"value": value})
        except Exception as why:
            connection.send({"error": f"{type(why).__name__}: {why}", "code": getattr(why, "error_code", None)})
    jobs.end()
