"""SIGTERM during a long call is treated like Ctrl-C."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stop_on_signals() -> Iterator[None]:
    """Let SIGTERM raise `KeyboardInterrupt` for a while.

    Signal handlers belong to the main thread; in others, and where the program has its own handler
    for SIGTERM, nothing changes.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt("SIGTERM")

    ours = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    )
    if ours:
        signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
