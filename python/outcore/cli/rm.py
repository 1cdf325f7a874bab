"""``outcore rm``."""

import contextlib
import sys
from pathlib import Path
from typing import Any, NamedTuple

import click

from outcore._util.printable import as_line
from outcore._util.sizes import format_bytes
from outcore.cli.places import Failures, key_option, paths_argument
from outcore.cli.verbs import Verb, say
from outcore.errors import DiskError, InvalidError
from outcore.files import catalog
from outcore.files.catalog import Entry
from outcore.storage.pool_parts import remove_left
from outcore.storage.pool_path import PoolPath
from outcore.storage.volumes import AnyPath, as_path, bytes_on_disk, is_there, place


class _Doomed(NamedTuple):
    """An object to remove: one of outcore, or any file or directory of a pool."""

    path: AnyPath
    kind: str
    text: str
    entry: Entry | None


@click.command(
    "rm",
    cls=Verb,
    short_help="Remove arrays, factors, remains of stopped calls; files in pools.",
    example="outcore rm --yes /scratch/A /scratch/A.lu",
    groups={
        "Removal": ("recursive", "yes"),
    },
)
@paths_argument
@click.option(
    "-r", "--recursive", is_flag=True, help="Remove directories in pools with their contents."
)
@click.option("--yes", "-y", is_flag=True, help="Remove without a question.")
@key_option
def command(paths: tuple[AnyPath, ...], recursive: bool, yes: bool) -> None:
    """Remove arrays, factors and remains of stopped calls; in a pool, files too.

    Groups of arrays are removed too. In a pool, PATH may be a pattern, and with -r any directory.
    Other plain files are never removed: if one PATH is not an object of outcore, no PATH is
    removed. After any other error the rest is still removed, and the exit code is 1.
    """
    removed: list[dict[str, Any]] = []
    failures = Failures({"removed": removed})
    doomed: dict[str, _Doomed] = {}
    is_all_ours = True
    for path in failures.expanded(paths):
        with failures.noted(path):
            try:
                found = _recognised(path)
                _check_removable(found, recursive)
            except InvalidError:
                is_all_ours = is_all_ours and isinstance(path, PoolPath)
                raise
            doomed[str(found.path)] = found
    if not is_all_ours:
        failures.end()
    sizes = {name: _bytes_of(each.path) for name, each in doomed.items()}
    if doomed and not yes:
        _ask([_as_line(each, sizes[name]) for name, each in doomed.items()])
    for name, each in doomed.items():
        with failures.noted(each.path):
            # It was inside another one, or another process removes it as well.
            with contextlib.suppress(FileNotFoundError):
                if is_there(each.path):
                    _remove(each)
            removed.append({"path": name, "kind": each.kind, "bytes": sizes[name]})
            say(f"removed {each.kind} {as_line(name)}")
    failures.end()


def _check_removable(doomed: _Doomed, recursive: bool) -> None:
    """Refuse, before the first removal, an object that cannot be removed."""
    if doomed.entry is not None:
        catalog.check_removable(doomed.entry)
    elif doomed.kind == "directory" and not recursive:
        raise InvalidError(f"{doomed.path} is a directory; pass -r to remove it with all in it")


def _recognised(path: AnyPath) -> _Doomed:
    entry = None
    # An unreadable object is still a file, or a directory, of its pool.
    with contextlib.suppress(*[DiskError] if isinstance(path, PoolPath) else []):
        entry = catalog.recognise(path)
    if entry is not None:
        return _Doomed(as_path(entry.path), entry.kind, _state(entry), entry)
    if not isinstance(path, PoolPath):
        raise InvalidError(_why_not(path))
    if not path.inside:
        raise InvalidError("the root of a pool cannot be removed; name files in it")
    # The length of a file on a lost server is unknown, and does not matter here.
    kind = "link" if path.is_symlink() else "directory" if path.is_dir() else "file"
    return _Doomed(path, kind, "", None)


def _bytes_of(path: AnyPath) -> int | None:
    """Return the size on disk; `None` if unknown."""
    try:
        return bytes_on_disk(path)
    except FileNotFoundError:
        return 0  # removed by another process
    except DiskError:
        return None


def _remove(doomed: _Doomed) -> None:
    if doomed.entry is not None:
        catalog.remove(doomed.entry)
        return
    where = place(doomed.path)
    where.volume.remove(where.name)
    if isinstance(doomed.path, PoolPath):
        remove_left(doomed.path.parent)


def _state(entry: Entry) -> str:
    return f", {entry.state}: {entry.text}" if entry.text else ""


def _as_line(doomed: _Doomed, nbytes: int | None) -> str:
    size = "size not known" if nbytes is None else format_bytes(nbytes)
    return as_line(f"{doomed.kind} {doomed.path} ({size}){doomed.text}")


def _ask(what: list[str]) -> None:
    if not _is_terminal():
        raise click.UsageError("there is no terminal to ask on; pass --yes")
    click.echo("\n".join(what), err=True)
    if not click.confirm("remove?", err=True):
        click.echo("nothing was removed", err=True)
        raise click.exceptions.Exit(1)


def _is_terminal() -> bool:
    return sys.stdin.isatty()


def _why_not(path: Path) -> str:
    if path.is_symlink():
        return f"{path} is a symbolic link; name its target"
    if path.name == "journal":
        return f"{path} is needed to resume its factor; remove the factor, {path.parent}"
    return f"{path} is not an object of outcore, so it is not removed; remove it yourself"
