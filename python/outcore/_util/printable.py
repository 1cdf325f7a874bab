r"""Names and texts made safe for a terminal, whatever characters they contain.

Control characters, and those that reverse the direction of text, are escaped as in a shell and in
C: ``\n``, ``\033``. So a name can neither send commands to the terminal nor look like an extra
line.
"""

import re

_CONTROL = re.compile("[\0-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_NOT_UTF8 = "[\ud800-\udfff]"
_NOT_SHOWN = re.compile(f"(?:{_CONTROL.pattern}|{_NOT_UTF8})+")

_LETTERS = {"\a": "a", "\b": "b", "\t": "t", "\n": "n", "\v": "v", "\f": "f", "\r": "r"}


def as_line(text: str) -> str:
    """Return a text as one line, with control characters and invalid UTF-8 escaped."""
    return _NOT_SHOWN.sub(lambda found: _escaped(found[0]), text)


def as_lines(text: str) -> str:
    """Return a text of several lines, with all other control characters escaped."""
    return "\n".join(map(as_line, text.split("\n")))


def as_shell_word(name: str) -> str:
    """Return a name as GNU ``ls`` shows it on a terminal, quoted for a shell if necessary.

    Names without such characters stay unchanged, even if they contain blanks.
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
    """Whether a name contains control characters."""
    return _CONTROL.search(name) is not None


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _escaped(text: str) -> str:
    return "".join(
        f"\\{_LETTERS[character]}" if character in _LETTERS
        else "".join(f"\\{byte:03o}" for byte in character.encode(errors="surrogateescape"))
        for character in text
    )  # fmt: skip
