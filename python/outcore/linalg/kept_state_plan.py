"""What it costs to keep the state of a call on disk (`outcore.linalg.kept_state`)."""

import numpy as np

from outcore.linalg.grains import BOUNCE_BYTES, pages
from outcore.zarr_format import SLOT_ALIGN_BYTES, Metadata

PLACES = 2
"""Copies of it, which are written in turn."""

_CHUNK_PAGES = 256

STATE_MEMORY_BYTES = SLOT_ALIGN_BYTES + BOUNCE_BYTES[0]
"""Memory that it takes, beside the state itself."""


def state_metadata(pages_of_copy: int) -> Metadata:
    """Describe the array of pages that holds the copies."""
    shape = PLACES * pages_of_copy, SLOT_ALIGN_BYTES
    chunks = min(_CHUNK_PAGES, shape[0]), SLOT_ALIGN_BYTES
    return Metadata(shape, np.dtype(np.uint8), chunks)


def state_bytes(*matrix_bytes: int) -> int:
    """Bytes on disk for matrices of so many bytes."""
    grid = state_metadata(sum(pages(n) for n in (1, *matrix_bytes)) // SLOT_ALIGN_BYTES).grid()
    return grid.shards * grid.shard_bytes
