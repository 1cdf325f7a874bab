"""``outcore rechunk``."""

from dataclasses import asdict
from typing import Any

import click

from outcore._util.printable import as_line
from outcore.cli.copy_options import extents, name_or_url, read_options
from outcore.cli.places import key_option, overwrite_option, plan_option
from outcore.cli.verbs import Verb, end, wants_json
from outcore.convert.export import CODECS, format_of
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
            "mesh",
            "transpose",
            "dtype",
            "file_format",
            "codec",
            "casting",
            "if_exists",
        ),
        "Output": ("is_plan", "verify"),
    },
)
@click.argument("source", metavar="SRC", callback=name_or_url)
@click.argument("target", metavar="DST", callback=name_or_url)
@click.option("--chunks", metavar="N,...", callback=extents, help="Shape of a chunk.")
@click.option("--order", type=click.Choice(["C", "F"]), help="Order of the elements in a chunk.")
@click.option("--chunk-order", metavar="NAME", help="Order of the chunks, as in create_array.")
@click.option("--disk-schema", metavar="RULES", help="Division over disks, as in create_array.")
@click.option(
    "--mesh", metavar="N,...", callback=extents, help="Servers along each distributed dimension."
)
@click.option(
    "--transpose", metavar="D,...", callback=extents, help="Dimensions of SRC in the order of DST."
)
@click.option(
    "--format", "file_format", type=click.Choice(["outcore", *CODECS]),
    help="Format of DST.  [default: by its suffix, else outcore]",
)  # fmt: skip
@click.option("--codec", type=click.Choice(["zstd", "gzip", "blosc", "none"]), help="Compression.")
@read_options
@click.option("--memory", help="Budget, such as 1GB.  [default: half of the available memory]")
@click.option(
    "--verify", is_flag=True, help="Read the copy back after each pass, and compare checksums."
)
@plan_option
@overwrite_option(help="Replace an existing DST.")
@key_option
def command(
    source: str,
    target: str,
    is_plan: bool,
    file_format: str | None,
    codec: str | None,
    if_exists: Any,
    **options: Any,
) -> None:
    """Copy an array from SRC to DST in other chunks.

    SRC is any source of `outcore convert`, and DST an array of outcore, or the format of its
    suffix. A copy takes one pass where memory holds long runs of chunks of both sides, else several
    through arrays inside DST. If it is stopped, run the command again to resume. Arrays of outcore
    may be in pools, by their URLs.
    """
    kind = file_format or format_of(target) or "outcore"
    if is_plan:
        plan = plan_rechunk(
            source=source, path=target, format=None if kind == "outcore" else kind, codec=codec,
            **options,
        )  # fmt: skip
        end(plan.to_dict(), str(plan))
        plan.validate(if_exists)
        return
    options |= {"codec": codec, "if_exists": if_exists, "progress": not wants_json()}
    if kind == "outcore":
        with rechunk(source, target, **options) as array:
            report = array.report
    else:
        report = rechunk(source, target, format=kind, **options)
    assert isinstance(report, CopyReport), "a copy reports"
    end(asdict(report), as_line(str(report)))
