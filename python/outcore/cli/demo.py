"""``outcore demo``."""

from pathlib import Path

import click

from outcore.cli.invocation import json_option, print_json
from outcore.demo.run import run_demo


@click.command("demo", short_help="Solve a real scattering problem out of core, and check it.")
@click.option("--level", default=4, show_default=True, help="0 to 5: n = 20 * 4^level unknowns.")
@click.option("--memory", help="Budget, such as 1GB.  [default: an eighth of the matrix]")
@click.option(
    "--directory", type=click.Path(path_type=Path), help="For the matrix and its factors."
)
@click.option(
    "-o", "--output", default="demo-out", show_default=True, type=click.Path(path_type=Path),
    help="For the pictures.",
)  # fmt: skip
@json_option
def command(
    level: int, memory: str | None, directory: Path | None, output: Path, as_json: bool
) -> None:
    """Scatter a plane wave from a sound-soft sphere: assemble, solve out of core, check, and draw.

    The dense complex matrix is eight times larger than the memory budget. After Ctrl-C or a kill,
    the same command resumes.
    """
    result = run_demo(
        level, directory=directory, memory=memory, output=output,
        say=(lambda line: None) if as_json else click.echo,
    )  # fmt: skip
    if as_json:
        print_json(result.to_dict())
