"""File modes in the notation of ``chmod``: octal, or symbolic such as ``u+rwx,g-w``.

Source: POSIX.1-2017, Shell & Utilities, chmod, "Extended Description"; with GNU's extension: set-ID
bits of directories stay unless the mode names them.
"""

import re
from pathlib import Path

from outcore.errors import InvalidError

ALL = 0o7777
_SET_ID = 0o6000

_OCTAL = re.compile(r"[0-7]{1,5}")
_CLAUSE = re.compile(r"([ugoa]*)((?:[-+=](?:[ugo]|[rwxXst]*))+)")
_ACTION = re.compile(r"([-+=])([ugo]|[rwxXst]*)")
_OF = {"u": 0o4700, "g": 0o2070, "o": 0o1007, "a": 0o7777}
_BITS = {"r": 0o444, "w": 0o222, "x": 0o111, "s": 0o6000, "t": 0o1000}
_UMASK = re.compile(r"^Umask:\t([0-7]+)$", re.MULTILINE)
_SHIFT = {"u": 6, "g": 3, "o": 0}


def current_umask() -> int:
    """Return the process's umask: permission bits that new files do not get."""
    # os.umask can only read the mask by setting another one, which would affect other threads.
    found = _UMASK.search(Path("/proc/self/status").read_text())
    assert found, "Linux 4.7 and later report it"
    return int(found[1], 8)


def pool_mode(*, is_directory: bool) -> int:
    """Return all bits that the mode of a file or directory in a pool can have."""
    return 0o3777 if is_directory else 0o1777


def check_mode(text: str) -> None:
    """Refuse a text that is not a mode.

    Raises
    ------
    InvalidError
        If the text is neither octal nor symbolic.
    """
    if not _OCTAL.fullmatch(text) and not all(map(_CLAUSE.fullmatch, text.split(","))):
        raise InvalidError(f"{text!r} is no mode; write it like 644 or u+rwx,g-w")
    if _OCTAL.fullmatch(text) and int(text, 8) > ALL:
        raise InvalidError(f"a mode is at most 7777, have {text}")


def changed_mode(text: str, mode: int, *, is_directory: bool, umask: int) -> int:
    """Apply a mode in the user's notation to existing permission bits.

    Parameters
    ----------
    text
        A mode that `check_mode` accepts.
    mode
        The bits before the change.
    is_directory
        ``X`` means ``x`` for directories, and for files that have an ``x`` already.
    umask
        Bits that a clause without ``u``, ``g``, ``o`` or ``a`` does not change.
    """
    check_mode(text)
    if _OCTAL.fullmatch(text):
        keeps_set_id = is_directory and len(text) < 5
        return int(text, 8) | (mode & _SET_ID if keeps_set_id else 0)
    for clause in text.split(","):
        who, actions = _clause(clause)
        of = 0
        for letter in who:
            of |= _OF[letter]
        for sign, perms in actions:
            mode = _applied(mode, sign, perms, of, is_directory, umask)
    return mode


def _clause(clause: str) -> tuple[str, list[tuple[str, str]]]:
    found = _CLAUSE.fullmatch(clause)
    assert found
    return found[1], _ACTION.findall(found[2])


def _applied(mode: int, sign: str, perms: str, of: int, is_directory: bool, umask: int) -> int:
    bits = 0
    for letter in perms:
        if letter in _SHIFT:
            bits |= (mode >> _SHIFT[letter] & 7) * 0o111
        elif letter == "X":
            bits |= 0o111 if is_directory or mode & 0o111 else 0
        else:
            bits |= _BITS[letter]
    kept = _SET_ID if is_directory and not _names_set_id(perms, of) else 0
    bits &= (of or ~umask & ALL) & ~kept
    if sign == "+":
        return mode | bits
    if sign == "-":
        return mode & ~bits
    return mode & (~of & ALL if of else 0) | mode & kept | bits


def _names_set_id(perms: str, of: int) -> bool:
    return "s" in perms and (not of or bool(of & _SET_ID))


def as_letters(kind: str, mode: int) -> str:
    """Format a mode as ``ls -l`` does, such as ``drwxr-x--t``."""
    letters = {"directory": "d", "link": "l", "file": "-"}.get(kind, "?")
    for shift, special, letter in ((6, 0o4000, "s"), (3, 0o2000, "s"), (0, 0o1000, "t")):
        bits = mode >> shift & 7
        letters += "r" if bits & 4 else "-"
        letters += "w" if bits & 2 else "-"
        plain = "x" if bits & 1 else "-"
        letters += (letter if bits & 1 else letter.upper()) if mode & special else plain
    return letters
