"""``outcore report``."""

from pathlib import Path

import click

from outcore.cli.places import ANY_PATH, key_option
from outcore.cli.verbs import Verb, end, wants_json
from outcore.report.page import write_page
from outcore.report.report import Report
from outcore.storage.pool_path import PoolPath
from outcore.storage.volumes import AnyPath


@click.command(
    "report",
    cls=Verb,
    short_help="Draw the report of a call as a page for a browser.",
    example="outcore report /scratch/A.lu -o lu.html",
    groups={
        "Output": ("output",),
    },
)
@click.argument("path", metavar="FILE", type=ANY_PATH)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path),
    help="The page.  [default: FILE.html in the current directory]",
)  # fmt: skip
@key_option
def command(path: AnyPath, output: Path | None) -> None:
    """Print the report in FILE, and draw it as an HTML page.

    FILE is an output of report.save() or `outcore solve --report`, or a directory of factors.
    Factors store the figures of their factorization only, so their page has no timeline. The page
    needs no network and no other file. With --json, the page is drawn only with -o. FILE may be in
    a pool, by its URL.
    """
    report = Report.load(path)
    name = path.name if isinstance(path, PoolPath) else path.resolve().name
    page = output if output or wants_json() else Path(f"{name}.html")
    if page:
        write_page(report, page)
    what = "the timeline and more" if report.has_timeline else "the figures, without a timeline"
    text = f"{report}\n\n{page} has {what}; open it in a browser"
    end(report.to_dict() | {"page": page}, text)
