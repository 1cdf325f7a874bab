"""``outcore info``."""

import os
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import click

from outcore._util.printable import as_line
from outcore._util.sizes import format_bytes
from outcore.cli.listing import in_columns, in_rows
from outcore.cli.places import Failures, key_option, paths_argument
from outcore.cli.verbs import Verb, say, wants_json
from outcore.errors import InvalidError
from outcore.files import catalog
from outcore.files.catalog import Entry
from outcore.storage.volumes import AnyPath, as_path


@click.command(
    "info",
    cls=Verb,
    short_help="Describe an array or factor, or list a directory.",
    example="outcore info /scratch/A /scratch/A.lu",
)
@paths_argument
@key_option
def command(paths: tuple[AnyPath, ...]) -> None:
    """Describe an array or factor, or list the arrays and factors in a directory.

    It includes incomplete, consumed and damaged ones, and the way to resume a stopped call.
    """
    entries: list[dict[str, Any]] = []
    document = {"complete": True, "entries": entries}
    failures = Failures(document)
    said = ""
    for path in failures.expanded(paths):
        with failures.noted(path):
            found, text, is_complete = _about(path)
            document["complete"] = document["complete"] and is_complete
            entries += map(asdict, found)
            say(said + text)
            said = "\n"
    if not document["complete"] and not wants_json():
        click.echo("and more: the directory is very large; name a part of it", err=True)
    failures.end()


def _about(path: AnyPath) -> tuple[list[Entry], str, bool]:
    """Return the entries at a path and below, their text, and whether the list is complete."""
    entry = catalog.recognise(path) or catalog.of_a_pool(as_path(path))
    if entry is None and path.is_symlink():
        raise InvalidError(
            f"{path} is a link to {os.path.realpath(path)}, and links are not followed; name that"
        )
    if entry is None and (not path.is_dir() or (path / "zarr.json").exists()):
        raise InvalidError(
            f"{path} is not an object of outcore; give an array, a group, a factor, or a directory"
        )
    found = [] if entry is None else [entry]
    said = [_as_text(each) for each in found]
    is_complete = True
    if entry is None or entry.kind == "group":
        below, is_complete = catalog.find(path)
        found += below
        said.append(_as_list(below) or f"{as_line(str(path))} has no objects of outcore")
    return found, "\n\n".join(said), is_complete


def _as_text(entry: Entry) -> str:
    rows: list[tuple[str, str]] = [(entry.kind, entry.path)]
    rows += _rows(entry.details)
    rows.append(("state", _state(entry)))
    return in_rows(rows)


def _rows(details: dict[str, Any], indent: str = "") -> Iterator[tuple[str, str]]:
    for name, value in details.items():
        if value in (None, "", {}, []):
            continue
        if isinstance(value, dict):
            yield indent + name, ""
            yield from _rows(value, indent + "  ")
        elif name == "picture":
            names = [indent + name, *[""] * (len(value) - 1)]
            yield from zip(names, value, strict=True)
        else:
            yield indent + name, _value(name, value)


def _as_list(entries: list[Entry]) -> str:
    lines = [(each.kind, as_line(each.path), _size(each), _state(each)) for each in entries]
    return "\n".join(in_columns(lines)) if lines else ""


def _size(entry: Entry) -> str:
    n = entry.details.get("n")
    shape = entry.details.get("shape", [entry.details.get("m", n), n] if n else [])
    return f"{' x '.join(map(str, shape))} {entry.details.get('dtype', '')}".strip()


def _state(entry: Entry) -> str:
    return entry.state + (f": {as_line(entry.text)}" if entry.text else "")


def _value(name: str, value: Any) -> str:
    if name == "nbytes" or "bytes" in name.split("_"):
        return f"{value} ({format_bytes(value)})"
    if name in ("dims", "servers", "chunk_counts"):
        return ", ".join(map(str, value))
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list | tuple):
        return " x ".join(map(str, value))
    return str(value)
