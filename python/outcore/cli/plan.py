"""``outcore plan``."""

from pathlib import Path
from typing import Any

import click

from outcore.cli.invocation import json_option, print_json
from outcore.plan import VERBS, plan


@click.command("plan", short_help="Say what a job will need and take, before it starts.")
@click.argument("verb", type=click.Choice(VERBS))
@click.option("-n", "--order", "n", type=int, required=True, help="Order of the matrix.")
@click.option("--dtype", default="f8", show_default=True, help="Element type, as NumPy names it.")
@click.option("--memory", help="Budget, such as 8GB.  [default: half of the available memory]")
@click.option("--rhs", default=1, show_default=True, help="Right-hand sides of solve.")
@click.option("--overwrite-a", is_flag=True, help="The factors take the matrix's space.")
@click.argument("directory", default=".", type=click.Path(path_type=Path))
@json_option
def command(
    verb: str,
    n: int,
    dtype: str,
    memory: str | None,
    rhs: int,
    overwrite_a: bool,
    directory: Path,
    as_json: bool,
) -> None:
    """Say what VERB will need and take, with its files in DIRECTORY (here, if none is given).

    The exit code is 1 if memory or disk do not suffice.
    """
    options: dict[str, Any] = {"overwrite_a": True} if overwrite_a else {}
    found = plan(verb, n=n, dtype=dtype, memory=memory, path=directory, rhs=rhs, **options)
    if as_json:
        print_json(found.to_dict())
    else:
        click.echo(str(found))
    found.validate()
