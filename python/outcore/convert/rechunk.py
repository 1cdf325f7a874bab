"""Re-layout of arrays: other chunks, another order, another type, in the fewest bytes."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar, overload

import numpy.typing as npt

from outcore._core import Arena, Ticket
from outcore._util.if_exists import IfExists
from outcore._util.progress import ProgressLike
from outcore._util.streams import Box
from outcore.array.array import Array
from outcore.array.create import DiskLayout
from outcore.convert.copy_plan import Kind
from outcore.convert.copying import copy_to_array
from outcore.convert.export import Export, Named
from outcore.convert.formats.zarr_codecs import Codec
from outcore.convert.open_source import open_source
from outcore.convert.sources import Source
from outcore.errors import InvalidError, LeftOutWarning
from outcore.layout.casting import AS_GIVEN, Casting
from outcore.layout.distribution import Rules
from outcore.report.copy_report import CopyReport
from outcore.storage.volumes import PathLike

T = TypeVar("T")


@overload
def rechunk(src: Any, out: PathLike, *, format: None = ..., **options: Any) -> Array: ...


@overload
def rechunk(src: Any, out: PathLike, *, format: str, **options: Any) -> CopyReport: ...


def rechunk(  # type: ignore[misc]  # the overloads abbreviate its arguments
    src: Any,
    out: PathLike,
    *,
    chunks: Sequence[int] | int | None = None,
    order: str | None = None,
    chunk_order: str | None = None,
    disk_schema: Rules | None = None,
    mesh: Sequence[int] | int | None = None,
    transpose: Sequence[int] | None = None,
    dtype: npt.DTypeLike | None = None,
    format: str | None = None,  # noqa: A002  # as in `export_array`
    codec: Codec | None = None,
    casting: Casting = "same_kind",
    shape: Sequence[int] | int | None = None,
    source_order: str = "C",
    offset: int = 0,
    memory: int | str | None = None,
    if_exists: IfExists = "error",
    resume: bool = True,
    verify: bool = False,
    progress: ProgressLike = True,
) -> Array | CopyReport:
    """Copy an array into other chunks, in as few bytes and requests as the memory allows.

    One pass moves each byte once, if a block of whole chunks of both sides fits into memory, or
    long runs of them do. Otherwise the call compares one pass with short requests to several passes
    through arrays of chunks between those of both sides. A request costs as much as 128 KiB of
    data. ``oc.plan("rechunk", ...)`` states the passes, bytes, requests, disk space and time.

    Parameters
    ----------
    src, dtype, casting, shape, source_order, offset
        As for `from_array`: an array of outcore, or any other source.
    out
        Directory of the new array, also in a pool. The arrays between two passes are inside it
        until it is complete.
    chunks, order, chunk_order, disk_schema, mesh
        Layout of the new array, as for `create_array`; the order is by default that of `src`.
    transpose
        Dimensions of `src` in the order of the new array, as for `numpy.transpose`.
    format, codec
        ``"zarr"``, ``"hdf5"``, ``"npy"`` or ``"raw"``, to write the file or directory that
        `export_array` writes. Such a copy does not resume, and has no `chunk_order`.
    memory
        Budget in bytes for blocks, buffers, and the library that reads the source.
    if_exists, resume, progress
        As for `from_array`. A stopped call resumes in the pass that it had reached.
    verify
        Read the copy back once it is durable, in each pass, and compare the CRC-32C of its blocks
        with those of the blocks that were read. A copy that ``if_exists="open"`` finds is not read.

    Returns
    -------
    Array or CopyReport
        The new array, open for reading and writing; its ``report`` gives the cost. With `format`,
        the report.

    Raises
    ------
    BudgetError
        If not even the smallest blocks fit in `memory`.
    DiskFullError
        If the disk has no room for the new array, and for that between two passes.
    CorruptError
        With `verify`, if the data read back differ from the data written. The error names the first
        block that differs. The next call resumes there, if it can resume.
    JournalError
        If `out` contains a half-made copy of another layout or source, or `src` has changed.
    InvalidError, NotFoundError, TruncatedError, ExistsError, BusyError, Interrupted
        As for `from_array`.
    """
    with open_source(
        src, shape=shape, dtype=dtype, source_order=source_order, offset=offset, casting=casting
    ) as opened:
        opened.warn(2)
        chosen = permuted(opened, transpose)
        if format is not None:
            if if_exists == "open":
                raise InvalidError(
                    f'if_exists="open" is for arrays of outcore, have format={format!r}; use '
                    '"error" or "overwrite"'
                )
            named = Named.of(out, format, 3, if_exists)
            layout = chunk_order, disk_schema, mesh
            made = export_to(chosen, named, codec, chunks, order, *layout)
            report = made.run(memory, if_exists, progress, verify=verify)
            if made.left_out:
                warnings.warn(made.left_out_text, LeftOutWarning, stacklevel=2)
            return report
        check_no_codec(codec)
        if order is None and disk_schema is not None:
            order = "C"
        return copy_to_array(
            chosen, out, memory=memory, chunks=chunks, order=order, chunk_order=chunk_order,
            layout=DiskLayout(disk_schema, None, mesh), if_exists=if_exists, resume=resume,
            progress=progress, keeps_passes=True, verify=verify,
        )[0]  # fmt: skip


def export_to(
    source: Source,
    named: Named,
    codec: Codec | None,
    chunks: Sequence[int] | int | None,
    order: str | None,
    chunk_order: str | None,
    disk_schema: Rules | None,
    mesh: Sequence[int] | int | None,
) -> Export:
    """Check the arguments of a copy to another format."""
    if any(each is not None for each in (chunk_order, disk_schema, mesh)):
        raise InvalidError(f"{named.kind} has no chunk_order, disk_schema and mesh; leave them out")
    return Export(source, named, codec, chunks, order)


def check_no_codec(codec: Codec | None) -> None:
    """Refuse the codec of an array of outcore."""
    if codec not in (None, "none"):
        raise InvalidError(
            f'arrays of outcore are not compressed, have codec={codec!r}; give format="zarr"'
        )


class Permuted(Source):
    """A source with its dimensions in another order.

    Parameters
    ----------
    source
        The source; this object closes it.
    axes
        Its dimensions in their new order, as for `numpy.transpose`.
    """

    def __init__(self, source: Source, axes: tuple[int, ...]) -> None:
        shape = tuple(source.shape[d] for d in axes)
        super().__init__(shape, source.dtype, source.order, AS_GIVEN)
        self.source, self.axes = source, axes
        self.back = tuple(axes.index(d) for d in range(len(axes)))
        self._given, self.casting = source._given, source.casting
        side = source.side
        self.side = replace(
            side,
            cuts=tuple(side.cuts[d] for d in axes),
            loose=tuple(self.back[d] for d in side.loose),
        )
        self.dims = None if source.dims is None else tuple(source.dims[d] for d in axes)
        self.attributes, self.left_out = source.attributes, source.left_out
        self.path, self.reads_ahead = source.path, source.reads_ahead
        self._opened.push(source)

    @property
    def kind(self) -> Kind:
        """See `Source`."""
        return self.source.kind

    @property
    def fast_to_slow(self) -> tuple[int, ...]:
        """See `Source`."""
        return tuple(self.back[d] for d in self.source.fast_to_slow)

    def empty(self, box: Box, memory: memoryview) -> npt.NDArray[Any]:
        """See `Source`."""
        return self.source.empty(self.there(box), memory).transpose(self.axes)

    def there(self, box: Sequence[T]) -> tuple[T, ...]:
        """Return a box, or other values for each dimension, in the order of the source."""
        return tuple(box[d] for d in self.back)

    def begin(self, arena: Arena, bounce_bytes: int) -> None:
        """See `Source`."""
        self.source.begin(arena, bounce_bytes)

    def end(self) -> None:
        """See `Source`."""
        self.source.end()

    def fetch(self, box: Box, out: npt.NDArray[Any]) -> Ticket | None:
        """See `Source`."""
        return self.source.fetch(self.there(box), out.transpose(self.back))

    def check_end(self) -> None:
        """See `Source`."""
        self.source.check_end()

    def moved(self) -> tuple[int, int] | None:
        """See `Source`."""
        return self.source.moved()

    def version(self) -> dict[str, Any] | None:
        """See `Source`."""
        found = self.source.version()
        return None if found is None else {**found, "transpose": list(self.axes)}


def permuted(source: Source, transpose: Sequence[int] | None) -> Source:
    """Return a source with its dimensions in another order, or the source itself.

    Raises
    ------
    InvalidError
        If these are not its dimensions.
    """
    if transpose is None:
        return source
    ndim = len(source.shape)
    try:
        axes = tuple(range(ndim)[operator.index(d)] for d in transpose)
    except (TypeError, IndexError):
        axes = ()
    if sorted(axes) != list(range(ndim)):
        raise InvalidError(
            f"need each of the dimensions {tuple(range(ndim))} once in transpose=, have "
            f"{transpose!r}; give them in their new order"
        )
    return Permuted(source, axes)
