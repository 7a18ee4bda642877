# SPDX-License-Identifier: GPL-2.0
"""The kernel's other RDMA clients, between two hosts: file systems, block devices, RDS."""

import contextlib
import os

import testbed
from harness import case, equal, require, wait_until
from programs import both_roles

bed = testbed.Bed()

# Amount that a case transfers in each direction; the small requests to a disk reach up to 27 MiB.
MEGABYTES = 32
# NFS, the most common client, transfers more.
NFS_MEGABYTES = 100
# Number of small requests to a disk.
SMALL = 32

# The largest payload of a packet.
MTU = 4096

SHARED = "/srv/shared"
MOUNTED = "/mnt"
DISK = "/dev/ram0"

TARGET = "/sys/kernel/config/target"
IQN = "iqn.2026-01.test.rrxe:disk"
INITIATOR = "iqn.2026-01.test.rrxe:initiator"
SRP_PORT = 5555
SESSION = "rrxe-test"

SMB_USER = "tester"
SMB_PASSWORD = "secret"


def received(*hosts):
    """Returns the number of packets that the devices have received for their queue pairs."""
    names = [f"/sys/class/infiniband/{host.device}/ports/1/hw_counters/rcvd_pkts" for host in hosts]
    return sum(int(host.machine.read(name)) for host, name in zip(hosts, names))


@contextlib.contextmanager
def by_rdma(receiver, megabytes=MEGABYTES):
    """Checks that the block sends this much to the receiver through the RDMA device."""
    before = received(receiver)
    yield
    count, wanted = received(receiver) - before, (megabytes << 20) // MTU
    text = f"{receiver.name} received {count} packets by RDMA, {megabytes} MiB take {wanted}"
    require(count >= wanted, text)


def digest(machine, path):
    """Returns the SHA-256 of a file or disk."""
    return machine.run(f"sha256sum {path}", 300).split()[0]


def random_file(machine, path, megabytes=MEGABYTES):
    """Writes a file of random bytes, and returns its digest."""
    machine.run(f"dd if=/dev/urandom of={path} bs=1M count={megabytes} status=none", 120)
    return digest(machine, path)


# File systems


@contextlib.contextmanager
def mounted(client, kind, source, options):
    """Mounts a server's folder on the client."""
    client.machine.run(f"mount -t {kind} -o {options} {source} {MOUNTED}", 120)
    try:
        yield
    finally:
        client.machine.run(f"umount {MOUNTED}", 120)


def copy_files(server, client, megabytes=MEGABYTES):
    """Copies one file to the server and another one from it, and compares both."""
    upward, downward = "/upward", "/downward"
    try:
        wanted = random_file(client.machine, "/tmp/data", megabytes)
        with by_rdma(server, megabytes):
            copy = f"dd if=/tmp/data of={MOUNTED}{upward} bs=1M conv=fsync status=none"
            client.machine.run(copy, 600)
        equal("the server's file", digest(server.machine, SHARED + upward), wanted)
        wanted = random_file(server.machine, SHARED + downward, megabytes)
        with by_rdma(client, megabytes):
            found = digest(client.machine, MOUNTED + downward)
        equal("the client's file", found, wanted)
        client.machine.run(f"mkdir {MOUNTED}/folder && mv {MOUNTED}{upward} {MOUNTED}/folder/moved")
        equal("the moved file's folder", server.machine.run(f"ls {SHARED}/folder").strip(), "moved")
    finally:
        client.machine.run("rm -f /tmp/data")


@contextlib.contextmanager
def folder(server):
    """Mounts an empty tmpfs on the server, which NFS can export."""
    server.machine.run(f"mkdir -p {SHARED} && mount -t tmpfs -o mode=777 none {SHARED}")
    try:
        yield
    finally:
        server.machine.run(f"umount {SHARED}")


SERVE_NFS = f"""set -e
modprobe nfsd
modprobe rpcrdma
mountpoint -q /proc/fs/nfsd || mount -t nfsd none /proc/fs/nfsd
mkdir -p /run/rpcbind /run/lock
rpcbind -w
exportfs -o rw,no_root_squash,no_subtree_check,insecure,fsid=0 '*:{SHARED}'
# No client has state to reclaim, and nobody has to wait for them.
rpc.nfsd --grace-time 10 --rdma=20049 4
echo Y > /proc/fs/nfsd/v4_end_grace || true
rpc.mountd
"""
END_NFS = """set -e
exportfs -ua
rpc.nfsd 0
pkill -x rpc.mountd
pkill -x rpcbind
umount /proc/fs/nfsd
"""


# For each version, the folder's name (version 4 exports a single root) and the options.
NFS = {"3": (SHARED, "vers=3,nolock,mountproto=tcp"), "4": ("/", "vers=4.2")}


@both_roles(bed, each=NFS, timeout=900)
def nfs(server, client, version):
    """NFS over RDMA (RFC 8166): files in both directions."""
    source, options = version
    with folder(server):
        server.machine.run(SERVE_NFS, 120)
        try:
            client.machine.run("modprobe rpcrdma", 60)
            options += ",proto=rdma,port=20049"
            with mounted(client, "nfs", f"{server.address}:{source}", options):
                mount = client.machine.run(f"grep ' {MOUNTED} ' /proc/mounts")
                require("proto=rdma" in mount, f"mounted as {mount}")
                copy_files(server, client, NFS_MEGABYTES)
        finally:
            server.machine.run(END_NFS, 120)


SMB_CONF = f"""[global]
server min protocol = SMB3_11
[shared]
path = {SHARED}
read only = no
"""
SERVE_SMB = f"""set -e
modprobe ksmbd
mkdir -p /etc/ksmbd /run/lock
printf '{SMB_CONF}' > /etc/ksmbd/ksmbd.conf
ksmbd.adduser -a -p {SMB_PASSWORD} {SMB_USER}
ksmbd.mountd
"""
END_SMB = """set -e
ksmbd.control -s
rmmod ksmbd
"""


@both_roles(bed, timeout=900)
def smb_direct(server, client):
    """SMB Direct between cifs and ksmbd: files in both directions."""
    with folder(server):
        server.machine.run(SERVE_SMB, 120)
        try:
            wait_until("ksmbd listens", lambda: testbed.cm_listens(server.machine, 445))
            client.machine.run("modprobe cifs", 60)
            options = f"rdma,vers=3.1.1,username={SMB_USER},password={SMB_PASSWORD}"
            with mounted(client, "cifs", f"//{server.address}/shared", options):
                mount = client.machine.run(f"grep ' {MOUNTED} ' /proc/mounts")
                require(",rdma," in mount, f"mounted as {mount}")
                copy_files(server, client)
            # The last connection ends shortly after the unmount.
            wait_until("cifs is idle", lambda: not client.machine.try_run("rmmod cifs").status)
        finally:
            server.machine.run(END_SMB, 120)


# Block devices


@contextlib.contextmanager
def ram_disk(server):
    """Creates DISK on the server."""
    server.machine.run(f"modprobe brd rd_nr=1 rd_size={MEGABYTES * 1024}", 60)
    try:
        yield
    finally:
        server.machine.run("rmmod brd", 60)


def write_and_read(server, client, node):
    """Writes the whole disk, compares it on the server, and reads it back."""
    try:
        wanted = random_file(client.machine, "/tmp/data")
        with by_rdma(server):
            client.machine.run(f"dd if=/tmp/data of={node} bs=1M oflag=direct status=none", 600)
        equal("the server's disk", digest(server.machine, DISK), wanted)
        with by_rdma(client):
            copy = f"dd if={node} bs=1M iflag=direct status=none | sha256sum"
            found = client.machine.run(copy, 600).split()[0]
        equal("the client's disk", found, wanted)
        # Many concurrent small requests through the page cache.
        client.machine.look("copy_pieces", "/tmp/data", node, SMALL)
        equal("different pieces", client.machine.look("different_pieces", "/tmp/data", node, SMALL), [])
    finally:
        client.machine.run("rm -f /tmp/data")


def new_disk(client, pattern, before):
    """Returns the node of the disk that has appeared on the client."""
    name = wait_until("the block device", lambda: disks(client, pattern) - before).pop()
    wait_until("its node", lambda: client.machine.look("is_block_device", f"/dev/{name}"))
    return f"/dev/{name}"


def disks(client, pattern):
    """Returns the client's block devices whose names match the pattern."""
    return set(client.machine.look("listed", "/sys/block", pattern))


# The part of the LIO set-up that iSER and SRP share: DISK as a back store.
SERVE_DISK = f"""set -e
modprobe -a target_core_mod target_core_iblock
mkdir -p {TARGET}/core/iblock_0/disk
cd {TARGET}/core/iblock_0/disk
echo udev_path={DISK} > control
echo 1 > enable
"""
END_DISK = f"""set -e
rmdir {TARGET}/core/iblock_0/disk {TARGET}/core/iblock_0
rmmod target_core_iblock
"""


@contextlib.contextmanager
def target(server, begin, end):
    """Exports the server's disk through a LIO target that `begin` creates and `end` removes."""
    with ram_disk(server):
        server.machine.run(SERVE_DISK, 60)
        try:
            server.machine.run(begin, 120)
            try:
                yield
            finally:
                server.machine.run(end, 120)
        finally:
            server.machine.run(END_DISK, 60)


SERVE_ISER = f"""set -e
modprobe ib_isert
mkdir -p {TARGET}/iscsi/{IQN}/tpgt_1
cd {TARGET}/iscsi/{IQN}/tpgt_1
mkdir lun/lun_0
ln -s {TARGET}/core/iblock_0/disk lun/lun_0/
echo 0 > attrib/authentication
echo 0 > attrib/demo_mode_write_protect
echo 1 > attrib/generate_node_acls
echo 1 > attrib/cache_dynamic_acls
mkdir np/ADDRESS:3260
echo 1 > np/ADDRESS:3260/iser
echo 1 > enable
"""
END_ISER = f"""set -e
cd {TARGET}/iscsi/{IQN}/tpgt_1
echo 0 > enable
rmdir np/ADDRESS:3260
rm lun/lun_0/disk
rmdir lun/lun_0
cd /
rmdir {TARGET}/iscsi/{IQN}/tpgt_1 {TARGET}/iscsi/{IQN} {TARGET}/iscsi
rmmod ib_isert
rmmod iscsi_target_mod
"""
START_ISCSID = f"""set -e
modprobe -a ib_iser sd_mod
mkdir -p /run/lock
echo InitiatorName={INITIATOR} > /etc/iscsi/initiatorname.iscsi
pgrep -x iscsid > /dev/null || iscsid
"""


@both_roles(bed, timeout=900)
def iser(server, client):
    """iSCSI over RDMA (RFC 7145): login, write, read, compare, logout."""
    begin, end = (text.replace("ADDRESS", server.address) for text in (SERVE_ISER, END_ISER))
    with target(server, begin, end):
        client.machine.run(START_ISCSID, 60)
        before = disks(client, "sd[a-z]+")
        node = f"iscsiadm -m node -T {IQN} -p {server.address}:3260"
        client.machine.run(f"{node} -I iser -o new", 60)
        client.machine.run(f"{node} -I iser --login", 120)
        try:
            session = client.machine.run("iscsiadm -m session -P 1", 60)
            require("Iface Transport: iser" in session, f"the session is not iSER's: {session}")
            write_and_read(server, client, new_disk(client, "sd[a-z]+", before))
        finally:
            client.machine.run(f"{node} --logout && {node} -o delete", 120)
        equal("disks after the logout", disks(client, "sd[a-z]+"), before)
        client.machine.run("pkill -x iscsid")
        wait_until("iscsid has ended", lambda: client.machine.try_run("pgrep -x iscsid").status)
        client.machine.run("rmmod ib_iser", 60)


# PORT is ib_srpt's GUID of the port. The access control list has the server's ADDRESS: for a login
# through rdma_cm, ib_srpt takes its own address for the initiator's.
SERVE_SRP = f"""set -e
modprobe ib_srpt
mkdir -p {TARGET}/srpt
echo {SRP_PORT} > {TARGET}/srpt/discovery_auth/rdma_cm_port
mkdir -p {TARGET}/srpt/PORT/PORT
cd {TARGET}/srpt/PORT/PORT
mkdir lun/lun_0
ln -s {TARGET}/core/iblock_0/disk lun/lun_0/
mkdir acls/ADDRESS
mkdir acls/ADDRESS/lun_0
ln -s {TARGET}/srpt/PORT/PORT/lun/lun_0 acls/ADDRESS/lun_0/
echo 1 > enable
"""
END_SRP = f"""set -e
cd {TARGET}/srpt/PORT/PORT
echo 0 > enable
rm acls/ADDRESS/lun_0/lun_0
rmdir acls/ADDRESS/lun_0 acls/ADDRESS
rm lun/lun_0/disk
rmdir lun/lun_0
cd /
rmdir {TARGET}/srpt/PORT/PORT {TARGET}/srpt/PORT
echo 0 > {TARGET}/srpt/discovery_auth/rdma_cm_port
rmdir {TARGET}/srpt
rmmod ib_srpt
"""


@both_roles(bed, timeout=900)
def srp(server, client):
    """The SCSI RDMA Protocol with logins by rdma_cm: login, write, read, compare, logout."""
    # The port's GUID is the lower half of its first GID.
    gid = server.machine.read(f"/sys/class/infiniband/{server.device}/ports/1/gids/0")
    port = ":".join(gid.split(":")[4:])

    def words(text):
        return text.replace("PORT", port).replace("ADDRESS", server.address)

    with target(server, words(SERVE_SRP), words(END_SRP)):
        client.machine.run("modprobe -a ib_srp sd_mod", 60)
        before = disks(client, "sd[a-z]+")
        service = server.machine.read("/sys/module/ib_srpt/parameters/srpt_service_guid")[2:]
        login = f"id_ext={service},ioc_guid={service},dest={server.address}:{SRP_PORT}"
        initiator = f"/sys/class/infiniband_srp/srp-{client.device}-1"
        client.machine.run(f"echo '{login}' > {initiator}/add_target", 120)
        try:
            write_and_read(server, client, new_disk(client, "sd[a-z]+", before))
        finally:
            logout = "for port in /sys/class/srp_remote_ports/*; do echo 1 > $port/delete; done"
            client.machine.run(logout, 120)
        wait_until("the disk is gone", lambda: disks(client, "sd[a-z]+") == before)
        client.machine.run("rmmod ib_srp", 60)


@both_roles(bed, timeout=900)
def rnbd(server, client):
    """Block devices over RTRS: map, write, read, compare, unmap."""
    with ram_disk(server):
        server.machine.run("modprobe rnbd-server", 60)
        try:
            client.machine.run("modprobe rnbd-client", 60)
            before = disks(client, "rnbd[0-9]+")
            words = f"sessname={SESSION} path=ip:{server.address} device_path={DISK}"
            client.machine.run(f"echo '{words}' > /sys/class/rnbd-client/ctl/map_device", 120)
            node = new_disk(client, "rnbd[0-9]+", before)
            try:
                write_and_read(server, client, node)
            finally:
                unmap = f"/sys/block/{os.path.basename(node)}/rnbd/unmap_device"
                client.machine.run(f"echo normal > {unmap}", 120)
            wait_until("the disk is gone", lambda: disks(client, "rnbd[0-9]+") == before)
            client.machine.run("rmmod rnbd-client && rmmod rtrs-client", 120)
        finally:
            server.machine.run("rmmod rnbd-server && rmmod rtrs-server", 120)


# Sockets


@both_roles(bed, timeout=600)
def rds(server, client):
    """RDS: messages to a socket of the other host, and their digest back."""
    for host in (server, client):
        host.machine.run("modprobe rds_rdma", 60)
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    count = (MEGABYTES << 20) // 65536
    serving = server.machine.start(f"{here}/rds receive {server.address} {count}")
    wait_until("the receiver is bound", lambda: "bound" in serving.output())
    with by_rdma(server):
        sent = client.machine.run(f"{here}/rds send {client.address} {server.address} {count}", 600)
    result = serving.wait(60)
    equal("the receiver's status", result.status, 0)
    equal("the digest of what arrived", result.output.split()[-1], sent.split()[-1])
    # The modules stay loaded. Unloading rds_rdma drops its connections on workqueues of their own
    # (cp_wq), and waits for another one (rds_wq). If a connection is late, rds_ib_recv_exit() finds
    # its messages, and warns.


def run():
    """Runs the suite."""
    return bed.run()
