"""A temporary copy of a matrix in single precision, which halves the bytes."""

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from outcore._core import ArrayFile
from outcore._util.streams import WriteBehind
from outcore.errors import InvalidError
from outcore.layout.zarr_format import Metadata
from outcore.linalg._output.temporary_array import temporary_array
from outcore.linalg._tiles.matrix import Matrix
from outcore.linalg.iterative.plan import IterativeGeometry, MatrixLayout
from outcore.linalg.iterative.strips.pinned import PinnedTiles
from outcore.linalg.iterative.strips.strips import Tile
from outcore.report.longcall import LongCall
from outcore.storage.volumes import Place

_BUFFERS = 3


@contextmanager
def narrow_copy(
    geometry: IterativeGeometry, source: PinnedTiles, call: LongCall, where: Place
) -> Iterator[ArrayFile]:
    """Copy the part of a matrix that a method reads, for the duration of the method.

    Parameters
    ----------
    geometry
        The geometry, whose layout is that of the copy.
    source
        Tiles of the matrix.
    where
        Place of the copy.

    Raises
    ------
    InvalidError
        If an element is too large for single precision, or all elements of a row are too small.
    """
    with temporary_array(where, copy_metadata(geometry)) as array:
        file = array.open_file(call.arena, 1, writable=True, trace=call.trace, trace_number=2)
        _copy(geometry, source, call, file)
        with contextlib.closing(array):
            yield file


def _copy(
    geometry: IterativeGeometry, source: PinnedTiles, call: LongCall, file: ArrayFile
) -> None:
    """Write all tiles, and free the memory for that at the end."""
    layout, first = geometry.layout, geometry.first_line
    elements = layout.slot_bytes // layout.stored.itemsize
    rows = _Rows(layout.n, is_half=geometry.demands.is_half)
    with WriteBehind(file, most=_BUFFERS - 1, trace=call.trace) as writer:
        slots = [
            np.ndarray(
                (elements,), layout.stored, memoryview(call.arena.allocate(layout.slot_bytes))
            )
            for _ in range(_BUFFERS)
        ]
        for slot in slots:
            slot[:] = 0  # chunks are written whole, beyond the edge of the matrix
        for number, (tile, data) in enumerate(source.go(geometry.tiles_of("all"))):
            slot = slots[number % _BUFFERS]
            chunk = _as_chunk(slot, layout)
            rows.copy(tile, data, chunk[: data.shape[0], : data.shape[1]])
            line, at = tile.chunk
            box = tuple(
                slice(number * size, (number + 1) * size)
                for number, size in zip((line - first, at), layout.chunks, strict=True)
            )
            writer.write(box, chunk)
    rows.check(layout.stored)


class _Rows:
    """Whether rows keep a non-zero element in single precision."""

    def __init__(self, n: int, *, is_half: bool) -> None:
        self._is_left, self._is_rounded = np.zeros(n, bool), np.zeros(n, bool)
        self._is_half = is_half

    def copy(self, tile: Tile, data: Matrix, target: Matrix) -> None:
        """Copy a tile."""
        underflows: list[str] = []
        here = tile.rows
        with np.errstate(over="raise", under="call", call=lambda kind, _: underflows.append(kind)):
            try:
                np.copyto(target, data, "same_kind")
            except FloatingPointError:
                raise InvalidError(
                    f"A has an element in rows {here.start} to {here.stop - 1} that is too large "
                    f"for {target.dtype}; leave out storage="
                ) from None
        if underflows:
            self._is_rounded[here] |= data.any(axis=1)
        if not self._is_left[here].all():
            self._is_left[here] |= target.any(axis=1)
        if self._is_half and not self._is_left[tile.cols].all():
            self._is_left[tile.cols] |= target.any(axis=0)

    def check(self, stored: np.dtype[Any]) -> None:
        """Raise for rows that have become zero, since A would be singular."""
        lost = np.flatnonzero(self._is_rounded & ~self._is_left)
        if len(lost):
            raise InvalidError(
                f"all elements of row {lost[0]} of A are too small for {stored}, in which they are "
                "zero; leave out storage="
            )


def _as_chunk(slot: npt.NDArray[Any], layout: MatrixLayout) -> Matrix:
    rows, cols = layout.chunks
    elements = slot[: rows * cols]
    return elements.reshape(cols, rows).T if layout.order == "F" else elements.reshape(rows, cols)


def copy_metadata(geometry: IterativeGeometry) -> Metadata:
    """Return the metadata of the copy: those of the matrix, rounded up to whole chunks.

    With several processes, each copies its own rows. A process without rows has space for one line
    of chunks.
    """
    layout, strips = geometry.layout, geometry.strips
    own = strips.lines.stop - strips.lines.start if strips.processes > 1 else layout.n
    extents = max(own, 1), layout.n
    shape = tuple(-(-n // size) * size for n, size in zip(extents, layout.chunks, strict=True))
    order = "column-major" if layout.order == "F" else "row-major"
    return Metadata(shape, layout.stored, layout.chunks, layout.order, order)
