"""Export of arrays to other formats: ``.npy``, HDF5, Zarr with codecs, raw."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import math
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from outcore._util import budget
from outcore._util.counts import is_count
from outcore._util.if_exists import Replace, overwrites
from outcore._util.progress import ProgressLike
from outcore.convert.block_copy import check_blocks, copy_blocks
from outcore.convert.copy_plan import CopyPlan, Kind, Pass, Side, Step
from outcore.convert.copying import check_apart, copy_to_array, report_on
from outcore.convert.formats import zarr_codecs
from outcore.convert.formats.hdf5_names import dataset_to_write, is_named_hdf5
from outcore.convert.formats.zarr_codecs import Codec
from outcore.convert.hdf5_source import listed
from outcore.convert.new_file import check_replaceable, hidden_name, new_file, remove
from outcore.convert.open_source import open_source
from outcore.convert.rechunk_plan import End, choose_passes, source_end
from outcore.convert.sources import Flat, Source, Stored, fast_to_slow
from outcore.convert.targets import (
    FlatTarget,
    Hdf5Target,
    Target,
    ZarrTarget,
    chunked_side,
    flat_side,
    writing,
)
from outcore.errors import (
    DiskFullError,
    InvalidError,
    LeftOutWarning,
    NotFoundError,
)
from outcore.layout.casting import Casting
from outcore.layout.zarr_format import DIMENSIONS, default_chunks
from outcore.report.copy_report import CopyReport
from outcore.report.longcall import LongCall, long_call
from outcore.storage import rights
from outcore.storage.pool_path import check_text, is_url
from outcore.storage.volumes import PathLike, is_same

CODECS = {"npy": ("none",), "raw": ("none",), "hdf5": ("none", "gzip"), "zarr": zarr_codecs.NAMES}
"""Formats, and the names of the codecs of each; the first is the default."""

DATASET = "data"
"""Default name of the dataset in an HDF5 file."""


def export_array(
    source: Any,
    path: PathLike,
    *,
    format: str | None = None,  # noqa: A002  # the name that NumPy's and pandas' users expect
    codec: Codec | None = None,
    chunks: Sequence[int] | int | None = None,
    order: str | None = None,
    dtype: npt.DTypeLike | None = None,
    casting: Casting = "same_kind",
    shape: Sequence[int] | int | None = None,
    source_order: str = "C",
    offset: int = 0,
    zarr_format: Literal[2, 3] = 3,
    memory: int | str | None = None,
    if_exists: Replace = "error",
    progress: ProgressLike = True,
) -> CopyReport:
    """Copy an array into a file or directory of another format, in bounded memory.

    Parameters
    ----------
    source, dtype, casting, shape, source_order, offset
        As for `from_array`: an outcore array, or any other source.
    path
        The new file, or the directory of a Zarr array. After an HDF5 suffix, ``::`` separates the
        name of a dataset (``"out.h5::run/u"``); the default is ``data``. In other names, and in the
        name of an existing file or directory, ``::`` is part of the name.
    format
        ``"npy"``, ``"hdf5"``, ``"zarr"`` (by zarr-python) or ``"raw"``: only the elements,
        little-endian. By default the suffix of `path` decides: ``.npy``, ``.h5`` or ``.hdf5``,
        ``.zarr``.
    codec
        Compression: for Zarr ``"zstd"`` (default), ``"gzip"``, ``"blosc"`` or ``"none"``, an object
        such as ``zarr.codecs.ZstdCodec(level=9)`` (of numcodecs for version 2), or its dictionary;
        for HDF5 ``"none"`` (default) or ``"gzip"``.
    chunks
        Shape of a chunk of HDF5 and Zarr; by default about 4 MiB, as in `create_array`.
    order
        Order of the elements, in the file or in each chunk of Zarr: ``"C"`` or ``"F"``; by default
        that of the source. HDF5 supports only ``"C"``.
    zarr_format
        Version of Zarr, 2 or 3. Version 2 stores names of dimensions as xarray does, in the
        attribute ``_ARRAY_DIMENSIONS``, which may have no other value.
    memory
        Budget in bytes for the blocks in flight, and for the memory of both sides' libraries beside
        them. If one pass would decode chunks of the source several times, or move short runs, the
        copy may take several passes, as in `rechunk`. The array between two passes lies beside
        `path`, if the disk has room for it.
    if_exists
        ``"overwrite"`` replaces a file or Zarr array, once the new one is whole. For an HDF5 file
        it removes all datasets.
    progress
        As for `from_array`.

    Returns
    -------
    CopyReport

    Raises
    ------
    InvalidError
        As for `from_array`; also if the format lacks the codec, chunks or order.
    BudgetError
        If even the smallest blocks do not fit in `memory`.
    ExistsError
        If `path` exists.
    DiskFullError
        If the disk has no room for the copy.
    MissingPackageError
        If h5py or zarr is needed and not installed.
    Interrupted
        On Ctrl-C or SIGTERM. As after any failure, the partial copy is removed.
    """
    named = Named.of(path, format, zarr_format, if_exists)
    with open_source(
        source, shape=shape, dtype=dtype, source_order=source_order, offset=offset, casting=casting
    ) as opened:
        opened.warn(2)
        made = Export(opened, named, codec, chunks, order)
        report = made.run(memory, if_exists, progress)
        if made.left_out:
            warnings.warn(made.left_out_text, LeftOutWarning, stacklevel=2)
        return report


class Named(NamedTuple):
    """The name and format of a target.

    Attributes
    ----------
    path, kind, dataset
        The file or directory, its format, and the name of the dataset in it.
    zarr_format
        Version of Zarr.
    """

    path: Path
    kind: str
    dataset: str
    zarr_format: Literal[2, 3]

    @classmethod
    def of(
        cls, path: PathLike, given: str | None, zarr_format: Literal[2, 3], if_exists: Replace
    ) -> Named:
        """Parse the arguments of `export_array`."""
        overwrites(if_exists)  # refuses other words
        if not isinstance(path, str | os.PathLike):
            raise InvalidError(f"need a path, have {path!r}; name the file to make")
        if is_url(os.fspath(path)):
            raise InvalidError(
                f"formats of others are written in plain directories only, have {path}; "
                "oc.from_array copies to a pool"
            )
        name, dataset = check_text(os.fspath(path)), ""
        kind = format_of(name) if given is None else given
        if kind == "hdf5" and (found := dataset_to_write(name, is_hdf5=given == "hdf5")):
            name, dataset = found
        if kind is None or kind not in CODECS:
            raise InvalidError(
                f"need a format, one of {', '.join(CODECS)}, have {given!r} for {name}; give "
                "format="
            )
        if zarr_format not in (2, 3) or (zarr_format == 2 and kind != "zarr"):
            raise InvalidError(
                f"need zarr_format=2 or 3, and a Zarr array for 2, have {zarr_format!r} for "
                f"{kind}; leave out zarr_format="
            )
        return cls(Path(os.path.abspath(name)), kind, dataset or DATASET, zarr_format)


def format_of(path: PathLike) -> str | None:
    """Return the format that the suffix of a name implies; `None` if it implies none."""
    name = os.fspath(path)
    if dataset_to_write(name) or is_named_hdf5(name):
        return "hdf5"
    return {".npy": "npy", ".zarr": "zarr"}.get(Path(name).suffix.lower())


class Export:
    """One export; its arguments are checked before any work."""

    def __init__(
        self,
        source: Source,
        named: Named,
        codec: Codec | None,
        chunks: Sequence[int] | int | None,
        order: str | None,
    ) -> None:
        self._source = source
        self._path, self._kind, self._dataset, self._zarr_format = named
        kind, zarr_format = named.kind, named.zarr_format
        self.left_out: Sequence[str] = ()
        self._encoder = CODECS[kind][0] if codec is None else codec
        self._shape, self._dtype = source.shape, source.dtype
        default_order = "C" if kind == "hdf5" else source.order
        self._order = default_order if order is None else order
        if kind == "zarr":
            self._codec = zarr_codecs.name_of(self._encoder, zarr_format)
        elif self._encoder in CODECS[kind]:
            self._codec = str(self._encoder)
        else:
            raise InvalidError(
                f"{kind} has the codecs {', '.join(CODECS[kind])}, have {codec!r}; choose one"
            )
        if self._order not in ("C", "F") or (self._order, kind) == ("F", "hdf5"):
            raise InvalidError(
                f"order must be {'C in HDF5' if kind == 'hdf5' else 'C or F'}, have {order!r}"
            )
        if zarr_format == 2:
            _check_dimensions(source)
        if kind in ("npy", "raw") and chunks is not None:
            raise InvalidError(f"{kind} has no chunks; leave out chunks=")
        self._chunks = self._checked_chunks(chunks)

    def _checked_chunks(self, chunks: Sequence[int] | int | None) -> tuple[int, ...]:
        if chunks is None:
            chunks = default_chunks(self._shape, self._dtype.itemsize, self._order)
        given = (chunks,) if isinstance(chunks, int | np.integer) else tuple(chunks)
        if len(given) != len(self._shape) or not all(map(is_count, given)):
            raise InvalidError(
                f"need {len(self._shape)} extents of a chunk, integers of at least 1, "
                f"have {chunks!r}"
            )
        return tuple(min(int(c), n) for c, n in zip(given, self._shape, strict=True))

    @property
    def left_out_text(self) -> str:
        """Text of a warning about `left_out`."""
        names = listed(list(self.left_out))
        return f"the copy leaves out attributes that HDF5 cannot hold: {names}"

    @property
    def nbytes(self) -> int:
        """Bytes of all elements before compression."""
        return math.prod(self._shape) * self._dtype.itemsize

    @property
    def notes(self) -> list[str]:
        """Remarks on the sizes in a plan."""
        if self._codec == "none":
            return []
        return [
            f"{self._codec} makes the file and its writes smaller than stated; the time is without "
            "compression"
        ]

    @property
    def is_compressed(self) -> bool:
        """Whether a codec compresses the target."""
        return self._codec != "none"

    def passes(self, memory_bytes: int) -> list[Pass]:
        """Choose the passes; only one if the disk has no room for the arrays between several."""
        ends, itemsize = (source_end(self._source), self.end()), self._source.itemsize
        passes = choose_passes(*ends, itemsize, memory_bytes)
        _check_directory(self._path)
        # An array between two passes exists until the next one is complete.
        if _free_bytes(self._path.parent) < min(len(passes), 3) * self.nbytes:
            passes = choose_passes(*ends, itemsize, memory_bytes, most_passes=1)
        return passes

    def run(
        self,
        memory: int | str | None,
        if_exists: Replace,
        progress: ProgressLike,
        *,
        verify: bool = False,
    ) -> CopyReport:
        """Copy under a temporary name, which becomes `path` when the copy is complete.

        The copy takes the passes that `choose_passes` chooses, if the disk has room. With `verify`,
        read it back after each pass.
        """
        memory_bytes = budget.resolve(memory)
        self._check_room(self.nbytes, if_exists)
        passes = self.passes(memory_bytes)
        reports, source = [], self._source
        with contextlib.ExitStack() as stages, new_file(self._path, if_exists) as fresh:
            for one in passes[:-1]:
                assert one.chunks is not None, "it is not the last pass"
                # The earlier stage is not needed any more once this one is complete.
                earlier = stages.pop_all()
                staged = self._staged(
                    source, one.chunks, memory_bytes, progress, one.plan.steps, verify=verify
                )
                with earlier:
                    source, report = stages.enter_context(staged)
                reports.append(report)
            call = self._copy(source, passes[-1].plan, fresh, memory_bytes, progress, verify=verify)
        report = self._report(passes[-1].plan, call)
        for each in reversed(reports):
            report = report.after(each)
        between = tuple(one.chunks for one in passes if one.chunks is not None)
        return dataclasses.replace(report, between=between, verified=verify)

    def _report(self, plan: CopyPlan, call: LongCall) -> CopyReport:
        flat = self._kind in ("npy", "raw")
        return report_on(
            plan, call, path=self._path, file_format=self._kind, shape=self._shape,
            dtype=self._dtype, order=self._order, chunks=None if flat else self._chunks,
            codec=self._codec,
        )  # fmt: skip

    @contextmanager
    def _staged(
        self,
        source: Source,
        chunks: tuple[int, ...],
        memory_bytes: int,
        progress: ProgressLike,
        steps: list[Step],
        *,
        verify: bool,
    ) -> Iterator[tuple[Source, CopyReport]]:
        """Copy a source into a temporary array of outcore beside the target."""
        stage = hidden_name(self._path)
        try:
            stage.mkdir(mode=0o700)  # the target may be private
            array, report = copy_to_array(
                source, stage / "array", memory=memory_bytes, chunks=chunks, progress=progress,
                steps=steps, verify=verify,
            )  # fmt: skip
            with Stored(array) as made:
                made.keep(array)
                yield made, report
        finally:
            remove(stage)

    def _copy(
        self,
        source: Source,
        plan: CopyPlan,
        fresh: Path,
        memory_bytes: int,
        progress: ProgressLike,
        *,
        verify: bool,
    ) -> LongCall:
        """Copy all blocks of the source into a new file or directory."""
        work = self.nbytes * (1 + verify)
        sums: list[int] | None = [] if verify else None
        title = f"exporting to {self._path.name}"
        with long_call(title, memory_bytes=memory_bytes, work=work, progress=progress) as call:
            kept = rights.rights_of(self._path)
            with writing(self._path):
                target = self._target(fresh)
                self.left_out = target.left_out
                # Set the rights before the file has data; a directory must stay writable meanwhile.
                rights.give(fresh, kept and kept._replace(mode=kept.mode | 0o300))
            try:
                slots = copy_blocks(source, target, plan, call, self._path, sums=sums)
                with writing(self._path):
                    target.finish()
                if sums is not None:
                    with self._reopened(fresh) as made:
                        check_blocks(source, target, made, slots, plan, call, self._path, sums)
                with writing(self._path):
                    rights.give(fresh, kept)
            except BaseException:
                with contextlib.suppress(Exception):
                    target.abandon()
                raise
        return call

    def _reopened(self, path: Path) -> Source:
        """Open the new file or directory as a source that reads from the disk."""
        for file in [path, *path.rglob("*")]:
            if file.is_file():
                _drop_from_cache(file)
        if self._kind == "raw":
            return Flat(path, self._shape, self._dtype, self._order, 0)
        return open_source(f"{path}::{self._dataset}" if self._kind == "hdf5" else path)

    def end(self) -> End:
        """Describe the target to the planner."""
        kind: Kind = "flat" if self._kind in ("npy", "raw") else "encoded"
        chunks = self._shape if kind == "flat" else self._chunks
        order = fast_to_slow(self._order, len(self._shape))
        return End(kind, self._shape, chunks, order, self._dtype.itemsize, self._side())

    def _side(self) -> Side:
        if self._kind in ("npy", "raw"):
            return flat_side(self._shape)
        return chunked_side(self._shape, self._chunks)

    def _target(self, path: Path) -> Target:
        if self._kind == "hdf5":
            return Hdf5Target(
                path, self._dataset, self._shape, self._dtype, self._chunks, self._codec,
                self._source.dims, self._source.attributes,
            )  # fmt: skip
        if self._kind == "zarr":
            return ZarrTarget(
                path, self._shape, self._dtype, self._chunks, self._order, self._encoder,
                self._source.dims, self._source.attributes, self._zarr_format,
            )  # fmt: skip
        header = b"" if self._kind == "raw" else _npy_header(self._shape, self._dtype, self._order)
        return FlatTarget(path, self._shape, self._dtype, self._order, header)

    def _check_room(self, nbytes: int, if_exists: Replace) -> None:
        """Check the target before any work: its directory, existing files, and free space."""
        path = self._path
        _check_directory(path)
        check_replaceable(path, if_exists)
        source = self._source.path
        if not path.is_file() or source is None or not is_same(path, source):
            check_apart(self._source, path)
        free = _free_bytes(path.parent)
        if not self.is_compressed and nbytes > free:
            raise DiskFullError(
                f"need {nbytes} bytes for {path}, {free} are free; free some room or use another "
                "disk"
            )


def _check_directory(path: Path) -> None:
    if not path.parent.is_dir():
        raise NotFoundError(f"there is no directory {path.parent}; make it first")


def _check_dimensions(source: Source) -> None:
    """Refuse an attribute in the place of the names of dimensions in version 2 of Zarr."""
    if source.dims is None or DIMENSIONS not in source.attributes:
        return
    names, have = list(source.dims), source.attributes[DIMENSIONS]
    if have != names:
        raise InvalidError(
            f"need the attribute {DIMENSIONS} for the names of dimensions, {names}, have "
            f"{have!r} in it; rename the attribute, or pass zarr_format=3"
        )


def _free_bytes(directory: Path) -> int:
    disk = os.statvfs(directory)
    return disk.f_bavail * disk.f_frsize


def _drop_from_cache(file: Path) -> None:
    handle = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(handle)


def _npy_header(shape: tuple[int, ...], dtype: np.dtype[Any], order: str) -> bytes:
    text = io.BytesIO()
    fields = {
        "descr": np.lib.format.dtype_to_descr(dtype),
        "fortran_order": order == "F",
        "shape": shape,
    }
    np.lib.format.write_array_header_1_0(text, fields)
    return text.getvalue()
