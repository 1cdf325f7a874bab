"""The help of a verb: what it does in one line, an example, and its options in groups."""

from collections.abc import Iterable, Mapping
from typing import Any

import click

COMMON = {
    "Memory and time": ("memory", "threads", "rate"),
    "Pools": ("key", "pool_key"),
    "Output": ("as_json",),
}
"""Groups of options that several verbs have, in the order in which they end the help."""


class Verb(click.Command):
    """A verb whose help has an example, and options in groups.

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
        self.example = example
        own = dict(groups or {})
        given = {name for names in own.values() for name in names}
        self.groups = {
            title: [*own.get(title, ()), *(n for n in COMMON.get(title, ()) if n not in given)]
            for title in [*(title for title in own if title not in COMMON), *COMMON]
        }

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the example, and the options by groups."""
        with formatter.section("Example"):
            # Not wrapped: a user copies the line.
            formatter.write(f"{'':>{formatter.current_indent}}{self.example}\n")
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
