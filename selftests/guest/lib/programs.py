# SPDX-License-Identifier: GPL-2.0
"""Running the two ends of a program, and judging their output."""

import itertools
import os
import time

import harness
import testbed
from harness import Failure, require, wait_until


class ClientFailure(Failure):
    """The client of a pair failed. `output` is its output, or the server's if it hangs."""

    def __init__(self, text, output):
        super().__init__(text)
        self.output = output


# Each run takes a new port: a closing connection may still hold the last one's.
_ports = itertools.count(18600)


def next_port():
    """Returns a port that no run has used."""
    return next(_ports)


def run_pair(server, client, server_command, client_command, listens, port, seconds=120, forsaken=None, **starting):
    """Starts the server, waits until it listens, and runs the client; both must succeed.

    Returns the output of the server and of the client. `listens(machine, port)` tells whether the
    server is ready. `forsaken()`, if given, tells whether the server cannot have learned of the
    client's end. In that case a server that does not end is killed, and its status is ignored.
    `starting` are options of `Machine.start`.
    """
    serving = server.machine.start(server_command, **starting)

    def ready():
        if not serving.running():
            raise Failure(f"the server ended at once: {_last_lines(serving.wait().output)}")
        return listens(server.machine, port)

    # On a busy machine, UCX takes half a minute to start for the first time.
    wait_until(f"'{server_command}' listens on {port}", ready, 120)
    asking = client.machine.start(client_command, **starting)
    try:
        client_end = asking.wait(seconds)
    except Failure as failure:
        server_output = serving.output()
        harness.log(f"the server so far:\n{server_output}")
        _log_devices(server, client)
        raise ClientFailure(str(failure), server_output) from failure
    if client_end.status:
        harness.log("the server so far:")
        _log_devices(server, client)
        serving.kill()
        serving.wait()
        raise ClientFailure(
            f"client: '{client_command}': status {client_end.status}: {_last_lines(client_end.output)}", client_end.output
        )
    if forsaken and _is_left_behind(serving, forsaken):
        harness.log(f"the server has never heard of the client's end, and is ended:\n{_last_lines(serving.output())}")
        serving.kill()
        serving.wait()
        return serving.output(), client_end.output
    server_end = serving.wait(seconds)
    # A send to the departed client may have failed before the server learned of the client's end.
    if server_end.status and not (forsaken and forsaken()):
        raise Failure(f"server: '{server_command}': status {server_end.status}: {_last_lines(server_end.output)}")
    return server_end.output, client_end.output


# Seconds that a machine must have stood still to excuse a peer that gave up: half of the time after
# which ibv_rc_pingpong and perftest give up (timeout 14, retry count 7).
STALL = 0.25

# Attempts of a pair of programs.
ATTEMPTS = 3


def despite_stalls(server, client, run):
    """Returns the result of `run()`, and calls it again if the client gave up on a stalled host.

    Such a failure says nothing about the driver.
    """
    hosts = (server.machine, client.machine)
    for attempt in itertools.count(1):
        for machine in hosts:
            machine.look("begin_watch")
        try:
            return run()
        except ClientFailure as failure:
            stalls = [machine.look("longest_stall") for machine in hosts]
            harness.log(f"the hosts stood still for up to {', '.join(f'{stall:.2f}' for stall in stalls)} s")
            if "retry counter exceeded" not in failure.output or max(stalls) < STALL or attempt == ATTEMPTS:
                raise


def _log_devices(*hosts):
    """Writes the queue pairs and the counters of the hosts' devices to the log."""
    for host in hosts:
        host.machine.try_run(f"rdma resource show qp link {host.device}; rdma -p statistic show link {host.device}")


# Seconds that the notice of a client's end may take to arrive.
TIMEOUT = 20


def _is_left_behind(serving, forsaken):
    """Returns whether the server still runs because it never learned of the client's end."""
    until = time.monotonic() + TIMEOUT * harness.slowness()
    while serving.running():
        if time.monotonic() > until:
            return forsaken()
        time.sleep(0.2)
    return False


def _last_lines(text):
    """Returns the last four lines of a program's output, in one line."""
    lines = text.strip().splitlines()
    return "; ".join(line[:120] for line in lines[-4:]) if lines else "(no output)"


def roles():
    """Returns the roles of this host: {ending of a case's name: whether it is the client}.

    Between two drivers, this host runs each case in both roles.
    """
    return {"client": True, "server": False} if os.environ.get("ROLES") == "both" else {"client": True}


def both_roles(bed, each=None, **options):
    """Declares cases of a function of server, client and the argument, once per role.

    `options` are those of `harness.case`.
    """

    def mark(function):
        def run(parameters):
            as_client, argument = parameters
            server, client = (bed.peer, bed.here) if as_client else (bed.here, bed.peer)
            if each is None:
                function(server, client)
            else:
                function(server, client, argument)

        run.__name__ = function.__name__
        table = {}
        for role, as_client in roles().items():
            ending = f"-as-{role}" if len(roles()) > 1 else ""
            for name, argument in (each or {"": None}).items():
                table[(name + ending).lstrip("-")] = (as_client, argument)
        if list(table) == [""]:

            def alone():
                run((True, None))

            alone.__name__ = function.__name__
            harness.case(**options)(alone)
        else:
            # `debug` names endings of arguments; it applies to both roles.
            wanted = options.pop("debug", True)
            if not isinstance(wanted, bool):
                wanted = [name for name in table if any(name.startswith(ending) for ending in wanted)]
            harness.case(each=table, debug=wanted, **options)(run)
        return function

    return mark


def rping(server, client, count, address=None, more="", seconds=180, lossy=False):
    """Runs `count` rounds of rping with data verified at both ends.

    On a lossy wire the request to disconnect may be lost. rping does not wait for the reply, and
    destroying a connection manager identifier ends its retries (cm_destroy_id() in
    drivers/infiniband/core/cm.c).
    """
    requests = f"/sys/class/infiniband/{server.device}/ports/1/cm_rx_msgs/dreq"

    def received():
        return int(server.machine.read(requests))

    before = received() if lossy else 0
    forsaken = (lambda: received() == before) if lossy else None
    address = address or server.address
    port = next_port()
    common = f"-a {address} -p {port} -v -V -C {count} {more}"
    ends = run_pair(server, client, f"rping -s {common}", f"rping -c {common}", testbed.cm_listens, port, seconds, forsaken)
    for name, output in zip(("server", "client"), ends):
        rounds = output.count("ping data: rdma-ping-")
        require(rounds == count, f"the {name} counted {rounds} rounds of {count}")
        require("mismatch" not in output, f"the {name} found wrong data")
