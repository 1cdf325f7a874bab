"""The diagonal blocks of a matrix, factored once, in memory or in a temporary file.

Cettei, Ligon & Ross (1997), section 4, keep the inverses of the diagonal blocks in a temporary file
if they do not fit in memory. This module stores their LU factors, which take the same space and
lose fewer digits.
"""

import contextlib
import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from outcore._core import Ticket
from outcore._util.streams import WriteBehind, wait
from outcore.array.array import Array
from outcore.blas.lapack import kernels
from outcore.errors import SingularMatrixError
from outcore.layout.zarr_format import MAX_TILE_BYTES, Metadata
from outcore.linalg._output.temporary_array import temporary_array
from outcore.linalg._tiles.cost import flop_weight
from outcore.linalg._tiles.grains import pages
from outcore.linalg._tiles.matrix import Matrix
from outcore.linalg.iterative.strips.pinned import PinnedTiles
from outcore.linalg.iterative.strips.strips import Strips, Tile
from outcore.report.longcall import LongCall
from outcore.storage.volumes import Place

FILE_BUFFERS = 2
"""Blocks in memory if they are stored in a file: one in use, one in flight."""

CHUNK_BYTES = MAX_TILE_BYTES
"""Most bytes of a chunk of the file. Larger blocks take several chunks."""


@dataclass(frozen=True)
class BlocksLayout:
    """Memory and file layout of the factored diagonal blocks of a matrix."""

    strips: Strips
    dtype: np.dtype[Any]
    is_in_file: bool

    @property
    def rows(self) -> int:
        """Order of the largest block."""
        return min(self.strips.block, self.strips.n)

    @property
    def slot_bytes(self) -> int:
        """Bytes of a block, rounded up to whole chunks of the file."""
        return self._chunks * self._chunk_bytes

    @property
    def _chunks(self) -> int:
        return -(-(self.rows**2 * self.dtype.itemsize) // CHUNK_BYTES)

    @property
    def _chunk_bytes(self) -> int:
        return pages(-(-(self.rows**2 * self.dtype.itemsize) // self._chunks))

    @property
    def file_bytes(self) -> int:
        """Bytes of the blocks in the temporary file. A sweep reads each of them once."""
        return self.strips.count * self.slot_bytes if self.is_in_file else 0

    @property
    def memory_bytes(self) -> int:
        """Bytes of memory for the blocks."""
        slots = FILE_BUFFERS if self.is_in_file else self.strips.count
        return slots * self.slot_bytes + pages(4 * self.strips.n)

    def metadata(self) -> Metadata:
        """Metadata of the temporary file: a block is a row, of one chunk or more."""
        elements = [
            nbytes // self.dtype.itemsize for nbytes in (self.slot_bytes, self._chunk_bytes)
        ]
        return Metadata((self.strips.count, elements[0]), self.dtype, (1, elements[1]))


@contextmanager
def diagonal_blocks(
    layout: BlocksLayout, call: LongCall, where: Place
) -> Iterator["DiagonalBlocks"]:
    """Provide space for the blocks: in memory, or in a temporary array at `where`."""
    with contextlib.ExitStack() as held:
        array = None
        if layout.is_in_file:
            array = held.enter_context(temporary_array(where, layout.metadata()))
        yield DiagonalBlocks(layout, call, array)


class DiagonalBlocks:
    """Factored diagonal blocks: call `factor` first, then `solve` as often as needed.

    ``flops`` counts the real operations.
    """

    def __init__(self, layout: BlocksLayout, call: LongCall, array: Array | None) -> None:
        self._layout, self._strips = layout, layout.strips
        self._kernels = kernels(layout.dtype)
        self._call = call
        self.flops = 0.0
        self._slots = FILE_BUFFERS if array else self._strips.count
        self._memory: list[npt.NDArray[Any]] = []
        self._file = array and array.open_file(
            call.arena, 1, writable=True, trace=call.trace, trace_number=1
        )
        # For a file: requested blocks, blocks in flight, and free slots.
        self._asked: deque[int] = deque()
        self._coming: deque[tuple[int, Ticket]] = deque()
        self._free: deque[int] = deque(range(FILE_BUFFERS))
        pivots = call.arena.allocate(4 * self._strips.n)
        self._piv: npt.NDArray[np.int32] = np.ndarray(
            (self._strips.n,), np.int32, memoryview(pivots)
        )

    def factor(self, tiles: PinnedTiles) -> None:
        """Read the blocks and factor them.

        Parameters
        ----------
        tiles
            Tiles of the matrix.

        Raises
        ------
        SingularMatrixError
            If a block is exactly singular.
        """
        elements = self._layout.slot_bytes // self._layout.dtype.itemsize
        for _ in range(self._slots):
            slot = self._call.arena.allocate(self._layout.slot_bytes)
            self._memory.append(np.ndarray((elements,), self._layout.dtype, memoryview(slot)))
        wanted = [[tile for tile in strip if tile.inside] for strip in self._strips.tiles]
        arriving = tiles.go(tile for strip in wanted for tile in strip)
        with contextlib.ExitStack() as held:
            writer = self._file and held.enter_context(
                WriteBehind(self._file, most=FILE_BUFFERS - 1, trace=self._call.trace)
            )
            for number, strip in enumerate(wanted):
                slot_number = number % self._slots
                D = self._block(number, self._memory[slot_number])
                for tile, data in itertools.islice(arriving, len(strip)):
                    self._copy(number, tile, data, D)
                self._factor(number, D)
                if writer:
                    writer.write(
                        (slice(number, number + 1), slice(0, elements)),
                        self._memory[slot_number].reshape(1, -1),
                    )
            # The generator records the time of a tile when the next one is requested.
            next(arriving, None)

    def _copy(self, number: int, tile: Tile, data: Matrix, D: Matrix) -> None:
        """Copy the part of a block that a tile contains."""
        if tile.inside:
            rows, cols = tile.inside
            o = self._strips.extent(number).start
            target = D[rows.start - o : rows.stop - o, cols.start - o : cols.stop - o]
            target[...] = tile.part(data, tile.inside)

    def _factor(self, number: int, D: Matrix) -> None:
        here = self._strips.extent(number)
        self.flops += flop_weight(D.dtype) * 2 / 3 * len(D) ** 3
        info = self._kernels.getrf(D, self._piv[here])
        if info:
            raise SingularMatrixError(
                f"the diagonal block of rows {here.start} to {here.stop - 1} is singular: diagonal "
                f"number {info} of its U is exactly zero; choose another block=, or use "
                "oc.linalg.solve",
                here.start + info,
            )

    def begin(self, numbers: Iterable[int]) -> None:
        """Announce the blocks that `solve` will need next, in order."""
        if self._file:
            self._asked.extend(numbers)
            self._read_ahead()

    def solve(self, number: int, Z: Matrix) -> None:
        """Z <- A_ii⁻¹ Z, for the next of the announced blocks."""
        slot_number = self._next(number)
        LU = self._block(number, self._memory[slot_number])
        self.flops += flop_weight(LU.dtype) * 2.0 * len(LU) ** 2 * Z.shape[1]
        self._kernels.laswp(Z, self._piv[self._strips.extent(number)], 0, len(Z))
        self._kernels.trsm(LU, Z, lower=True, unit=True)
        self._kernels.trsm(LU, Z, lower=False, unit=False)
        if self._file:
            self._free.append(slot_number)
            self._read_ahead()

    def solve_all(self, Z: Matrix) -> None:
        """Z <- D⁻¹ Z, with D all the diagonal blocks."""
        numbers = range(self._strips.count)
        self.begin(numbers)
        for number in numbers:
            self.solve(number, Z[self._strips.extent(number)])

    def bytes_moved(self) -> tuple[int, int]:
        """Bytes read from the temporary file, and written to it."""
        return self._file.counters()[:2] if self._file else (0, 0)

    def _next(self, number: int) -> int:
        """Wait for a block; return the number of its slot."""
        if not self._file:
            return number
        slot_number, ticket = self._coming.popleft()
        wait(ticket, self._call.trace)
        return slot_number

    def _read_ahead(self) -> None:
        """Start to read as many blocks as there are free slots."""
        assert self._file
        while self._asked and self._free:
            number, slot_number = self._asked.popleft(), self._free.popleft()
            slot = self._memory[slot_number].reshape(1, -1)
            self._coming.append((slot_number, self._file.submit_read([number, 0], [1, 1], slot)))

    def _block(self, number: int, slot: npt.NDArray[Any]) -> Matrix:
        here = self._strips.extent(number)
        rows = here.stop - here.start
        return slot[: rows * rows].reshape(rows, rows, order="F")
