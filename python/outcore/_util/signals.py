"""SIGTERM during a long call, treated like Ctrl-C."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Never


@contextmanager
def stop_on_signals() -> Iterator[None]:
    """Let SIGTERM raise `KeyboardInterrupt` inside the block.

    Only the main thread has signal handlers. In other threads, and if the program has its own
    handler for SIGTERM, nothing changes.
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


@contextmanager
def signals_held() -> Iterator[None]:
    """Delay Ctrl-C and SIGTERM until the end of the block.

    A second signal is not delayed. In threads other than the main one nothing changes, because they
    receive no signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    handlers = {number: signal.getsignal(number) for number in numbers}
    handlers = {number: found for number, found in handlers.items() if callable(found)}
    kept: list[tuple[int, FrameType | None]] = []

    def keep(number: int, frame: FrameType | None) -> None:
        kept.append((number, frame))
        if len(kept) > 1:
            deliver(*kept.pop())

    def deliver(number: int, frame: FrameType | None) -> None:
        handler = handlers[signal.Signals(number)]
        if callable(handler):
            handler(number, frame)

    for number in handlers:
        signal.signal(number, keep)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for each in kept:
            deliver(*each)


def wait_for_signals() -> Never:
    """Wait until a signal handler raises an exception.

    `signal.pause` could block forever: the system delivers the signal to any thread, but Python
    runs the handler in the main thread when that wakes up.
    """
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    before = signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    try:
        while True:
            os.read(woken, 1 << 10)
    finally:
        signal.set_wakeup_fd(before)
        os.close(woken)
        os.close(wakes)
