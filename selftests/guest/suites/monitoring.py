# SPDX-License-Identifier: GPL-2.0
"""Prometheus' node_exporter and collectd as Debian packages them: they see each device's port."""

import contextlib
import re
import time
import urllib.request

import programs
import testbed
from counted import TIMEOUT, monitored_from, read
from harness import case, equal, require, slowness, wait_until

bed = testbed.Bed()

SECOND = "dev_second"
PORT = 9100


@contextlib.contextmanager
def second():
    """Makes a second device, on one end of a veth pair, for the block. Yields its host object."""
    here = bed.here
    here.machine.batch("ip", "link add mon0 type veth peer name mon1", "link set mon0 up", "link set mon1 up")
    try:
        testbed.add_link(here.machine, here.driver, SECOND, "mon0")
        yield testbed.Host(here.machine, SECOND, here.driver, None, None, "mon0")
    finally:
        here.machine.try_run("ip link delete mon0")
        wait_until("the second device is gone", lambda: not testbed.device_exists(SECOND))


def _traffic():
    programs.rping(bed.peer, bed.here, 10)


def _scrape():
    """Returns the metrics of node_exporter: {text of name and labels: value}."""
    with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics", timeout=60) as response:
        lines = response.read().decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


# The metrics of node_exporter with counters, and ib_core's names for these.
METRICS = {
    "port_data_transmitted_bytes_total": ("port_xmit_data", 4),
    "port_data_received_bytes_total": ("port_rcv_data", 4),
    "port_packets_transmitted_total": ("port_xmit_packets", 1),
    "port_packets_received_total": ("port_rcv_packets", 1),
    "port_errors_received_total": ("port_rcv_errors", 1),
    "port_discards_transmitted_total": ("port_xmit_discards", 1),
}


@case(timeout=300)
def node_exporter():
    """node_exporter's infiniband collector: counters, state and rate of two devices.

    It collects nothing at all if it cannot read one of the devices.
    """
    options = "--collector.disable-defaults --collector.infiniband"
    job = bed.here.machine.start(f"prometheus-node-exporter {options} --web.listen-address=127.0.0.1:{PORT}")
    try:
        with second() as other:
            _traffic()
            wait_until("node_exporter listens", lambda: testbed.tcp_listens(bed.here.machine, PORT), 120)
            metrics = _settled()
            for host in (bed.here, other):
                label = _label(host)
                equal(f"state of {label}", metrics[f"node_infiniband_state_id{label}"], 4)
                equal(f"physical state of {label}", metrics[f"node_infiniband_physical_state_id{label}"], 5)
            require(metrics[f"node_infiniband_port_data_received_bytes_total{_label(bed.here)}"] > 0, "nothing received")
            # The speed of a veth device is 10 Gb/s.
            equal("rate", metrics[f"node_infiniband_rate_bytes_per_second{_label(other)}"], 10e9 / 8)
            bed.here.machine.run("ip link set mon0 down")
            wait_until("the port is down", lambda: testbed.port_attribute(SECOND, "state").startswith("1:"))
            metrics = _settled()
            equal("state of the port that is down", metrics[f"node_infiniband_state_id{_label(other)}"], 1)
            equal("state of the other", metrics[f"node_infiniband_state_id{_label(bed.here)}"], 4)
    finally:
        job.kill()
        job.wait()


def _label(host):
    return f'{{device="{host.device}",port="1"}}'


def _wrong_metrics(metrics):
    """Yields what differs from the statistics of the device."""
    if metrics['node_scrape_collector_success{collector="infiniband"}'] != 1:
        yield "the collector failed"
    for device in (bed.here.device, SECOND):
        host = testbed.Host(bed.here.machine, device, bed.here.driver, None, None)
        wanted = monitored_from(read(host))
        for metric, (name, factor) in METRICS.items():
            found = metrics.get(f"node_infiniband_{metric}{_label(host)}")
            if found != wanted[name] * factor:
                yield f"{metric} of {device}: {found}, not {wanted[name] * factor}"


def _settled():
    """Scrapes until nothing differs from the statistics, because a late packet may have been
    counted meanwhile. Returns the metrics."""
    end = time.monotonic() + TIMEOUT * slowness()
    while (wrong := list(_wrong_metrics(metrics := _scrape()))) and time.monotonic() < end:
        time.sleep(0.1)
    equal("differences", wrong, [])
    return metrics


CONFIGURATION = """
BaseDir "/tmp"
PluginDir "/usr/lib/collectd"
TypesDB "/usr/share/collectd/types.db"
Interval 1
LoadPlugin infiniband
LoadPlugin csv
<Plugin csv>
DataDir "stdout"
StoreRates false
</Plugin>
"""


def _is_put(job, host, kind):
    """Returns whether collectd has printed a value of a device that equals the statistics now. A
    late packet may be counted after earlier values."""
    now = monitored_from(read(host))
    value = {
        "octets": f"{4 * now['port_rcv_data']}:{4 * now['port_xmit_data']}",
        "packets-total": f"{now['port_rcv_packets']}:{now['port_xmit_packets']}",
        "state": "4.000000",
    }[kind]
    line = rf"^PUTVAL \S+/infiniband-{host.device}:1/ib_{kind} \S+ [\d.]+:{re.escape(value)}$"
    return re.search(line, job.output(), re.M)


@case(timeout=300)
def collectd():
    """collectd's plugin infiniband: octets, packets and state of two devices."""
    with open("/tmp/collectd.conf", "w", encoding="ascii") as file:
        file.write(CONFIGURATION)
    with second() as other:
        _traffic()
        job = bed.here.machine.start("collectd -f -C /tmp/collectd.conf")
        try:
            for host in (bed.here, other):
                for kind in ("octets", "packets-total", "state"):
                    wait_until(f"ib_{kind} of {host.device}", lambda host=host, kind=kind: _is_put(job, host, kind), 90)
        finally:
            job.kill()
            job.wait()


def run():
    """Runs the suite."""
    return bed.run()
