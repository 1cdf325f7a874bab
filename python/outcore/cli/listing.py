"""Attributes of files, as ``ls`` and ``stat`` print them."""

import grp
import pwd
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from outcore._util.printable import as_line
from outcore._util.sizes import format_bytes
from outcore.storage.file_status import FileStatus
from outcore.storage.modes import as_letters


def to_dict(status: FileStatus) -> dict[str, Any]:
    """Return the status as plain values."""
    found = {
        "path": str(status.path), "kind": status.kind,
        "nbytes": status.nbytes if status.unknown is None else None,
        "mode": f"{status.mode:04o}", "owner": status.owner, "group": status.group,
        "modified_ns": status.modified_ns, "changed_ns": status.changed_ns,
    }  # fmt: skip
    if status.target is not None:
        found["target"] = status.target
    if status.disk_bytes is not None:
        return found | {"disk_bytes": status.disk_bytes}
    if status.kind == "file":
        return found | {
            "stripe_unit_bytes": status.stripe_unit_bytes, "round_units": status.round_units,
            "servers": list(status.servers),
        }  # fmt: skip
    return found


def as_row(status: FileStatus, name: str, *, exact: bool) -> tuple[str, ...]:
    """Return mode, owner, group, size, time and name, as ``ls -l`` prints them."""
    size = "-" if status.kind != "file" else size_of(status.nbytes, exact=exact)
    if status.unknown is not None:
        size = "?"
    return (
        as_letters(status.kind, status.mode), user_name(status.owner), group_name(status.group),
        size, time_of(status.modified_ns), name,
    )  # fmt: skip


def in_columns(rows: Sequence[tuple[str, ...]], right: tuple[int, ...] = ()) -> list[str]:
    """Arrange rows in columns; those with numbers in `right` are right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]

    def cell(number: int, text: str) -> str:
        return text.rjust(widths[number]) if number in right else text.ljust(widths[number])

    return ["  ".join(cell(i, text) for i, text in enumerate(row)).rstrip() for row in rows]


def in_rows(rows: Iterable[tuple[str, str]]) -> str:
    """Arrange names and their values, one pair on each line."""
    return "\n".join(in_columns([(as_line(name), as_line(text)) for name, text in rows]))


def size_of(nbytes: int, *, exact: bool) -> str:
    """Format a size."""
    return str(nbytes) if exact else format_bytes(nbytes)


def time_of(ns: int) -> str:
    """Format a time in the local time zone."""
    return datetime.fromtimestamp(ns / 1e9).strftime("%Y-%m-%d %H:%M:%S")


@lru_cache(maxsize=1024)
def user_name(number: int) -> str:
    """Return the name of a user, or the number if this machine does not know it."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


@lru_cache(maxsize=1024)
def group_name(number: int) -> str:
    """Return the name of a group, or the number if this machine does not know it."""
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)
