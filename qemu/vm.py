#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Runs a script in one virtual machine, or in two connected by a virtual Ethernet link.

The exit status is that of the script (with two hosts, the first one that is not 0), or

    124  the run timed out
    125  a guest could not be set up, or crashed
    99   the script succeeded, but the kernel log contains a warning

docs/vm.md describes the environment of a script in the guest.
"""

import argparse
import contextlib
import ctypes
import dataclasses
import json
import os
import re
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, Dict, List, Optional

import taps
import uml

# The emulated CPU. Without fast string instructions the guest copies and clears in words: the
# emulator executes `rep movsb` and `rep stosb` byte by byte, and counts each byte.
EMULATED_CPU = "max,-erms,-fsrm,-fsrs"

HERE = Path(__file__).resolve().parent
TOP = HERE.parent

STATUS_KERNEL_LOG = 99
STATUS_EMULATOR = 123
STATUS_TIMEOUT = 124
STATUS_CRASH = 125
STATUS_INTERRUPT = 130

# The kernels (qemu/kernel/build).
KERNELS = ("default", "7.3", "debug", "native")

# Those that are programs (User Mode Linux).
PROGRAMS = ("debug", "native")

# How the Ethernet devices of two hosts are joined: by the emulator, which passes single frames; or
# by a bridge of this machine and tap devices, with the offloads that they negotiate or with none.
WIRES = ("frames", "taps", "plain-taps")

# The Debian releases of the guest images.
GUESTS = ("trixie", "forky")

DEVICES = {"rrxe": "rrxe0", "rdma_rxe": "rxe0", "siw": "siw0", "none": ""}

# With working hardware virtualisation a probe guest is up in about a second. Otherwise it may hang.
PROBE_SECONDS = 8
PROBE_KEPT_SECONDS = 600

# The folders of the host that a guest may change.
WRITABLE = ("guest", "out")

# Interval of progress messages while the guests show none of their own.
PROGRESS_SECONDS = 5

# How long the other host may continue after one has crashed.
GRACE_SECONDS = 10

# A guest that has not reached its init after this time has hung. A kernel boots in seconds, the
# debug kernel in tens of seconds, and on a busy machine the boot takes several times longer. Seen
# once in thousands of boots.
UP_SECONDS = {"default": 240, "7.3": 240, "debug": 900, "native": 240}
# Between init and the script the guest loads the driver and creates the device. A hang there is a
# bug of ours.
SET_UP_SECONDS = {"default": 600, "7.3": 600, "debug": 1200, "native": 600}
# Samples per second of a record.
RECORD_FREQUENCY = 5000
# How long QEMU may take to report the state of a hung guest.
MONITOR_SECONDS = 10

# Kernel log lines that fail a run.
TROUBLE = re.compile(
    r"WARNING: |BUG: |kernel BUG at|Oops|general protection fault|Kernel panic|"
    r"KASAN|UBSAN: |KCSAN|KFENCE: |ODEBUG: |"
    r"suspicious RCU usage|INFO: possible|INFO: trying to register non-static key|"
    r"INFO: task .* blocked for more than|soft lockup|hard LOCKUP|"
    r"rcu.*detected (expedited )?stalls|self-detected stall|"
    r"refcount_t: |list_(add|del) corruption|Bad page state|Bad rss-counter|"
    r"scheduling while atomic|sleeping function called|"
    r"unregister_netdevice: waiting for|kmemleak: \d+ new suspected|rust_kernel: panicked"
)
# Kernel log lines that match the expression above but are harmless.
NO_TROUBLE = re.compile(r"kasan: KernelAddressSanitizer initialized|kcsan: (enabled|selftest)|KTAP|# Subtest")


class Failure(Exception):
    """The run cannot start or continue; the text names the remedy."""


# The message for a crash that `stale_breakpoint` recognises.
EMULATOR_FAILED = "QEMU executed a breakpoint that the kernel had already removed"


def stale_breakpoint(console: str) -> bool:
    """Returns whether the kernel crashed in a breakpoint that its memory no longer contains.

    The kernel puts breakpoints into code that it changes. If one CPU changes it while another one
    is about to execute it, QEMU 10 and 11 may keep their translation of the breakpoint for good.
    The kernel's log shows the memory, with the instruction after the breakpoint in brackets.
    """
    oops = re.search(r"\] Oops: (.*?)Code: ([0-9a-f ]+)<", console, re.DOTALL)
    return bool(oops and oops[1].startswith("int3:") and oops[2].split()[-1:] != ["cc"])


class BootFailed(Failure):
    """The machine did not reach its init, so none of the code under test has run."""


def say(words: str) -> None:
    print(f"rrxe: {words}", file=sys.stderr, flush=True)


def output_of(*command: str) -> str:
    """Runs a script in this folder that builds an item if it is missing. Returns its path."""
    done = subprocess.run([str(HERE / command[0]), *command[1:]], stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        # The script has printed the reason.
        sys.exit(done.returncode if done.returncode > 0 else STATUS_INTERRUPT)
    return done.stdout.strip()


def cache_folder() -> Path:
    cache = os.environ.get("RRXE_CACHE")
    if cache:
        return Path(cache)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rrxe"


def option(*words: str, **values: object) -> str:
    """Returns a comma-separated option of QEMU: words unchanged, commas in values doubled."""
    pairs = [f"{key}={str(value).replace(',', ',,')}" for key, value in values.items()]
    return ",".join([*words, *pairs])


def machine_options() -> List[str]:
    """Returns the command of a bare machine: the emulator with its own loader and libraries."""
    folder = Path(output_of("emulator"))
    libraries = folder / "usr/lib/x86_64-linux-gnu"
    os.environ["QEMU_MODULE_DIR"] = str(libraries / "qemu")
    program = [str(libraries / "ld-linux-x86-64.so.2"), "--library-path", str(libraries),
               str(folder / "usr/bin/qemu-system-x86_64")]
    for firmware in ("qemu", "seabios"):
        program += ["-L", str(folder / "usr/share" / firmware)]
    return program + ["-no-user-config", "-nodefaults", "-display", "none", "-no-reboot", "-machine", "q35"]


def die_with_parent() -> None:
    """Makes a virtual machine end when this program ends, even if it is killed."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


# The time slice of each thread of an emulated machine, in nanoseconds: the kernel's minimum.
TIME_SLICE = 100_000


def prepare_machine() -> None:
    """Makes a virtual machine end with this program, and sets its priority and its time slice.

    The kernel divides the CPUs among sessions first (sched(7), "The autogroup feature"). A new
    session starts with the nice value 0, so a machine that leads one passes its own on to it.

    If there are more emulated CPUs than real ones, a CPU that waits for another one in a loop
    (for an inter-processor interrupt, a lock, or a completion that a program polls) delays that
    other one by a time slice. The usual slice is about three milliseconds. Kernels before 6.12
    ignore the value (sched_setattr(2)).
    """
    die_with_parent()
    sys_sched_setattr = 314
    attributes = struct.pack("IIQiIQQQ", 48, os.sched_getscheduler(0), 0, os.nice(0), 0, TIME_SLICE, 0, 0)
    ctypes.CDLL(None).syscall(sys_sched_setattr, 0, attributes, 0)
    if os.getsid(0) == os.getpid():
        try:
            Path("/proc/self/autogroup").write_text(str(os.nice(0)))
        except OSError:
            pass  # The kernel has no such groups.


def kvm_works(kernel: Path) -> bool:
    """Returns whether a guest boots with hardware virtualisation. If not, prints the reason."""
    reason = kvm_fault(kernel)
    if reason:
        say(f"emulating the guest's CPUs, which is several times slower than hardware virtualisation: {reason}")
    return not reason


def kvm_fault(kernel: Path) -> str:
    """Returns the reason why hardware virtualisation does not work, or nothing if it does.

    That /dev/kvm exists is no proof. The result of a try is kept until the machine boots again if
    it works, and otherwise for PROBE_KEPT_SECONDS, because the machine may only have been busy.
    """
    if not os.path.exists("/dev/kvm"):
        return "this machine has no /dev/kvm"
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return "no permission for /dev/kvm: join the group kvm, and log in again"
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    kept = cache_folder() / f"kvm-fault-{boot}"
    with contextlib.suppress(FileNotFoundError):
        reason, age = kept.read_text(), time.time() - kept.stat().st_mtime
        if not reason or age < PROBE_KEPT_SECONDS:
            return reason
    say(f"trying hardware virtualisation ({PROBE_SECONDS} s at most)")
    reason = probe_kvm(kernel)
    for old in cache_folder().glob("kvm-*"):
        old.unlink(missing_ok=True)
    kept.write_text(reason)
    return reason


def probe_kvm(kernel: Path) -> str:
    """Boots a guest with hardware virtualisation. Returns the reason for a failure, or nothing.

    The guest has no root file system: its kernel panics after booting, and the machine ends.
    """
    command = machine_options() + ["-accel", "kvm", "-cpu", "host", "-m", "512", "-kernel", str(kernel)]
    command += ["-append", "console=ttyS0 panic=-1", "-serial", "stdio"]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              timeout=PROBE_SECONDS, preexec_fn=die_with_parent)
    except subprocess.TimeoutExpired:
        return f"a guest did not boot by /dev/kvm within {PROBE_SECONDS} s"
    if done.returncode == 0 and b"Unable to mount root" in done.stdout:
        return ""
    words = done.stderr.decode(errors="replace").strip().splitlines()
    return f"a guest did not boot by /dev/kvm{': ' + words[-1] if words else ''}"


@dataclasses.dataclass(frozen=True)
class Settings:
    """The options of a run."""

    script: Optional[Path]  # None: a shell
    arguments: List[str]
    hosts: int
    kernel: str
    guest: str
    extra: bool
    drivers: List[str]  # one for each host
    packages: List[str]
    cpus: int
    memory: int
    mtu: int
    wire: str
    icount: bool
    timeout: int
    out: Path
    share: Optional[Path]
    environment: Dict[str, str]
    append: str
    emulator: List[str]
    kernel_log: bool
    record: Optional[Path]

    @property
    def uml(self) -> bool:
        """Whether the kernel is a program (User Mode Linux)."""
        return self.kernel in PROGRAMS


class Guest:
    """One virtual machine of a run."""

    def __init__(self, number: int, settings: Settings, run: Path) -> None:
        self.number = number
        self.settings = settings
        self.run = run
        self.out = settings.out / f"h{number}" if settings.hosts == 2 else settings.out
        self.console = self.out / "console.log"
        self.process: Optional["subprocess.Popen[bytes]"] = None
        self.reader: Optional[threading.Thread] = None
        self.recorder: Optional["subprocess.Popen[bytes]"] = None
        self.ended: Optional[float] = None
        self.timed_out = False
        self.hung = ""

    @property
    def monitor(self) -> Path:
        return self.run / f"monitor.{self.number}"

    @property
    def name(self) -> str:
        return f"host {self.number}" if self.settings.hosts == 2 else "the guest"

    def prepare(self) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        for name in ("dmesg.txt", "kmemleak.txt", "setup.log", "output.txt", "console.log"):
            (self.out / name).unlink(missing_ok=True)
        peer = 3 - self.number
        terminal = shutil.get_terminal_size()
        script = self.settings.script
        variables = {
            "HOST": str(self.number),
            "HOSTS": str(self.settings.hosts),
            "SELF": f"10.77.0.{self.number}",
            "SELF6": f"fd77::{self.number}",
            "PEER": f"10.77.0.{peer}",
            "PEER6": f"fd77::{peer}",
            "OUT": "/out",
            "OUTPUT": "/dev/tty1" if self.settings.uml else "",
            "HOST_CLOCK": "" if self.settings.uml or self.settings.icount else "1",
            "SHARE": "/share" if self.settings.share else "",
            "DRIVER": self.settings.drivers[self.number - 1],
            "DEV": DEVICES[self.settings.drivers[self.number - 1]],
            "KERNEL": self.settings.kernel,
            "GUEST": self.settings.guest,
            "MTU": str(self.settings.mtu),
            "SCRIPT": shlex.quote(script.name) if script else "-",
            "ARGS": shlex.join(self.settings.arguments),
            "KLOG": "on" if self.settings.kernel_log else "off",
            "TERM": os.environ.get("TERM", "linux") if script is None else "dumb",
            "ROWS": str(terminal.lines),
            "COLUMNS": str(terminal.columns),
            **self.settings.environment,
        }
        lines = [f"{name}={shlex.quote(value)}\n" for name, value in variables.items()]
        (self.run / f"env.{self.number}").write_text("".join(lines))
        (self.run / f"fstab.{self.number}").write_text((HERE / "guest/fstab").read_text() + self.fstab())

    @property
    def mac(self) -> str:
        return f"52:54:00:77:00:0{self.number}"

    @property
    def machine(self) -> str:
        return f"rrxe-h{self.number}"

    def shares(self) -> Dict[str, Path]:
        """Returns the folders of the host that the guest sees, by the name of the share."""
        settings = self.settings
        folders = {"guest": self.run, "out": self.out, "src": settings.script.parent if settings.script else TOP}
        if settings.share:
            folders["share"] = settings.share
        return folders

    def fstab(self) -> str:
        """Returns the lines of the guest's fstab that depend on the kind of machine."""
        if self.settings.uml:
            options = {tag: f"hostfs={path}" for tag, path in self.shares().items()}
            lines = ["/dev/ubdb /lib/modules squashfs ro"]
        else:
            protocol = "trans=virtio,version=9p2000.L,msize=262144,cache="
            # Only a guest's own output must be visible at once.
            options = {tag: protocol + ("none" if tag in WRITABLE else "loose") for tag in self.shares()}
            lines = ["/dev/vdb /lib/modules squashfs ro", "hugetlbfs /dev/hugepages hugetlbfs defaults"]
        if self.settings.kernel != "native":
            lines.append("tracefs /sys/kernel/tracing tracefs defaults")
        kind = "hostfs" if self.settings.uml else "9p"
        for tag, words in options.items():
            if tag != "guest":
                lines.append(f"{tag} /{tag} {kind} {'rw' if tag in WRITABLE else 'ro'},{words}")
        return "".join(f"{line}\n" for line in lines)

    def kernel_arguments(self) -> List[str]:
        """Returns the kernel's arguments that do not depend on the kind of machine."""
        arguments = ["rootfstype=squashfs", "ro", "init=/usr/sbin/first-init", "panic=-1", "quiet",
                     "log_buf_len=8M", f"rrxe.host={self.number}"]
        return arguments + self.settings.append.split()

    def uml_command(self, kernel: Path, image: Path, console: int, wire: socket.socket) -> List[str]:
        settings = self.settings
        return uml.command(kernel, image, self.kernel_arguments(), run=self.run, name=self.machine,
                           cpus=settings.cpus, memory=settings.memory, console=console, wire=wire.fileno(),
                           mac=self.mac)

    def command(self, kernel: Path, image: Path, kvm: bool, wire: int) -> List[str]:
        """Returns the command of the machine; `wire` is the open file of its Ethernet device."""
        settings = self.settings
        words = machine_options() + ["-name", self.machine]
        if settings.icount:
            # The clock counts instructions.
            words += ["-accel", "tcg,thread=single", "-icount", "shift=1,sleep=off", "-cpu", EMULATED_CPU]
        elif kvm:
            words += ["-accel", "kvm", "-cpu", "host"]
        else:
            words += ["-accel", "tcg,thread=multi", "-cpu", EMULATED_CPU]
        words += ["-smp", str(settings.cpus), "-m", str(settings.memory)]

        arguments = ["console=ttyS0", "root=/dev/vda", "8250.nr_uarts=1", "no5lvl", "random.trust_cpu=on"]
        # On a busy machine the guest would conclude that its timer does not tick, and panic.
        arguments += ["no_timer_check"]
        # The launcher sends an NMI to a guest that hangs before its init.
        arguments += ["unknown_nmi_panic"]
        if not settings.icount:
            # An emulated CPU has no secrets to leak, and retpolines cost it about a tenth of its
            # time. Real systems use them, so a guest whose clock counts instructions does, too.
            arguments += ["mitigations=off"]
            # All emulated CPUs read the time stamp counter of the host. On a busy host the kernel's
            # watchdog eventually distrusts it and switches to the HPET; each read of the HPET
            # leaves the emulated code.
            arguments += ["tsc=nowatchdog"]
            # A busy host can stop the thread of a CPU for longer than the 20 s after which the
            # kernel reports a stall.
            arguments += ["rcupdate.rcu_cpu_stall_timeout=120", "watchdog_thresh=60"]
        arguments += self.kernel_arguments()
        words += ["-kernel", str(kernel / "vmlinux"), "-append", " ".join(arguments)]
        if (kernel / "initrd").exists():
            words += ["-initrd", str(kernel / "initrd")]

        for node, file in (("root", image), ("modules", kernel / "modules.squashfs")):
            words += ["-blockdev", option("driver=raw,read-only=on,file.driver=file,file.locking=off",
                                          **{"node-name": node, "file.filename": file}),
                      "-device", option("virtio-blk-pci", drive=node)]
        words += ["-device", "virtio-rng-pci"]

        for tag, path in self.shares().items():
            words += ["-fsdev", option("local,security_model=none,multidevs=remap", id=tag, path=path,
                                       readonly="off" if tag in WRITABLE else "on"),
                      "-device", option("virtio-9p-pci", fsdev=tag, mount_tag=tag)]

        words += ["-chardev", option("socket", id="monitor", path=self.monitor, server="on", wait="off"),
                  "-mon", "chardev=monitor,mode=control"]
        words += ["-chardev", option("file", id="console", path=self.console), "-serial", "chardev:console",
                  "-device", "virtio-serial-pci", "-chardev", "stdio,id=output,signal=off"]
        if settings.script is None and self.number == 1:
            words += ["-device", "virtconsole,chardev=output"]
        else:
            words += ["-device", "virtserialport,chardev=output,name=output"]

        words += settings.emulator
        if settings.wire != "frames":
            words += ["-netdev", f"tap,id=net,fd={wire}"]
        elif settings.hosts == 2:
            words += ["-netdev", f"stream,id=net,server=off,addr.type=fd,addr.str={wire}"]
        else:
            words += ["-netdev", f"dgram,id=net,local.type=fd,local.str={wire}"]
        words += ["-device", option("virtio-net-pci", netdev="net", mac=self.mac, host_mtu=9000, romfile="")]
        return words

    def start(self, command: List[str], fds: List[int], terminal: bool) -> None:
        if terminal:
            self.process = subprocess.Popen(command, pass_fds=fds, preexec_fn=prepare_machine)
            return
        with open(self.out / "qemu.log", "wb") as log:
            # A session of its own: Ctrl-C goes to this program, which then ends the guests.
            # Standard input stays open, because QEMU would otherwise consider the port unplugged.
            self.process = subprocess.Popen(command, pass_fds=fds, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                            stderr=log, preexec_fn=prepare_machine, start_new_session=True)
        self.reader = threading.Thread(target=self.copy_output, daemon=True)
        self.reader.start()

    def copy_output(self) -> None:
        """Shows the output of the script immediately, and records it."""
        assert self.process and self.process.stdout
        prefix = f"h{self.number}| ".encode() if self.settings.hosts == 2 else b""
        with open(self.out / "output.txt", "wb") as kept:
            copy_lines(self.process.stdout, kept, prefix)

    def never_booted(self) -> str:
        """Returns why none of the code under test has run, or an empty string.

        Seen once in hundreds of boots: a failed assertion of QEMU 7.2 in the MSI-X table, a hang, a
        wrong clock, and a stale breakpoint (stale_breakpoint()).
        """
        assert self.process
        if not self.mark("started") and self.emulator_failed():
            return EMULATOR_FAILED
        if not self.settings.uml and self.process.returncode == -signal.SIGABRT and not self.mark("started"):
            return "QEMU itself died while the guest was booting"
        if self.mark("clock"):
            return "its clock is wrong"
        if self.mark("up") or self.timed_out and not self.hung:
            return ""
        return self.hung or "ended before its init"

    def tell_times(self) -> None:
        """Tells the guest the time that its kernel's code has run so far, if it has asked.

        The guest asks by creating an empty file in /guest/times. The reply is a file with the same
        name and the suffix `.told`, in microseconds. If a file for it is set, perf records the
        kernel's code from the first question to the second.
        """
        assert self.process
        for question in (self.run / "times").iterdir():
            if not question.suffix and self.process.poll() is None:
                if self.settings.record:
                    self.start_or_stop_record(self.settings.record)
                part = question.with_suffix(".part")
                part.write_text(str(uml.user_time(self.process.pid)))
                question.unlink()
                part.rename(question.with_suffix(".told"))

    def start_or_stop_record(self, file: Path) -> None:
        """Starts to record at the first call, and stops at the second."""
        assert self.process
        if self.recorder is None:
            command = ["perf", "record", "--quiet", "--event=cpu-clock:u", f"--freq={RECORD_FREQUENCY}",
                       f"--pid={self.process.pid}", f"--output={file}"]
            self.recorder = subprocess.Popen(command, preexec_fn=die_with_parent)
            time.sleep(1)  # until it has begun
        elif self.recorder.poll() is None:
            self.recorder.send_signal(signal.SIGINT)
            self.recorder.wait()

    def mark(self, name: str) -> bool:
        """Returns whether the guest's init has created the progress file `name`."""
        return (self.run / f"{name}.{self.number}").exists()

    def look_for_hang(self, seconds: float) -> None:
        """Detects a hang before the script, `seconds` after the start, and records where."""
        if self.ended or self.mark("started"):
            return
        if not self.mark("up") and seconds > UP_SECONDS[self.settings.kernel]:
            self.hung = "did not come as far as its init"
        elif not self.mark("ready") and seconds > SET_UP_SECONDS[self.settings.kernel]:
            self.hung = "hangs while it sets up its devices"
        if self.hung:
            self.ask_where()

    def ask_where(self) -> None:
        """Records where the guest hangs: on its console and, from QEMU, the state of the CPUs."""
        if self.settings.uml:
            say(f"{self.name} {self.hung}: the state of its tasks is on its console, {self.console}")
            try:
                uml.ask_where(self.run, self.machine)
                time.sleep(1)  # for the kernel's messages
            except OSError as error:
                say(f"{self.name} does not respond: {error}")
            return
        say(f"{self.name} {self.hung}: what its processors are at is in {self.out / 'hang.txt'}, and on its console")
        questions = ("info status", "info registers -a", "info pic", "nmi")
        with open(self.out / "hang.txt", "w", encoding="utf-8") as kept:
            try:
                with socket.socket(socket.AF_UNIX) as monitor:
                    monitor.settimeout(MONITOR_SECONDS)
                    monitor.connect(str(self.monitor))
                    replies = monitor.makefile("r", encoding="utf-8")
                    for question in ({"execute": "qmp_capabilities"}, *map(human_command, questions)):
                        monitor.sendall(json.dumps(question).encode())
                        # Events may arrive before the reply.
                        reply = next(message for message in map(json.loads, replies) if "event" not in message)
                        kept.write(f"{question}\n{reply.get('return', reply)}\n")
                    time.sleep(1)  # for what the kernel says of the NMI
            except (OSError, ValueError, StopIteration) as error:
                kept.write(f"\nQEMU does not respond: {error}\n")

    def emulator_failed(self) -> bool:
        """Returns whether the guest crashed because of an error of the emulator."""
        uml = self.settings.uml
        return not uml and self.console.exists() and stale_breakpoint(self.console.read_text(errors="replace"))

    def keep_console(self) -> None:
        """Keeps the console's log of a failed boot: the next attempt writes a file of this name."""
        if self.console.exists():
            shutil.copy(self.console, self.out / "failed-boot-console.log")

    def status(self) -> int:
        """Reports problems of this guest. Returns its share of the run's exit status."""
        failed = self.run / f"failed.{self.number}"
        status = self.run / f"status.{self.number}"
        if failed.exists():
            say(f"{self.name} could not be set up: {failed.read_text().strip()} (in {self.out})")
            return STATUS_CRASH
        if not status.exists() and self.emulator_failed():
            say(f"{self.name}: {EMULATOR_FAILED}")
            self.keep_console()
            return STATUS_EMULATOR
        if not status.exists():
            if self.hung:
                say(f"{self.name} {self.hung}. Its kernel's last words:")
            elif self.timed_out:
                say(f"{self.name}: time is up after {self.settings.timeout} s (TIMEOUT). The kernel's last words:")
            else:
                say(f"{self.name} crashed. Its kernel's last words:")
            self.show_end()
            return STATUS_TIMEOUT if self.timed_out else STATUS_CRASH
        code = int(status.read_text())
        if self.settings.kernel_log and not self.kernel_log_clean() and code == 0:
            return STATUS_KERNEL_LOG
        return code

    def show_end(self) -> None:
        for path, count in ((self.console, 40), (self.out / "qemu.log", 10)):
            lines = path.read_text(errors="replace").splitlines() if path.exists() else []
            for line in lines[-count:]:
                print(f"    {line}", file=sys.stderr)
        say(f"all of it: {self.console}")

    def kernel_log_clean(self) -> bool:
        path = self.out / "dmesg.txt"
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
        bad = [line for line in lines if TROUBLE.search(line) and not NO_TROUBLE.search(line)]
        leaks = self.out / "kmemleak.txt"
        if leaks.exists():
            bad += leaks.read_text(errors="replace").splitlines()[:40]
        if bad:
            say(f"{self.name}: the kernel's log has warnings ({path}):")
            for line in bad[:60]:
                print(f"    {line}", file=sys.stderr)
        return not bad

    def kill(self) -> None:
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.reader:
            self.reader.join(timeout=5)


def human_command(command: str) -> Dict[str, object]:
    """Wraps a command of QEMU's human monitor for the machine protocol (QMP)."""
    return {"execute": "human-monitor-command", "arguments": {"command-line": command}}


OUTPUT_LOCK = threading.Lock()


def copy_lines(source: IO[bytes], kept: IO[bytes], prefix: bytes) -> None:
    """Copies to our output: immediately, or in whole lines if they get a prefix."""
    rest = b""
    descriptor = source.fileno()
    while True:
        data = os.read(descriptor, 65536)
        kept.write(data)
        kept.flush()
        if not prefix:
            show = data
        elif data:
            *lines, rest = (rest + data).split(b"\n")
            show = b"".join(prefix + line + b"\n" for line in lines)
        else:
            show = prefix + rest + b"\n" if rest else b""
        with OUTPUT_LOCK:
            sys.stdout.buffer.write(show)
            sys.stdout.buffer.flush()
        if not data:
            return


def stage(settings: Settings, run: Path) -> None:
    """Fills the folder that all guests of the run see as /guest."""
    shutil.copytree(HERE / "guest", run, dirs_exist_ok=True)
    (run / "barrier").mkdir()
    (run / "times").mkdir()
    (run / "rrxe").mkdir()
    for program in (TOP / "out/programs").iterdir() if (TOP / "out/programs").is_dir() else ():
        shutil.copy(program, run / "bin")
    if "rrxe" not in settings.drivers:
        return
    module = TOP / "out/modules" / settings.kernel / "rrxe.ko"
    providers = list((TOP / "out/provider").glob("librrxe-rdmav*.so"))
    driver = TOP / "out/provider/rrxe.driver"
    if not module.exists():
        raise Failure(f"{module} is not built: run 'make modules KERNEL={settings.kernel}', or choose another DRIVER")
    for file in (module, *providers, *([driver] if providers else [])):
        shutil.copy(file, run / "rrxe")
    if not providers:
        say("librrxe is not built ('make provider'): only the kernel will see rrxe0")


def run_guests(settings: Settings) -> int:
    kernel = Path(output_of("kernel/build", settings.kernel, *(["--extra"] if settings.extra else [])))
    image = Path(output_of("image", "--suite", settings.guest, *settings.packages))
    kvm = not settings.icount and not settings.uml and kvm_works(kernel / "vmlinux")
    try:
        return run_once(settings, kernel, image, kvm)
    except BootFailed as failure:
        say(f"{failure}; once more")
        return run_once(settings, kernel, image, kvm)


def run_once(settings: Settings, kernel: Path, image: Path, kvm: bool) -> int:
    guests: List[Guest] = []
    with contextlib.ExitStack() as stack:
        run = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rrxe-vm.")))
        try:
            stage(settings, run)
            # A single host has a link that is up, but without a peer, so its packets are lost. (A
            # hub of QEMU without a second port would queue them.)
            kind = socket.SOCK_STREAM if settings.hosts == 2 and not settings.uml else socket.SOCK_DGRAM
            wires = socket.socketpair(socket.AF_UNIX, kind)
            for number in range(1, settings.hosts + 1):
                guest = Guest(number, settings, run)
                guests.append(guest)
                guest.prepare()
            files = [wire.fileno() for wire in wires]
            if settings.wire != "frames":
                try:
                    files = stack.enter_context(taps.joined(settings.wire == "taps"))
                except OSError as error:
                    raise Failure(f"{error}: the machine must allow user namespaces and /dev/net/tun") from error
            for guest, wire, file in zip(guests, wires, files):
                terminal = settings.script is None and guest.number == 1
                if settings.uml:
                    with open(guest.console, "wb") as console:
                        command = guest.uml_command(kernel, image, console.fileno(), wire)
                        guest.start(command, [console.fileno(), wire.fileno()], terminal)
                else:
                    guest.start(guest.command(kernel, image, kvm, file), [file], terminal)
            if settings.uml and settings.hosts == 1:
                threading.Thread(target=uml.drain, args=[wires[1].dup()], daemon=True).start()
            # Only the guests hold the sockets now: the link ends if either of them ends.
            for wire in wires:
                wire.close()
            wait(guests, settings, run)
            for guest in guests:
                if guest.reader:
                    guest.reader.join(timeout=5)
                why = guest.never_booted()
                if why and settings.script:
                    guest.show_end()
                    guest.keep_console()
                    raise BootFailed(f"{guest.name}: {why}")
            codes = [guest.status() for guest in guests]
            # The other host may have failed because of this.
            return STATUS_EMULATOR if STATUS_EMULATOR in codes else next((code for code in codes if code != 0), 0)
        finally:
            for guest in guests:
                guest.kill()


def wait(guests: List[Guest], settings: Settings, run: Path) -> None:
    """Waits until all guests have ended or the run times out."""
    start = shown = time.monotonic()
    deadline = start + settings.timeout
    while True:
        now = time.monotonic()
        if now - shown > PROGRESS_SECONDS and settings.script:
            shown = now
            show_progress(guests, run, now - start)
            for guest in guests:
                guest.look_for_hang(now - start)
            if any(guest.hung for guest in guests):
                deadline = now
        for guest in guests:
            assert guest.process
            if settings.kernel == "native":
                guest.tell_times()
            if guest.ended is None and guest.process.poll() is not None:
                guest.ended = now
                # The other host stays up until this one's script has ended, which the file signals.
                (run / f"ended.{guest.number}").touch()
                if not (run / f"status.{guest.number}").exists() or (run / f"failed.{guest.number}").exists():
                    deadline = min(deadline, now + GRACE_SECONDS)
        if settings.script is None and guests[0].ended:
            return
        if all(guest.ended for guest in guests):
            return
        if now > deadline:
            for guest in guests:
                guest.timed_out = guest.ended is None
                guest.kill()
            return
        time.sleep(0.02)


def show_progress(guests: List[Guest], run: Path, seconds: float) -> None:
    """Reports progress before and after the script; while it runs, the screen is its own."""
    if not all((run / f"started.{guest.number}").exists() for guest in guests):
        say(f"booting: {seconds:.0f} s")
    elif all((run / f"ended.{guest.number}").exists() for guest in guests):
        say(f"the script has ended, looking for leaks and warnings: {seconds:.0f} s")


def parse(argv: List[str]) -> Settings:
    # No abbreviated options: they would escape the check for options after the script's name.
    parser = argparse.ArgumentParser(description="Runs a script in one or two virtual machines (see docs/vm.md).",
                                     allow_abbrev=False)
    add = parser.add_argument
    add("--hosts", type=int, choices=(1, 2), default=1)
    add("--kernel", choices=KERNELS, default=KERNELS[0],
        help="Debian's stock kernel (default: 7.2; 7.3), or our own: debug, with checkers; native, without")
    add("--guest", choices=GUESTS, default=GUESTS[0], help="the Debian release of the guest (trixie)")
    add("--extra", action="store_true",
        help="also the modules that Debian's kernel leaves out: siw, RTRS, RNBD, SMB Direct")
    add("--driver", default="rrxe", help="rrxe, rdma_rxe, siw or none; of two hosts each its own: rrxe,rdma_rxe")
    add("--packages", default="", help="further Debian packages in the guest")
    add("--cpus", type=int)
    add("--mem", type=int, help="MiB (1024, debug kernel 2048)")
    add("--mtu", type=int, default=4200, help="of eth0 (4200, which fits RDMA's 4096)")
    add("--wire", choices=WIRES, default=WIRES[0], help="of two hosts: frames through the emulator (default), "
        "or tap devices on a bridge of this machine, with their offloads or plain")
    add("--icount", action="store_true", help="deterministic: the guest's clock counts instructions, one CPU")
    add("--timeout", type=int, help="seconds (600, debug kernel 1800; a shell: a day)")
    add("--out", type=Path, help="folder for the script's files (out/vm/SCRIPT)")
    add("--share", type=Path, help="a folder to be seen at /share")
    add("--env", action="append", default=[], metavar="NAME=VALUE", help="a variable for the script")
    add("--append", default="", metavar="WORDS", help="further words for the kernel's command line")
    add("--emulator", default="", metavar="WORDS", help="further words for QEMU's command line")
    add("--record", type=Path, metavar="FILE", help="native kernel: perf's record from the script's first question for "
        "the time to the second")
    add("--klog", choices=("on", "off"), default="on", help="off: warnings in the kernel's log don't fail the run")
    add("--shell", action="store_true", help="no script: a shell (of two hosts, in the first)")
    add("script", type=Path, nargs="?")
    add("arguments", nargs=argparse.REMAINDER)
    args = parser.parse_args(argv)

    if args.shell == bool(args.script):
        raise Failure("name a script to run in the guest: make vm SCRIPT=file")
    if args.shell and not sys.stdin.isatty():
        raise Failure("a shell in the guest needs a terminal")
    for word in args.arguments:
        if word.split("=")[0] in parser._option_string_actions and word.startswith("--"):
            say(f"warning: {word} stands behind the script's name, so the script gets it: "
                "vm.py takes options of its own only before that name")
    script = args.script.resolve() if args.script else None
    if script and not script.is_file():
        raise Failure(f"there is no script {args.script}")
    drivers = args.driver.split(",")
    if len(drivers) == 1:
        drivers *= args.hosts
    if len(drivers) != args.hosts or any(driver not in DEVICES for driver in drivers):
        raise Failure(f"DRIVER={args.driver}: it is one of {', '.join(DEVICES)}, or two of them with HOSTS=2")
    if args.kernel in PROGRAMS and (args.icount or args.emulator):
        raise Failure(f"the {args.kernel} kernel runs without an emulator: choose KERNEL=default or 7.3 for ICOUNT=1")
    if args.record and (args.kernel != "native" or not shutil.which("perf")):
        raise Failure("--record needs KERNEL=native, and perf on this machine (Debian's package linux-perf)")
    if args.icount and (args.hosts != 1 or args.cpus not in (None, 1)):
        raise Failure("ICOUNT=1 is for one host with one CPU: the clocks of two would drift apart")
    if args.wire != WIRES[0] and (args.hosts != 2 or args.kernel in PROGRAMS):
        raise Failure(f"--wire {args.wire} joins two emulated hosts: choose HOSTS=2, and KERNEL=default or 7.3")
    if not 68 <= args.mtu <= 9000:
        raise Failure(f"MTU={args.mtu}: it is 68 to 9000")
    share = args.share.resolve() if args.share else None
    if share and not share.is_dir():
        raise Failure(f"there is no folder {args.share} to share")
    environment = {}
    for pair in args.env:
        name, equals, value = pair.partition("=")
        if not equals or not name.isidentifier():
            raise Failure(f"--env {pair}: it is NAME=VALUE")
        environment[name] = value
    out = args.out
    if out is None:
        out = TOP / "out/vm" / (script.stem if script else "shell")
        # This folder may be cleared: files of an earlier run would be mistaken for new ones.
        shutil.rmtree(out, ignore_errors=True)
    return Settings(
        script=script, arguments=args.arguments, hosts=args.hosts, kernel=args.kernel, guest=args.guest,
        extra=args.extra or "siw" in drivers, drivers=drivers,
        packages=args.packages.split(), cpus=args.cpus or (1 if args.icount else 2),
        memory=args.mem or (2048 if args.kernel == "debug" else 1024), mtu=args.mtu, wire=args.wire, icount=args.icount,
        timeout=args.timeout or (86400 if args.shell else 1800 if args.kernel == "debug" else 600), out=out.resolve(), share=share,
        environment=environment, append=args.append, emulator=shlex.split(args.emulator), kernel_log=args.klog == "on" and not args.shell,
        record=args.record)


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def main() -> int:
    signal.signal(signal.SIGTERM, interrupted)
    signal.signal(signal.SIGHUP, interrupted)
    try:
        settings = parse(sys.argv[1:])
        output_of("host-tools")
        return run_guests(settings)
    except Failure as failure:
        say(str(failure))
        return STATUS_CRASH
    except KeyboardInterrupt:
        say("interrupted")
        return STATUS_INTERRUPT


if __name__ == "__main__":
    sys.exit(main())
