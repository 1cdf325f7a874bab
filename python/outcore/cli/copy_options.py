"""Arguments and options that verbs for arrays share: names, extents, and how to read a source."""

from collections.abc import Callable
from typing import Any

import click

from outcore.cli.places import ANY_PATH
from outcore.storage.pool_path import is_url


def extents(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> tuple[int, ...] | None:
    """Parse extents such as ``512,256``."""
    try:
        return None if value is None else tuple(int(n) for n in value.split(","))
    except ValueError:
        raise click.BadParameter(
            f"{value!r} is not a list of integers with commas between them"
        ) from None


def name_or_url(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """Open the pool of a URL; other text stays unchanged."""
    return str(ANY_PATH.convert(value, parameter, context)) if is_url(value) else value


def read_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a verb that copies a source: how to read its elements."""
    # The last one added comes first in the help.
    for option in (
        click.option("--offset", default=0, show_default=True, help="Bytes before the elements."),
        click.option(
            "--source-order", default="C", type=click.Choice(["C", "F"]),
            help="Order of the elements.", show_default=True,
        ),
        click.option("--shape", metavar="N,...", callback=extents, help="Shape."),
        click.option(
            "--casting", default="same_kind", type=click.Choice(["same_kind", "unsafe"]),
            help="Refuse numbers that --dtype cannot hold, or convert any number (unsafe).",
            show_default=True,
        ),
        click.option("--dtype", help="Element type of DST; for a raw SRC, the type in the file."),
    ):  # fmt: skip
        command = option(command)
    return command
