"""Temporary factors that a call creates for its own use, with a mark in their directory.

They have the mark from their start. So a killed call never leaves factors that look like the
user's.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from outcore.storage.volumes import Place

MARK = "outcore.temporary"
"""Name of the mark: a file in the directory of temporary factors."""

_FOR_ITSELF = ContextVar("_FOR_ITSELF", default=False)
_LATER: ContextVar[list[Place] | None] = ContextVar("_LATER", default=None)
_ARGUMENT = ContextVar("_ARGUMENT", default="out=")


@contextmanager
def removed_later() -> Iterator[None]:
    """Delay the removal of temporary factors from the end of their call to the end of this context.

    After an error they stay, with their mark. The same call then finds them complete, and removes
    them later.
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
    """Remove temporary factors, now or at the end of `removed_later`."""
    later = _LATER.get()
    if later is None:
        where.volume.remove(where.name)
    else:
        later.append(where)


@contextmanager
def made_for_itself(*, keep: bool = False) -> Iterator[None]:
    """Mark factors as temporary that calls start or resume meanwhile, unless `keep` is set."""
    tokens = _FOR_ITSELF.set(not keep), _ARGUMENT.set("factors=")
    try:
        yield
    finally:
        _FOR_ITSELF.reset(tokens[0])
        _ARGUMENT.reset(tokens[1])


def place_argument() -> str:
    """Return the argument that sets the place of factors, for advice in errors."""
    return _ARGUMENT.get()


def mark_as_made(where: Place) -> None:
    """Mark factors as temporary, or as the user's, according to `made_for_itself`."""
    mark(where) if _FOR_ITSELF.get() else unmark(where)


def is_marked(where: Place) -> bool:
    """Whether factors are temporary."""
    return where.exists(MARK)


def mark(where: Place) -> None:
    """Mark factors as temporary."""
    if not is_marked(where):
        where.replace_small(MARK, b"made by a call for itself\n")


def unmark(where: Place) -> None:
    """Make factors the user's."""
    if is_marked(where):
        where.volume.remove(where.inside(MARK))
