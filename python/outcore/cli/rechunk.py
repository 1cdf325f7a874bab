"""``outcore rechunk``."""

from dataclasses import asdict
from typing import Any

import click

from outcore._util.printable import as_line
from outcore.cli.convert import extents, name_or_url
from outcore.cli.places import key_option, overwrite_option
from outcore.cli.verbs import Verb, end, wants_json
from outcore.convert.rechunk import rechunk
from outcore.planning.relayout_plan import plan_rechunk
from outcore.report.copy_report import CopyReport


@click.command(
    "rechunk",
    cls=Verb,
    short_help="Copy an array into other chunks, in the fewest bytes and requests.",
    example="outcore rechunk volume columns --chunks 256,64,64 --memory 4GB",
    groups={
        "Source, if it is a raw file": ("shape", "source_order", "offset"),
        "Target": (
            "chunks",
            "order",
            "chunk_order",
            "disk_schema",
            "dtype",
            "casting",
            "if_exists",
        ),
        "Output": ("is_plan",),
    },
)
@click.argument("source", metavar="SRC", callback=name_or_url)
@click.argument("target", metavar="DST", callback=name_or_url)
@click.option("--chunks", metavar="N,...", callback=extents, help="Shape of a chunk.")
@click.option("--order", type=click.Choice(["C", "F"]), help="Order of the elements in a chunk.")
@click.option("--chunk-order", metavar="NAME", help="Order of the chunks, as in create_array.")
@click.option("--disk-schema", metavar="RULES", help="Division over disks, as in create_array.")
@click.option("--dtype", help="Element type of DST; for a raw SRC, the type in the file.")
@click.option(
    "--casting", default="same_kind", type=click.Choice(["same_kind", "unsafe"]),
    help="Refuse numbers that --dtype cannot hold, or convert any number (unsafe).",
    show_default=True,
)  # fmt: skip
@click.option("--shape", metavar="N,...", callback=extents, help="Shape.")
@click.option(
    "--source-order", default="C", type=click.Choice(["C", "F"]),
    help="Order of the elements.", show_default=True,
)  # fmt: skip
@click.option("--offset", default=0, show_default=True, help="Bytes before the elements.")
@click.option("--memory", help="Budget, such as 1GB.  [default: half of the available memory]")
@click.option(
    "--plan", "is_plan", is_flag=True,
    help="Print passes, bytes, requests, disk space and time; copy nothing.",
)  # fmt: skip
@overwrite_option(help="Replace an existing DST.")
@key_option
def command(source: str, target: str, is_plan: bool, if_exists: Any, **options: Any) -> None:
    """Copy an array from SRC to DST, an array of outcore in other chunks.

    SRC is any source of `outcore convert`. A copy takes one pass where memory holds long runs of
    chunks of both sides, else several through arrays inside DST. If it is stopped, run the command
    again to resume. Arrays may be in pools, by their URLs.
    """
    if is_plan:
        plan = plan_rechunk(source=source, path=target, **options)
        end(plan.to_dict(), str(plan))
        plan.validate()
        return
    with rechunk(source, target, if_exists=if_exists, progress=not wants_json(), **options) as made:
        assert isinstance(made.report, CopyReport), "a copy reports"
        end(asdict(made.report), as_line(str(made.report)))
