"""``outcore attr``: extended attributes."""

import base64
import os
import sys
from pathlib import Path
from typing import Any

import click

from outcore._util.printable import as_line
from outcore.cli.places import ANY_PATH, Failures, key_option, paths_argument
from outcore.cli.verbs import Verb, VerbGroup, end, say, wants_json
from outcore.storage.file_attributes import (
    attribute,
    attribute_names,
    remove_attribute,
    set_attribute,
)
from outcore.storage.volumes import AnyPath

PATH = click.argument("path", type=ANY_PATH)
NAME = click.argument("name")


@click.group(
    "attr",
    cls=VerbGroup,
    short_help="Get, set, list and remove extended attributes.",
    example="outcore attr set results/u.h5 run 'second, finer grid'",
)
def command() -> None:
    """Get, set, list and remove extended attributes.

    In a pool each value has up to 64 KiB. NAME in a pool is user.NAME of a plain file.
    """


@command.command(
    "get",
    cls=Verb,
    short_help="Print the value of an attribute.",
    example="outcore attr get results/u.h5 run",
)
@PATH
@NAME
@key_option
def get_attribute(path: AnyPath, name: str) -> None:
    """Print the value of the attribute NAME of PATH, its bytes and nothing else."""
    value = attribute(path, name)
    end({"path": str(path), "name": name} | _as_json(value))
    if not wants_json():
        sys.stdout.buffer.write(value)


@command.command(
    "set",
    cls=Verb,
    short_help="Set an attribute.",
    example="outcore attr set results/u.h5 run 'second, finer grid'",
    groups={
        "Value": ("source",),
    },
)
@PATH
@NAME
@click.argument("value", required=False)
@click.option(
    "--file", "source", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False),
    help="Read the value from FILE.",
)  # fmt: skip
@key_option
def set_one(path: AnyPath, name: str, value: str | None, source: Path | None) -> None:
    """Set the attribute NAME of PATH to VALUE, or to the content of a file."""
    if (value is None) == (source is None):
        raise click.UsageError("give a VALUE or --file, not both")
    data = source.read_bytes() if source is not None else os.fsencode(value or "")
    set_attribute(path, name, data)
    end({"path": str(path), "name": name, "nbytes": len(data)})


@command.command(
    "list",
    cls=Verb,
    short_help="List attributes.",
    example="outcore attr list -l results/u.h5",
    groups={
        "Listing": ("is_long",),
    },
)
@paths_argument
@click.option("-l", "--long", "is_long", is_flag=True, help="Print the values too.")
@key_option
def list_attributes(paths: tuple[AnyPath, ...], is_long: bool) -> None:
    """List the names of the attributes of each PATH."""
    documents: list[dict[str, Any]] = []
    failures = Failures({"entries": documents})
    given = failures.expanded(paths)
    for path in given:
        with failures.noted(path):
            names = attribute_names(path)
            values = {name: attribute(path, name) for name in names} if is_long else {}
            documents.append({"path": str(path), "attributes": names})
            if is_long:
                documents[-1]["values"] = {name: _as_json(value) for name, value in values.items()}
            for name in names:
                line = f"{name}={_as_text(values[name])}" if is_long else name
                say(as_line(f"{path}: {line}" if len(given) > 1 else line))
    failures.end()


@command.command(
    "rm",
    cls=Verb,
    short_help="Remove an attribute.",
    example="outcore attr rm results/u.h5 run",
)
@PATH
@NAME
@key_option
def remove(path: AnyPath, name: str) -> None:
    """Remove the attribute NAME of PATH."""
    remove_attribute(path, name)
    end({"path": str(path), "removed": name})


def _as_json(value: bytes) -> dict[str, str]:
    try:
        return {"value": value.decode()}
    except UnicodeDecodeError:
        return {"value_base64": base64.b64encode(value).decode()}


def _as_text(value: bytes) -> str:
    text = repr(value)[2:-1]
    return text if len(text) <= 60 else f"{text[:57]}... ({len(value)} bytes)"
