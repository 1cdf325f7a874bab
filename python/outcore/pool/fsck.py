"""Checks a pool in use: compares the manager's records with the data files of the servers.

Concurrent creations and removals are no findings. A server creates a data file after the manager
has the record of its file, and no handle is ever used again. The check lists data files first and
asks the manager afterwards. So a listed data file that the manager does not know has been removed
meanwhile, or has no owner. Findings about the data files of a file must be the same in two
inspections, some time apart.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeAlias, TypeVar

from outcore._core import PoolCheck, Stripes
from outcore.errors import DeniedError, NotFoundError, OutcoreError
from outcore.pool.descriptions import describe, odd_descriptions
from outcore.pool.pool import Pool
from outcore.pool.unchecked import Unchecked, away, summary
from outcore.storage.pool_parts import is_left, parts_below

Kind: TypeAlias = Literal[
    "stray data", "newer data", "misplaced data", "unfinished removal", "missing server",
    "retired server", "missing data", "missing checksums", "short data", "impossible length",
    "unfinished file", "unreadable data", "older data", "long data", "old checksums",
    "broken record", "old index", "old description",
]  # fmt: skip
"""Kinds of findings."""

PATIENCE_S = 3.0
"""Time between the two inspections, in seconds."""

_PAGE = 1000
_LONG_NS = 24 * 3600 * 10**9
_PATHS = 100
_MOST_LENGTH = (1 << 63) - 1
_CUT = "cut them"
_MEND = "rebuild the index"
_DESCRIBE = "describe it again"
_OLD_INDEX = "the search index"
"""Begins the finding of the manager about its index."""

_Answer = TypeVar("_Answer")

# Handle, state, stripes of the file, servers, and durable bytes and generation of its data file on
# each server.
_Record: TypeAlias = tuple[int, str, Stripes | None, list[int], list[int], list[int]]
# (bytes of the data file, bytes of its checksums, end of the checksums beyond its end, generation,
# bytes that no write explains, whether its checksums are old)
_State: TypeAlias = tuple[int | None, int | None, int, int, int, bool]


@dataclass(frozen=True)
class Finding:
    """One inconsistency.

    Attributes
    ----------
    kind
        Kind of the inconsistency.
    handle
        Handle of the file, the name of its data files, in hexadecimal digits.
    server
        Number of the I/O server; `None` if the finding does not concern a single server.
    path
        Name of the file in the pool, if it has one.
    text
        Description in words.
    repair
        Action with ``repair=True``; `None` if there is none.
    is_repaired
        Whether the repair was made.
    """

    kind: Kind
    handle: str
    server: int | None
    path: str | None
    text: str
    repair: str | None = None
    is_repaired: bool = False

    def __str__(self) -> str:
        name = self.path or f"file {self.handle}"
        where = name if self.server is None else f"server {self.server}, {name}"
        end = (
            ""
            if self.repair is None
            else f" ({'done' if self.is_repaired else 'repair'}: {self.repair})"
        )
        return f"{self.kind}: {where}: {self.text}{end}"


@dataclass(frozen=True)
class FsckReport:
    """The result of `fsck`: numbers of servers, files, symbolic links and data files; findings.

    The report says nothing about `unchecked` servers and their data. `retired` servers count as
    lost.
    """

    servers: int
    files: int
    data_files: int
    findings: tuple[Finding, ...]
    unchecked: tuple[Unchecked, ...] = ()
    retired: tuple[int, ...] = ()
    links: int = 0

    @property
    def is_well(self) -> bool:
        """Whether every server was checked, and no finding is left unrepaired."""
        return not self.unrepaired and not self.unchecked

    @property
    def unrepaired(self) -> tuple[Finding, ...]:
        """The findings that were not repaired."""
        return tuple(finding for finding in self.findings if not finding.is_repaired)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values, and `is_well`."""
        return asdict(self) | {"is_well": self.is_well}

    def __str__(self) -> str:
        count = len(self.findings)
        repaired = count - len(self.unrepaired)
        found = f"{count} findings, {repaired} of them repaired"
        if not count:
            found = "nothing is wrong on the others" if self.unchecked else "all is well"
        links = f"{self.links} symbolic links, " if self.links else ""
        return (
            f"{self.files} files, {links}{self.data_files} data files on {self.servers} servers: "
            f"{found}{summary(self.unchecked, self.retired)}"
        )


def fsck(pool: Pool, *, repair: bool = False, patience_s: float = PATIENCE_S) -> FsckReport:
    """Compare the manager's records of a pool's files with the data files of its servers.

    The check skips servers that cannot be reached.

    Parameters
    ----------
    pool
        A pool that the caller runs, or whose key the caller has. It may be in use.
    repair
        Whether to remove data files without an owner, to finish interrupted removals, to describe
        arrays that searches do not find, to rebuild an index of attributes that does not fit them,
        and to cut bytes of data files that no write explains. Nothing else ever changes, and data
        that a file may own stays.
    patience_s
        Time between the two inspections of a file, in seconds.

    Raises
    ------
    CorruptError
        If a record of the manager is damaged; the message names it.
    DeniedError
        If the caller has only the key of a user.
    """
    check = _Check(PoolCheck(pool.core), away(pool))
    findings = [*check.records(), *check.strays(), *check.files(patience_s)]
    findings = [*check.named(findings), *_unfinished(pool)]
    if not check.away:
        findings += _described(pool)
    if repair:
        findings = check.repaired(pool, findings)
    return FsckReport(
        len(check.servers) - len(check.away), check.file_count, check.data_file_count,
        tuple(findings), Unchecked.each(check.away), tuple(check.retired), check.link_count,
    )  # fmt: skip


class _Check:
    """One check, and its counters."""

    def __init__(self, core: PoolCheck, away: dict[int, str]) -> None:
        self._core = core
        self.servers, self.retired = core.servers, core.retired
        self.away = away
        """Skipped servers, each with the reason."""
        self._unreadable: dict[tuple[int, int], str] = {}
        """Unreadable data files, by server and handle, each with the reason."""
        self.file_count = self.data_file_count = self.link_count = 0

    def _of(self, server: int, ask: Callable[..., _Answer], *arguments: Any) -> _Answer | None:
        """Call a function for a server; after an error, skip the server from now on."""
        if server in self.away:
            return None
        try:
            return ask(server, *arguments)
        except DeniedError:
            raise
        except OutcoreError as error:
            self.away[server] = str(error)
            return None

    def records(self) -> Iterator[Finding]:
        """Find records of the manager that contradict each other."""
        after: bytes | None = b""
        while after is not None:
            odd, after = self._core.odd_records(after, _PAGE)
            for handle, what in odd:
                if what.startswith(_OLD_INDEX):
                    yield Finding("old index", _digits(handle), None, None, what, _MEND)
                    continue
                text = f"{what}; restore the pool's metadata from a backup"
                yield Finding("broken record", _digits(handle), None, None, text)

    def _inspect(self, server: int, handles: list[int]) -> list[tuple[int, *_State]]:
        """Inspect data files of a server, and record each unreadable one."""
        if server in self.away:
            return []
        try:
            return list(self._core.inspect(server, handles))
        except DeniedError:
            raise
        except OutcoreError as error:
            if self._of(server, self._core.data_files, 0, 1) is None:
                return []
            if len(handles) == 1:
                self._unreadable[server, handles[0]] = str(error)
                return []
        half = len(handles) // 2
        return [*self._inspect(server, handles[:half]), *self._inspect(server, handles[half:])]

    def strays(self) -> Iterator[Finding]:
        """Find data files on servers where no file has any."""
        for server in self.servers:
            after, more = 0, True
            while more:
                page = self._of(server, self._core.data_files, after, _PAGE)
                listed, more = page or ([], False)
                handles = [handle for handle, _ in listed]
                after = handles[-1] if handles else after
                self.data_file_count += len(handles)
                yield from self._strays_of(server, handles)

    def _strays_of(self, server: int, handles: list[int]) -> Iterator[Finding]:
        odd: dict[int, tuple[Kind, str, str | None]] = {}
        for handle, state, _, layout, *_ in self._core.know(handles):
            if state == "gone":
                text = "no file has this handle any more"
                odd[handle] = ("stray data", text, "remove the data file")
            elif state == "unused":
                text = (
                    "no file was given this handle yet: the manager's metadata is older than the "
                    "data; restore a newer copy of it"
                )
                odd[handle] = ("newer data", text, None)
            elif server not in layout:
                text = "the file does not lie on this server"
                odd[handle] = ("misplaced data", text, None)
        if not odd:
            return
        for handle, length, sums_length, *_ in self._inspect(server, list(odd)):
            if length is not None or sums_length is not None:
                kind, text, repair = odd[handle]
                size = "checksums only" if length is None else f"{length} bytes"
                yield Finding(kind, _digits(handle), server, None, f"{text} ({size})", repair)

    def files(self, patience_s: float) -> Iterator[Finding]:
        """Find files with wrong data files, and interrupted removals."""
        suspects: dict[int, list[Finding]] = {}
        after, more = 0, True
        while more:
            records, more = self._core.files(after, _PAGE)
            after = records[-1][0] if records else after
            self.file_count += sum(record[1] == "file" for record in records)
            self.link_count += sum(record[1] == "link" for record in records)
            suspects |= self._suspects(records)
        if not suspects:
            return
        time.sleep(patience_s)
        handles = list(suspects)
        for first in range(0, len(handles), _PAGE):
            some = handles[first : first + _PAGE]
            again = self._suspects(self._core.know(some))
            for handle in some:
                if suspects[handle] == again.get(handle):
                    yield from suspects[handle]

    def _suspects(self, records: list[_Record]) -> dict[int, list[Finding]]:
        """Return the findings of each of some files at this moment."""
        files = [record for record in records if record[1] == "file"]
        states: dict[tuple[int, int], _State] = {}
        for server in self.servers:
            there = [handle for handle, _, _, layout, *_ in files if server in layout]
            if there:
                for inspected in self._inspect(server, there):
                    states[server, inspected[0]] = inspected[1:]
        found = {}
        for record in files:
            if wrong := list(self._wrong(record, states)):
                found[record[0]] = wrong
        for handle, kind, *_ in records:
            if kind == "removed":
                text = "it was removed, and perhaps not all of its data files are gone"
                found[handle] = [
                    Finding(
                        "unfinished removal",
                        _digits(handle),
                        None,
                        None,
                        text,
                        "finish removing it",
                    )
                ]
        return found

    def _wrong(self, record: _Record, states: dict[tuple[int, int], _State]) -> Iterator[Finding]:
        handle, _, stripes, layout, durable, generations = record
        if stripes is None:
            return
        digits = _digits(handle)
        lengths = {
            server: state[0] - state[4]
            for server in layout
            if (state := states.get((server, handle))) and state[0] is not None
        }
        least = [stripes.length_from(entry, lengths.get(s, 0)) for entry, s in enumerate(layout)]
        length = max(one for one in (0, *least) if one is not None and one <= _MOST_LENGTH)
        for entry, server in enumerate(layout):
            if server in self.retired:
                text = (
                    "the server was retired, and its data are gone; remove the file, and "
                    "restore it from a copy"
                )
                yield Finding("retired server", digits, server, None, text)
                continue
            if server not in self.servers:
                yield Finding(
                    "missing server", digits, server, None, "the pool has no server of this number"
                )
                continue
            if server in self.away:
                continue
            if (server, handle) not in states:
                text = self._unreadable[server, handle]
                yield Finding("unreadable data", digits, server, None, text)
                continue
            local, sums_length, past_end, generation, surplus, sums_are_old = states[server, handle]
            known = durable[entry] if durable else 0
            newest = generations[entry] if generations else 0
            if local is not None and sums_length is not None:
                if surplus:
                    reach = stripes.length_from(entry, local)
                    is_possible = reach is not None and reach <= _MOST_LENGTH
                    kind: Kind = "long data" if is_possible else "impossible length"
                    text = (
                        f"its data file has {local} bytes, and no write explains the last {surplus}"
                    )
                    # Beside an older copy of the checksums, these bytes may be newer data.
                    is_newest = generation >= newest
                    yield Finding(kind, digits, server, None, text, _CUT if is_newest else None)
                if sums_are_old:
                    text = (
                        "the disk lost the last checksums of its data file, and perhaps data; "
                        "restore the file from a copy"
                    )
                    yield Finding("old checksums", digits, server, None, text)
                local -= surplus
            if local is None:
                # A server creates an empty data file at the first write.
                if known:
                    text = f"its data file is lost, of which {known} bytes were durable"
                    yield Finding("missing data", digits, server, None, text)
                elif not durable and (need := stripes.local_length(entry, length)):
                    text = (
                        f"its data file of {need} bytes is not there: it is lost, or nothing was "
                        "written there; it reads as zeros"
                    )
                    yield Finding("missing data", digits, server, None, text)
                continue
            if (reach := least[entry]) is None or reach > _MOST_LENGTH:
                text = f"its data file has {local} bytes, which no file can have"
                yield Finding("impossible length", digits, server, None, text)
            if sums_length is None:
                text = f"there are no checksums of its data file of {local} bytes"
                yield Finding("missing checksums", digits, server, None, text)
            elif generation < newest and (generation or local >= known):
                text = (
                    f"its data file has generation {generation}, and generation {newest} was "
                    "durable; restore the newer copy of the server's directory, or the file from "
                    "a copy"
                )
                yield Finding("older data", digits, server, None, text)
            elif local < known:
                text = f"its data file has {local} bytes, and {known} were durable"
                yield Finding("short data", digits, server, None, text)
            elif past_end:
                text = f"its data file has {local} bytes, and there are checksums up to {past_end}"
                yield Finding("short data", digits, server, None, text)

    def named(self, findings: list[Finding]) -> list[Finding]:
        """Add the names of the files that have one."""
        handles = sorted({int(finding.handle, 16) for finding in findings})
        paths: dict[str, str | None] = {}
        for first in range(0, len(handles), _PATHS):
            some = handles[first : first + _PATHS]
            paths |= zip(map(_digits, some), self._core.paths(some), strict=True)
        return [replace(finding, path=paths[finding.handle]) for finding in findings]

    def _cut(self, server: int, findings: list[Finding]) -> Iterator[int]:
        """Cut the long data of a server, and return the handles."""
        long = [
            int(finding.handle, 16)
            for finding in findings
            if finding.repair == _CUT and finding.server == server
        ]
        for first in range(0, len(long), _PAGE):
            some = long[first : first + _PAGE]
            self._of(server, self._core.cut, some)
            if server not in self.away:
                yield from some

    def _mended(self) -> Iterator[int]:
        """Rebuild the index of attributes, and yield the handles that it did not fit."""
        after: bytes | None = b""
        while after is not None:
            odd, after = self._core.mend(after, _PAGE)
            yield from (handle for handle, _ in odd)

    def repaired(self, pool: Pool, findings: list[Finding]) -> list[Finding]:
        """Make the repairs that touch no data that a file may own."""
        removed: set[tuple[int | None, int]] = set()
        if any(finding.kind == "old index" for finding in findings):
            removed |= {(None, handle) for handle in self._mended()}
        for server in self.servers:
            strays = [
                int(finding.handle, 16)
                for finding in findings
                if finding.kind == "stray data" and finding.server == server
            ]
            for first in range(0, len(strays), _PAGE):
                some = strays[first : first + _PAGE]
                gone = self._of(server, self._core.remove_strays, some)
                removed |= {(server, handle) for handle in gone or ()}
            removed |= {(server, handle) for handle in self._cut(server, findings)}
        for finding in findings:
            if finding.kind == "unfinished file" and finding.repair is not None:
                assert finding.path is not None
                with contextlib.suppress(NotFoundError):
                    pool.core.remove_one(finding.path)
                removed.add((None, int(finding.handle, 16)))
            if finding.kind == "old description":
                assert finding.path is not None
                with contextlib.suppress(NotFoundError):
                    describe(pool, finding.path)
                removed.add((None, int(finding.handle, 16)))
        unfinished = [
            int(finding.handle, 16) for finding in findings if finding.kind == "unfinished removal"
        ]
        if unfinished:
            # A removal with data files on a skipped server stays listed.
            with contextlib.suppress(*[OutcoreError] if self.away else []):
                self._core.finish_removals()
            for first in range(0, len(unfinished), _PAGE):
                known = self._core.know(unfinished[first : first + _PAGE])
                removed |= {(None, handle) for handle, state, *_ in known if state == "gone"}
        return [
            replace(
                finding,
                is_repaired=finding.repair is not None
                and (finding.server, int(finding.handle, 16)) in removed,
            )
            for finding in findings
        ]


def _unfinished(pool: Pool) -> Iterator[Finding]:
    """Find files without their final names whose writers have died, or may have."""
    for path, status in parts_below(pool / ""):
        is_old = time.time_ns() - status.changed_ns > _LONG_NS
        if not (is_left(path) or is_old):
            continue
        with contextlib.suppress(NotFoundError):  # finished meanwhile
            digits = _digits(pool.core.handle(path.inside))
            if is_left(path):
                text, repair = "the process that wrote it is gone", "remove it"
            else:
                text = "it was begun a day ago or more; if its writer is gone, remove it"
                repair = None
            yield Finding("unfinished file", digits, None, path.inside, text, repair)


def _described(pool: Pool) -> Iterator[Finding]:
    """Find arrays and groups with wrong descriptions."""
    for path, text in odd_descriptions(pool):
        with contextlib.suppress(NotFoundError):  # removed meanwhile
            digits = _digits(pool.core.handle(path))
            yield Finding("old description", digits, None, path, text, _DESCRIBE)


def _digits(handle: int) -> str:
    return f"{handle:016x}"
