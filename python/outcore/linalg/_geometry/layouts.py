"""The layout on disk of the matrix of a plan, or of its factors."""

from collections.abc import Sequence

from outcore._util.counts import is_count
from outcore.errors import InvalidError
from outcore.layout.zarr_format import default_chunks
from outcore.linalg._geometry.segments import Layout
from outcore.linalg._tiles.cost import Problem

LAYOUT_OPTIONS = ("order", "chunks")
"""Options for the layout; the default is default chunks."""


def layout_of(
    problem: Problem, shape: tuple[int, int] | None = None, order: str = "F", of: str = ""
) -> Layout:
    """Return the layout of a matrix, from the options of `LAYOUT_OPTIONS` or the given order.

    The suffix `of` marks options of a single operand, which override the general ones.

    Raises
    ------
    InvalidError
        If the options have no valid layout.
    """
    order = problem.option(f"order{of}", problem.option("order", order))
    chunks = problem.option(f"chunks{of}", problem.option("chunks", None))
    if order not in ("C", "F"):
        raise InvalidError(f"order must be 'C' or 'F', have {order!r}")
    shape = shape or (problem.m or problem.n, problem.n)
    found = chunks or default_chunks(shape, problem.on_disk.itemsize, order)
    found = tuple(found) if isinstance(found, Sequence) else (found,)
    if len(found) != 2 or not all(map(is_count, found)):
        raise InvalidError(f"chunks must be rows and columns, such as (512, 512), have {chunks!r}")
    return Layout(order, found, problem.stored)


def tile_of(problem: Problem) -> tuple[int, int] | None:
    """Return the tile of existing factors, from the option ``tile``; `None` without it.

    Raises
    ------
    InvalidError
        If the option is not a valid tile.
    """
    given = problem.option("tile", None)
    if given is None:
        return None
    tile = tuple(given) if isinstance(given, Sequence) else (given,)
    if len(tile) != 2 or not all(map(is_count, tile)):
        raise InvalidError(
            f"need tile= as rows and columns of at least 1, such as (512, 512), have {given!r}; "
            "give the .tile of the factors, or none for those that this budget makes"
        )
    return int(tile[0]), int(tile[1])
