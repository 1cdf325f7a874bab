"""``outcore convert``."""

from dataclasses import asdict
from typing import Any

import click

from outcore._util.printable import as_line
from outcore.cli.copy_options import extents, name_or_url, read_options
from outcore.cli.places import key_option, overwrite_option
from outcore.cli.verbs import Verb, end, wants_json
from outcore.convert.export import CODECS, export_array, format_of
from outcore.convert.from_array import from_array
from outcore.errors import InvalidError
from outcore.report.copy_report import CopyReport


@click.command(
    "convert",
    cls=Verb,
    short_help="Copy an array from one format to another.",
    example="outcore convert matrix.h5::A A --order F --memory 8GB",
    groups={
        "Source, if it is a raw file": ("shape", "source_order", "offset"),
        "Target": (
            "file_format",
            "dtype",
            "casting",
            "chunks",
            "order",
            "codec",
            "zarr_format",
            "if_exists",
        ),
    },
)
@click.argument("source", metavar="SRC", callback=name_or_url)
@click.argument("target", metavar="DST", callback=name_or_url)
@click.option(
    "--format", "file_format", type=click.Choice(["outcore", *CODECS]),
    help="Format of DST.  [default: by its suffix, else outcore]",
)  # fmt: skip
@click.option(
    "--codec", type=click.Choice(["zstd", "gzip", "blosc", "none"]),
    help="Compression in HDF5 and Zarr.  [default: zstd in Zarr, else none]",
)  # fmt: skip
@click.option("--chunks", metavar="N,...", callback=extents, help="Shape of a chunk.")
@click.option("--order", type=click.Choice(["C", "F"]), help="Order of the elements.")
@click.option("--zarr-format", type=click.Choice(["2", "3"]), help="Version of Zarr.  [default: 3]")
@read_options
@click.option("--memory", help="Budget, such as 1GB.  [default: half of the available memory]")
@overwrite_option(help="Replace an existing DST.")
@key_option
def command(
    source: str,
    target: str,
    file_format: str | None,
    codec: str | None,
    zarr_format: str | None,
    **options: Any,
) -> None:
    """Copy an array from SRC to DST in bounded memory.

    SRC is an array of outcore or another Zarr array, a .npy file, an HDF5 file (FILE::DATASET if it
    has several), a TIFF, NIfTI or Parquet file, or a raw file with --shape and --dtype. DST is a
    new array of outcore, or the format of its suffix: .npy, .h5 (or FILE.h5::DATASET), .zarr.
    Arrays of outcore may be in pools, by their URLs. If the copy is stopped, run the command again
    to resume.
    """
    kind = file_format or format_of(target) or "outcore"
    if kind == "outcore":
        if zarr_format is not None:
            raise InvalidError(
                f"need --format zarr for --zarr-format, have {target}, an array of outcore's own "
                "layout; name DST with the suffix .zarr"
            )
        report = _to_array(source, target, codec, progress=not wants_json(), **options)
    else:
        report = export_array(
            source, target, format=kind, codec=codec, zarr_format=2 if zarr_format == "2" else 3,
            progress=not wants_json(), **options,
        )  # fmt: skip
    end(asdict(report), as_line(str(report)))


def _to_array(source: str, target: str, codec: str | None, **options: Any) -> CopyReport:
    if codec not in (None, "none"):
        raise InvalidError(
            f"arrays of outcore are not compressed, have --codec {codec}; give --format zarr"
        )
    with from_array(source, target, **options) as array:
        assert isinstance(array.report, CopyReport), "a copy reports"
        return array.report
