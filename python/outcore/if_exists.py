"""The argument ``if_exists=`` of calls that make something."""

from typing import Any, Final, Literal, TypeAlias

from outcore.errors import InvalidError

IfExists: TypeAlias = Literal["error", "open", "overwrite"]
"""A call finds what it would make: it raises `ExistsError`, opens what is there, or replaces it."""

WORDS: Final[tuple[IfExists, ...]] = ("error", "open", "overwrite")

Replace: TypeAlias = Literal["error", "overwrite"]
"""The same for calls that cannot open what they find."""


def check_if_exists(given: Any) -> IfExists:
    """Return the argument.

    Raises
    ------
    InvalidError
        If it is not one of the three words.
    """
    for word in WORDS:
        if given == word:
            return word
    raise InvalidError(f"if_exists must be 'error', 'open' or 'overwrite', have {given!r}")


def overwrites(given: Any) -> bool:
    """Tell whether a call that can only refuse or replace may replace.

    Raises
    ------
    InvalidError
        If the argument is neither ``"error"`` nor ``"overwrite"``.
    """
    if given == "error" or given == "overwrite":
        return bool(given == "overwrite")
    raise InvalidError(f"if_exists must be 'error' or 'overwrite' here, have {given!r}")
