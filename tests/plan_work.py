"""The work of a plan, independent of the machine: calls of functions, and memory."""

import functools
import gc
import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType

LARGE = 200_000
"""Order of matrices that are only planned: 320 GB in float64."""

MOST_CALLS = 8_000_000
"""Calls of functions in one plan: two seconds. Such a matrix has about 300,000 tiles, or 80 pages.
"""

MOST_BYTES = 64 << 20


def forget() -> None:
    """Empty the caches of plans, as in a process that makes its first one."""
    for each in gc.get_objects():
        if isinstance(each, functools._lru_cache_wrapper) and "outcore" in str(each.__module__):
            each.cache_clear()


def calls_of(action: Callable[[], object]) -> int:
    """Return the number of Python function calls of an action, the first time."""
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    forget()
    sys.setprofile(count)
    try:
        action()
    finally:
        sys.setprofile(None)
    return calls


def bytes_of(action: Callable[[], object]) -> int:
    """Return the peak memory of an action, the first time."""
    forget()
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
