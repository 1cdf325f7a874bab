r"""Names and texts that a terminal shows as they are, whatever characters anybody put into them.

Control characters, and those that reverse the direction of text, are written as a shell and C write
them: ``\n``, ``\033``. So a name can neither command the terminal nor pass for a line of its own.
"""

import re

_CONTROL = re.compile("[\0-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_NOT_UTF8 = "[\ud800-\udfff]"
_NOT_SHOWN = re.compile(f"(?:{_CONTROL.pattern}|{_NOT_UTF8})+")

_LETTERS = {"\a": "a", "\b": "b", "\t": "t", "\n": "n", "\v": "v", "\f": "f", "\r": "r"}


def as_line(text: str) -> str:
    """Write a text as one line, its control characters and bytes that are no UTF-8 as escapes."""
    return _NOT_SHOWN.sub(lambda found: _escaped(found[0]), text)


def as_lines(text: str) -> str:
    """Write a text of several lines, all other control characters as escapes."""
    return "\n".join(map(as_line, text.split("\n")))


def as_shell_word(name: str) -> str:
    """Write a name as GNU ``ls`` does on a terminal: to be copied into a shell, if need be quoted.

    Names that a terminal shows as they are stay so, even if they have blanks.
    """
    if not _NOT_SHOWN.search(name):
        return name
    word, at = "", 0
    for found in _NOT_SHOWN.finditer(name):
        word += _quoted(name[at : found.start()]) + f"$'{_escaped(found[0])}'"
        at = found.end()
    rest = name[at:]
    return word + (_quoted(rest) if rest else "")


def has_controls(name: str) -> bool:
    """Whether there are control characters in a name."""
    return _CONTROL.search(name) is not None


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _escaped(text: str) -> str:
    return "".join(
        f"\\{_LETTERS[character]}" if character in _LETTERS
        else "".join(f"\\{byte:03o}" for byte in character.encode(errors="surrogateescape"))
        for character in text
    )  # fmt: skip
