"""How much work a plan is, whatever the machine: calls of functions, and memory."""

import functools
import gc
import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType

LARGE = 200_000
"""Order of matrices that are only planned: 320 GB in float64."""

MOST_CALLS = 8_000_000
"""Of functions in one plan: two seconds. Such a matrix has about 300,000 tiles, or 80 pages."""

MOST_BYTES = 64 << 20


def forget() -> None:
    """Empty what plans keep, as in a process that makes its first one."""
    for each in gc.get_objects():
        if isinstance(each, functools._lru_cache_wrapper) and "outcore" in str(each.__module__):
            each.cache_clear()


def calls_of(action: Callable[[], object]) -> int:
    """How many functions of Python an action calls, the first time: what it enumerates."""
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
    """The most memory that an action takes, the first time."""
    forget()
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
