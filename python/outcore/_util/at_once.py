"""Calls that wait for servers or disks, several of them at the same time."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar

from outcore._util.signals import signals_held

T = TypeVar("T")
R = TypeVar("R")

_MOST = 16
"""Largest number of calls at the same time."""


def at_once(call: Callable[[T], R], items: Iterable[T], most: int = _MOST) -> list[R]:
    """Call a function for each item, at most `most` at the same time; return the results in order.

    Every call that has begun has ended when this returns or raises. After an error no further call
    begins, and the error of the first item that has one is raised.
    """
    each = list(items)
    if len(each) < 2:
        return [call(item) for item in each]
    with ThreadPoolExecutor(min(len(each), most), "outcore-at-once") as threads:
        begun = [threads.submit(call, item) for item in each]
        try:
            return [one.result() for one in begun]
        except BaseException:
            for one in begun:
                one.cancel()
            raise


@contextmanager
def entered_at_once(contexts: Iterable[AbstractContextManager[object]]) -> Iterator[None]:
    """Enter several context managers at the same time, and leave them at the same time.

    If one cannot be entered, those that were are left. None of them learns of an error in the
    block.
    """
    entered: list[AbstractContextManager[object]] = []

    def enter(context: AbstractContextManager[object]) -> None:
        context.__enter__()
        entered.append(context)

    try:
        at_once(enter, contexts)
        yield
    finally:
        # All of them are left, whatever happens to one.
        with signals_held():
            failed = [error for error in at_once(_leave, entered) if error is not None]
        if failed:
            raise failed[0]


def _leave(context: AbstractContextManager[object]) -> Exception | None:
    try:
        context.__exit__(None, None, None)
    except Exception as error:
        return error
    return None
