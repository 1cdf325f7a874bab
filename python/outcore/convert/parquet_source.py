"""Tables in Parquet files as sources: pyarrow decodes their rows in order, batch by batch."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from outcore._util.packages import load
from outcore.convert.copy_plan import Cuts
from outcore.convert.sources import Sliced, file_version
from outcore.errors import CorruptError, InvalidError
from outcore.layout.casting import FIX, Wanted, convert, is_allowed, refuse_rounded
from outcore.layout.slicing import opening
from outcore.layout.zarr_format import check_dtype

SUFFIXES = (".parquet", ".pq")
MAGIC = b"PAR1"

_BUFFER_BYTES = 64 << 10
_BATCH_BYTES = 1 << 20
_LIBRARY_BLOCKS = 2


def open_parquet(path: Path, wanted: Wanted) -> Sliced:
    """Open a table: its columns of numbers and truth values form a matrix.

    Without a wanted type, its elements have the type to which NumPy promotes those of the columns.
    That type may not round integers. With one, each column is converted to it. The attribute
    ``columns`` has the names of these columns. Other columns are left out, with a warning.

    Raises
    ------
    InvalidError
        If the file is damaged, no column holds numbers, or the elements of a column cannot be
        converted.
    MissingPackageError
        If pyarrow is not installed.
    """
    parquet = load("pyarrow.parquet", f"reading {path}")
    arrow = load("pyarrow", f"reading {path}")
    version = file_version(path)
    with opening(path, "Parquet"):
        file = parquet.ParquetFile(
            path, buffer_size=_BUFFER_BYTES, pre_buffer=False, page_checksum_verification=True
        )
    try:
        table = _Table(arrow, file, path, wanted)
        found = Sliced(table, wanted)
    except BaseException:
        file.close()
        raise
    # Rows are decoded in order, with all columns.
    cuts = (Cuts(found.shape[0]), Cuts(found.shape[1], found.shape[1]))
    found.side = dataclasses.replace(
        found.side, cuts=cuts, loose=(), library_blocks=_LIBRARY_BLOCKS
    )
    found.keep(file)
    found.path = path
    found.find_version = lambda: version
    found.attributes = {"columns": table.columns}
    if table.others:
        found.left_out = f"columns that hold no numbers: {', '.join(table.others)}"
    return found


class _Table:
    """The numeric columns of a table, sliced as a matrix.

    A slice that follows the previous one continues decoding where that one ended. Any other slice
    starts at the beginning of a row group.
    """

    def __init__(self, arrow: Any, file: Any, path: Path, wanted: Wanted) -> None:
        self._arrow, self._file, self._path, self._wanted = arrow, file, path, wanted
        fields = list(file.schema_arrow)
        numeric = [each for each in fields if _is_number(arrow.types, each.type)]
        self.columns = [each.name for each in numeric]
        self.others = [each.name for each in fields if each not in numeric]
        if not numeric or len(set(file.schema_arrow.names)) < len(fields):
            raise InvalidError(
                f"need columns of numbers with names of their own in {path}, have "
                f"{', '.join(f'{each.name} ({each.type})' for each in fields)}; write such a table"
            )
        given = [np.dtype(each.type.to_pandas_dtype()) for each in numeric]
        self.dtype = check_dtype(np.result_type(*given) if wanted.dtype is None else wanted.dtype)
        for name, dtype in zip(self.columns, given, strict=True):
            if not is_allowed(dtype, self.dtype, wanted.casting):
                raise InvalidError(
                    f"column {name} of {path}: need elements of {self.dtype}, have {dtype}, which "
                    'would lose more than precision; pass casting="unsafe" to convert anyway'
                )
        self._row_bytes = max(sum(each.itemsize for each in given), 1)
        rows = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
        self._starts = np.cumsum([0, *rows])
        self.shape = (int(self._starts[-1]), len(numeric))
        self._group = -1
        self._batches: Iterator[Any] = iter(())
        self._batch: Any = ()
        self._first = 0

    def __getitem__(self, box: tuple[slice, slice]) -> Any:
        rows, columns = box
        names = self.columns[columns]
        out = np.empty((rows.stop - rows.start, len(names)), self.dtype)
        at = rows.start
        try:
            while at < rows.stop:
                self._seek(at)
                part = self._batch.slice(at - self._first, rows.stop - at)
                into = out[at - rows.start : at - rows.start + len(part)]
                for number, name in enumerate(names):
                    column = (at, columns.start + number)
                    self._convert(self._numbers(part, name), into[:, number], name, column)
                at += len(part)
        except (self._arrow.ArrowException, OSError, StopIteration) as error:
            raise CorruptError(
                f"cannot decode {self._path}: {error or 'it has too few rows'}; restore it from a "
                "copy"
            ) from error
        return out

    def _seek(self, row: int) -> None:
        """Decode batches until one contains this row."""
        group = int(np.searchsorted(self._starts, row, "right")) - 1
        if group != self._group or row < self._first:
            rows = max(_BATCH_BYTES // self._row_bytes, 1)
            self._group, self._first, self._batch = group, int(self._starts[group]), ()
            self._batches = self._file.iter_batches(
                rows, row_groups=[group], columns=self.columns, use_threads=False
            )
        while row >= self._first + len(self._batch):
            self._first += len(self._batch)
            self._batch = next(self._batches)

    def _convert(self, given: Any, out: Any, name: str, at: tuple[int, int]) -> None:
        """Convert elements of a column, of which `at` is the index of the first."""
        given, out, casting = given[:, None], out[:, None], self._wanted.casting
        try:
            convert(given, out, fix=FIX, casting=casting, at=at)
            if self._wanted.dtype is None and casting != "unsafe":
                refuse_rounded(given, out, at)
        except InvalidError as error:
            raise InvalidError(f"column {name} of {self._path}: {error}") from None

    def _numbers(self, part: Any, name: str) -> Any:
        column = part.column(name)
        if column.null_count:
            raise InvalidError(
                f"need numbers in column {name} of {self._path}, have {column.null_count} nulls in "
                f"{len(column)} rows; fill them before, as pandas does by fillna()"
            )
        return column.to_numpy(zero_copy_only=False)


def _is_number(types: Any, kind: Any) -> bool:
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))
