"""Disks with a limited rate: ext4 on loop devices, throttled for the processes of a group."""

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from benchmarks.testbed.names import PREFIX, left_over, own, run, try_run

TOOLS = ("losetup", "mkfs.ext4", "mount", "umount")
BLKIO = Path("/sys/fs/cgroup/blkio")
LIMITS = ("blkio.throttle.read_bps_device", "blkio.throttle.write_bps_device")
NO_JOURNAL = ("-O", "^has_journal", "-E", "lazy_itable_init=0,nodiscard")


class Disk:
    """An ext4 file system of its own in an image file.

    Parameters
    ----------
    directory
        Directory of the image and the mount point.
    number
        Number of this disk.
    size_bytes
        Size of the image, all of which is allocated on the disk beneath.

    Attributes
    ----------
    path
        The mount point.
    """

    def __init__(self, directory: Path, number: int, size_bytes: int) -> None:
        self.path = directory / f"disk{number}"
        self._image = directory / f"disk{number}.image"
        self._loop = ""
        self.path.mkdir()
        with self._image.open("wb") as image:
            os.posix_fallocate(image.fileno(), 0, size_bytes)
        try:
            loop = run("losetup", "--find", "--show", "--direct-io=on", self._image)
            self._loop = loop.strip()
            run("mkfs.ext4", "-q", *NO_JOURNAL, self._loop)
            run("mount", "-o", "noatime", self._loop, self.path)
        except OSError:
            self.close()
            raise

    def limit(self, group: Path, bytes_s: int) -> None:
        """Limit reads and writes of the processes in a group, each in bytes per second.

        Direct I/O is limited, and so are writes from the page cache that a process of the group
        syncs. Those that the kernel writes back by itself are not: their group is unknown.
        """
        device = os.stat(self._loop).st_rdev
        for name in LIMITS:
            (group / name).write_text(f"{os.major(device)}:{os.minor(device)} {bytes_s}\n")

    def close(self) -> None:
        """Unmount, and remove the image."""
        try_run("umount", "--lazy", self.path)
        if self._loop:
            try_run("losetup", "--detach", self._loop)
        self._image.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.path.rmdir()


def make_group() -> Path:
    """Create the control group of the processes whose disks are limited."""
    group = BLKIO / own()
    group.mkdir()
    return group


def remove_group(group: Path) -> None:
    """Remove a control group; remaining processes return to the root group."""
    if not group.exists():
        return
    for pid in (group / "cgroup.procs").read_text().split():
        with contextlib.suppress(OSError):
            (BLKIO / "cgroup.procs").write_text(pid)
    group.rmdir()


def clean() -> None:
    """Remove the disks and groups of dead processes."""
    devices: list[dict[str, Any]] = json.loads(run("losetup", "--json") or "{}").get(
        "loopdevices", []
    )
    for device in devices:
        image = Path(device["back-file"].removesuffix(" (deleted)"))
        if left_over([image.parent.name]):
            try_run("umount", "--lazy", device["name"])
            try_run("losetup", "--detach", device["name"])
    if BLKIO.is_dir():
        for name in left_over(path.name for path in BLKIO.glob(f"{PREFIX}*")):
            remove_group(BLKIO / name)
