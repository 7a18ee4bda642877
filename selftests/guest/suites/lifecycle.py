# SPDX-License-Identifier: GPL-2.0
"""Creation and removal of the module, links, network devices and programs under traffic.

Nothing may be left behind: the harness looks for leaks and kernel warnings afterwards.
"""

import contextlib
import errno
import os
import random
import signal
import time

import harness
import programs
import testbed
from harness import Skip, case, equal, require, wait_until
from machine import Local
from traffic import Side, connect

bed = testbed.Bed()

# Rounds of insmod, link, traffic, link deletion and rmmod. The full number runs only with the debug
# kernel and all its cases; a round takes it ten seconds.
ROUNDS, FEW_ROUNDS = 50, 10

# Iterations of a program that must outlast any case.
FOREVER = 1000000


def times(count):
    """Returns a number of repetitions, reduced for the debug kernel."""
    return max(1, count // 3) if harness.debug_kernel() else count


def sh(command, seconds=60):
    """Runs a command that must succeed on this host."""
    return bed.here.machine.run(command, seconds)


def driver():
    """Returns the driver under test."""
    return bed.here.driver


def links():
    """Returns the names of all RDMA devices."""
    return sorted(os.listdir("/sys/class/infiniband"))


def without_device():
    """Removes all devices and the module."""
    where = bed.here.machine
    for device in links():
        testbed.delete_link(where, device)
    if os.path.exists(f"/sys/module/{driver()}"):
        testbed.unload(where, driver())


def unloads():
    """Checks that the module can be unloaded."""
    wait_until("no device is left", lambda: not links())
    testbed.unload(bed.here.machine, driver())


@contextlib.contextmanager
def fresh(parameters=""):
    """Loads the module (rrxe with these parameters) and makes a device over eth0.

    Afterwards the module must unload.
    """
    without_device()
    here = bed.here
    testbed.bring_up(here, parameters)
    yield here
    here.machine.end_jobs()
    if here.device in links():
        testbed.delete_link(here.machine, here.device)
    unloads()


@contextlib.contextmanager
def joined():
    """Loads the module and makes two devices whose network devices are joined by a veth.

    `va` is in this namespace and `vb` in another, so that packets really cross the veth.
    """
    without_device()
    where = bed.here.machine
    testbed.load(where, driver())
    where.batch(
        "ip",
        "netns add b",
        "link add va mtu 4200 type veth peer name vb mtu 4200 netns b",
        "link set va up",
        "address add 192.0.2.1/24 dev va",
    )
    there = Local("namespace b", "b")
    with there.inside(), open("/proc/sys/net/ipv6/conf/vb/accept_dad", "w", encoding="ascii") as file:
        file.write("0")
    where.batch("ip -n b", "link set lo up", "link set vb up", "address add 192.0.2.2/24 dev vb")
    remote = testbed.Host(there, "dev_b", driver(), "192.0.2.2", None)
    local = testbed.Host(where, "dev_a", driver(), "192.0.2.1", None)
    try:
        for host, netdev in ((local, "va"), (remote, "vb")):
            testbed.add_link(host.machine, driver(), host.device, netdev)
            testbed.wait_for_gid(host.device, host.address)
        yield local, remote
    finally:
        remote.machine.end_jobs()
        where.end_jobs()
        where.try_run("ip link delete va; ip netns delete b")
    unloads()


def traffic(server, client, count=FOREVER, program="rping"):
    """Starts a program that keeps a connection busy, and waits until it does. Returns both jobs."""
    port = programs.next_port()
    if program == "rping":
        common = f"-a {server.address} -p {port} -v -V -S 30000 -C {count}"
        serving, listens = server.machine.start(f"exec rping -s {common}"), testbed.cm_listens
        command = f"exec rping -c {common}"
    else:
        common = f"-F -s 65536 --run_infinitely -p {port}"
        serving = server.machine.start(f"exec {program} -d {server.device} -x {server.gid_index()} {common}")
        listens = testbed.tcp_listens
        command = f"exec {program} -d {client.device} -x {client.gid_index()} {common} {server.address}"
    wait_until("the server listens", lambda: listens(server.machine, port))
    asking = client.machine.start(command)
    moved = _sent(client)

    def flows():
        if program == "rping":
            return asking.output().count("ping data") > 10
        return _sent(client) > moved + 200

    wait_until("traffic flows", lambda: asking.running() and flows())
    return serving, asking


def _sent(host):
    """Returns the packets sent by the network device of a joined device."""
    netdev = {"dev_a": "va", "dev_b": "vb"}.get(host.device)
    return int(host.machine.read(f"/sys/class/net/{netdev}/statistics/tx_packets")) if netdev else 0


def settled(where, what):
    """Waits until no queue pair, completion queue, region, domain or identifier of programs is
    left."""
    wait_until(f"nothing is left of {what}", lambda: not where.look("owners"))


@case(debug=False)
def commands_leave_nothing_open():
    """A command that has ended holds no open file of the suite; the bench starts thousands."""
    before = os.listdir("/proc/self/fd")
    for number in range(5):
        equal("output", bed.here.machine.run(f"echo {number}"), f"{number}\n")
    equal("open files", len(os.listdir("/proc/self/fd")), len(before))


@case(timeout=1500)
def rounds():
    """Module, link and traffic are started and removed repeatedly."""
    count = ROUNDS if harness.debug_kernel() and not harness.core_only() else FEW_ROUNDS
    without_device()
    here = bed.here
    for turn in range(count):
        harness.log(f"round {turn + 1} of {count}")
        testbed.bring_up(here)
        programs.rping(here, here, 5, more="-S 5000")
        testbed.delete_link(here.machine, here.device)
        equal("devices", links(), [])
        testbed.unload(here.machine, driver())


@case(timeout=300)
def module_alone():
    """The module is loaded and unloaded without a link, and with a link without traffic."""
    without_device()
    where = bed.here.machine
    for _ in range(times(10)):
        testbed.load(where, driver())
        testbed.unload(where, driver())
    for _ in range(times(5)):
        testbed.load(where, driver())
        testbed.add_link(where, driver(), bed.here.device, "eth0")
        testbed.delete_link(where, bed.here.device)
        testbed.unload(where, driver())


TABLES = {"usual": ("", 256), "chosen": ("gid_table_len=40", 40), "most": ("gid_table_len=5000", 256), "least": ("gid_table_len=1", 16)}


@case(timeout=300, debug=False, each=TABLES)
def gid_table(table):
    """The GID table has the number of entries set by the module parameter, within bounds."""
    parameters, entries = table
    if driver() != "rrxe":
        raise Skip("a parameter of rrxe's")
    if not parameters and os.environ.get("RRXE_PARAMETERS"):
        raise Skip("the module is loaded with another length here")
    with fresh(parameters) as here:
        equal("entries", len(os.listdir(f"/sys/class/infiniband/{here.device}/ports/1/gids")), entries)


@case(timeout=300, debug=False)
def gid_table_full():
    """Addresses that do not fit into the GID table have no GID, which does no harm."""
    if driver() != "rrxe":
        raise Skip("a parameter of rrxe's")
    more = [f"198.51.100.{number}" for number in range(1, 21)]
    with fresh("gid_table_len=16") as here:
        here.machine.batch("ip", *(f"address add {address}/32 dev eth0" for address in more))
        wait_until("the table is full", lambda: len(testbed.gids(here.device)) == 16)
        programs.rping(here, here, 20)
        here.machine.batch("ip", *(f"address delete {address}/32 dev eth0" for address in more))
        wait_until("room again", lambda: len(testbed.gids(here.device)) < 11)


@case(timeout=300, each={"client": 1, "server": 0})
def killed(which):
    """One end is killed by kill -9: the other detects it, and no object of either is left."""
    with fresh() as here:
        for _ in range(times(5)):
            ends = traffic(here, here)
            ends[which].kill(signal.SIGKILL)
            other = ends[1 - which]
            other.wait(60)
            ends[which].wait(10)
            settled(here.machine, "the programs")
        programs.rping(here, here, 20)


@case(timeout=300)
def killed_without_disconnect():
    """The peer of a killed program gets no disconnect: perftest uses no connection manager."""
    with joined() as (local, remote):
        for program in ("ib_write_bw", "ib_send_bw", "ib_read_bw", "ib_send_bw --use-srq -q 4"):
            serving, asking = traffic(remote, local, program=program)
            asking.kill(signal.SIGKILL)
            asking.wait(10)
            time.sleep(0.5)
            serving.kill(signal.SIGKILL)
            serving.wait(10)
            settled(local.machine, program)
        programs.rping(remote, local, 20)


BUSY = {"rping": "rping", "write": "ib_write_bw", "send": "ib_send_bw", "read": "ib_read_bw", "srq": "ib_send_bw --use-srq -q 4"}


@case(timeout=300, debug=("rping", "write", "srq"), each=BUSY)
def netdev_deleted(program):
    """The network device is deleted under traffic, and the RDMA device with it."""
    with joined() as (local, remote):
        ends = traffic(remote, local, program=program)
        sh("ip link delete va")
        time.sleep(1)
        for end in ends:
            # Programs that poll may never notice.
            end.kill(signal.SIGKILL)
            end.wait(60)
        wait_until("both devices are gone", lambda: not links())


@case(timeout=300)
def link_deleted():
    """The link is deleted under traffic."""
    with joined() as (local, remote):
        ends = traffic(remote, local)
        deleting = local.machine.start(f"rdma link delete {local.device}")
        time.sleep(1)
        for end in ends:
            end.kill(signal.SIGKILL)
            end.wait(60)
        equal("status of the deletion", deleting.wait(60).status, 0)
        require(local.device not in links(), f"{local.device} is still there")


@case(timeout=300, debug=False)
def netdev_down_and_up():
    """The network device goes down briefly: the connection recovers, and the data is right."""
    with joined() as (local, remote):
        ends = traffic(remote, local)

        def pings():
            return ends[1].output().count("ping data") if all(one.running() for one in ends) else 0

        for _ in range(3):
            sh("ip link set va down")
            time.sleep(0.2)
            before = pings()
            sh("ip link set va up")
            wait_until("it goes on", lambda: pings() > before + 20)
        for end in ends:
            require("mismatch" not in end.output(), "wrong data")


@case(timeout=300)
def unload_in_use():
    """The module is unloaded while programs have its device open.

    They lose the device (the driver supports disassociation), and the module loads again.
    """
    for _ in range(times(3)):
        without_device()
        here = bed.here
        testbed.bring_up(here)
        ends = traffic(here, here)
        testbed.unload(here.machine, driver())
        equal("devices", links(), [])
        for one in ends:
            one.kill()
            one.wait(60)
    with fresh() as here:
        programs.rping(here, here, 20)


ENDS = {
    "killed": lambda here, program: program.die(),
    "link-deleted": lambda here, program: testbed.delete_link(here.machine, here.device),
    "module-unloaded": lambda here, program: testbed.unload(here.machine, driver()),
}


@case(timeout=300, each=ENDS)
def page_never_present(end):
    """A program waits for pages that never come: they hold up neither its end nor the device's.

    Device memory that it has mapped outlives the device.
    """
    if driver() != "rrxe":
        raise Skip("the other driver has no such pages")
    import endpoint  # only a guest has verbs

    with fresh() as here:
        program = endpoint.Apart()
        info = program.open(here.device, here.address, here.driver)
        left, right = (Side(program, info, "rc", False) for _ in range(2))
        connect(left, right, 1024, random.Random(1), timeout=0)
        for side, other in ((left, right), (right, left)):
            address = program.map(64 * 4096)
            region = program.over(side.pd, address, 64 * 4096)
            program.without_answer(address, 64 * 4096)
            request = {"id": 1, "op": "write", "sge": [[address, 64, region["lkey"]]]}
            request |= {"rkey": other.small["rkey"], "raddr": other.small["address"]}
            program.post_send(side.qp["id"], [request])
            if side is left:
                # From here on, the program's thread waits for the page.
                program.wait_for_page(10)
        memory = program.device_memory(4096)
        program.to_device(memory, 0, "5a" * 64)
        began = time.monotonic()
        end(here, program)
        harness.log(f"it took {time.monotonic() - began:.3f} s")
        if end is not ENDS["killed"]:
            equal("the device memory", program.from_device(memory, 0, 64), "5a" * 64)
            program.die()
        settled(here.machine, "the program")
        if not os.path.exists(f"/sys/module/{driver()}"):
            testbed.bring_up(here)


@case(timeout=300, each=ENDS)
def advice_never_followed(end):
    """A program waits in ibv_advise_mr() for a page that never comes.

    That holds up neither its end nor the device's, which ends the call.
    """
    if driver() != "rrxe":
        raise Skip("the other driver has no such pages")
    import endpoint  # only a guest has verbs

    with fresh() as here:
        program = endpoint.Apart()
        program.open(here.device, here.address, here.driver)
        pd, address = program.pd(), program.map(64 * 4096)
        region = program.over(pd, address, 64 * 4096)
        program.without_answer(address, 64 * 4096)
        program.begin_to_advise(pd, address, 64 * 4096, region["lkey"])
        program.wait_for_page(10)
        began = time.monotonic()
        end(here, program)
        harness.log(f"it took {time.monotonic() - began:.3f} s")
        if end is not ENDS["killed"]:
            equal("the errno", program.advised(), errno.EINTR)
            program.die()
        settled(here.machine, "the program")
        if not os.path.exists(f"/sys/module/{driver()}"):
            testbed.bring_up(here)


@case()
def page_of_a_stopped_program():
    """While a program is stopped, its present pages are served, and none comes in."""
    if driver() != "rrxe":
        raise Skip("the other driver has no such pages")
    import endpoint  # only a guest has verbs

    with fresh() as here:
        program = endpoint.Apart()
        end = endpoint.Endpoint()
        left, right = (Side(one, one.open(here.device, here.address, here.driver), "rc", False) for one in (end, program))
        connect(left, right, 1024, random.Random(1), timeout=0)
        address = program.map(64 * 4096)
        region = program.over(right.pd, address, 64 * 4096)

        def write(number, page):
            request = {"id": number, "op": "write", "sge": [[left.small["address"], 64, left.small["lkey"]]]}
            end.post_send(left.qp["id"], [request | {"rkey": region["rkey"], "raddr": address + page * 4096}])

        def statuses(seconds):
            return [wc["status"] for wc in end.poll(left.send_cq, 1, seconds * harness.slowness())]

        write(1, 0)
        equal("the first page", statuses(30), ["SUCCESS"])
        program.stop()
        write(2, 0)
        equal("a present page", statuses(30), ["SUCCESS"])
        # The first access has brought in the page alone.
        write(3, 63)
        equal("an absent page", statuses(2), [])
        program.go_on()
        equal("the page afterwards", statuses(30), ["SUCCESS"])
        end.leave()
        program.die()
        settled(here.machine, "the program")


@case(timeout=300)
def namespace_deleted():
    """A namespace is deleted with its device and the traffic on it."""
    with joined() as (local, remote):
        ends = traffic(remote, local)
        sh("ip netns delete b")
        for end in ends:
            end.kill(signal.SIGKILL)
            end.wait(60)
        sh("ip link delete va 2>/dev/null; true")
        wait_until("both devices are gone", lambda: not links())


def run():
    """Runs the suite."""
    return bed.run(without_device)
