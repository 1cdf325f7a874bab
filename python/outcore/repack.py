"""Arrays to which other software wrote, rewritten into outcore's own layout."""

import math
import os
import stat
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from outcore._core import Grid
from outcore.array import open_array
from outcore.array_metadata import bump_generation, read_metadata
from outcore.errors import TruncatedError
from outcore.foreign_shards import EMPTY, foreign_shards
from outcore.progress import Meter, ProgressLike
from outcore.signals import stop_on_signals
from outcore.targets import writing
from outcore.volumes import PathLike, being_made, local_path, place, sync_names

_PIECE_BYTES = 4 << 20


@dataclass(frozen=True)
class Repacked:
    """What `repack` did: how many of an array's shard files it rewrote."""

    path: str
    shards: int
    rewritten: int

    def __str__(self) -> str:
        if not self.rewritten:
            return f"{self.path}: in outcore's own layout, nothing to rewrite"
        return f"{self.path}: {self.rewritten} of {self.shards} shard files rewritten"


def repack(path: PathLike, *, progress: ProgressLike = True) -> Repacked:
    """Rewrite an array of outcore's, to which other software wrote, into outcore's own layout.

    zarr-python and others replace whole shard files, and put chunks elsewhere in them. Each such
    file is written anew beside the old one, made durable, and renamed. Stopped at any moment, the
    array is valid Zarr with the same elements; the same call does the rest.

    Parameters
    ----------
    path
        Directory of the array, not in a pool. No process may write to it meanwhile.
    progress
        See `outcore.progress.ProgressLike`.

    Returns
    -------
    Repacked

    Raises
    ------
    InvalidError
        If it is not an array of outcore's, or in a pool: `from_array` copies such an array.
    NotFoundError, TruncatedError, CorruptError, IncompleteError, ConsumedError
        As from `open_array`: such an array is left as it is.
    DiskFullError
        If the disk has no room for one more shard file.
    BusyError
        If another call makes or repacks the array.
    """
    local_path(path, "arrays are repacked")
    where = place(path)
    with being_made(where, "repacking"):
        metadata = read_metadata(where)
        found = foreign_shards(where, metadata)
        if not found or metadata.state is not None:
            open_array(path).close()  # says what else is wrong, if anything is
            return Repacked(str(where.path), metadata.grid().shards, 0)
        grid, directory = metadata.grid(), Path(where.path)
        chunk_bytes = math.prod(metadata.chunks) * metadata.dtype.itemsize
        bump_generation(where)
        title = f"repacking {directory.name}"
        with stop_on_signals(), Meter(title, len(found), progress) as meter:
            for shard, entries in found.items():
                with writing(directory):
                    _rewrite(
                        directory, directory / grid.shard_key(shard), grid, entries, chunk_bytes
                    )
                meter.advance(1)
    return Repacked(str(where.path), grid.shards, len(found))


def _rewrite(
    directory: Path, old: Path, grid: Grid, entries: npt.NDArray[np.uint64], chunk_bytes: int
) -> None:
    """Write a shard file anew, and put it in the place of the old one."""
    new = directory / f"outcore.shard.{os.getpid()}.new"
    index = grid.index()
    places = np.frombuffer(index[:-4], "<u8").reshape(-1, 2)
    try:
        with old.open("rb", buffering=0) as source, new.open("wb", buffering=0) as target:
            os.fchmod(target.fileno(), stat.S_IMODE(os.fstat(source.fileno()).st_mode))
            os.ftruncate(target.fileno(), grid.shard_bytes)
            for (begin, _), (to, _) in zip(entries, places, strict=True):
                if int(begin) != EMPTY:
                    _copy(source.fileno(), target.fileno(), int(begin), int(to), chunk_bytes, old)
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
