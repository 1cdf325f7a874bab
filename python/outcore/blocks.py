"""The block interface: blocks of an array read and written by their coordinates.

Source: Cettei, Ligon & Ross 1997, section 3 (the multi-dimensional block interface).
"""

import itertools
import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from outcore._core import Arena
from outcore.block_cache import BlockStats, Store, SuperblockCache
from outcore.block_grid import Coordinates
from outcore.elements import elements
from outcore.errors import (
    ClosedError,
    ForkedError,
    InvalidError,
    OutcoreError,
    ReadOnlyError,
)
from outcore.selection import select


class Blocks:
    """Blocks of an array by their coordinates, as `Array.blocks` returns them.

    ``B[i, j]`` reads a block into a new NumPy array, and ``B[i, j] = data`` writes one. The first
    access to a block reads its whole superblock, by one request, into one of a few buffers; the
    next superblock in the direction of travel is read ahead; what was written goes to the disk
    when its buffer is needed, and at `flush` and `close`; also, with a `ResourceWarning`, where the
    interface is dropped and was not closed. Several threads may use one interface,
    in turn.

    In the words of Cettei et al. 1997, section 3: the ``block`` sizes are ne_i, the block
    ``counts`` nb_i, the ``superblock`` factors bf_i.
    """

    def __init__(
        self,
        store: Store,
        arena: Arena,
        *,
        name: str,
        buffers: int,
        pin: Any,
        writable: bool,
        read_ahead: bool,
    ) -> None:
        self._name = name
        self._store: Store | None = store
        self._arrangement = store.arrangement
        self._grid = store.arrangement.grid
        self._writable = writable
        self._arena = arena
        self._cache = SuperblockCache(store, arena, buffers, read_ahead=read_ahead)
        self._lock = threading.RLock()
        self._process = os.getpid()
        if pin is not None:
            self.pin(pin)

    def __repr__(self) -> str:
        return (
            f"<outcore.Blocks of {self._name}: {self.counts} blocks of {self.block} {self.dtype}, "
            f"superblocks of {self.superblock}>"
        )

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the elements."""
        return self._arrangement.dtype

    @property
    def shape(self) -> Coordinates:
        """Elements along each dimension."""
        return self._grid.shape

    @property
    def block(self) -> Coordinates:
        """Elements of a block along each dimension; blocks at the end may have fewer."""
        return self._grid.block

    @property
    def counts(self) -> Coordinates:
        """Blocks along each dimension."""
        return self._grid.counts

    @property
    def superblock(self) -> Coordinates:
        """Blocks of a superblock along each dimension."""
        return self._grid.superblock

    @property
    def superblocks(self) -> Coordinates:
        """Superblocks along each dimension."""
        return self._grid.superblocks

    @property
    def pinned(self) -> frozenset[Coordinates]:
        """Superblocks that are pinned."""
        return self._cache.pinned

    @property
    def stats(self) -> BlockStats:
        """What was read, written and found so far (a copy)."""
        with self._lock:
            return replace(self._cache.stats)

    @property
    def memory_bytes(self) -> int:
        """Memory that the buffers may take, in bytes."""
        return self._arena.budget_bytes

    def __getitem__(self, at: Any) -> npt.NDArray[Any]:
        return self.read(at)

    def __setitem__(self, at: Any, data: npt.ArrayLike) -> None:
        self.write(at, data)

    def read(self, *at: Any, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Read a block into memory of the user: ``B.read(i, j)``, the same as ``B[i, j]``.

        Parameters
        ----------
        at
            Coordinates of the block, an integer for each dimension; negative ones count from the
            end.
        out
            Array of the block's shape and type to read into; by default a new one.

        Returns
        -------
        ndarray
            The elements, a copy.

        Raises
        ------
        IndexError
            If there is no such block.
        InvalidError
            If `at` is not the coordinates of one block, or `out` does not fit.
        BudgetError
            If all buffers are pinned or viewed.
        DiskError, DiskFullError, TruncatedError
            If reading fails, or a write-back failed since the last call. Nothing is lost by the
            latter: see `flush`.
        """
        number = self._number(at)
        if out is not None:
            self._check_out(out, number)
        with self._using() as cache:
            block = cache.block(number)
            if out is None:
                return block.copy(order="K")
            np.copyto(out, block)
            return out

    def view(self, *at: Any) -> npt.NDArray[Any]:
        """Return a block where it is, in a buffer, for reading only: ``B.view(i, j)``.

        Nothing is copied. The buffer is not used for anything else while the view, or a view of
        it, is alive: let go of it, or there will be no buffer for other superblocks. It shows what
        is written to the block through this interface. Arguments and errors are those of `read`.
        """
        number = self._number(at)
        with self._using() as cache:
            return cache.lend(number)

    def write(self, at: Any, data: npt.ArrayLike) -> None:
        """Write a block: ``B.write((i, j), data)``, the same as ``B[i, j] = data``.

        The elements are in a buffer when this returns, and on disk after `flush` or `close`, or
        when the buffer is needed. Only blocks that were written are written back; the other
        blocks of the superblock are neither read nor touched.

        Parameters
        ----------
        at
            Coordinates of the block.
        data
            Its elements: what NumPy can broadcast to the block's shape.

        Raises
        ------
        ReadOnlyError
            If the interface was opened for reading.
        IndexError, InvalidError, BudgetError, DiskError, DiskFullError
            As from `read`; `InvalidError` also if `data` does not fit.
        """
        number = self._number((at,))
        if not self._writable:
            raise ReadOnlyError(f'{self._name} is open for reading; open it with mode="r+"')
        block = elements(data, self.dtype, self._grid.block_shape(number))
        with self._using() as cache:
            cache.store_block(number, block)

    def pin(self, superblocks: Any) -> None:
        """Keep superblocks in memory once they are there, whatever else is read.

        Parameters
        ----------
        superblocks
            An index into the array of superblocks, as for NumPy: ``(0, 0)``, ``slice(0, 3)``,
            ``np.s_[0:2, :]``; or a list or set of such. They are coordinates of superblocks, not
            of blocks.

        Raises
        ------
        BudgetError
            If more superblocks would be pinned than there are buffers. Then nothing is changed.
        IndexError, InvalidError
            If there is no such superblock.
        """
        with self._using() as cache:
            cache.pin(self._chosen(superblocks))

    def unpin(self, superblocks: Any = ...) -> None:
        """Let superblocks be evicted again; by default all. Takes what `pin` does."""
        with self._using() as cache:
            cache.unpin(self._chosen(superblocks))

    def flush(self) -> None:
        """Return once everything written would survive power loss.

        Raises
        ------
        DiskError, DiskFullError
            If writing fails. What could not be written stays in its buffer: make room, then flush
            again.
        """
        with self._using() as cache:
            cache.flush()
            if self._writable:
                self._open().sync().wait()

    def close(self) -> None:
        """Write what is not on disk yet and let go of the buffers. Closing twice is harmless.

        Raises
        ------
        DiskError, DiskFullError
            If writing fails. The interface stays open then: make room, then close again.
        """
        if self._store is None:
            return
        with self._using() as cache:
            cache.flush()
            self._let_go()

    def __enter__(self) -> "Blocks":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except OutcoreError:
            # What went wrong first is what the user must see.
            if kind is None:
                raise

    def __del__(self) -> None:
        """Write back what was not, as Python's files do, and warn."""
        # A fork's copy has no threads to write with; what could not be opened has nothing to write.
        if vars(self).get("_process") != os.getpid() or self._store is None:
            return
        if not self._cache.is_dirty:
            return
        text = f"the blocks of {self._name} were written to and not closed"
        try:
            self.close()
        except Exception as error:
            text += f", and are lost: {error}"
        warnings.warn(
            f"{text}; call close(), or use with", ResourceWarning, stacklevel=2, source=self
        )

    def _let_go(self) -> None:
        store, self._store = self._open(), None
        self._cache.close()
        store.close()

    def _open(self) -> Store:
        if self._store is None:
            raise ClosedError(f"the blocks of {self._name} were closed; open them again")
        return self._store

    @contextmanager
    def _using(self) -> Iterator[SuperblockCache]:
        if os.getpid() != self._process:
            raise ForkedError(
                f"the blocks of {self._name} were opened in another process, and I/O threads do "
                "not survive a fork; open them again here, or start processes with the spawn method"
            )
        with self._lock:
            self._open()
            yield self._cache

    def _number(self, at: tuple[Any, ...]) -> Coordinates:
        """Coordinates of one block as a user gives them: one by one, or as a tuple."""
        key = at[0] if len(at) == 1 else at
        chosen = select(key, self.counts)
        if chosen.shape:
            raise InvalidError(
                f"need {len(self.counts)} integers, the coordinates of one block, have {key!r}; "
                "read a box of elements by indexing the array"
            )
        return tuple(chosen.start)

    def _check_out(self, out: Any, number: Coordinates) -> None:
        shape = self._grid.block_shape(number)
        have = type(out).__name__
        if isinstance(out, np.ndarray):
            if (out.shape, out.dtype) == (shape, self.dtype) and out.flags.writeable:
                return
            have = f"{out.shape} and {out.dtype}" + ", read-only" * (not out.flags.writeable)
        raise InvalidError(
            f"need out of shape {shape} and type {self.dtype} for block {number}, an array that "
            f"can be written to, have {have}; leave out= out for a new one"
        )

    def _chosen(self, superblocks: Any) -> set[Coordinates]:
        keys = list(superblocks) if isinstance(superblocks, list | set | frozenset) else None
        found: set[Coordinates] = set()
        for key in [superblocks] if keys is None else keys:
            chosen = select(key, self.superblocks)
            steps = zip(chosen.start, chosen.step, chosen.count, strict=True)
            found.update(itertools.product(*(range(a, a + s * n, s) for a, s, n in steps)))
        return found
