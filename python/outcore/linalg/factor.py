"""LU factors on disk.

A factor is a Zarr group: ``lu``, the packed factors in tiles, and ``piv``, the row swaps. The
factors are in *LINPACK order*: the L part of a panel carries the row swaps of its own and earlier
panels, never of later ones. ``docs/format.md`` has the bytes.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from outcore._core import Arena, ArrayFile, Grid, Trace
from outcore.array import open_array
from outcore.errors import CorruptError, IncompleteError, NotFoundError
from outcore.linalg.lu_plan import TILE_BOUNCE_BYTES
from outcore.report import Report
from outcore.volumes import PathLike, Place, place
from outcore.zarr_format import SLOT_ALIGN_BYTES, Metadata, group_json


@dataclass(frozen=True)
class LUFactor:
    """Factors P A = L U on disk, as `lu_factor` and `open_factor` return them.

    Attributes
    ----------
    path
        Directory of the factors.
    n, dtype
        Order and element type.
    tile
        Rows and columns of a tile.
    piv
        (n,) int32: row i was swapped with row ``piv[i]``, as `scipy.linalg.lu_factor` has it.
    norm1
        ‖A‖₁; for complex types a lower bound within √2, so that errors relative to it are not
        understated.
    growth
        Largest element of U over the largest of A (for complex types, bounds within √2 of them).
    info
        LAPACK's: 0, or the first exactly zero pivot, counted from 1.
    source
        Path of the matrix.
    places
        Place of each panel on disk.
    report
        What the factorization did; `None` for one opened from disk.
    """

    path: Path
    n: int
    dtype: np.dtype[Any]
    tile: tuple[int, int]
    piv: npt.NDArray[np.int32]
    norm1: float
    growth: float
    info: int
    source: str
    places: tuple[int, ...]
    report: Report | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """(n, n)."""
        return (self.n, self.n)

    def panel_piv(self, panel: int) -> npt.NDArray[np.int32]:
        """Row swaps of one panel, counted from its first row."""
        first = panel * self.tile[1]
        return self.piv[first : first + self.tile[1]] - np.int32(first)

    def open_tiles(self, arena: Arena, trace: Trace | None = None) -> ArrayFile:
        """Open the file of the factors, as whole tiles."""
        grid = tile_grid(self.n, self.dtype, self.tile, self.places)
        return open_tiles(place(self.path), grid, arena, trace)


def tile_metadata(n: int, dtype: np.dtype[Any], tile: tuple[int, int]) -> Metadata:
    """Describe the array ``lu`` of a factor."""
    return Metadata((n, n), dtype, tile, order="F", chunk_order="column-major")


def tile_grid(n: int, dtype: np.dtype[Any], tile: tuple[int, int], places: Sequence[int]) -> Grid:
    """Lay out whole tiles: the matrix rounded up to tiles, each panel at its place on disk."""
    rows, columns = tile
    shape = [-(-n // rows) * rows, len(places) * columns]
    in_order = list(places) == list(range(len(places)))
    return Grid(
        shape, list(tile), dtype.itemsize, "F", "column-major", SLOT_ALIGN_BYTES,
        None if in_order else list(places),
    )  # fmt: skip


def open_tiles(
    where: Place,
    grid: Grid,
    arena: Arena,
    trace: Trace | None = None,
    *,
    writable: bool = False,
    bounce_bytes: int = TILE_BOUNCE_BYTES,
) -> ArrayFile:
    """Open the array ``lu`` of a factor as a file of whole tiles, padding included.

    Tiles are aligned as they are: bounce buffers are for what else is moved, and for disks that
    want more than a page.
    """
    return ArrayFile(
        where.volume, where.inside("lu"), grid, writable, arena, bounce_bytes, trace, 1
    )


TEMPORARY = "outcore.temporary"
"""A file in the directory of factors that `solve` made for itself."""

_INCOMPLETE = frozenset({"n", "dtype", "tile", "source"})
_COMPLETE = _INCOMPLETE | {"places", "norm1", "growth", "info", "generation", "modified_ns"}


def write_group(where: Place, state: str, values: dict[str, Any]) -> None:
    """Write the group's ``zarr.json``."""
    document = group_json({"outcore": {"kind": "lu", "state": state, **values}})
    where.volume.replace_small(where.inside("zarr.json"), document)


def read_group(where: Place) -> dict[str, Any]:
    """Read the attributes of a factor's group.

    Raises
    ------
    NotFoundError
        If there is no factor.
    CorruptError
        If its metadata cannot be read.
    """
    if not where.exists():
        raise NotFoundError(f"there is no factor at {where.path}; make one with lu_factor")
    try:
        own = json.loads(where.volume.read_small(where.inside("zarr.json")))["attributes"][
            "outcore"
        ]
        if own["kind"] != "lu":
            raise KeyError("kind")
        needed = _COMPLETE if own["state"] == "complete" else _INCOMPLETE
        if missing := needed - own.keys():
            raise KeyError(*missing)
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptError(
            f"{where.path}/zarr.json does not describe LU factors ({error!r}); "
            "check the path, or factor anew"
        ) from error
    return dict(own)


def open_factor(path: PathLike) -> LUFactor:
    """Open LU factors that `lu_factor` left on disk.

    Raises
    ------
    NotFoundError, CorruptError, TruncatedError
        If there are none, or they are damaged.
    IncompleteError
        If the factorization was stopped; calling `lu_factor` again finishes it.
    """
    where = place(path)
    own = read_group(where)
    if own["state"] != "complete":
        raise IncompleteError(
            f"the factorization in {where.path} was stopped; call lu_factor on {own['source']} "
            "again to finish it"
        )
    with open_array(where.path / "piv") as piv:
        swaps = piv[...]
    dtype, tile = np.dtype(own["dtype"]), (int(own["tile"][0]), int(own["tile"][1]))
    factor = LUFactor(
        path=where.path,
        n=own["n"],
        dtype=dtype,
        tile=tile,
        piv=swaps,
        norm1=own["norm1"],
        growth=own["growth"],
        info=own["info"],
        source=own["source"],
        places=tuple(own["places"]),
    )
    if swaps.shape != (factor.n,):
        raise CorruptError(f"{where.path}/piv is not of order {factor.n}; factor anew")
    factor.open_tiles(Arena(1 << 20))
    return factor
