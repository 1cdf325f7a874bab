"""The argument ``if_exists=`` of calls that create an object."""

from typing import Any, Final, Literal, TypeAlias

from outcore.errors import InvalidError

IfExists: TypeAlias = Literal["error", "open", "overwrite"]
"""If the target of a call exists, the call raises `ExistsError`, opens it, or replaces it."""

WORDS: Final[tuple[IfExists, ...]] = ("error", "open", "overwrite")

Replace: TypeAlias = Literal["error", "overwrite"]
"""The same for calls that cannot open an existing target."""


def check_if_exists(given: Any) -> IfExists:
    """Check the argument and return it.

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
    """Whether a call that can only refuse or replace a target may replace it.

    Raises
    ------
    InvalidError
        If the argument is neither ``"error"`` nor ``"overwrite"``.
    """
    if given == "error" or given == "overwrite":
        return bool(given == "overwrite")
    raise InvalidError(f"if_exists must be 'error' or 'overwrite' here, have {given!r}")
