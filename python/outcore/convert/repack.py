"""Rewriting of arrays that other software wrote to, into outcore's own layout."""

import math
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from outcore._core import Grid
from outcore._util.progress import Meter, ProgressLike
from outcore._util.signals import stop_on_signals
from outcore.array.array import open_array
from outcore.array_files.foreign_shards import EMPTY, foreign_shards
from outcore.array_files.metadata import bump_generation, read_metadata
from outcore.convert.targets import writing
from outcore.errors import TruncatedError
from outcore.layout.zarr_format import Metadata
from outcore.storage.pool_path import PoolPath
from outcore.storage.volumes import AnyPath, PathLike, being_made, place, sync_names
from outcore.storage.whole_file import WholeFile

_PIECE_BYTES = 4 << 20

Moves: TypeAlias = list[tuple[int, int, int]]
"""For each chunk: its offset in the old file, its offset in the new file, and its size in bytes."""


@dataclass(frozen=True)
class Repacked:
    """Report of `repack`.

    Attributes
    ----------
    path
        The array.
    shards, rewritten
        Number of its shard files, and of those that the call rewrote.
    """

    path: str
    shards: int
    rewritten: int

    def __str__(self) -> str:
        if not self.rewritten:
            return f"{self.path}: in outcore's own layout, nothing to rewrite"
        return f"{self.path}: {self.rewritten} of {self.shards} shard files rewritten"


def repack(path: PathLike, *, progress: ProgressLike = True) -> Repacked:
    """Rewrite an array of outcore that other software wrote to, into outcore's own layout.

    zarr-python and others replace whole shard files, and move chunks inside them. The call rewrites
    each such file beside the old one, makes it durable, and renames it. In a pool it gets the
    stripes that `create_array` would choose. After an interruption at any moment, the array is
    valid Zarr with the same elements; the same call resumes.

    Parameters
    ----------
    path
        Directory of the array, also in a pool. No process may write to it during the call.
    progress
        Whether to show progress, or a function ``f(fraction, seconds_left)``.

    Returns
    -------
    Repacked

    Raises
    ------
    InvalidError
        If it is not an array of outcore: `from_array` copies other arrays.
    NotFoundError, TruncatedError, CorruptError, IncompleteError, ConsumedError
        As in `open_array`; the array stays unchanged.
    DiskFullError
        If the disk has no space for one more shard file.
    BusyError
        If another call creates or repacks the array.
    """
    where = place(path)
    with being_made(where, "repacking"):
        metadata = read_metadata(where)
        found = foreign_shards(where, metadata)
        if not found or metadata.state is not None:
            open_array(path).close()  # raises the error of an incomplete or damaged array
            return Repacked(str(where.path), metadata.grid().shards, 0)
        grid = metadata.grid()
        bump_generation(where)
        title = f"repacking {where.path.name}"
        with stop_on_signals(), Meter(title, len(found), progress) as meter:
            for shard, entries in found.items():
                with writing(where.path):
                    _rewrite(where.path, grid.shard_key(shard), metadata, entries)
                meter.advance(1)
    return Repacked(str(where.path), grid.shards, len(found))


def _rewrite(
    directory: AnyPath, key: str, metadata: Metadata, entries: npt.NDArray[np.uint64]
) -> None:
    """Rewrite a shard file beside the old one, and replace the old one."""
    grid = metadata.grid()
    chunk_bytes = math.prod(metadata.chunks) * metadata.dtype.itemsize
    slots = np.frombuffer(grid.index()[:-4], "<u8").reshape(-1, 2)
    moves = [
        (int(begin), int(to), chunk_bytes)
        for (begin, _), (to, _) in zip(entries, slots, strict=True)
        if int(begin) != EMPTY
    ]
    if isinstance(directory, PoolPath):
        _rewrite_in_pool(directory / key, grid, metadata.stripe_count, moves)
    else:
        _rewrite_plain(directory, directory / key, grid, moves)


def _rewrite_in_pool(old: PoolPath, grid: Grid, stripe_count: int | None, moves: Moves) -> None:
    hints = {
        "stripe_unit_bytes": grid.stripe_unit_bytes,
        "round_units": grid.round_units,
        "stripe_count": stripe_count,
    }
    given = {name: value for name, value in hints.items() if value is not None}
    index = grid.index()
    with old.open("r") as source, WholeFile(old, given) as whole:
        whole.file.truncate(grid.shard_bytes)
        for begin, to, nbytes in moves:
            for at in range(0, nbytes, _PIECE_BYTES):
                data = source.read_at(begin + at, min(_PIECE_BYTES, nbytes - at))
                whole.file.write_at(to + at, data)
        whole.file.write_at(grid.shard_bytes - len(index), index)


def _rewrite_plain(directory: Path, old: Path, grid: Grid, moves: Moves) -> None:
    new = directory / f"outcore.shard.{os.getpid()}.new"
    index = grid.index()
    try:
        with old.open("rb", buffering=0) as source, new.open("wb", buffering=0) as target:
            os.fchmod(target.fileno(), stat.S_IMODE(os.fstat(source.fileno()).st_mode))
            os.ftruncate(target.fileno(), grid.shard_bytes)
            for begin, to, nbytes in moves:
                _copy(source.fileno(), target.fileno(), begin, to, nbytes, old)
            _write(target.fileno(), index, grid.shard_bytes - len(index))
            os.fsync(target.fileno())
        os.rename(new, old)
        sync_names(old.parent)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def _copy(source: int, target: int, begin: int, to: int, nbytes: int, old: Path) -> None:
    done = 0
    while done < nbytes:
        data = os.pread(source, min(_PIECE_BYTES, nbytes - done), begin + done)
        if not data:
            raise TruncatedError(f"{old} became shorter while it was read; keep writers away")
        _write(target, data, to + done)
        done += len(data)


def _write(target: int, data: bytes, at: int) -> None:
    while data:
        count = os.pwrite(target, data, at)
        data, at = data[count:], at + count
