"""Factors that a call makes for itself: a mark in their directory tells them from a user's.

They have it from the beginning, so that a call that is killed at any moment leaves none that pass
for the user's.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from outcore.volumes import Place

MARK = "outcore.temporary"
"""A file in the directory of factors that a call made for itself."""

_FOR_ITSELF = ContextVar("_FOR_ITSELF", default=False)
_LATER: ContextVar[list[Place] | None] = ContextVar("_LATER", default=None)
_ARGUMENT = ContextVar("_ARGUMENT", default="out=")


@contextmanager
def removed_later() -> Iterator[None]:
    """Have factors that calls made for themselves removed when this ends, not when they end.

    After an error they stay, with their mark: the same call finds them ready, and they go with it.
    """
    made: list[Place] = []
    token = _LATER.set(made)
    try:
        yield
    finally:
        _LATER.reset(token)
    for where in made:
        where.volume.remove(where.name)


def remove_made(where: Place) -> None:
    """Remove factors that a call made for itself, now or as `removed_later` has it."""
    later = _LATER.get()
    if later is None:
        where.volume.remove(where.name)
    else:
        later.append(where)


@contextmanager
def made_for_itself(*, keep: bool = False) -> Iterator[None]:
    """Have factors marked that are begun, or gone on with, meanwhile; with `keep`, not."""
    tokens = _FOR_ITSELF.set(not keep), _ARGUMENT.set("factors=")
    try:
        yield
    finally:
        _FOR_ITSELF.reset(tokens[0])
        _ARGUMENT.reset(tokens[1])


def place_argument() -> str:
    """Give the argument by which the user says where factors go, for what errors advise."""
    return _ARGUMENT.get()


def mark_as_made(where: Place) -> None:
    """Mark factors as those of the call that makes them, or as the user's."""
    mark(where) if _FOR_ITSELF.get() else unmark(where)


def is_marked(where: Place) -> bool:
    """Whether a call made factors for itself."""
    return where.exists(MARK)


def mark(where: Place) -> None:
    """Mark factors as made by a call for itself."""
    if not is_marked(where):
        where.replace_small(MARK, b"made by a call for itself\n")


def unmark(where: Place) -> None:
    """Make factors the user's."""
    if is_marked(where):
        where.volume.remove(where.inside(MARK))
