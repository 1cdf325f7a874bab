"""Temporary factors that a call creates for its own use, with a mark in their directory.

They have the mark from their start. So a killed call never leaves factors that look like the
user's.
"""

from outcore.storage.volumes import Place

MARK = "outcore.temporary"
"""Name of the mark: a file in the directory of temporary factors."""


def is_marked(where: Place) -> bool:
    """Whether factors are temporary."""
    return where.exists(MARK)


def mark(where: Place, *, is_temporary: bool = True) -> None:
    """Mark factors as temporary, or as the user's."""
    if is_temporary and not is_marked(where):
        where.replace_small(MARK, b"made by a call for itself\n")
    elif not is_temporary and is_marked(where):
        where.volume.remove(where.inside(MARK))
