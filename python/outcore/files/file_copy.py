"""One file being copied: both its ends, what is known of its pieces, and when it is finished."""

import threading
from collections.abc import Iterator
from typing import Any, TypeAlias

from outcore.errors import InvalidError
from outcore.files.attributes import set_mode
from outcore.files.ends import PlainEnd, PoolEnd, open_source, open_target
from outcore.files.pieces import PIECE_BYTES
from outcore.files.status import FileStatus, status_of
from outcore.volumes import AnyPath


class FileCopy:
    """A file being copied.

    Attributes
    ----------
    source, name, target
        What is copied; its name below what is copied as a whole; the copy.
    hints
        How it is laid out in a pool.
    permissions
        Who may read and write it while it is copied.
    fresh
        Whether the copy is made anew; else it is there already.
    known
        Of a copy that is there: (bytes, CRC-32C) of its pieces by where they begin, as noted.
    sums
        CRC-32C of the pieces that are copied.
    """

    def __init__(self, source: FileStatus, name: str, target: AnyPath) -> None:
        self.source, self.name, self.target = source, name, target
        self.hints: dict[str, Any] = {}
        self.permissions = 0o600
        self.fresh = True
        self.known: dict[int, tuple[int, int]] = {}
        self.sums: dict[int, int] = {}
        self._ends: tuple[PlainEnd | PoolEnd, PlainEnd | PoolEnd] | None = None
        self._reader: PlainEnd | PoolEnd | None = None
        self._left_to_verify = self.count
        self._lock = threading.Lock()

    def pieces(self) -> "Iterator[Piece]":
        """Yield the pieces of the file; one without bytes if it is empty."""
        size = PIECE_BYTES
        for at in range(0, max(self.source.nbytes, 1), size):
            yield self, at, min(size, self.source.nbytes - at)

    @property
    def count(self) -> int:
        """How many pieces there are."""
        return max(-(-self.source.nbytes // PIECE_BYTES), 1)

    def ends(self) -> tuple[PlainEnd | PoolEnd, PlainEnd | PoolEnd]:
        """Open both files, once."""
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
                f"{self.source.path} has more than the {self.source.nbytes} bytes that it is said "
                "to have: it is changed now, or made as it is read; copy what reading it gives"
            )

    def note(self, at: int, checksum: int) -> bool:
        """Note that a piece is done; whether all are now."""
        with self._lock:
            self.sums[at] = checksum
            return len(self.sums) == self.count

    def finish(self) -> None:
        """Make the copy durable, and see that the source is still what it was."""
        assert self._ends is not None
        self._ends[1].sync()
        self.close()
        if status_of(self.source.real_path).content != self.source.content:
            raise InvalidError(f"{self.source.path} was changed while it was copied; copy it again")

    def reader(self) -> PlainEnd | PoolEnd:
        """Open the copy to read it again, once."""
        with self._lock:
            if self._reader is None:
                self._reader = open_source(self.target)
            return self._reader

    def verified(self) -> None:
        """Note that a piece was read back."""
        with self._lock:
            self._left_to_verify -= 1
            is_last = self._left_to_verify == 0
        if is_last:
            self.close()

    def close(self) -> None:
        """Let go of the files."""
        with self._lock:
            ends = (*(self._ends or ()), *((self._reader,) if self._reader else ()))
            self._ends = self._reader = None
            for end in ends:
                end.close()


Piece: TypeAlias = tuple[FileCopy, int, int]
"""A file, where a piece of it begins, and its bytes."""
