"""How a verb runs and ends: errors, Ctrl-C, ``--json``.

Exit codes: 0; 1 for an error; 2 for a command line that cannot be understood; 130 for Ctrl-C and
SIGTERM.
"""

import json
from collections.abc import Callable
from typing import IO, Any, TypeVar

import click

from outcore.errors import OutcoreError
from outcore.signals import stop_on_signals

_Command = TypeVar("_Command", bound=Callable[..., Any])

_JSON = "outcore.json"
INTERRUPTED = 130


def json_option(command: _Command) -> _Command:
    """Give a verb the flag ``--json``, as the argument `as_json`."""

    def note(context: click.Context, parameter: click.Parameter, value: bool) -> bool:
        context.meta[_JSON] = value
        return value

    flag = click.option(
        "--json", "as_json", is_flag=True, callback=note, help="Print one JSON document."
    )
    return flag(command)


def print_json(document: Any) -> None:
    """Print the one document of a verb with ``--json``."""
    click.echo(json.dumps(document, indent=2, default=str))


class Failure(click.ClickException):
    """An error as the command line shows it: one line, no traceback."""

    exit_code = 1

    def __init__(self, message: str, kind: str, as_json: bool) -> None:
        super().__init__(message)
        self.kind, self.as_json = kind, as_json

    def show(self, file: IO[Any] | None = None) -> None:
        """Print it on standard error, and with ``--json`` as the document too."""
        if self.as_json:
            print_json({"error": {"kind": self.kind, "message": self.message}})
        click.echo(f"error: {self.message}", file=file, err=True)


class Verbs(click.Group):
    """A group of verbs that end as said above."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a verb."""
        try:
            with stop_on_signals():
                return super().invoke(ctx)
        except OutcoreError as error:
            raise Failure(str(error), error.kind, ctx.meta.get(_JSON, False)) from error
        except BrokenPipeError:
            raise
        except OSError as error:
            said = f"{error.filename}: {error.strerror}" if error.filename else str(error)
            raise Failure(said, "io", ctx.meta.get(_JSON, False)) from error
        except (KeyboardInterrupt, click.Abort) as stop:
            said = str(stop)
            click.echo(f"stopped: {said}" if said else "stopped", err=True)
            raise click.exceptions.Exit(INTERRUPTED) from None
