"""Execution of a verb, and its end: errors, Ctrl-C, ``--json``.

Exit codes: 0; 1 for an error; 2 for an invalid command line; 130 for Ctrl-C and SIGTERM.
"""

import io
import sys
from collections.abc import Callable
from itertools import takewhile
from typing import IO, Any, TypeVar

import click

from outcore._util import strict_json
from outcore._util.printable import as_line, as_lines
from outcore._util.signals import stop_on_signals
from outcore.errors import OutcoreError

_Command = TypeVar("_Command", bound=Callable[..., Any])

_JSON = "outcore.json"
_DOCUMENT = "outcore.document"
INTERRUPTED = 130


def json_option(command: _Command) -> _Command:
    """Add the flag ``--json`` to a verb, as the argument `as_json`."""
    flag = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
    return flag(command)


def print_json(document: Any) -> None:
    """Print the single document of a verb with ``--json``."""
    click.echo(strict_json.dumps(document, indent=2, default=str))


def keep_document(document: dict[str, Any]) -> None:
    """Set the document of a verb, which a later error adds itself to."""
    click.get_current_context().meta[_DOCUMENT] = document


def say(text: str) -> None:
    """Print the result of a verb, with control characters escaped."""
    click.echo(as_lines(text))


def _print_error(kind: str, message: str, document: dict[str, Any]) -> None:
    print_json(document | {"error": {"kind": kind, "message": message}})


class Failure(click.ClickException):
    """An error on the command line: one line, no traceback."""

    exit_code = 1

    def __init__(self, message: str, kind: str, context: click.Context) -> None:
        super().__init__(message)
        self.kind, self.as_json = kind, context.meta[_JSON]
        self._document = context.meta.get(_DOCUMENT, {})

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the error on standard error, and with ``--json`` also as the document."""
        if self.as_json:
            _print_error(self.kind, self.message, self._document)
        click.echo(f"error: {as_line(self.message)}", file=file, err=True)


class Verbs(click.Group):
    """A group of verbs with the exit codes of this module."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Look for ``--json`` first, because the rest may be an invalid command line."""
        ctx.meta[_JSON] = "--json" in takewhile(lambda argument: argument != "--", args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a verb."""
        if isinstance(sys.stdout, io.TextIOWrapper):
            # Names of plain files are printed unchanged, even if they are not UTF-8.
            sys.stdout.reconfigure(errors="surrogateescape")
        as_json = ctx.meta[_JSON]
        try:
            with stop_on_signals():
                return super().invoke(ctx)
        except click.UsageError as error:
            if as_json:
                _print_error("usage", error.format_message(), {})
            raise click.UsageError(as_lines(error.format_message()), error.ctx) from None
        except OutcoreError as error:
            raise Failure(str(error), error.kind, ctx) from error
        except BrokenPipeError:
            raise
        except OSError as error:
            said = f"{error.filename}: {error.strerror}" if error.filename else str(error)
            raise Failure(said, "io", ctx) from error
        except (KeyboardInterrupt, click.Abort) as stop:
            said = str(stop)
            if as_json:
                _print_error("interrupted", said or "stopped", ctx.meta.get(_DOCUMENT, {}))
            click.echo(f"stopped: {as_line(said)}" if said else "stopped", err=True)
            raise click.exceptions.Exit(INTERRUPTED) from None
