"""The journal of a factorization. It lists durable panels, so that a stopped run can resume.

The journal is a text file of lines ``JSON TAB crc32c``. The first line is the header. Each further
line says that the panels of one slab are durable. A line torn by a crash or a full disk fails its
checksum and is ignored. A resumed run first rewrites the file, since a line appended to a torn one
would be lost too.
"""

import base64
import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from outcore._core import crc32c
from outcore.errors import JournalError
from outcore.storage.volumes import Place

NAME = "journal"
_FORMAT = 1


class Settings(NamedTuple):
    """The settings of one process, on which the last bits of factors depend."""

    kernels: str
    threads: int
    memory_bytes: int


def settings_of(all_of: Sequence[Settings]) -> dict[str, Any]:
    """Return the values of a `Header` for the settings of each process."""
    first, *others = all_of
    beside = [list(each) for each in others] or None
    return {**first._asdict(), "processes": len(all_of), "others": beside}


@dataclass(frozen=True)
class Header:
    """The identity of the run, and the settings with which it started.

    ``kind`` is the kind of the factors. ``lower`` says whether the run reads the lower triangle of
    the matrix, if it reads only one. LU journals are older than both and omit them. ``m`` is the
    number of rows of a matrix that need not be square, which is read whole. ``is_mixed`` says that
    some panels were computed with another budget, BLAS, or number of threads or processes than in
    this header. ``others`` holds ``kernels``, ``threads`` and ``memory_bytes`` of each process
    after the first one.
    """

    n: int
    dtype: str
    tile: tuple[int, int]
    source: str
    generation: int
    modified_ns: int
    kernels: str
    threads: int
    memory_bytes: int
    overwrite_a: bool = False
    kind: str = "lu"
    lower: bool = True
    m: int | None = None
    cuts: dict[str, Any] | None = None
    is_mixed: bool = False
    processes: int = 1
    others: list[list[Any]] | None = None

    def gone_on_with(self, settings: Sequence[Settings]) -> "Header":
        """Return the header of the same run, resumed with these settings of each process."""
        now = dataclasses.replace(self, **settings_of(settings))
        return now if now == self else dataclasses.replace(now, is_mixed=True)


@dataclass(frozen=True)
class Record:
    """Panels ``first`` to ``last - 1`` are durable.

    ``piv`` holds their row swaps (row numbers of the whole matrix), or `None` without swaps.
    ``places`` holds their places on disk, in panels. ``extremes`` is the state of their columns
    that a resumed run needs, as JSON: norms and largest elements. A record without panels sets
    ``trailing``: the trailing matrix of this number is durable.
    """

    first: int
    last: int
    piv: npt.NDArray[np.int32] | None
    places: list[int]
    extremes: dict[str, Any]
    trailing: int | None = None


@dataclass
class Journal:
    """The journal in a factor's directory."""

    place: Place
    header: Header
    records: list[Record] = field(default_factory=list)
    is_torn: bool = False

    @property
    def panels_done(self) -> int:
        """Number of durable panels."""
        return self.records[-1].last if self.records else 0

    @property
    def trailing(self) -> int | None:
        """Number of the last durable trailing matrix, if any."""
        found = [r.trailing for r in self.records if r.trailing is not None]
        return found[-1] if found else None

    def write(self) -> None:
        """Rewrite the whole journal, so that it ends in a whole line."""
        values = {"format": _FORMAT, **self.header.__dict__, "tile": list(self.header.tile)}
        if self.header.kind == "lu":
            del values["kind"], values["lower"]
        del values["m" if self.header.m is None else "lower"]
        if self.header.cuts is None:
            del values["cuts"]
        if not self.header.is_mixed:
            del values["is_mixed"]
        if self.header.processes == 1:
            del values["processes"], values["others"]
        lines = [_line(values), *map(_record_line, self.records)]
        self.place.replace_small(NAME, b"".join(lines))

    def append(self, record: Record) -> None:
        """Record a durable slab. The record is durable when this returns."""
        self.place.volume.append_small(self.place.inside(NAME), _record_line(record))
        self.records.append(record)

    def remove(self) -> None:
        """Remove the journal of a complete factorization."""
        self.place.volume.remove(self.place.inside(NAME))


def _line(values: dict[str, Any]) -> bytes:
    text = json.dumps(values).encode()
    return text + b"\t" + f"{crc32c(text):08x}".encode() + b"\n"


def _record_line(record: Record) -> bytes:
    values = dataclasses.asdict(record)
    if record.trailing is None:
        del values["trailing"]
    if record.piv is None:
        del values["piv"]
    else:
        values["piv"] = base64.b64encode(record.piv.astype("<i4").tobytes()).decode()
    return _line(values)


def _parse(line: bytes) -> dict[str, Any] | None:
    text, tab, checksum = line.rpartition(b"\t")
    if not tab or checksum != f"{crc32c(text):08x}".encode():
        return None
    values: dict[str, Any] = json.loads(text)
    return values


def read_journal(where: Place) -> Journal | None:
    """Read the journal in a factor's directory; `None` if there is none.

    Raises
    ------
    JournalError
        If its header cannot be read, or a line other than the last is damaged.
    """
    if not where.exists(NAME):
        return None
    lines = where.volume.read_small(where.inside(NAME)).split(b"\n")
    # After the last newline there is nothing, or a line torn by a crash.
    values = [_parse(line) for line in lines[:-1]]
    if not values or values[0] is None or None in values[:-1]:
        raise JournalError(f"the journal in {where.path} is damaged; pass resume=False to restart")
    head, *records = (v for v in values if v is not None)
    if head.pop("format") != _FORMAT:
        raise JournalError(
            f"the journal in {where.path} was written by another version of outcore; "
            "finish with that version, or pass resume=False to restart"
        )
    header = Header(**head | {"tile": tuple(head["tile"])})
    journal = Journal(where, header, is_torn=bool(lines[-1]) or values[-1] is None)
    for record in records:
        piv = record.pop("piv", None)
        if piv is not None:
            piv = np.frombuffer(base64.b64decode(piv), "<i4").astype(np.int32)
        journal.records.append(Record(piv=piv, **record))
    return journal
