"""The C library's allocator: memory that was freed goes back to the system.

glibc keeps what a thread has freed for that thread. A library that decodes chunks in several
threads so comes to hold many times what it uses.
"""

import ctypes

_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
"""`None` with another C library than glibc."""


def trim() -> None:
    """Give freed memory back, where the allocator can be told to."""
    if _trim is not None:
        _trim(ctypes.c_size_t(0))
