"""A verb: its help, its execution, and its end: errors, Ctrl-C, ``--json``.

Exit codes: 0; 1 for an error; 2 for an invalid command line; 130 for Ctrl-C and SIGTERM.
"""

import io
import sys
from collections.abc import Iterable, Mapping
from itertools import takewhile
from typing import IO, Any

import click

from outcore._util import strict_json
from outcore._util.printable import as_line, as_lines
from outcore._util.signals import stop_on_signals
from outcore.errors import OutcoreError

_JSON = "outcore.json"
_DOCUMENT = "outcore.document"
_RANK = "outcore.rank"
INTERRUPTED = 130

COMMON = {
    "Memory and time": ("memory", "threads", "rate"),
    "Pools": ("key", "pool_key"),
    "Output": ("as_json",),
}
"""Groups of options that several verbs have, in the order in which they end the help."""


class Verb(click.Command):
    """A verb with the flag ``--json``, whose help has an example, and options in groups.

    Parameters
    ----------
    example
        One command line, without a prompt.
    groups
        The arguments of each group of options, by the title of the group. `COMMON` has the options
        that are not named here.
    """

    def __init__(
        self,
        *arguments: Any,
        example: str,
        groups: Mapping[str, Iterable[str]] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(*arguments, **settings)
        self.params.append(
            click.Option(
                ["--json", "as_json"],
                is_flag=True,
                expose_value=False,
                callback=_note_json,
                help="Print one JSON document.",
            )
        )
        self.example = example
        own = dict(groups or {})
        given = {name for names in own.values() for name in names}
        self.groups = {
            title: [*own.get(title, ()), *(n for n in COMMON.get(title, ()) if n not in given)]
            for title in [*(title for title in own if title not in COMMON), *COMMON]
        }

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the example, and the options by groups."""
        _write_example(formatter, self.example)
        records = {
            parameter.name: record
            for parameter in self.get_params(ctx)
            if isinstance(parameter, click.Option)
            and (record := parameter.get_help_record(ctx)) is not None
        }
        named = {name for names in self.groups.values() for name in names}
        # The name of --help depends on the version of click.
        rest = [name for name in records if name not in named]
        for title, names in (self.groups | {"Output": self.groups["Output"] + rest}).items():
            if rows := [records[name] for name in names if name in records]:
                with formatter.section(title):
                    formatter.write_dl(rows)


class VerbGroup(click.Group):
    """A verb that is a group of verbs, whose help has the example of one of them."""

    def __init__(self, *arguments: Any, example: str, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.example = example

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the example, the options, and the verbs of the group."""
        _write_example(formatter, self.example)
        super().format_options(ctx, formatter)


def _write_example(formatter: click.HelpFormatter, example: str) -> None:
    with formatter.section("Example"):
        # Not wrapped: a user copies the line.
        formatter.write(f"{'':>{formatter.current_indent}}{example}\n")


def _note_json(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    context.meta[_JSON] = value


def wants_json() -> bool:
    """Whether the verb that runs prints one JSON document, by its flag ``--json``."""
    return bool(click.get_current_context().meta[_JSON])


def run_as(rank: int) -> None:
    """Note the number of this process in a job of several, of which the first one prints."""
    click.get_current_context().meta[_RANK] = rank


def _is_first() -> bool:
    return not click.get_current_context().meta.get(_RANK)


def end(document: Any, *lines: str) -> None:
    """Print the result of a verb: its single document with ``--json``, else its lines."""
    if wants_json() and _is_first():
        _print_json(document)
    for line in lines:
        say(line)


def _print_json(document: Any) -> None:
    click.echo(strict_json.dumps(document, indent=2, default=str))


def keep_document(document: dict[str, Any]) -> None:
    """Set the document of a verb, which a later error adds itself to."""
    click.get_current_context().meta[_DOCUMENT] = document


def say(text: str) -> None:
    """Print a text with control characters escaped; with ``--json`` do nothing."""
    if not wants_json() and _is_first():
        click.echo(as_lines(text))


def _print_error(kind: str, message: str, document: dict[str, Any]) -> None:
    _print_json(document | {"error": {"kind": kind, "message": message}})


class Failure(click.ClickException):
    """An error on the command line: one line, no traceback."""

    exit_code = 1

    def __init__(
        self, message: str, kind: str, context: click.Context, *, is_told: bool = False
    ) -> None:
        super().__init__(message)
        self._rank = context.meta.get(_RANK, 0)
        self._is_told = is_told
        self.kind, self.as_json = kind, context.meta[_JSON]
        self._document = context.meta.get(_DOCUMENT, {})

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the error on standard error, and with ``--json`` also as the document.

        If several processes know the error, only the first one prints it.
        """
        if self._rank and self._is_told:
            return
        if self.as_json and not self._rank:
            _print_error(self.kind, self.message, self._document)
        where = f"rank {self._rank}: " if self._rank else ""
        click.echo(f"error: {where}{as_line(self.message)}", file=file, err=True)


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
            # click indents choices by tabs; other tabs come from arguments.
            said = error.format_message().replace("\n\t", "\n  ")
            raise click.UsageError(as_lines(said), error.ctx) from None
        except OutcoreError as error:
            is_told = getattr(error, "is_told", False)
            raise Failure(str(error), error.kind, ctx, is_told=is_told) from error
        except BrokenPipeError:
            raise
        except OSError as error:
            said = f"{error.filename}: {error.strerror}" if error.filename else str(error)
            raise Failure(said, "io", ctx) from error
        except (KeyboardInterrupt, click.Abort) as stop:
            said = str(stop)
            if ctx.meta.get(_RANK):
                raise click.exceptions.Exit(INTERRUPTED) from None
            if as_json:
                _print_error("interrupted", said or "stopped", ctx.meta.get(_DOCUMENT, {}))
            click.echo(f"stopped: {as_line(said)}" if said else "stopped", err=True)
            raise click.exceptions.Exit(INTERRUPTED) from None
