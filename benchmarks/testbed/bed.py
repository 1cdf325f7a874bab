"""A testbed: disks and hosts together, which are always removed at its end."""

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.testbed import disks as disks_
from benchmarks.testbed import hosts as hosts_
from benchmarks.testbed.disks import BLKIO, Disk, make_group, remove_group
from benchmarks.testbed.hosts import Host, Switch
from benchmarks.testbed.names import left_over, missing, own, try_run


def why_not() -> str | None:
    """Return the missing requirement of a testbed on this machine; `None` if there is none."""
    if os.geteuid() != 0:
        return "a testbed needs root"
    if lacking := missing((*disks_.TOOLS, *hosts_.TOOLS)):
        return f"a testbed needs {', '.join(lacking)} (packages util-linux, e2fsprogs, iproute2)"
    if not BLKIO.is_dir():
        return "a testbed needs the blkio controller of cgroup v1"
    return None


class Testbed:
    """Limited disks and hosts on this machine; use it as a context manager.

    Parameters
    ----------
    scratch
        Directory for the images of the disks.
    disks
        Number of disks.
    disk_bytes
        Size of each disk.
    disk_bytes_s
        Rate of each disk, reading and writing, for the processes started here; `None`: no limit.
    hosts
        Number of hosts.
    networks
        Number of networks of each host: parallel channels.
    link_bits_s
        Rate of every link, each way; `None`: no limit.
    shared_bits_s
        Rate of each network that its hosts share, as with a hub; `None`: a switch.

    Attributes
    ----------
    disks, hosts
        The created disks and hosts.
    """

    __test__ = False  # not a test, despite its name

    def __init__(
        self,
        scratch: Path,
        *,
        disks: int = 0,
        disk_bytes: int = 256 << 20,
        disk_bytes_s: int | None = None,
        hosts: int = 0,
        networks: int = 1,
        link_bits_s: int | None = None,
        shared_bits_s: int | None = None,
    ) -> None:
        if lacking := why_not():
            raise OSError(lacking)
        clean(scratch)
        self.disks: list[Disk] = []
        self.hosts: list[Host] = []
        self._processes: list[subprocess.Popen[Any]] = []
        self._end = contextlib.ExitStack()
        with contextlib.ExitStack() as stack:
            directory = Path(tempfile.mkdtemp(prefix=f"{own()}-", dir=scratch))
            stack.callback(shutil.rmtree, directory, ignore_errors=True)
            self._group = make_group()
            stack.callback(remove_group, self._group)
            for number in range(disks):
                disk = Disk(directory, number, disk_bytes)
                stack.callback(disk.close)
                if disk_bytes_s is not None:
                    disk.limit(self._group, disk_bytes_s)
                self.disks.append(disk)
            switches = []
            for number in range(networks if hosts else 0):
                switches.append(Switch(number, shared_bits_s))
                stack.callback(switches[-1].close)
            for number in range(hosts):
                host = Host(number)
                stack.callback(host.close)
                for switch in switches:
                    host.join(switch, link_bits_s)
                self.hosts.append(host)
            stack.callback(self._end_processes)
            self._end = stack.pop_all()

    def start(
        self, command: Sequence[object], host: Host | None = None, **options: Any
    ) -> subprocess.Popen[Any]:
        """Start a process whose disks are limited, on a host or on this machine.

        `options` are those of `subprocess.Popen`. The testbed ends the process at its own end.
        """
        process = subprocess.Popen(self.limited(command, host), **options)
        self._processes.append(process)
        return process

    def limited(self, command: Sequence[object], host: Host | None = None) -> list[str]:
        """Return the command that runs another one with limited disks, on a host if given."""
        words = host.command(*command) if host else list(map(str, command))
        # The process enters the group before it becomes the program, so all of its I/O is limited.
        enter = f'echo $$ > {self._group}/cgroup.procs && exec "$@"'
        return ["sh", "-c", enter, "sh", *words]

    def run(self, command: Sequence[object], host: Host | None = None) -> str:
        """Run a program as `start` does; return its output."""
        process = self.start(command, host, stdout=subprocess.PIPE, text=True)
        printed, _ = process.communicate()
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, list(map(str, command)))
        return str(printed)

    def _end_processes(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.terminate()
        for process in self._processes:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()

    def close(self) -> None:
        """End its processes, and remove its disks and hosts."""
        self._end.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def clean(scratch: Path) -> None:
    """Remove the testbeds of killed processes, including their images in `scratch`."""
    hosts_.clean()
    disks_.clean()
    for name in left_over(path.name for path in scratch.iterdir()):
        for mounted in (scratch / name).glob("disk*"):
            try_run("umount", "--lazy", mounted)
        shutil.rmtree(scratch / name, ignore_errors=True)
