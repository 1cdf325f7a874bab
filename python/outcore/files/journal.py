"""The journal of a copy: checksums of the written pieces, so that a later call can resume.

It is a text file of lines ``JSON TAB crc32c``. The line of a file describes its source. Further
lines list its written pieces with their CRC-32C. A resumed call does not rely on the journal alone.
It reads each piece of the target, compares the checksums, and checks that the source has not
changed. A line torn by a crash fails its own checksum, and ends the journal.
"""

import json
from typing import Any

from outcore._core import crc32c
from outcore.errors import NotFoundError
from outcore.storage.volumes import Place

NAME = "journal"
_FORMAT = 1
_MOST_LINE_BYTES = 1 << 16


class CopyJournal:
    """The written pieces of a copy, by file name relative to the source.

    Attributes
    ----------
    known
        For each file that an earlier call began: the state of its source, and (bytes, CRC-32C) of
        its pieces by offset.
    """

    def __init__(self, where: Place, header: dict[str, Any]) -> None:
        self._where = where
        self._header = {"format": _FORMAT, **header}
        self._lines: list[bytes] = []
        self._is_there = False
        self.known: dict[str, tuple[list[int], dict[int, tuple[int, int]]]] = {}

    def read(self) -> None:
        """Read the journal of an earlier call with the same header, and rewrite it.

        Lines after the first damaged one are ignored.
        """
        try:
            data = self._where.volume.read_small(self._where.inside(NAME))
        except NotFoundError:
            return
        lines = []
        for number, line in enumerate(data.split(b"\n")):
            values = _parsed(line)
            if values is None or (number == 0 and values != self._header):
                break
            lines.append(line + b"\n")
            if number:
                self._take(values)
        if lines:
            self._replace(lines)

    def begin_file(self, name: str, content: list[int]) -> None:
        """Record the state of a file's source, before its first piece."""
        self._lines.append(_line({"file": name, "source": content}))

    def note(self, name: str, at: int, nbytes: int, checksum: int) -> None:
        """Record that a piece was written."""
        self._lines.append(_line({"file": name, "piece": [at, nbytes, checksum]}))

    @property
    def has_pieces(self) -> bool:
        """Whether there are pieces from which a later call can resume."""
        return self._is_there or any(b'"piece"' in line for line in self._lines)

    def flush(self) -> None:
        """Write the recorded lines to disk. A crash before that loses them."""
        lines, self._lines = self._lines, []
        if not lines:
            return
        if not self._is_there:
            self._replace([_line(self._header), *lines])
            return
        self._where.volume.append_small(self._where.inside(NAME), b"".join(lines))

    def _replace(self, lines: list[bytes]) -> None:
        self._where.replace_small(NAME, b"".join(lines))
        self._is_there = True

    def _take(self, values: dict[str, Any]) -> None:
        if "source" in values:
            self.known[values["file"]] = (values["source"], {})
        elif values["file"] in self.known:
            at, nbytes, checksum = values["piece"]
            self.known[values["file"]][1][at] = (nbytes, checksum)


def _line(values: dict[str, Any]) -> bytes:
    text = json.dumps(values).encode()
    return text + b"\t" + f"{crc32c(text):08x}".encode() + b"\n"


def _parsed(line: bytes) -> dict[str, Any] | None:
    text, tab, checksum = line.rpartition(b"\t")
    if not tab or len(line) > _MOST_LINE_BYTES or checksum != f"{crc32c(text):08x}".encode():
        return None
    values: dict[str, Any] = json.loads(text)
    return values
