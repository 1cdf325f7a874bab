"""``outcore advise``."""

import click

from outcore.array.advise import advise
from outcore.cli.copy_options import extents
from outcore.cli.verbs import Verb, end


@click.command(
    "advise",
    cls=Verb,
    short_help="Choose the layout of an array for the reads of a program.",
    example='outcore advise 512,512,512 --access planes:0=3 --access "rows in order"',
    groups={"Array and reads": ("dtype", "access", "servers")},
)
@click.argument("shape", metavar="N,...", callback=extents)
@click.option("--dtype", default="f8", show_default=True, help="Type of the elements.")
@click.option(
    "--access", multiple=True, required=True, metavar="WORD[=WEIGHT]",
    help="planes:0, columns, boxes:64x64x64 and others, as in docs/distributions.md.",
)  # fmt: skip
@click.option("--servers", type=int, help="I/O servers of the pool.  [default: a plain path]")
@click.option("--memory", help="Memory of the program's stream.  [default: 256 MiB]")
def command(
    shape: tuple[int, ...],
    dtype: str,
    access: tuple[str, ...],
    servers: int | None,
    memory: str | None,
) -> None:
    """Choose chunks and orders for the reads of a program, and predict these reads.

    The result has the bytes read for each byte wanted, the requests, and the balance of the
    servers, for the best layout and for the default one.
    """
    pairs = [text.partition("=") for text in access]
    advice = advise(
        shape,
        dtype,
        access={word: _weight(weight) if is_given else 1 for word, is_given, weight in pairs},
        memory=memory,
        servers=servers,
    )
    end(advice.to_dict(), str(advice))


def _weight(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise click.BadParameter(f"the weight of a word is a number, have {text!r}") from None
