# SPDX-License-Identifier: GPL-2.0
"""UCX as Debian packages it, between two hosts: its benchmark over datagrams and connections."""

import dataclasses
import itertools
import re

import harness
import testbed
from harness import case, equal, require
from programs import both_roles, next_port, run_pair

bed = testbed.Bed()

# UCX transports that use verbs without mlx5. Connections are set up by datagrams, too.
TRANSPORTS = {"ud": "ud_v,self", "rc": "rc_v,self"}

# Numbers of messages. In sleep mode, this many needed an event for a completion that was already in
# the queue when UCX armed it.
COUNTS = {"ud": 20, "rc": 200}

# Tests of ucx_perftest: tagged messages and active messages.
MESSAGES = {
    "tag-lat": "-t tag_lat -s 8",
    "tag-bw": "-t tag_bw -s 1024",
    "am-bw": "-t ucp_am_bw -s 1024",
}
# A PUT completes only at its initiator, so the other end cannot sleep.
PUT = {"put-lat": "-t ucp_put_lat -s 8"}

MODES = {"poll": "", "sleep": "-E sleep"}


@dataclasses.dataclass(frozen=True)
class Run:
    """A run of ucx_perftest. `ipv6` selects the GID; `None` leaves the choice to UCX."""

    transport: str
    options: str
    ipv6: bool | None
    count: int


def _runs():
    found = {}
    for (transport, count), (version, ipv6) in itertools.product(COUNTS.items(), (("ipv4", False), ("ipv6", True))):
        for mode, words in MODES.items():
            tests = MESSAGES if words else {**MESSAGES, **PUT}
            for test, options in tests.items():
                options = f"{options} {words}".rstrip()
                found[f"{transport}-{version}-{mode}-{test}"] = Run(transport, options, ipv6, count)
    return found


def perftest(server, client, run):
    """Runs ucx_perftest to its end; all messages must have been exchanged, without an error."""
    port = next_port()

    def command(host, words):
        variables = [f"UCX_TLS={TRANSPORTS[run.transport]}", f"UCX_NET_DEVICES={host.device}:1"]
        if run.ipv6 is not None:
            index = host.gid_index(host.address6 if run.ipv6 else host.address)
            variables.append(f"UCX_IB_GID_INDEX={index}")
        return f"env {' '.join(variables)} ucx_perftest {words} -p {port}"

    words = f"{server.address} {run.options} -n {run.count} -w 5"
    # Debian's ucx_perftest starts MPI, which takes seconds, unless its input is a terminal.
    ends = run_pair(
        server, client, command(server, ""), command(client, words), testbed.tcp_listens, port, terminal=True
    )
    for output in ends:
        require("ERROR" not in output, "UCX reported an error")
    rows = re.findall(r"^Final:\s+(\d+)\s", ends[1], re.M)
    equal("messages", rows, [str(run.count)])


@both_roles(bed, timeout=200, each=_runs())
def benchmark(server, client, run):
    """ucx_perftest with small messages, polling and sleeping."""
    perftest(server, client, run)


@both_roles(bed, timeout=200, each={name: name for name in TRANSPORTS})
def default_gid(server, client, transport):
    """UCX chooses the GID, that of the IPv4 address."""
    perftest(server, client, Run(transport, "-t tag_lat -s 8", None, 20))


@both_roles(bed, timeout=300, each={f"{name}-{mode}": (name, mode) for name in TRANSPORTS for mode in MODES})
def large(server, client, what):
    """Messages of 1 MiB, which UCX sends by its rendezvous protocol."""
    transport, mode = what
    options = f"-t tag_bw -s 1048576 -O 4 {MODES[mode]}".rstrip()
    perftest(server, client, Run(transport, options, False, 10))


# The service level of a datagram's completion, in mlx5's format: bit 3 for a UDP header, and below
# it the kind of IP header.
LEVELS = {"ipv4": 10, "ipv6": 9}


@case(each={f"{version}-{kind}": (version, kind) for version in LEVELS for kind in ("classic", "extended")})
def datagram_service_level(what):
    """The service level of a received datagram shows the version of IP; otherwise it is 0."""
    import endpoint  # only a guest has verbs

    version, interface = what
    here, end = bed.here, endpoint.Endpoint()
    address = here.address if version == "ipv4" else here.address6
    info = end.open(here.device, address, here.driver)
    try:
        pd, cq = end.pd(), end.cq(extended=interface == "extended")
        memory = end.memory(pd, 4096)
        ah = end.ah(pd, info["gid"])
        for kind, level in (("ud", LEVELS[version]), ("rc", 0)):
            qp = end.qp(kind, pd, cq)
            end.to_init(qp["id"], kind)
            end.to_rtr(qp["id"], kind, gid=info["gid"], qpn=qp["qpn"])
            end.to_rts(qp["id"], kind)
            end.post_recv(qp["id"], [{"id": 1, "sge": [[memory["address"], 100, memory["lkey"]]]}])
            request = {"id": 2, "op": "send", "sge": [[memory["address"] + 2048, 10, memory["lkey"]]]}
            if kind == "ud":
                request |= {"ah": ah, "qpn": qp["qpn"]}
            end.post_send(qp["id"], [request])
            found = end.poll(cq, 2, 30 * harness.slowness())
            equal(
                f"completions of {kind}",
                sorted((wc["op"], wc["status"], wc["sl"]) for wc in found),
                [("recv", "SUCCESS", level), ("send", "SUCCESS", 0)],
            )
    finally:
        end.leave()


def run():
    """Runs the suite."""
    return bed.run()
