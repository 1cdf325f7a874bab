"""The superblocks of an array on disk, and the method `Array.blocks` that opens them."""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from outcore._core import Arena, ArrayFile, Ticket
from outcore._util import budget
from outcore.array_files.stored_array import StoredArray, check_open
from outcore.blocks.blocks import Blocks
from outcore.blocks.cache import Claim, check_buffers, check_memory, raise_first
from outcore.errors import InvalidError, OutcoreError, ReadOnlyError
from outcore.layout.block_grid import Arrangement, BlockGrid, Coordinates, Memory

_PIECE_BYTES = 4 << 20
"""An array file moves at most this many bytes in one transfer."""


class _Tickets:
    """The transfers of one request, as one claim."""

    def __init__(self, tickets: Iterable[Ticket]) -> None:
        self._tickets = list(tickets)

    def done(self) -> bool:
        """Whether all transfers are done."""
        return all(ticket.done() for ticket in self._tickets)

    def wait(self) -> None:
        """Wait for all transfers, then raise the first error."""
        errors = []
        for ticket in self._tickets:
            try:
                ticket.wait()
            except OutcoreError as error:
                errors.append(error)
        raise_first(errors)


class ArrayStore:
    """The superblocks of an array's shard files."""

    def __init__(self, file: ArrayFile, arrangement: Arrangement) -> None:
        self._file = file
        self._arrangement = arrangement
        self._steps = [1] * len(arrangement.grid.shape)

    @property
    def arrangement(self) -> Arrangement:
        """Positions of blocks in the array and in a buffer."""
        return self._arrangement

    def read(self, superblock: Coordinates, memory: Memory) -> Claim:
        """Start reading a superblock."""
        parts = self._arrangement.parts(superblock, memory)
        return _Tickets(self._file.submit_read(at, self._steps, part) for at, part in parts)

    def write(self, superblock: Coordinates, memory: Memory, blocks: set[Coordinates]) -> Claim:
        """Start writing blocks of a superblock."""
        parts = self._arrangement.parts(superblock, memory, blocks)
        return _Tickets(self._file.submit_write(at, self._steps, part) for at, part in parts)

    def sync(self) -> Claim:
        """Start making all earlier writes durable."""
        return self._file.submit_sync()

    def close(self) -> None:
        """Do nothing: the files close with their last reference."""


def blocks(
    self: StoredArray,
    block: Sequence[int] | int | None = None,
    superblock: Sequence[int] | int | None = None,
    *,
    buffers: int = 2,
    pin: Any = None,
    memory: int | str | None = None,
    mode: Literal["r", "r+"] | None = None,
    read_ahead: bool = True,
) -> Blocks:
    """Read and write blocks by their coordinates: ``B = A.blocks(); B[i, j]``.

    Parameters
    ----------
    block
        Elements of a block along each dimension; by default those of a chunk, which is fastest.
    superblock
        Blocks of a superblock along each dimension, by default 1. One request reads a whole
        superblock.
    buffers
        Number of superblocks to keep. The least recently used one is evicted first. With one buffer
        there is no read-ahead. To write or hold views during read-ahead, use three.
    pin
        Superblocks that are never evicted once they are read: see `Blocks.pin`.
    memory
        Budget in bytes of all buffers; by default the size of the buffers, plus up to 16 MiB for
        transfers that are not aligned on disk.
    mode
        ``"r"`` or ``"r+"``; by default as the array was opened.
    read_ahead
        Whether to read the next superblock in the direction of travel before it is requested.

    Returns
    -------
    Blocks
        An interface with its own cache. It does not see other writes to superblocks in the cache,
        and others do not see its pending writes before `Blocks.flush`.

    Raises
    ------
    InvalidError, ReadOnlyError
        For impossible sizes; for ``mode="r+"`` on an array that is open for reading.
    BudgetError
        If `memory` does not hold the buffers, or there are more pins than buffers.
    """
    check_open(self)
    chosen = self.mode if mode is None else mode
    if chosen not in ("r", "r+"):
        raise InvalidError(f"mode must be 'r' or 'r+', have {mode!r}")
    if chosen == "r+" and self.mode != "r+":
        raise ReadOnlyError(f'{self.path} is open for reading; open it with mode="r+"')
    grid = BlockGrid.of(self.shape, self.chunks if block is None else block, superblock)
    # A block that ends with the array has whole chunks too.
    of_whole_chunks = all(
        b % c == 0 or b == n for b, c, n in zip(grid.block, self.chunks, self.shape, strict=True)
    )
    order: Literal["C", "F"] = "F" if self.order == "F" else "C"
    arrangement = Arrangement(grid, self.dtype, order, by_block=of_whole_chunks)
    buffers = check_buffers(buffers, grid)
    # Four transfers in flight, each rounded to whole pages at both ends.
    bounce_bytes = 4 * (min(self.metadata.grid().slot_bytes, _PIECE_BYTES) + 8192)
    memory_bytes = check_memory(
        memory,
        buffers,
        arrangement.buffer_bytes,
        beside=bounce_bytes if memory is None else budget.LEAST_BOUNCE_BYTES,
    )
    arena = Arena(memory_bytes)
    left = memory_bytes - buffers * arrangement.buffer_bytes
    file = self.open_file(arena, min(left, bounce_bytes), writable=chosen == "r+")
    return Blocks(
        ArrayStore(file, arrangement),
        arena,
        name=str(self.path),
        buffers=buffers,
        pin=pin,
        writable=chosen == "r+",
        read_ahead=read_ahead,
    )
