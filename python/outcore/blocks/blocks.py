"""The block interface: reads and writes of an array's blocks by their coordinates.

Source: Cettei, Ligon & Ross 1997, section 3 (the multi-dimensional block interface).
"""

import itertools
import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from outcore._core import Arena
from outcore.blocks.cache import BlockStats, Store, SuperblockCache
from outcore.errors import (
    ClosedError,
    ForkedError,
    InvalidError,
    OutcoreError,
    ReadOnlyError,
)
from outcore.layout.block_grid import Coordinates
from outcore.layout.elements import elements
from outcore.layout.selection import select


class Blocks:
    """Blocks of an array by their coordinates, as `Array.blocks` returns them.

    ``B[i, j]`` reads a block into a new NumPy array, and ``B[i, j] = data`` writes one. The first
    access to a block reads its whole superblock by one request, into one of a few buffers. The
    interface reads the next superblock in the direction of travel ahead.

    It writes changed blocks to the disk when their buffer is needed, and in `flush` and `close`. If
    a program drops the interface without closing it, the interface writes them with a
    `ResourceWarning`. Several threads may share one interface; their calls run one at a time.

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
        """Counts of reads, writes and hits so far (a copy)."""
        with self._lock:
            return replace(self._cache.stats)

    @property
    def memory_bytes(self) -> int:
        """Budget of the buffers, in bytes."""
        return self._arena.budget_bytes

    def __getitem__(self, at: Any) -> npt.NDArray[Any]:
        return self.read(at)

    def __setitem__(self, at: Any, data: npt.ArrayLike) -> None:
        self.write(at, data)

    def read(self, *at: Any, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Read a block into the caller's memory: ``B.read(i, j)``, the same as ``B[i, j]``.

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
            If the block does not exist.
        InvalidError
            If `at` is not the coordinates of one block, or `out` does not fit.
        BudgetError
            If all buffers are pinned or viewed.
        DiskError, DiskFullError, TruncatedError
            If the read fails, or a write-back has failed since the last call. A failed write-back
            loses no data: see `flush`.
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
        """Return a read-only view of a block in its buffer: ``B.view(i, j)``.

        Nothing is copied. The buffer stays occupied while the view, or a view of it, exists. Drop
        views early, or there will be no buffer for other superblocks. The view shows later writes
        to the block through this interface. Arguments and errors are those of `read`.
        """
        number = self._number(at)
        with self._using() as cache:
            return cache.lend(number)

    def write(self, at: Any, data: npt.ArrayLike) -> None:
        """Write a block: ``B.write((i, j), data)``, the same as ``B[i, j] = data``.

        The elements are in a buffer when this call returns. They are on disk after `flush` or
        `close`, or when the buffer is needed. Only written blocks are written back; other blocks of
        the superblock are neither read nor touched.

        Parameters
        ----------
        at
            Coordinates of the block.
        data
            Its elements: an array that NumPy can broadcast to the block's shape.

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
        """Keep superblocks in memory, once they are read, until `unpin`.

        Parameters
        ----------
        superblocks
            An index into the array of superblocks, as for NumPy: ``(0, 0)``, ``slice(0, 3)``,
            ``np.s_[0:2, :]``; or a list or set of such indices. The coordinates are those of
            superblocks, not of blocks.

        Raises
        ------
        BudgetError
            If more superblocks would be pinned than there are buffers. The pins are unchanged then.
        IndexError, InvalidError
            If a superblock does not exist.
        """
        with self._using() as cache:
            cache.pin(self._chosen(superblocks))

    def unpin(self, superblocks: Any = ...) -> None:
        """Undo `pin` for these superblocks, in the same form; by default for all."""
        with self._using() as cache:
            cache.unpin(self._chosen(superblocks))

    def flush(self) -> None:
        """Return once all written blocks would survive a power loss.

        Raises
        ------
        DiskError, DiskFullError
            If a write fails. Its blocks stay in their buffers: free disk space, then flush again.
        """
        with self._using() as cache:
            cache.flush()
            if self._writable:
                self._open().sync().wait()

    def close(self) -> None:
        """Write all pending blocks and release the buffers. A second call does nothing.

        Raises
        ------
        DiskError, DiskFullError
            If a write fails. The interface stays open: free disk space, then close again.
        """
        if self._store is None:
            return
        with self._using() as cache:
            cache.flush()
            self._let_go()

    def __enter__(self) -> "Blocks":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.close()
        except OutcoreError:
            # The user must see the first error.
            if kind is None:
                raise

    def __del__(self) -> None:
        """Write pending blocks and warn, as Python's files do."""
        # A forked copy has no threads to write with; a failed `__init__` leaves nothing to write.
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
        """Return the coordinates of one block, given as a tuple or as separate integers."""
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
