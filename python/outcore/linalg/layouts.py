"""How the matrix of a plan lies on disk, or its factors."""

from collections.abc import Sequence

from outcore.counts import is_count
from outcore.errors import InvalidError
from outcore.linalg.cost import Problem
from outcore.linalg.lu.segments import Layout
from outcore.zarr_format import default_chunks

LAYOUT_OPTIONS = ("order", "chunks")
"""Options that say how it does; by default with default chunks."""


def layout_of(
    problem: Problem, shape: tuple[int, int] | None = None, order: str = "F", of: str = ""
) -> Layout:
    """Give the layout of a matrix, by the options of `LAYOUT_OPTIONS`; or else of this order.

    `of` is added to the names of options that are of one operand only, and go before the others.

    Raises
    ------
    InvalidError
        If there is no such layout.
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
    """Give the tiles of factors that are there already, by the option ``tile``; `None` without it.

    Raises
    ------
    InvalidError
        If there are no such tiles.
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
