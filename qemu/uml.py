# SPDX-License-Identifier: GPL-2.0
"""The debug kernel and the native kernel as programs: User Mode Linux.

The kernel's code runs at the speed of the machine. Under emulation, the checks of the debug kernel
took ten times as long. A machine needs neither an emulator nor virtualisation: each process of the
guest is a process of the host, whose system calls and page faults go to the kernel (seccomp(2)).
"""

import os
import socket
import struct
from pathlib import Path
from typing import List

# A request to the machine's management console (arch/um/drivers/mconsole.h): magic number, version,
# length, text.
_REQUEST = struct.Struct("=III512s")
_MAGIC = 0xCAFEBABE
_VERSION = 2

# The directory, below that of the run, in which each machine has its management console.
_MACHINES = "machines"


def command(kernel: Path, image: Path, arguments: List[str], *, run: Path, name: str, cpus: int, memory: int,
            console: int, wire: int, mac: str) -> List[str]:
    """Returns the command that starts a machine.

    `console` is an open file for the kernel's messages, and `wire` a datagram socket that carries
    the frames of its Ethernet device. The script's output is the second terminal, which is standard
    input and output.
    """
    words = [str(kernel / "vmlinux"), f"umid={name}", f"uml_dir={run / _MACHINES}/", f"mem={memory}M",
             f"ncpus={cpus}", "seccomp=on", "noreboot"]
    words += [f"ubd0rc={image}", f"ubd1rc={kernel / 'modules.squashfs'}", "root=/dev/ubda"]
    words += [f"con0=null,fd:{console}", "con1=fd:0,fd:1", "console=tty0"]
    # The kernel passes words that it does not know to init, as environment variables.
    words += [f"RUN={run}"]
    words += [f"vec0:transport=fd,fd={wire},mac={mac},mtu=9000"]
    return words + arguments


def ask_where(run: Path, name: str) -> None:
    """Makes a hung kernel print the state of its tasks on the console."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as request:
        request.settimeout(5)
        request.connect(str(run / _MACHINES / name / "mconsole"))
        text = b"sysrq t"
        request.send(_REQUEST.pack(_MAGIC, _VERSION, len(text), text))


def user_time(process: int) -> int:
    """Returns the time in microseconds that the threads of a process have run in user mode.

    In the process of a machine this is the code of the guest's kernel. The guest's programs are
    processes of their own, and system calls of the host are not part of it.
    """
    fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) * 1000000 // os.sysconf("SC_CLK_TCK")


def drain(wire: socket.socket) -> None:
    """Receives and drops the frames of a single host, which has no peer. Does not return.

    Without a receiver they would stay in the queue of the Ethernet device.
    """
    while True:
        wire.recv(65536)
