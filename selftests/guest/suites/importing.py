# SPDX-License-Identifier: GPL-2.0
"""Import of a context, its protection domains, its regions and its device memories."""

import contextlib
import ctypes
import errno
import faulthandler
import os
import random
import socket
import struct
import threading

import testbed
from harness import Skip, case, debug_kernel, equal, log, require, wait_until
from traffic import Side, connect, random_batches
from trial import refused

bed = testbed.Bed()

PAGE = 4096
DM_ACCESS = ("zero-based", "local-write", "remote-write", "remote-read")

# Methods and attributes of a driver begin with this number (UVERBS_ID_NS_SHIFT, abi.rs).
OWN = 1 << 12
DEVICE, PD, REGION, DM = 0, 1, 7, 14
QUERY_CONTEXT, FREE_DM = 4, 1

# Microseconds without work after which the thread of poll mode sleeps.
IDLE = 2000


def new(kind="Endpoint"):
    """Returns an endpoint that has no context yet."""
    import endpoint  # only a guest has verbs

    if bed.here.driver != "rrxe":
        raise Skip("the other driver has no import")
    return getattr(endpoint, kind)()


@contextlib.contextmanager
def leaving(*ends):
    """Releases endpoints at the end."""
    try:
        yield
    finally:
        for end in ends:
            with contextlib.suppress(Exception):
                end.leave()


def opened(end, **how):
    """Opens this host's device."""
    return end.open(bed.here.device, bed.here.address, bed.here.driver, **how)


def imported(end, file=None):
    """Imports the context of a command file, which is closed with the endpoint."""
    return end.import_device(bed.here.device, bed.here.address, bed.here.driver, file)


class Exchange:
    """A socket through which processes pass command files (SCM_RIGHTS)."""

    def __init__(self):
        self.name = f"rrxe-import-{os.getpid()}-{random.randrange(2**32)}"
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind("\0" + self.name)
        self._socket.listen()

    def give(self, end, file):
        """Passes a file of this process to the process of `end`."""
        end.begin("receive_file", self.name)
        connection, _ = self._socket.accept()
        with connection:
            socket.send_fds(connection, [b"f"], [file])
        end.finish()

    def take(self, end):
        """Returns the command file of `end`, which is in another process."""
        end.begin("send_file", self.name)
        connection, _ = self._socket.accept()
        with connection:
            _, (file,), _, _ = socket.recv_fds(connection, 1, 1)
        end.finish()
        return file


def batches(left, right, seed):
    """Transfers data in both directions, by all operations, and compares all memory."""
    random_batches(random.Random(seed), left, right, 1024, 4 if debug_kernel() else 12)


# Success


@case()
def same_process():
    """A second context in the same process: queue pairs in an imported domain, imported keys."""
    first, second = new(), new()
    with leaving(second, first):
        info = opened(first)
        left = Side(first, info, "rc", False)
        file = os.dup(first.command_file())
        pd_handle, region_handle = first.kernel_handle(left.pd), first.kernel_handle(left.small["id"])
        here = imported(second, file)
        for what in ("gid", "max_sge", "max_qp_wr", "caps"):
            equal(what, here[what], info[what])
        pd = second.import_pd(pd_handle)
        region = second.import_region(pd, region_handle)
        equal("the keys", [region[key] for key in ("lkey", "rkey", "size")], [left.small[key] for key in ("lkey", "rkey", "size")])
        right = Side(second, here, "rc", True, pd=pd)
        connect(left, right, 1024, random.Random(1))
        batches(left, right, 1)
        # The import of the region can end before the region, and the other way round.
        second.unimport(region["id"])
        region = second.import_region(pd, region_handle)
        batches(left, right, 2)
        first.drop(left.qp["id"], left.small["id"])
        refused(errno.ENOENT, second.import_region, pd, region_handle)
        second.unimport(region["id"])


@case(each={"events": None, "poll-mode": IDLE})
def other_process(idle):
    """A process gets the file by SCM_RIGHTS, and uses a domain, a region and queues of its own."""
    other, first = new("Apart"), new()
    with leaving(other, first):
        info = opened(first, poll_idle_us=idle)
        left = Side(first, info, "rc", False)
        Exchange().give(other, first.command_file())
        here = imported(other)
        pd = other.import_pd(first.kernel_handle(left.pd))
        region = other.import_region(pd, first.kernel_handle(left.small["id"]))
        equal("the R_Key", region["rkey"], left.small["rkey"])
        right = Side(other, here, "rc", False, pd=pd)
        connect(left, right, 1024, random.Random(1))
        batches(left, right, 3)
        # The region's memory is in the first process, and a local end of the second one's request.
        place, data = left.small["address"] + 100, first.bytes_at(left.small["address"] + 100, 64)
        first.accept(left.small["id"], [[4096, 64]], 64)
        request = {"id": 1, "op": "write", "sge": [[place, 64, region["lkey"]]]}
        request |= {"rkey": region["rkey"], "raddr": left.small["address"] + 4096}
        other.post_send(right.qp["id"], [request])
        equal("the completion", [wc["status"] for wc in other.poll(right.send_cq, 1)], ["SUCCESS"])
        equal("the copy", first.accept(left.small["id"], [[4096, 64]], 64), data)
        batches(left, right, 4)
        # The other process ends, and with it its rings; its queue pair is the context's.
        other.die()
        first.drop(first.pd())


@case(each={"events": None, "poll-mode": IDLE})
def opener_ends(idle):
    """The process that opened the context is killed: the context lives as long as its file."""
    other, second, peer = new("Apart"), new(), new()
    with leaving(other, second, peer):
        opened(other, poll_idle_us=idle)
        file = Exchange().take(other)
        here, info = imported(second, file), opened(peer)
        left, right = Side(second, here, "rc", False), Side(peer, info, "rc", False)
        connect(left, right, 1024, random.Random(1))
        batches(left, right, 5)
        other.die()
        batches(left, right, 6)


@case()
def objects():
    """Objects of each kind in an imported domain, events, and asynchronous events."""
    other, first = new("Apart"), new()
    with leaving(other, first):
        info = opened(first)
        domain = first.pd()
        Exchange().give(other, first.command_file())
        here = imported(other)
        pd = other.import_pd(first.kernel_handle(domain))
        channel = other.channel()
        cq = other.cq(channel=channel)
        qps = [other.qp("rc", pd, cq) for _ in range(2)]
        for qp, peer in zip(qps, reversed(qps)):
            other.to_init(qp["id"], "rc")
            other.to_rtr(qp["id"], "rc", gid=here["gid"], qpn=peer["qpn"])
            other.to_rts(qp["id"], "rc")
        region = other.memory(pd, PAGE)
        other.arm(cq)
        other.post_recv(qps[1]["id"], [{"id": 2, "sge": [[region["address"], 8, region["lkey"]]]}])
        segment = [region["address"] + 64, 8, region["lkey"]]
        other.post_send(qps[0]["id"], [{"id": 1, "op": "send", "sge": [segment]}])
        require(other.wait_event(channel, cq, 20), "no event")
        equal("completions", sorted(wc["id"] for wc in other.poll(cq, 2)), [1, 2])
        other.ah(pd, info["gid"])
        srq = other.srq(pd)
        other.modify_srq(srq["id"], 2, limit=1)
        # The kernel's events of a context go to the file of the context that created the object.
        equal("events here", first.async_events(), [])
        other.drop(srq["id"], *(qp["id"] for qp in qps), region["id"])
        other.drop(cq)


@case()
def device_memory():
    """Two processes map a device memory. It ends when one of them frees it, without regions."""
    other, first = new("Apart"), new()
    with leaving(other, first):
        opened(first)
        memory, length = first.device_memory(3 * PAGE - 8), 3 * PAGE - 8
        handle = first.device_memory_handle(memory)
        first.to_device(memory, 0, "11" * length)
        Exchange().give(other, first.command_file())
        imported(other)
        twin = other.import_device_memory(handle)
        equal("its data", other.from_device(twin, 0, length), "11" * length)
        other.to_device(twin, PAGE, "22" * PAGE)
        equal("the other's data", first.from_device(memory, PAGE, PAGE), "22" * PAGE)
        try:
            other.from_device(twin, length - 4, 8)
        except Exception as why:
            require(f"Errno: {errno.EFAULT}" in str(why), str(why))
        else:
            require(False, "a copy beyond the end succeeded")
        # A region of one process keeps the memory of both.
        pd = other.import_pd(first.kernel_handle(first.pd()))
        region = other.device_region(pd, twin, 0, PAGE, DM_ACCESS)
        copy = first.import_region(first.pd(), other.kernel_handle(region["id"]))
        equal("the region", (copy["rkey"], copy["size"]), (region["rkey"], PAGE))
        first.unimport(copy["id"])
        refused(errno.EBUSY, first.free_device_memory, memory)
        equal("after the refusal", first.from_device(memory, PAGE, PAGE), "22" * PAGE)
        other.deregister_device_region(region["id"])
        first.free_device_memory(memory)
        equal("a mapping keeps its pages", other.from_device(twin, PAGE, PAGE), "22" * PAGE)
        refused(errno.ENOENT, other.import_device_memory, handle)
        other.unimport(twin)
        first.free_device_memory(first.device_memory(16 * 1024 * 1024))


@case()
def on_demand():
    """The pager of a context belongs to one process: another one cannot register such regions."""
    other, first = new("Apart"), new()
    with leaving(other, first):
        info = opened(first)
        left = Side(first, info, "rc", False, flags=("on-demand",))
        Exchange().give(other, first.command_file())
        here = imported(other)
        pd = other.import_pd(first.kernel_handle(left.pd))
        refused(errno.EOPNOTSUPP, other.memory, pd, PAGE, ("local-write", "on-demand"))
        # An on-demand region of the first process works for the second one, which imports it.
        right = Side(other, here, "rc", False, pd=pd)
        connect(left, right, 1024, random.Random(1))
        batches(left, right, 7)
        address = first.map(16 * PAGE)
        region = first.over(left.pd, address, 16 * PAGE)
        twin = other.import_region(pd, first.kernel_handle(region["id"]))
        request = {"id": 1, "op": "write", "sge": [[right.small["address"], PAGE, right.small["lkey"]]]}
        request |= {"rkey": twin["rkey"], "raddr": address + 5 * PAGE}
        other.post_send(right.qp["id"], [request])
        equal("the completion", [wc["status"] for wc in other.poll(right.send_cq, 1)], ["SUCCESS"])
        equal("the data", first.bytes_at(address + 5 * PAGE, PAGE), other.bytes_at(right.small["address"], PAGE))


# Refusals


@case()
def wrong_handles():
    """A handle of nothing, and one of an object of another kind."""
    first, second = new(), new()
    with leaving(second, first):
        opened(first)
        pd, memory = first.pd(), first.device_memory(PAGE)
        region = first.memory(pd, PAGE)["id"]
        imported(second, os.dup(first.command_file()))
        twin = second.import_pd(first.kernel_handle(pd))
        kinds = {
            pd: second.import_pd,
            region: lambda handle: second.import_region(twin, handle),
            memory: second.import_device_memory,
        }
        for kind, importer in kinds.items():
            for handle in (100_000, 0xFFFFFFFF):
                refused(errno.ENOENT, importer, handle)
            for other in kinds:
                if other != kind:
                    refused(errno.EINVAL, importer, first.kernel_handle(other))
        # Another context has the handles of its own.
        with leaving(third := new()):
            opened(third)
            refused(errno.ENOENT, third.import_pd, first.kernel_handle(pd))


@case()
def wrong_files():
    """A file that is no device, one without a context, and that of a removed device."""
    end = new()
    with open("/dev/null", "rb") as null:
        refused(errno.ENODEV, imported, end, os.dup(null.fileno()))
    reading, _ = os.pipe()
    refused(errno.EINVAL, imported, end, reading)
    refused(errno.EINVAL, imported, end, os.open(f"/dev/infiniband/{uverbs()}", os.O_RDWR))
    with leaving(first := new()):
        opened(first)
        file = os.dup(first.command_file())
        pd = first.kernel_handle(first.pd())
        first.close()
        # The kernel's context lives as long as a file, but the library has destroyed its objects.
        with leaving(end):
            imported(end, file)
            refused(errno.ENOENT, end.import_pd, pd)
            end.drop(end.pd())


def uverbs():
    """Returns the name of the uverbs device of this host's device."""
    where = "/sys/class/infiniband_verbs"
    for name in os.listdir(where):
        path = os.path.join(where, name, "ibdev")
        if os.path.exists(path):
            with open(path, encoding="ascii") as file:
                if file.read().strip() == bed.here.device:
                    return name
    raise RuntimeError("the device has no uverbs device")


@case()
def removed_device():
    """The device of a context goes away: its import is refused, and what was imported can end."""
    first, second, third = new(), new(), new()
    device, address, run = "rrxe-import", "10.99.0.1", bed.here.machine.run
    run("ip link add import0 type veth peer name import1 && ip link set import1 up && ip link set import0 up")
    try:
        run(f"ip address add {address}/24 dev import0 && rdma link add {device} type rrxe netdev import0")
        wait_until("its GID", lambda: any(gid.endswith(":ffff:0a63:0001") for gid in testbed.gids(device)))
        with leaving(third, second, first):
            first.open(device, address, "rrxe")
            file = os.dup(first.command_file())
            second.import_device(device, address, "rrxe", os.dup(file))
            pd = first.pd()
            twin = second.import_pd(first.kernel_handle(pd))
            memory = first.device_memory(PAGE)
            copy = second.import_device_memory(first.device_memory_handle(memory))
            run(f"rdma link delete {device}")
            refused(errno.EIO, second.import_pd, first.kernel_handle(pd))
            refused(errno.ENODEV, third.import_device, device, address, "rrxe", file)
            second.unimport(copy, twin)
    finally:
        run("ip link delete import0")


@case()
def destroyed_elsewhere():
    """A domain in use by another context stays; once it is destroyed, its imports are refused."""
    first, second = new(), new()
    with leaving(second, first):
        opened(first)
        pd = first.pd()
        imported(second, os.dup(first.command_file()))
        twin, cq = second.import_pd(first.kernel_handle(pd)), second.cq()
        qp, region = second.qp("rc", twin, cq), second.memory(twin, PAGE)
        refused(errno.EBUSY, first.drop, pd)
        second.drop(qp["id"])
        refused(errno.EBUSY, first.drop, pd)
        second.drop(region["id"])
        first.drop(pd)
        refused(errno.ENOENT, second.memory, twin, PAGE)
        refused(errno.ENOENT, second.srq, twin)
        second.unimport(twin)


# Hostile programs


def library():
    """Returns libibverbs."""
    lib = ctypes.CDLL("libibverbs.so.1", use_errno=True)
    for what in ("import_device", "import_pd", "import_mr", "import_dm"):
        getattr(lib, "ibv_" + what).restype = ctypes.c_void_p
    return lib


@case()
def unimported_twice():
    """A program that ends an import twice, or destroys an object twice, can only harm itself."""
    first = new()
    with leaving(first):
        opened(first)
        pd, memory = first.pd(), first.device_memory(PAGE)
        region = first.memory(pd, PAGE)["id"]
        handles = [first.kernel_handle(number) for number in (pd, region, memory)]
        for what in ("unimport_mr", "unimport_dm", "unimport_pd", "dereg_mr", "dealloc_pd"):
            child = os.fork()
            if child == 0:
                try:
                    _end_twice(os.dup(first.command_file()), handles, what)
                finally:
                    os._exit(0)
            log(f"{what}: status {os.waitpid(child, 0)[1]}")
            if what == "unimport_pd":
                with leaving(twin := new()):
                    imported(twin, os.dup(first.command_file()))
                    twin.import_region(twin.import_pd(handles[0]), handles[1])
                    twin.import_device_memory(handles[2])
        refused(errno.ENOENT, first.drop, region)
        refused(errno.ENOENT, first.drop, pd)
        first.free_device_memory(memory)
        first.drop(first.pd())


def _end_twice(file, handles, what):
    """Imports the objects, and calls the function `what` of the library twice for one of them.

    The process may crash. It handles the signal, so that the kernel does not report it.
    """
    faulthandler.enable(os.open(os.devnull, os.O_WRONLY))
    lib = library()
    context = ctypes.c_void_p(lib.ibv_import_device(file))
    pd = ctypes.c_void_p(lib.ibv_import_pd(context, ctypes.c_uint32(handles[0])))
    mr = ctypes.c_void_p(lib.ibv_import_mr(pd, ctypes.c_uint32(handles[1])))
    dm = ctypes.c_void_p(lib.ibv_import_dm(context, ctypes.c_uint32(handles[2])))
    for _ in range(2):
        getattr(lib, "ibv_" + what)({"mr": mr, "dm": dm, "pd": pd}[what[-2:]])


def call(file, kind, method, *attributes):
    """Issues a method of uverbs. Returns its errno. Attributes are (number, length, value)."""
    from verbs_commands import issue  # only a guest has verbs

    try:
        issue(file, kind, method, *attributes)
    except OSError as why:
        return why.errno
    return 0


@case()
def imported_twice():
    """Two imports of an object in one process end on their own; it is destroyed by one of them."""
    with leaving(first := new()):
        opened(first)
        pd, memory = first.pd(), first.device_memory(PAGE)
        region = first.memory(pd, PAGE)["id"]
        handles = [ctypes.c_uint32(first.kernel_handle(number)) for number in (pd, region, memory)]
        lib, file = library(), first.command_file()
        context = ctypes.c_void_p(lib.ibv_import_device(os.dup(file)))
        domains = [ctypes.c_void_p(lib.ibv_import_pd(context, handles[0])) for _ in range(3)]
        regions = [ctypes.c_void_p(lib.ibv_import_mr(domains[0], handles[1])) for _ in range(3)]
        memories = [ctypes.c_void_p(lib.ibv_import_dm(context, handles[2])) for _ in range(3)]
        require(all(one.value for one in domains + regions + memories), "an import failed")
        for twins, end, unimport in (
            (regions, lib.ibv_dereg_mr, lib.ibv_unimport_mr),
            # ibv_free_dm is an inline function, which calls the provider.
            (memories, lambda _: call(file, DM, FREE_DM, (0, 0, handles[2].value)), lib.ibv_unimport_dm),
            (domains, lib.ibv_dealloc_pd, lib.ibv_unimport_pd),
        ):
            unimport(twins[0])
            equal("the end", end(twins[1]), 0)
            equal("the second end", end(twins[2]), errno.ENOENT)
            unimport(twins[2])
        refused(errno.ENOENT, first.drop, region)
        refused(errno.ENOENT, first.drop, memory)
        refused(errno.ENOENT, first.drop, pd)
        lib.ibv_close_device(context)


@case()
def commands():
    """Lengths, addresses and handles in the commands that no library passes."""
    with leaving(first := new()):
        opened(first)
        file, pd = first.command_file(), first.kernel_handle(first.pd())
        memory = first.device_memory_handle(first.device_memory(PAGE + 4))
        buffer = ctypes.create_string_buffer(b"\xff" * 128, 128)
        at = ctypes.addressof(buffer)
        for length in (1, 8, 15, 16, 17, 24, 25, 128):
            ctypes.memset(at, 0xFF, 128)
            equal(f"query of {length} bytes", call(file, DEVICE, QUERY_CONTEXT, (OWN, length, at)), 0)
            equal("the bytes behind", buffer.raw[length:], b"\xff" * (128 - length))
            # The last member that the driver knows is zero, too.
            equal("unknown members", buffer.raw[20:length], bytes(max(length - 20, 0)))
        whole = struct.unpack_from("=QII", buffer.raw)
        require(whole[0] & 2 and whole[1] and whole[2], f"the response is {whole}")
        equal("no room", call(file, DEVICE, QUERY_CONTEXT, (OWN, 0, at)), errno.EINVAL)
        equal("no attribute", call(file, DEVICE, QUERY_CONTEXT), errno.EINVAL)
        equal("a bad address", call(file, DEVICE, QUERY_CONTEXT, (OWN, 16, 8)), errno.EFAULT)
        equal("an unknown attribute", call(file, DEVICE, QUERY_CONTEXT, (OWN, 16, at), (OWN + 1, 4, 0)), errno.EPROTONOSUPPORT)
        equal("a domain", call(file, PD, OWN, (OWN, 0, pd)), 0)
        equal("no handle", call(file, PD, OWN), errno.EINVAL)
        equal("a handle with a length", call(file, PD, OWN, (OWN, 4, pd)), errno.EINVAL)
        equal("a long handle", call(file, PD, OWN, (OWN, 0, pd | 1 << 32)), errno.ENOENT)
        equal("an unknown method", call(file, PD, OWN + 1, (OWN, 0, pd)), errno.EPROTONOSUPPORT)
        equal("a memory", call(file, DM, OWN, (OWN, 0, memory), (OWN + 1, 4, at)), 0)
        equal("its length", struct.unpack_from("=I", buffer.raw)[0], PAGE + 4)
        for length in (0, 2, 8):
            equal("an odd length", call(file, DM, OWN, (OWN, 0, memory), (OWN + 1, length, at)), errno.EINVAL)
        equal("a bad address", call(file, DM, OWN, (OWN, 0, memory), (OWN + 1, 4, 8)), errno.EFAULT)
        equal("no length", call(file, DM, OWN, (OWN, 0, memory)), errno.EINVAL)
        equal("a domain as a memory", call(file, DM, OWN, (OWN, 0, pd), (OWN + 1, 4, at)), errno.EINVAL)


@case(timeout=240)
def races():
    """Processes import objects while another one creates and destroys them."""
    first = new()
    with leaving(first):
        opened(first)
        handles = list(range(40))
        children = []
        for _ in range(3):
            child = os.fork()
            if child == 0:
                try:
                    _import_all(os.dup(first.command_file()), handles, 20 if debug_kernel() else 200)
                finally:
                    os._exit(0)
            children.append(child)
        done = threading.Event()

        def churn():
            while not done.is_set():
                pd, memory = first.pd(), first.device_memory(PAGE)
                region = first.memory(pd, PAGE)["id"]
                first.drop(region, memory, pd)

        thread = threading.Thread(target=churn)
        thread.start()
        try:
            for child in children:
                equal("the child's status", os.waitpid(child, 0)[1], 0)
        finally:
            done.set()
            thread.join()
        first.drop(first.pd())


def _import_all(file, handles, turns):
    """Imports all handles as objects of all kinds, and ends the imports."""
    lib = library()
    context = ctypes.c_void_p(lib.ibv_import_device(file))
    for _ in range(turns):
        for handle in handles:
            number = ctypes.c_uint32(handle)
            if pd := lib.ibv_import_pd(context, number):
                if mr := lib.ibv_import_mr(ctypes.c_void_p(pd), ctypes.c_uint32(handle + 1)):
                    lib.ibv_unimport_mr(ctypes.c_void_p(mr))
                lib.ibv_unimport_pd(ctypes.c_void_p(pd))
            if dm := lib.ibv_import_dm(context, number):
                lib.ibv_unimport_dm(ctypes.c_void_p(dm))


def run():
    """Runs the suite."""
    return bed.run()
