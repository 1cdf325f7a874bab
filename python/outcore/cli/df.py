"""``outcore df``."""

import os
from typing import Any

import click

from outcore._util.printable import as_line
from outcore.cli.listing import in_columns, size_of
from outcore.cli.places import Failures, key_option, paths_argument
from outcore.cli.verbs import Verb, say
from outcore.storage.file_status import cannot
from outcore.storage.pool_path import PoolPath
from outcore.storage.pool_stat import ServerStatus
from outcore.storage.volumes import AnyPath


@click.command(
    "df",
    cls=Verb,
    short_help="Print the free space.",
    example="outcore df outcore://node1:7171 /scratch",
    groups={
        "Output": ("exact",),
    },
)
@paths_argument
@click.option("-b", "--bytes", "exact", is_flag=True, help="Print sizes in bytes.")
@key_option
def command(paths: tuple[AnyPath, ...], exact: bool) -> None:
    """Print the free space at each PATH; for a pool, on each of its servers.

    For a pool, a line below them gives the space for files striped over all servers, which the
    fullest server limits. With several places, the last line is their total, with each pool and
    each disk counted once. A server that does not answer is not counted, and the exit code is 1.
    Retired servers are listed at the end.
    """
    documents: list[dict[str, Any]] = []
    document: dict[str, Any] = {"places": documents}
    failures = Failures(document)
    for path in paths:
        with failures.noted(path):
            found = _pool(path) if isinstance(path, PoolPath) else _disk(path)
            say(("\n" if documents else "") + _as_text(found, exact))
            documents.append(found)
            for one in found.get("servers", ()):
                if "error" in one:
                    failures.note(path, f"{path}: {one['error']}")
    # Each pool, and each device, counts once.
    free = {each.get("pool", each.get("device")): each["free_bytes"] for each in documents}
    free_bytes = sum(free.values())
    if len(documents) > 1:
        say(f"\nall places: {size_of(free_bytes, exact=exact)} free")
    document["total"] = {"free_bytes": free_bytes}
    failures.end()


def _pool(path: PoolPath) -> dict[str, Any]:
    servers = [ServerStatus(*each) for each in path.root.core.servers(partial=True)]
    there = [one for one in servers if one.error is None]
    is_complete = len(there) == len(servers)
    return {
        "path": str(path), "pool": path.root.core.id, "servers": [_server(one) for one in servers],
        "free_bytes": sum(one.free_bytes for one in there),
        "bytes_written": sum(one.bytes_written for one in there),
        "striped_bytes": path.root.volume.free_bytes() if is_complete else None,
        "retired": path.root.core.retired_ids,
    }  # fmt: skip


def _server(one: ServerStatus) -> dict[str, Any]:
    if one.error is not None:
        return {"server": one.id, "free_bytes": None, "bytes_written": None, "error": one.error}
    return {
        "server": one.id, "free_bytes": one.free_bytes, "bytes_written": one.bytes_written,
        "is_writable": one.is_writable,
    }  # fmt: skip


def _disk(path: AnyPath) -> dict[str, Any]:
    try:
        found, device = os.statvfs(path), os.stat(path).st_dev
    except OSError as error:
        raise cannot(f"look at {path}", error) from None
    unit = found.f_frsize
    return {
        "path": str(path), "total_bytes": found.f_blocks * unit,
        "used_bytes": (found.f_blocks - found.f_bfree) * unit, "free_bytes": found.f_bavail * unit,
        "device": device,
    }  # fmt: skip


def _as_text(found: dict[str, Any], exact: bool) -> str:
    def size(nbytes: int | None) -> str:
        return "?" if nbytes is None else size_of(nbytes, exact=exact)

    if "servers" not in found:
        total, used, free = (size(found[f"{name}_bytes"]) for name in ("total", "used", "free"))
        return f"{as_line(found['path'])}: {free} free of {total}, {used} used"
    rows: list[tuple[str, ...]] = [("server", "free", "written since it started")]
    rows += [
        (str(one["server"]), size(one["free_bytes"]), size(one["bytes_written"]))
        for one in found["servers"]
    ]
    is_complete = found["striped_bytes"] is not None
    rows.append(
        ("all" if is_complete else "these", size(found["free_bytes"]), size(found["bytes_written"]))
    )
    lines = in_columns(rows, right=(1, 2))
    tail = f"space for files striped over all servers: {size(found['striped_bytes'])}"
    reading = [str(one["server"]) for one in found["servers"] if not one.get("is_writable", True)]
    if reading:
        tail += f"\nservers that take no writes: {', '.join(reading)}"
    if found["retired"]:
        tail += f"\nretired servers: {', '.join(map(str, found['retired']))}"
    return "\n".join([f"{as_line(found['path'])}, pool {found['pool']}", *lines, tail])
