"""Processes of this machine, read from ``/proc``, and its addresses."""

import contextlib
import fcntl
import os
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

_SIOCGIFADDR = 0x8915


def process_fields(pid: int) -> list[str] | None:
    """Return the fields of a process's status, its state first; `None` if there are none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # Field 2 of proc(5), the name in parentheses, may have spaces and parentheses.
    return text.rpartition(")")[2].split()


def has_ended(fields: list[str]) -> bool:
    """Whether a process has ended that its parent has not waited for yet."""
    # After the first thread of a killed process has ended, others may still be closing files.
    return fields[0] in "ZX" and int(fields[17]) <= 1


def started_in(fields: list[str]) -> str:
    """Return the start of a process, in clock ticks since the start of the machine."""
    return fields[19]


def began_at(pid: int) -> float | None:
    """Return the start of a process in seconds since 1970; `None` if it has ended."""
    ticks = started_ticks(pid)
    if ticks is None:
        return None
    now_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.time() - now_s + ticks / os.sysconf("SC_CLK_TCK")


def started_ticks(pid: int) -> int | None:
    """Return the start of a process in ticks; `None` if it has ended."""
    fields = process_fields(pid)
    return None if fields is None or has_ended(fields) else int(started_in(fields))


def own_host() -> str:
    """Return an address of this machine that other machines may reach."""
    name = socket.gethostname()
    with contextlib.suppress(OSError):
        for *_, address in socket.getaddrinfo(name, None, socket.AF_INET):
            if not str(address[0]).startswith("127."):
                return str(address[0])
    # The source address of packets to other machines. No packet is sent (RFC 5737: no host has this
    # destination).
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        return str(probe.getsockname()[0])
    # A network of its own, without a way to others.
    return next(_interface_addresses(), name)


def _interface_addresses() -> Iterator[str]:
    """Return the IPv4 addresses of the network interfaces; see netdevice(7)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, interface in socket.if_nameindex():
            with contextlib.suppress(OSError):
                request = struct.pack("40s", interface.encode())
                answer = fcntl.ioctl(any_socket, _SIOCGIFADDR, request)
                address = socket.inet_ntoa(answer[20:24])
                if not address.startswith("127."):
                    yield address
