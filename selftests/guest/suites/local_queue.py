# SPDX-License-Identifier: GPL-2.0
"""Many queue pairs that send at once.

Their packets wait for the network device; this host's queueing discipline must not drop any.
"""

import contextlib
import json

import testbed
from counted import read
from harness import case, log, require
from programs import next_port, run_pair

bed = testbed.Bed()

# Queueing disciplines of the network device. The last one is slower than the hosts.
DISCIPLINES = {
    "pfifo": "pfifo",
    "fq-codel": "fq_codel",
    "tbf": "tbf rate 100mbit burst 64kb latency 50ms",
}

# Numbers of queue pairs, and messages on each. perftest sends at least five.
QUEUE_PAIRS = {8: 50, 16: 50, 32: 20, 200: 5}

# Code of the acknowledge timeout (34 s). With the usual 67 ms, a slow host causes retransmissions.
TIMEOUT = 23

# Allowed share of retransmitted packets (80 % without back-pressure).
MAX_RETRANSMITTED = 0.02
# Allowed share for READ: a requester cannot tell queued responses from lost ones.
MAX_READ_RETRANSMITTED = 0.1


@contextlib.contextmanager
def discipline(host, words):
    """Sets the queueing discipline of the host's network device.

    Yields a function that returns its number of drops.
    """
    device = host.netdev
    host.machine.run(f"tc qdisc replace dev {device} root {words}")

    def drops():
        listed = json.loads(host.machine.run(f"tc -s -j qdisc show dev {device}"))
        return sum(entry["drops"] for entry in listed)

    try:
        yield drops
    finally:
        host.machine.run(f"tc qdisc delete dev {device} root")


def flood(program, words, pairs, messages, limit=MAX_RETRANSMITTED):
    """Runs perftest in both directions, and checks that almost nothing was retransmitted."""
    server, client = bed.peer, bed.here
    hosts = (server, client)
    with contextlib.ExitStack() as stack:
        drops = [stack.enter_context(discipline(host, words)) for host in hosts]
        before = [(read(host), dropped()) for host, dropped in zip(hosts, drops)]
        port = next_port()

        def command(host):
            more = f"-b -q {pairs} -n {messages} -s 65536 -u {TIMEOUT} -F -p {port}"
            return f"{program} -d {host.device} -x {host.gid_index()} {more}"

        run_pair(
            server, client, command(server), f"{command(client)} {server.address}", testbed.tcp_listens, port, 550
        )
        for host, dropped, (counters, old) in zip(hosts, drops, before):
            now = read(host)
            sent = now["sent_pkts"] - counters["sent_pkts"]
            again = now["retrans_pkts"] - counters["retrans_pkts"]
            risen = {name: now[name] - counters[name] for name in now if now[name] != counters[name]}
            log(f"{host.name}: {dropped() - old} packets dropped by the discipline; counters: {risen}")
            host.machine.run(f"tc -s qdisc show dev {host.netdev}; ip -s -s link show dev {host.netdev}")
            require(dropped() == old, f"{host.name}: the queueing discipline dropped {dropped() - old} packets")
            timeouts = now["local_ack_timeout_err"] - counters["local_ack_timeout_err"]
            require(timeouts == 0, f"{host.name}: {timeouts} times no acknowledgement came in time")
            require(again < limit * sent, f"{host.name}: {again} packets of {sent} were sent again")


def cases(*chosen):
    """Returns the combinations with these names."""
    return {name: (DISCIPLINES[name.rpartition("-")[0]], int(name.rpartition("-")[2])) for name in chosen}


# Together, the two programs cover each discipline with each number of queue pairs.
SENDS = cases("pfifo-16", "pfifo-200", "fq-codel-8", "fq-codel-32", "tbf-16", "tbf-200")
WRITES = cases("pfifo-8", "pfifo-32", "fq-codel-16", "fq-codel-200", "tbf-8", "tbf-32")


@case(timeout=600, each=SENDS, debug=("pfifo-16",))
def send(how):
    """ib_send_bw in both directions."""
    words, pairs = how
    flood("ib_send_bw", words, pairs, QUEUE_PAIRS[pairs])


@case(timeout=600, each=WRITES, debug=("tbf-8",))
def write(how):
    """ib_write_bw in both directions."""
    words, pairs = how
    flood("ib_write_bw", words, pairs, QUEUE_PAIRS[pairs])


@case(timeout=600, debug=False)
def read_responses():
    """ib_read_bw, whose responses wait, too."""
    flood("ib_read_bw", DISCIPLINES["tbf"], 8, QUEUE_PAIRS[8], MAX_READ_RETRANSMITTED)


@case(timeout=600, debug=False)
def tiny_discipline():
    """A discipline with less room than the device hands over drops packets.

    No queue pair fails, and no retry is used up for the drops.
    """
    server, client = bed.peer, bed.here
    port = next_port()
    with discipline(client, "tbf rate 100mbit burst 16kb limit 20kb") as drops:

        def command(host):
            return f"ib_write_bw -d {host.device} -x {host.gid_index()} -q 4 -n 20 -s 65536 -u 16 -F -p {port}"

        run_pair(
            server, client, command(server), f"{command(client)} {server.address}", testbed.tcp_listens, port, 550
        )
        require(drops() > 0, "the discipline dropped nothing: the case shows nothing")


def run():
    """Runs the suite."""
    return bed.run()
