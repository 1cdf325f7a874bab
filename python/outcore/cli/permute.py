"""``outcore permute``."""

from dataclasses import asdict
from typing import Any

import click

from outcore._util.printable import as_line
from outcore.cli.copy_options import extents, name_or_url
from outcore.cli.places import key_option, overwrite_option, plan_option
from outcore.cli.verbs import Verb, end, wants_json
from outcore.permutations.moves import KINDS
from outcore.permutations.permute import permute
from outcore.planning.permute_plan import plan_permute
from outcore.report.permute_report import PermuteReport


class _Integer(click.ParamType):  # type: ignore[type-arg]  # new in click 8.4
    """An integer, also with a prefix of its base: 0x, 0o or 0b."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse the text."""
        try:
            return int(value, 0) if isinstance(value, str) else int(value)
        except ValueError:
            self.fail(f"need an integer such as 5, 0x5 or 0b101, have {value!r}; pass one")


@click.command(
    "permute",
    cls=Verb,
    short_help="Copy an array with its elements in another order.",
    example="outcore permute slices columns --kind transpose --axes 1,2,0 --memory 4GB",
    groups={
        "Order": ("kind", "axes", "turns", "complement"),
        "Target": ("chunks", "order", "chunk_order", "if_exists"),
        "Output": ("is_plan",),
    },
)
@click.argument("source", metavar="SRC", callback=name_or_url)
@click.argument("target", metavar="DST", callback=name_or_url)
@click.option("--kind", type=click.Choice(KINDS), required=True, help="The new order.")
@click.option(
    "--axes", metavar="N,...", callback=extents,
    help="For transpose, the old dimension of each new one; for reverse, those to reverse; for "
    "rotate, the plane.",
)  # fmt: skip
@click.option("--turns", default=1, show_default=True, help="Quarter turns of rotate.")
@click.option(
    "--complement", default=0, show_default=True, type=_Integer(),
    help="Bits of the new index to invert, such as 5, 0x5 or 0b101.",
)  # fmt: skip
@click.option("--chunks", metavar="N,...", callback=extents, help="Shape of a chunk.")
@click.option("--order", type=click.Choice(["C", "F"]), help="Order of the elements in a chunk.")
@click.option("--chunk-order", metavar="NAME", help="Order of the chunks, as in create_array.")
@click.option("--memory", help="Budget, such as 1GB.  [default: half of the available memory]")
@plan_option
@overwrite_option(help="Replace an existing DST.")
@key_option
def command(source: str, target: str, is_plan: bool, if_exists: Any, **options: Any) -> None:
    """Copy an array from SRC to DST with its elements in another order.

    DST is an array of outcore. transpose, reverse and rotate are those of numpy.transpose, flip and
    rot90, for arrays of any shape. The other kinds permute 2, 4, 8, ... elements by the bits of
    their indices. If the command is stopped, run it again to resume. Arrays may be in pools, by
    their URLs.
    """
    if is_plan:
        plan = plan_permute(source=source, path=target, **options)
        end(plan.to_dict(), str(plan))
        plan.validate(if_exists)
        return
    with permute(source, target, if_exists=if_exists, progress=not wants_json(), **options) as made:
        assert isinstance(made.report, PermuteReport), "a permutation reports"
        end(asdict(made.report), as_line(str(made.report)))
