"""An array on disk."""

import copy
import dataclasses
import math
import threading
from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from outcore._core import Arena, ArrayFile, Trace
from outcore._util import budget
from outcore._util.streams import BlockStream, Box
from outcore.array.index_lists import select_listed
from outcore.array.info import Info
from outcore.array.operand import ArrayOperand
from outcore.array.transposed_array import Transposed
from outcore.array_files import growing
from outcore.array_files.box_requests import BoxRequests
from outcore.array_files.foreign_shards import refuse_foreign
from outcore.array_files.metadata import (
    bump_generation,
    read_generation,
    read_metadata,
    write_metadata,
)
from outcore.array_files.placement import placement_of
from outcore.array_files.stored_array import check_open
from outcore.blocks.array import blocks as blocks_of
from outcore.collective import collective
from outcore.errors import (
    ConsumedError,
    CorruptError,
    IncompleteError,
    InvalidError,
    ReadOnlyError,
    TruncatedError,
)
from outcore.layout.chunk_walk import in_disk_order, small_boxes
from outcore.layout.elements import array_of, elements
from outcore.layout.selection import is_listed, select
from outcore.layout.zarr_format import Metadata
from outcore.report.collective_report import CollectiveReport
from outcore.report.copy_report import CopyReport
from outcore.report.permute_report import PermuteReport
from outcore.report.report import Report
from outcore.storage.volumes import AnyPath, PathLike, Place, place


class Array(ArrayOperand):
    """An array on disk, as returned by `create_array` and `open_array`.

    ``A[i0:i1, j0:j1]`` reads a box into a new NumPy array; an assignment writes in place.
    ``A @ x`` and ``x @ A`` multiply block by block. ``A.T`` is a transpose that reads nothing.
    An index may contain integers, slices with positive or negative steps, ``...``, and one list of
    integers or one mask: ``A[[1, 4, 7], :]``, ``A[mask]``.
    Several processes may write disjoint elements of one array. A write touches only the assigned
    elements.
    A pickled array contains its path and mode; the process that unpickles it opens the array again.
    """

    def __init__(
        self,
        where: Place,
        metadata: Metadata,
        mode: Literal["r", "r+"],
        *,
        is_counted: bool = True,
    ) -> None:
        self._place = where
        self.metadata = metadata
        self.mode = mode
        self._is_counted = is_counted
        self._counting = threading.Lock()
        self._file: ArrayFile | None = self._open_for_indexing()
        self.collective_report: CollectiveReport | None = None
        """Report of this process's part in the last collective."""
        self.report: Report | CopyReport | PermuteReport | None = None
        """Report of the call that made the array and returned this object."""

    def __repr__(self) -> str:
        return f"<outcore.Array {self.path} {self.shape} {self.dtype} mode={self.mode!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the path and the mode; the process that unpickles them opens the array again."""
        return open_array, (str(self.path), self.mode)

    @property
    def path(self) -> AnyPath:
        """Directory of the array."""
        return self._place.path

    @property
    def place(self) -> Place:
        """Volume and name."""
        return self._place

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each dimension."""
        return self.metadata.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the elements."""
        return self.metadata.dtype

    @property
    def chunks(self) -> tuple[int, ...]:
        """Elements of a chunk, the unit of I/O, along each dimension."""
        return self.metadata.chunks

    @property
    def order(self) -> str:
        """Order of the elements in a chunk, ``"C"`` or ``"F"``."""
        return self.metadata.order

    @property
    def T(self) -> "Array":  # noqa: N802  NumPy's name
        """The transpose of a matrix, as a `TransposedArray`; a vector itself. Nothing is read.

        Raises
        ------
        InvalidError
            If the array has more than two dimensions.
        """
        if self.ndim > 2:
            raise InvalidError(
                f"need a matrix to transpose, have {self!r}; read a part of it, and call its "
                "transpose()"
            )
        return self if self.ndim == 1 else TransposedArray(self)

    @property
    def is_closed(self) -> bool:
        """Whether the array was closed."""
        return self._file is None

    @property
    def dims(self) -> tuple[str, ...] | None:
        """Names of the dimensions."""
        return self.metadata.dims

    @property
    def access(self) -> dict[str, float] | None:
        """The words and weights of `create_array(access=)`; `None` without, and for a transpose."""
        return copy.copy(self.metadata.access)

    @property
    def attrs(self) -> dict[str, Any]:
        """The user's attributes (a copy)."""
        return copy.deepcopy(self.metadata.attributes)

    def open_file(
        self,
        arena: Arena,
        bounce_bytes: int,
        *,
        writable: bool = False,
        trace: Trace | None = None,
        trace_number: int = 0,
    ) -> ArrayFile:
        """Open the shard files for a call that has its own memory budget."""
        if writable:
            self.count_writing()
        return self._open_shards(arena, bounce_bytes, writable, trace, trace_number)

    def _open_shards(
        self,
        arena: Arena,
        bounce_bytes: int,
        writable: bool,
        trace: Trace | None = None,
        trace_number: int = 0,
    ) -> ArrayFile:
        try:
            return ArrayFile(
                self._place.volume,
                self._place.name,
                self.metadata.grid(),
                writable,
                arena,
                bounce_bytes,
                trace,
                trace_number,
            )
        except (TruncatedError, CorruptError):
            refuse_foreign(self._place, self.metadata)
            raise

    def _open_for_indexing(self) -> ArrayFile:
        # `count_writing` raises the generation at the first write.
        return self._open_shards(
            budget.indexing_arena, budget.INDEXING_BYTES // 4, self.mode == "r+"
        )

    def count_writing(self, *, elsewhere: bool = False) -> None:
        """Raise the array's generation before the first write through this object.

        Parameters
        ----------
        elsewhere
            Another process has already raised it, also on behalf of this process.
        """
        with self._counting:
            if not self._is_counted and not elsewhere:
                bump_generation(self._place)
            self._is_counted = True

    def _open(self) -> ArrayFile:
        check_open(self)
        assert self._file is not None
        return self._file

    def __getitem__(self, key: Any) -> Any:
        file = self._open()
        order: Literal["C", "F"] = "F" if self.order == "F" else "C"
        if is_listed(key):
            chosen = select_listed(key, self.shape, self.chunks)
            return chosen.read(self._requests(file), self.dtype, order)
        box = select(key, self.shape)
        out: npt.NDArray[Any] = np.empty(box.count, self.dtype, order)
        target = out[box.flip]
        if not box.is_empty:
            for start, rows in growing.parts(self.metadata, box):
                file.read(start, box.step, target[rows])
        out = out.reshape(box.shape, order=order)
        return out if box.shape else out[()]

    def __setitem__(self, key: Any, value: npt.ArrayLike) -> None:
        if self.mode != "r+":
            raise ReadOnlyError(f'{self.path} is open for reading; open it with mode="r+"')
        file = self._open()
        if is_listed(key):
            chosen = select_listed(key, self.shape, self.chunks)
            chosen.write(self._requests(file), value, self.dtype)
            return
        box = select(key, self.shape)
        source = elements(value, self.dtype, box.shape).reshape(box.count)
        if box.is_empty:
            return
        self.count_writing()
        for start, rows in growing.parts(self.metadata, box):
            file.write(start, box.step, source[box.flip][rows])
            if self.metadata.growing:
                # Written files stay open until they are synced.
                file.submit_sync().wait()

    def _requests(self, file: ArrayFile) -> BoxRequests:
        return BoxRequests(file, self.metadata, self._place, self.count_writing)

    def chunk_boxes(self) -> Iterable[Box]:
        """Yield the box of each chunk, in the order on disk where nested loops can follow it."""
        m = self.metadata
        for at in in_disk_order(m.counts, m.chunk_order, m.chunks_per_block):
            yield tuple(
                slice(i * c, min((i + 1) * c, n))
                for i, c, n in zip(at, self.chunks, self.shape, strict=True)
            )

    def small_boxes(self, most_bytes: int) -> Iterable[Box]:
        """Yield the chunks' boxes; cut large ones along slow dimensions to at most `most_bytes`."""
        return small_boxes(
            self.chunk_boxes(), self.chunks, self.order, self.dtype.itemsize, most_bytes
        )

    def stream(
        self, schedule: Iterable[Box] | None = None, *, memory: int | str | None = None
    ) -> BlockStream:
        """Read blocks in a given order: ``for index, data in A.stream(schedule)``.

        Parameters
        ----------
        schedule
            Blocks to read, each a tuple of slices without steps; by default every chunk, in the
            order on disk.
        memory
            Budget in bytes for read-ahead and for the blocks in use; by default eight chunks.

        Returns
        -------
        BlockStream
            An iterator of `Block` (index, data). It reads ahead as far as memory allows. It reuses
            a block's memory after the last view of the block is gone, so copy what you keep.
        """
        self._open()
        boxes = list(self.chunk_boxes() if schedule is None else map(self._checked_box, schedule))
        # A read of a whole chunk includes its padding to a full page.
        chunk_bytes = self.metadata.grid().slot_bytes
        largest = max([chunk_bytes, *map(self._box_bytes, boxes)])
        memory_bytes = largest * 8 if memory is None else budget.resolve(memory)
        bounce_bytes = budget.stream_bounce_bytes(memory_bytes, largest)
        arena = Arena(memory_bytes)
        stream = BlockStream(
            self.open_file(arena, bounce_bytes), self.dtype, arena, memory_bytes - bounce_bytes
        )
        stream.extend(boxes)
        return stream

    def _box_bytes(self, box: Box) -> int:
        elements: int = math.prod(s.stop - s.start for s in box)
        return elements * self.dtype.itemsize

    def _checked_box(self, box: Box | slice) -> Box:
        chosen = select(box, self.shape)
        forward = all(flip.step is None for flip in chosen.flip)
        if any(step != 1 for step in chosen.step) or not forward or chosen.is_empty:
            raise InvalidError(
                f"a block of a stream is a tuple of slices without steps, have {box!r}"
            )
        return tuple(slice(a, a + n) for a, n in zip(chosen.start, chosen.count, strict=True))

    def info(self) -> Info:
        """Describe the array without reading its elements."""
        grid = self.metadata.grid()
        return Info(
            path=str(self.path),
            shape=self.shape,
            dtype=self.dtype.name,
            chunks=self.chunks,
            order=self.order,
            chunk_order=self.metadata.chunk_order,
            dims=self.dims,
            nbytes=self.nbytes,
            file_bytes=grid.shard_bytes * grid.shards,
            shards=grid.shards,
            generation=read_generation(self._place),
            state=self.metadata.state or "whole",
            attributes=self.attrs,
            block=self.metadata.block,
            disk_schema=self.metadata.disk_schema,
            placement=placement_of(self._place, self.metadata),
            access=self.access,
        )

    def append(self, values: npt.ArrayLike) -> None:
        """Append one or more steps to an array made with ``growing=True``.

        When the call returns, the steps are durable and counted. A crash leaves only whole steps.
        Readers see them when they open the array, or call `refresh`.

        Parameters
        ----------
        values
            The elements of one step, of shape ``A.shape[1:]``, or of several steps, stacked.

        Raises
        ------
        InvalidError
            If the array does not grow, or the values do not fit.
        ReadOnlyError
            If the array is open for reading.
        BusyError
            If another call is appending to the array.
        DiskFullError
            If the disk has no room for a step; earlier steps stay.
        """
        if not self.metadata.growing:
            raise InvalidError(
                f"{self.path} has a fixed shape; make an array with growing=True to append to it"
            )
        if self.mode != "r+":
            raise ReadOnlyError(f'{self.path} is open for reading; open it with mode="r+"')
        given = array_of(values)
        count = len(given) if given.ndim == self.ndim else 1
        steps = elements(given, self.dtype, (count, *self.shape[1:]))
        self.count_writing()
        with growing.appending(self._place) as begun:
            self.refresh()
            for step in steps:
                self._append_one(begun, step)

    def _append_one(self, begun: Place, step: npt.NDArray[Any]) -> None:
        at, metadata = len(self), self.metadata
        if at % growing.steps_in_file(metadata) == 0:
            growing.begin_file(begun, metadata, reserve=True)
            if self.ndim > 1:
                with Array(begun, growing.step_metadata(metadata), "r+") as new:
                    new[...] = step
                    new.flush()
            growing.place_file(begun, self._place, metadata, at)
        if self.ndim == 1:
            with Array(self._place, growing.longer(metadata, at + 1), "r+") as new:
                new[at] = step
                new.flush()
        self.count_steps(at + 1)

    def count_steps(self, steps: int) -> None:
        """Record the new number of steps on disk, after the files of these steps are durable."""
        write_metadata(self._place, growing.longer(self.metadata, steps))
        self.refresh()

    def refresh(self) -> "Array":
        """Reload the metadata, such as the number of steps of a growing array."""
        self._open()
        self.metadata = read_metadata(self._place)
        self._file = self._open_for_indexing()
        return self

    # These methods are documented in their own modules.
    blocks = blocks_of
    write_all = collective.write_all
    read_all = collective.read_all

    def flush(self) -> None:
        """Return once all writes to the array would survive a power loss."""
        self._open().submit_sync().wait()

    def close(self) -> None:
        """Release the files. A second call does nothing."""
        self._file = None

    def __enter__(self) -> "Array":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def mark(self, state: str | None, why: str = "", *, made: dict[str, Any] | None = None) -> None:
        """Record on disk that the array is whole (`None`), ``"incomplete"`` or ``"consumed"``.

        Steps that others appended since this object was opened stay counted. `made` identifies the
        call that made the array, for calls with ``if_exists="open"``.
        """
        newest = read_metadata(self._place) if self.metadata.growing else self.metadata
        write_metadata(self._place, dataclasses.replace(newest, state=state, why=why, made=made))
        self.metadata = dataclasses.replace(self.metadata, state=state, why=why, made=made)


class TransposedArray(Transposed, Array):
    """A read-only transpose of a matrix on disk, ``A.T``; nothing is copied.

    The transpose of a matrix in order ``"F"`` is a matrix in order ``"C"``, with shape and chunks
    reversed. So solvers and products accept it, and read the same bytes as from a matrix that was
    stored that way.

    Attributes
    ----------
    array
        The matrix itself. Closing the transpose or the matrix closes both.
    """

    def __init__(self, array: Array) -> None:
        self.array, self.mode = array, "r"
        self._place = array.place._replace(is_transposed=True)
        self._is_counted, self._counting = True, threading.Lock()
        self.collective_report = self.report = None

    @property
    def metadata(self) -> Metadata:  # type: ignore[override]  # it follows an array that grows
        """Describe the transpose."""
        return self.array.metadata.transposed()


def open_array(
    path: PathLike, mode: Literal["r", "r+"] = "r", *, allow_incomplete: bool = False
) -> Array:
    """Open an array that outcore wrote.

    Parameters
    ----------
    path
        Directory of the array, also in a pool.
    mode
        ``"r"`` to read, ``"r+"`` to read and write.
    allow_incomplete
        Open the array even if a failed or killed call left it half-written.

    Returns
    -------
    Array

    Raises
    ------
    InvalidError
        For another mode, or an array that is not in outcore's own layout, perhaps because other
        software wrote to it: `repack` rewrites it, `from_array` copies it.
    NotFoundError
        If there is no array at `path`, or a shard file is missing.
    TruncatedError, CorruptError
        If a file is too short, or the metadata or a shard's index is damaged.
    IncompleteError
        If a failed or killed call left the array half-written.
    ConsumedError
        If a call with ``overwrite_a=True`` consumed its content.
    """
    if mode not in ("r", "r+"):
        raise InvalidError(f"mode must be 'r' or 'r+', have {mode!r}; oc.create_array makes arrays")
    where = place(path)
    metadata = read_metadata(where)
    if metadata.state == "consumed":
        raise ConsumedError(f"the content of {where.path} was consumed: {metadata.why}")
    if metadata.state == "incomplete" and not allow_incomplete:
        raise IncompleteError(f"{where.path} is only half written: {metadata.why}")
    return Array(where, metadata, mode, is_counted=mode == "r")
