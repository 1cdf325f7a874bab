"""Paths on the command line: plain ones, and URLs of pools, which are opened for the verb."""

import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

import click

from outcore._util.printable import as_line
from outcore.cli.verbs import end, keep_document
from outcore.errors import OutcoreError
from outcore.files.several import expanded, tried
from outcore.pool.named_pool import NamedPools
from outcore.storage.pool_path import check_plain, is_url
from outcore.storage.volumes import AnyPath

_Command = TypeVar("_Command", bound=Callable[..., Any])

_KEY = "outcore.key"
_POOLS = "outcore.pools"


class _AnyPath(click.ParamType):  # type: ignore[type-arg]  # new in click 8.4
    """A plain path, or the URL of a name in a pool."""

    name = "path"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> AnyPath:
        """Return the path; its pool stays open until the verb ends."""
        if not is_url(value):
            return Path(check_plain(value))
        assert ctx is not None
        if _POOLS not in ctx.meta:
            ctx.meta[_POOLS] = NamedPools(ctx.meta.get(_KEY))
            ctx.call_on_close(ctx.meta[_POOLS].close)
        path: AnyPath = ctx.meta[_POOLS].path(value)
        return path


ANY_PATH = _AnyPath()


class _Target(_AnyPath):
    """The target of a command; a slash at its end marks a directory."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path, as text with its slash if there is one."""
        path = super().convert(value, param, ctx)
        return f"{path}/" if value.endswith("/") and path.name else path


TARGET = _Target()


POOL_KEY = click.option(
    "--key",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="The pool's key.  [default: the file in OUTCORE_KEY]",
)
"""The option ``--key`` of verbs for a whole pool."""


def key_option(command: _Command) -> _Command:
    """Add the option ``--key`` to a verb, for the pools of its paths."""

    def note(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
        context.meta[_KEY] = value

    option = click.option(
        "--key", metavar="FILE", type=click.Path(), callback=note, is_eager=True,
        expose_value=False,
        help="The pool's key, or yours.  [default: the file in OUTCORE_KEY]",
    )  # fmt: skip
    return option(command)


def paths_argument(command: _Command) -> _Command:
    """Add the argument `paths` to a verb, with at least one path."""
    argument = click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=ANY_PATH)
    return argument(command)


def overwrite_option(*short: str, help: str) -> Callable[[_Command], _Command]:  # noqa: A002
    """Return the option ``--overwrite`` of a verb, which gives `if_exists`."""
    return click.option(
        *short, "--overwrite", "if_exists", flag_value="overwrite", default="error", help=help
    )


def plan_option(command: _Command) -> _Command:
    """Add the option ``--plan`` of a verb that copies an array, which gives `is_plan`."""
    return click.option(
        "--plan", "is_plan", is_flag=True,
        help="Print passes, bytes, requests, disk space and time; copy nothing.",
    )(command)  # fmt: skip


class Failures:
    """The result of a verb with several paths, and the errors of some of them.

    Parameters
    ----------
    document
        The result so far. The verb adds to it, and ``--json`` prints it with the errors, however
        the verb ends.
    """

    def __init__(self, document: dict[str, Any]) -> None:
        self._found: list[dict[str, str]] = []
        self._document = document
        document["errors"] = self._found
        keep_document(document)

    def expanded(self, paths: Iterable[AnyPath]) -> list[AnyPath]:
        """Expand patterns in pools; record those that match nothing as errors."""
        return expanded(paths, self.failed)

    def noted(self, path: AnyPath) -> AbstractContextManager[None]:
        """Return a context that records and prints an error, after which the verb continues."""
        return tried(path, self.failed)

    def failed(self, path: AnyPath, error: OutcoreError | OSError) -> None:
        """Record and print an error."""
        if isinstance(error, OutcoreError):
            self.note(path, str(error), error.kind)
        else:
            self.note(path, f"{error.filename or path}: {error.strerror or error}")

    def note(self, path: AnyPath, said: str, kind: str = "io") -> None:
        """Record and print an error message."""
        self._found.append({"path": os.fspath(path), "kind": kind, "message": said})
        click.echo(f"error: {as_line(said)}", err=True)

    def end(self) -> None:
        """Print the document with ``--json``, and exit with 1 if any path failed."""
        end(self._document)
        if self._found:
            raise click.exceptions.Exit(1)


def read_hints(
    context: click.Context, parameter: click.Parameter, given: tuple[str, ...]
) -> dict[str, Any]:
    """Parse ``NAME=VALUE``."""
    pairs = [each.partition("=") for each in given]
    for (name, equals, _), text in zip(pairs, given, strict=True):
        if not name or not equals:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE")
    return {name: value for name, _, value in pairs}
