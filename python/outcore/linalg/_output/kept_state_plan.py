"""Cost of saving the state of a call on disk (`outcore.linalg._rows.kept_state`)."""

import numpy as np

from outcore.layout.zarr_format import SLOT_ALIGN_BYTES, Metadata
from outcore.linalg._tiles.grains import BOUNCE_BYTES, pages

PLACES = 2
"""Number of copies, which are written alternately."""

_CHUNK_PAGES = 256

STATE_MEMORY_BYTES = SLOT_ALIGN_BYTES + BOUNCE_BYTES[0]
"""Memory of the saving, besides the state itself."""


def state_metadata(pages_of_copy: int) -> Metadata:
    """Return the metadata of the array of pages for the copies."""
    shape = PLACES * pages_of_copy, SLOT_ALIGN_BYTES
    chunks = min(_CHUNK_PAGES, shape[0]), SLOT_ALIGN_BYTES
    return Metadata(shape, np.dtype(np.uint8), chunks)


def state_bytes(*matrix_bytes: int) -> int:
    """Return the bytes on disk for matrices of the given sizes."""
    grid = state_metadata(sum(pages(n) for n in (1, *matrix_bytes)) // SLOT_ALIGN_BYTES).grid()
    return grid.shards * grid.shard_bytes
