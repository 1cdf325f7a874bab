"""Mounted file systems, as the kernel lists them (proc(5))."""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Mount:
    """A mounted file system: mount point, type, device or server, and options."""

    point: str
    fs_type: str
    source: str
    options: frozenset[str]


def parse_mounts(text: str) -> list[Mount]:
    """Parse the lines of ``/proc/self/mountinfo`` (proc(5)), in the order of mounting."""
    mounts = []
    for line in text.splitlines():
        before, separator, after = line.partition(" - ")
        fields, rest = before.split(" "), after.split(" ")
        if not separator or len(fields) < 6 or len(rest) < 3:
            continue
        options = frozenset([*fields[5].split(","), *rest[2].split(",")])
        mounts.append(Mount(_unescape(fields[4]), rest[0], _unescape(rest[1]), options))
    return mounts


def _unescape(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)
