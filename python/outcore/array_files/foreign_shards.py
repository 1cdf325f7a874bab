"""Shard files that other software wrote: valid Zarr, but not in outcore's layout."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from outcore._core import crc32c
from outcore.errors import InvalidError, OutcoreError
from outcore.layout.zarr_format import Metadata
from outcore.storage.pool_path import PoolPath
from outcore.storage.volumes import Place

EMPTY = 2**64 - 1
"""Offset and length of a chunk that a shard omits, because it is all zeros."""

_CHECKSUM_BYTES = 4


def refuse_foreign(where: Place, metadata: Metadata) -> None:
    """Distinguish a valid array written by other software from a damaged one.

    Raises
    ------
    InvalidError
        If `foreign_shards` finds any.
    """
    if foreign_shards(where, metadata):
        raise InvalidError(
            f"need outcore's own layout in {where.path}, have valid Zarr that other software "
            "wrote to since; rewrite it by oc.repack(path), or copy it by oc.from_array"
        )


def foreign_shards(where: Place, metadata: Metadata) -> dict[int, npt.NDArray[np.uint64]]:
    """Find the shard files of an outcore array that other software wrote.

    Returns
    -------
    dict
        Their numbers, with the offset and length of each of their chunks. It is empty if a shard
        file is in neither layout, because the array is damaged then.
    """
    grid = metadata.grid()
    own, found = grid.index(), {}
    for shard in range(grid.shards):
        try:
            nbytes, end = _end(where, grid.shard_key(shard), len(own))
        except (OSError, OutcoreError):
            return {}
        if (nbytes, end) == (grid.shard_bytes, own):
            continue
        entries = _valid_index(end, nbytes - len(own), metadata)
        if entries is None or len(end) != len(own):
            return {}
        found[shard] = entries
    return found


def _end(where: Place, key: str, length: int) -> tuple[int, bytes]:
    """Return the length of a file, and its last bytes."""
    path = where.below(key).path
    nbytes = path.nbytes() if isinstance(path, PoolPath) else path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(nbytes - length, 0))
        return nbytes, bytes(file.read(length))


def _valid_index(end: bytes, index_offset: int, metadata: Metadata) -> Any:
    """Return an index if it names whole chunks that lie before it and do not overlap.

    The result is `None` if it does not: the file is damaged, or cut off.
    """
    index, checksum = end[:-_CHECKSUM_BYTES], end[-_CHECKSUM_BYTES:]
    if crc32c(index) != int.from_bytes(checksum, "little"):
        return None
    entries = np.frombuffer(index, "<u8").reshape(-1, 2)
    present = entries[(entries != EMPTY).any(axis=1)]
    chunk_bytes = math.prod(metadata.chunks) * metadata.dtype.itemsize
    if (present[:, 1] != chunk_bytes).any() or (present[:, 0] > index_offset).any():
        return None
    begins = np.sort(present[:, 0].astype(np.int64))
    ends = begins + chunk_bytes
    is_apart = (ends[:-1] <= begins[1:]).all() and (ends <= index_offset).all()
    return entries if is_apart else None
