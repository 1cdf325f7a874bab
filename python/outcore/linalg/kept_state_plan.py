"""What it costs to keep the state of a call on disk (`outcore.linalg.kept_state`)."""

from outcore.linalg.grains import BOUNCE_BYTES, pages
from outcore.zarr_format import SLOT_ALIGN_BYTES

PLACES = 2
"""Copies of it, which are written in turn."""

STATE_MEMORY_BYTES = SLOT_ALIGN_BYTES + BOUNCE_BYTES[0]
"""Memory that it takes, beside the state itself."""


def state_bytes(*matrix_bytes: int) -> int:
    """Bytes on disk for matrices of so many bytes."""
    return PLACES * sum(pages(nbytes) for nbytes in (1, *matrix_bytes))
