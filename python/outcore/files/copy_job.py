"""One copy in progress: made piece by piece in a hidden directory, then renamed to its target."""

import contextlib
import os
import threading
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from outcore._core import Arena, Buffer, crc32c, description_of
from outcore._util.if_exists import Replace, overwrites
from outcore._util.progress import Meter, ProgressLike
from outcore.convert.targets import writing
from outcore.errors import CorruptError, DeniedError, InvalidError, OutcoreError
from outcore.files.ends import PlainEnd, PoolEnd
from outcore.files.file_copy import FileCopy, Piece
from outcore.files.journal import CopyJournal
from outcore.files.pieces import PIECE_BYTES, work_through, workers_in
from outcore.layout import description
from outcore.layout.hints import hints_of
from outcore.report.report_file import begins_report, describe
from outcore.storage import rights
from outcore.storage.file_attributes import (
    attribute,
    attribute_names,
    set_attribute,
    set_mode,
    set_modified,
    set_owner,
)
from outcore.storage.file_status import FileStatus, status_of, walk
from outcore.storage.modes import current_umask, pool_mode
from outcore.storage.pool_locks import is_lock
from outcore.storage.pool_path import PoolPath
from outcore.storage.rights import Rights
from outcore.storage.volumes import (
    AnyPath,
    exclusive,
    is_there,
    move,
    place,
    sync_file,
)

_FLUSH_BYTES = 256 << 20
"""Bytes between two writes of the journal."""
_FLUSH_TURNS = 20

_METADATA = "zarr.json"

_MOST_NAME_BYTES = 255 - len("..copying")
"""Largest name that fits into the hidden name; file systems and pools allow 255 bytes."""


class CopyJob:
    """One copy.

    Attributes
    ----------
    target, working
        The copy, and the hidden directory in which it is made.
    total_bytes, done_bytes, resumed_bytes
        Bytes of all files; bytes copied so far; bytes of these that an earlier call had copied.
    can_resume
        Whether the hidden directory contains pieces from which a later call can resume.
    is_placed
        Whether the copy has its final name.
    is_read_back
        Whether the copy is read back and compared.
    """

    def __init__(
        self,
        found: list[FileStatus],
        target: AnyPath,
        *,
        preserve: bool,
        if_exists: Replace,
        verify: bool | None,
        hints: dict[str, Any],
        memory_bytes: int,
        progress: ProgressLike,
    ) -> None:
        self.target, self.working = target, self.directory_for(target)
        self._top, self._found = found[0], found
        self._preserve, self._if_exists, self._hints = preserve, if_exists, hints
        self.is_read_back = isinstance(target, Path) if verify is None else verify
        self._workers = workers_in(memory_bytes)
        self._arena = Arena(memory_bytes)
        self._progress = progress
        self._umask = current_umask()
        self._replaced: Rights | None = None
        self._content = self.working / "content"
        self._lock = threading.Lock()
        self._counted = self._told = self._flushed = self._turns = 0
        self.total_bytes = sum(each.nbytes for each in found if each.kind == "file")
        self.done_bytes = self.resumed_bytes = 0
        self.can_resume = self.is_placed = False

    @staticmethod
    def directory_for(target: AnyPath) -> AnyPath:
        """Return the hidden directory in which a copy is made.

        If the name is too long for the usual form, the hidden name contains its beginning and its
        checksum.
        """
        name = target.name.encode(errors="surrogateescape")
        if len(name) > _MOST_NAME_BYTES:
            start = name[: _MOST_NAME_BYTES - 9].decode(errors="ignore")
            return target.with_name(f".{start}~{crc32c(name):08x}.copying")
        return target.with_name(f".{target.name}.copying")

    def run(self) -> None:
        """Make the copy, and put it in its place."""
        header = {"source": str(self._top.path), "piece_bytes": PIECE_BYTES}
        self._where = place(self.working)
        if self._if_exists == "overwrite" and not self._preserve:
            self._replaced = rights.rights_of(self.target)
        total = self.total_bytes * (2 if self.is_read_back else 1)
        try:
            with exclusive(self._where, f"copying to {self.target}"):
                self._journal = CopyJournal(self._where, header)
                try:
                    with Meter(
                        f"copying to {self.target.name}", total, self._progress
                    ) as self._meter:
                        self._copy()
                    self._put_in_place()
                except BaseException:
                    self._leave()
                    raise
        finally:
            _remove_if_empty(self.working)

    def _copy(self) -> None:
        self._journal.read()
        files = self._prepare()
        first = [file for file in files if Path(file.name).name != _METADATA]
        # Deepest first: an array is whole before its group lists it.
        last = sorted(
            (file for file in files if Path(file.name).name == _METADATA),
            key=lambda file: -file.name.count("/"),
        )
        try:
            for part in (first, last):
                self._through((piece for file in part for piece in file.pieces()), self._copy_piece)
            if self.is_read_back:
                pieces = (piece for file in files for piece in file.pieces())
                self._through(pieces, self._verify_piece)
        finally:
            for file in files:
                file.close()
        self._through(iter(files), self._mark_file)
        for each in reversed(self._found):
            if each.kind == "link" and self._preserve:
                path = self._path_of(each)
                set_modified(path, each.modified_ns)  # first, while the user owns the link
                with contextlib.suppress(DeniedError):
                    set_owner(path, each.owner, each.group)
            if each.is_directory:
                path = self._path_of(each)
                if each is not self._top:
                    self._mark(each, path)
                if isinstance(path, Path):
                    with writing(path):
                        sync_file(path)

    def _prepare(self) -> list[FileCopy]:
        """Make the directories, and find out which files exist already."""
        kept = set()
        files = []
        for each in self._found:
            path, name = self._path_of(each), self._name_of(each)
            kept.add(path)
            if each.is_directory:
                _make_directory(path)
                continue
            if each.kind == "link":
                _make_link(path, each)
                continue
            file = FileCopy(each, name, path)
            file.hints = self._hints_for(each)
            if each is not self._top or self._replaced is None:
                file.permissions = each.mode & 0o777 | 0o600
            content, known = self._journal.known.get(name, ([], {}))
            if is_there(path):
                if content == each.content and known:
                    file.known, file.fresh = known, False
                else:
                    _remove(path)
            if file.fresh:
                self._journal.begin_file(name, each.content)
            files.append(file)
        if self._top.is_directory:
            # Remove files that the source no longer has; an earlier call copied them.
            gone = [each.path for each in walk(status_of(self._content)) if each.path not in kept]
            for path in reversed(gone):
                _remove(path)
        return files

    def _through(self, tasks: Iterator[Any], work: Any) -> None:
        work_through(tasks, work, self._arena, self._workers, self._watch)

    def _copy_piece(self, piece: Piece, buffer: Buffer) -> None:
        file, at, nbytes = piece
        source, target = file.ends()
        view = memoryview(buffer)[:nbytes]
        length, known = file.known.get(at, (-1, 0))
        checksum = None
        if length == nbytes:
            target.read(at, view)
            checksum = buffer.crc32c(nbytes)
            if checksum != known:
                checksum = None
        resumed = checksum is not None
        if checksum is None:
            checksum = _move(source, target, at, view, buffer, skip_zeros=file.fresh)
        if file.target.name == _METADATA and nbytes == file.source.nbytes:
            file.metadata = bytes(view)
        if at == 0:
            file.is_report = begins_report(view)
        self._done(nbytes, resumed)
        with self._lock:
            if not resumed:
                self._journal.note(file.name, at, nbytes, checksum)
        if file.note(at, checksum):
            file.finish()

    def _verify_piece(self, piece: Piece, buffer: Buffer) -> None:
        file, at, nbytes = piece
        file.reader().read(at, memoryview(buffer)[:nbytes])
        found = buffer.crc32c(nbytes)
        if found != file.sums[at]:
            raise CorruptError(
                f"{nbytes} bytes of {file.target} from {at} on were read back with CRC-32C "
                f"{found:08x}, written with {file.sums[at]:08x}; check the disk, then copy again "
                "with resume=True (--resume)"
            )
        file.verified()
        with self._lock:
            self._counted += nbytes

    def _mark_file(self, file: FileCopy, _: Buffer) -> None:
        self._mark(file.source, file.target, fresh=file.fresh)
        if (described := description_of(file.metadata)) and isinstance(file.target, PoolPath):
            directory = file.target.parent
            directory.root.core.set_extended(directory.inside, description.ATTRIBUTE, described)
        elif file.is_report and isinstance(file.target, PoolPath):
            describe(file.target)

    def _mark(self, source: FileStatus, target: AnyPath, *, fresh: bool = True) -> None:
        """Give a copy the mode of its source, and with `preserve` all other attributes.

        Without `preserve`, the replacement of a file or an array keeps the rights of the old one.
        """
        in_pool = isinstance(target, PoolPath)
        mode = source.mode & (pool_mode(is_directory=source.is_directory) if in_pool else 0o7777)
        if not self._preserve:
            replaced = self._replaced if source is self._top else None
            if replaced is not None and replaced.is_directory == source.is_directory:
                rights.give(target, replaced)
                return
            mode &= 0o777 & ~self._umask
            if source.is_directory:
                # The directory above may have passed on its set-group-ID bit.
                mode |= status_of(target).mode & 0o2000
            # A new file or directory in a pool has this mode already.
            if not (in_pool and fresh and mode == (0o755 if source.is_directory else 0o644)):
                set_mode(target, mode)
            return
        for name in attribute_names(source.path):
            set_attribute(target, name, attribute(source.path, name))
        try:
            set_owner(target, source.owner, source.group)
        except DeniedError:
            mode &= ~0o6000  # no set-ID bits for another owner
        set_mode(target, mode)
        set_modified(target, source.modified_ns)

    def _put_in_place(self) -> None:
        content, target, old = place(self._content), place(self.target), self._where.below("old")
        is_replaced = is_there(self.target)
        # A rename can replace neither a directory, nor a file by a directory.
        aside = is_replaced and (self.target.is_dir() or self._top.is_directory)
        if is_replaced and not overwrites(self._if_exists):
            raise InvalidError(
                f"{self.target} was made by somebody else meanwhile; choose another name, or pass "
                "if_exists='overwrite' (-f) and resume=True (--resume)"
            )
        if aside:
            move(target, old)
        move(content, target)
        self.is_placed = True
        if self._top.is_directory:
            self._mark(self._top, self.target)
        # Remove the replaced object, the journal, and temporary files of killed calls.
        for name, _, _ in self._where.names():
            if not is_lock(name):
                self._where.volume.remove(self._where.inside(name))

    def _leave(self) -> None:
        """Write the journal after a failure; if nothing was copied, remove the content."""
        if self.is_placed:
            return
        # The first error takes precedence.
        with contextlib.suppress(OutcoreError, OSError):
            self.can_resume = self._journal.has_pieces
            if self.can_resume:
                self._journal.flush()
            elif is_there(self._content):
                _remove(self._content)

    def _watch(self) -> None:
        with self._lock:
            done, self._told = self._counted - self._told, self._counted
            self._turns += 1
            due = self._counted - self._flushed >= _FLUSH_BYTES or self._turns % _FLUSH_TURNS == 0
            if due:
                self._flushed = self._counted
                self._journal.flush()
        if done:
            self._meter.advance(done)

    def _done(self, nbytes: int, resumed: bool) -> None:
        with self._lock:
            self._counted += nbytes
            self.done_bytes += nbytes
            self.resumed_bytes += nbytes if resumed else 0

    def _name_of(self, each: FileStatus) -> str:
        """Return a name relative to the source; the source itself has an empty name."""
        above = self._top.path
        if isinstance(each.path, PoolPath) and isinstance(above, PoolPath):
            return each.path.inside[len(above.inside) :].lstrip("/")
        name = os.path.relpath(each.path, above)
        return "" if name == "." else name

    def _path_of(self, each: FileStatus) -> AnyPath:
        name = self._name_of(each)
        if not name:
            return self._content
        if isinstance(self._content, PoolPath):
            try:
                name.encode()
            except UnicodeEncodeError:
                raise InvalidError(
                    f"{each.path!r} is no UTF-8, as names in pools are; rename it"
                ) from None
        return self._content / name

    def _hints_for(self, each: FileStatus) -> dict[str, Any]:
        is_cut = each.stripe_unit_bytes and isinstance(self._content, PoolPath)
        if not is_cut or "unit_bytes" in hints_of(self._hints):
            return self._hints
        kept = {"stripe_unit_bytes": each.stripe_unit_bytes}
        if each.round_units is not None:
            kept["round_units"] = each.round_units
        return kept | self._hints


def _move(
    source: PlainEnd | PoolEnd,
    target: PlainEnd | PoolEnd,
    at: int,
    view: memoryview,
    buffer: Buffer,
    *,
    skip_zeros: bool,
) -> int:
    """Copy a piece; return its CRC-32C. Skip zeros where the target already reads as zeros."""
    nbytes = len(view)
    if skip_zeros and source.is_hole(at, nbytes):
        return _crc_of_zeros(nbytes)
    source.read(at, view)
    checksum = buffer.crc32c(nbytes)
    is_zero = checksum == _crc_of_zeros(nbytes) and not np.frombuffer(view, np.uint8).any()
    if not (skip_zeros and is_zero):
        target.write(at, view)
    return checksum


@lru_cache(maxsize=64)
def _crc_of_zeros(nbytes: int) -> int:
    return crc32c(bytes(nbytes))


def _make_link(path: AnyPath, source: FileStatus) -> None:
    """Make a link with the target of the source."""
    assert source.target is not None
    if is_there(path):
        _remove(path)
    if isinstance(path, PoolPath):
        path.symlink_to(source.target)
        return
    with writing(path):
        path.symlink_to(source.target)


def _make_directory(path: AnyPath) -> None:
    if path.is_dir() and not path.is_symlink():
        return
    if is_there(path):
        _remove(path)
    if isinstance(path, PoolPath):
        path.root.core.make_directory(path.inside)
        return
    with writing(path):
        path.mkdir()


def _remove_if_empty(path: AnyPath) -> None:
    with contextlib.suppress(OSError):
        if isinstance(path, PoolPath):
            path.root.core.remove_one(path.inside)
        else:
            path.rmdir()


def _remove(path: AnyPath) -> None:
    where = place(path)
    where.volume.remove(where.name)
