"""``outcore demo``."""

from pathlib import Path

import click

from outcore.cli.verbs import Verb, end, say
from outcore.demo.run import run_demo


@click.command(
    "demo",
    cls=Verb,
    short_help="Solve a real scattering problem out of core, and check it.",
    example="outcore demo --level 5 --memory 800MB",
    groups={
        "Problem": ("level",),
        "Files": ("directory",),
        "Output": ("output",),
    },
)
@click.option("--level", default=4, show_default=True, help="0 to 5: n = 20 * 4^level unknowns.")
@click.option("--memory", help="Budget, such as 1GB.  [default: an eighth of the matrix]")
@click.option(
    "--directory",
    type=click.Path(path_type=Path),
    help="Directory of the matrix and its factors.  [default: below the output]",
)
@click.option(
    "-o", "--output", default="demo-out", show_default=True, type=click.Path(path_type=Path),
    help="Directory of the pictures.",
)  # fmt: skip
def command(level: int, memory: str | None, directory: Path | None, output: Path) -> None:
    """Solve a scattering problem out of core, check the result, and draw it.

    A plane wave meets a sound-soft sphere. The dense complex matrix is eight times larger than the
    memory budget. After Ctrl-C or a kill, the same command resumes.
    """
    result = run_demo(level, directory=directory, memory=memory, output=output, say=say)
    end(result.to_dict())
