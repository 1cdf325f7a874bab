"""One file in a copy: its two ends, the known checksums of its pieces, and its completion."""

import threading
from collections.abc import Iterator
from typing import Any, TypeAlias

from outcore.errors import InvalidError
from outcore.files.ends import PlainEnd, PoolEnd, open_source, open_target
from outcore.files.pieces import PIECE_BYTES
from outcore.storage.file_attributes import set_mode
from outcore.storage.file_status import FileStatus, status_of
from outcore.storage.volumes import AnyPath


class FileCopy:
    """A file in a copy.

    Attributes
    ----------
    source, name, target
        The source file; its name relative to the source of the whole copy; the target file.
    hints
        Layout of the file in a pool.
    permissions
        Mode of the file during the copy.
    fresh
        Whether to create the target; else it exists already.
    known
        For an existing target: (bytes, CRC-32C) of its pieces by offset, from the journal.
    sums
        CRC-32C of the copied pieces, by offset.
    metadata
        Content of a copied ``zarr.json`` of one piece.
    is_report
        Whether the copied bytes begin like a report.
    """

    def __init__(self, source: FileStatus, name: str, target: AnyPath) -> None:
        self.source, self.name, self.target = source, name, target
        self.hints: dict[str, Any] = {}
        self.permissions = 0o600
        self.fresh = True
        self.known: dict[int, tuple[int, int]] = {}
        self.sums: dict[int, int] = {}
        self.metadata = b""
        self.is_report = False
        self._ends: tuple[PlainEnd | PoolEnd, PlainEnd | PoolEnd] | None = None
        self._reader: PlainEnd | PoolEnd | None = None
        self._left_to_verify = self.count
        self._lock = threading.Lock()

    def pieces(self) -> "Iterator[Piece]":
        """Yield the pieces of the file; an empty file has one piece without bytes."""
        size = PIECE_BYTES
        for at in range(0, max(self.source.nbytes, 1), size):
            yield self, at, min(size, self.source.nbytes - at)

    @property
    def count(self) -> int:
        """Number of pieces."""
        return max(-(-self.source.nbytes // PIECE_BYTES), 1)

    def ends(self) -> tuple[PlainEnd | PoolEnd, PlainEnd | PoolEnd]:
        """Open both files at the first call, and return them."""
        with self._lock:
            if self._ends is None:
                source = open_source(self.source.real_path)
                try:
                    self._check_end(source)
                    if not self.fresh:
                        set_mode(self.target, 0o600)
                    target = open_target(
                        self.target, self.source.nbytes, self.hints, fresh=self.fresh,
                        permissions=self.permissions,
                    )  # fmt: skip
                except BaseException:
                    source.close()
                    raise
                self._ends = (source, target)
            return self._ends

    def _check_end(self, source: PlainEnd | PoolEnd) -> None:
        if not source.ends_at(self.source.nbytes):
            raise InvalidError(
                f"{self.source.path} has more than the {self.source.nbytes} bytes of its size: it "
                "changes now, or is generated at each read; copy the output of reading it"
            )

    def note(self, at: int, checksum: int) -> bool:
        """Record that a piece is done; return whether all pieces are done."""
        with self._lock:
            self.sums[at] = checksum
            return len(self.sums) == self.count

    def finish(self) -> None:
        """Make the copy durable, and check that the source has not changed."""
        assert self._ends is not None
        self._ends[1].sync()
        self.close()
        if status_of(self.source.real_path).content != self.source.content:
            raise InvalidError(f"{self.source.path} was changed while it was copied; copy it again")

    def reader(self) -> PlainEnd | PoolEnd:
        """Open the copy for reading it back at the first call, and return it."""
        with self._lock:
            if self._reader is None:
                self._reader = open_source(self.target)
            return self._reader

    def verified(self) -> None:
        """Record that a piece was read back; close the files after the last one."""
        with self._lock:
            self._left_to_verify -= 1
            is_last = self._left_to_verify == 0
        if is_last:
            self.close()

    def close(self) -> None:
        """Close the files."""
        with self._lock:
            ends = (*(self._ends or ()), *((self._reader,) if self._reader else ()))
            self._ends = self._reader = None
            for end in ends:
                end.close()


Piece: TypeAlias = tuple[FileCopy, int, int]
"""A file, the offset of a piece in it, and the length of the piece in bytes."""
