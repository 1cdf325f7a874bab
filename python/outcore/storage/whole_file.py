"""Files of a pool that appear complete or not at all: written to a temporary name, then renamed."""

import contextlib
from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

from outcore._core import Regions
from outcore.errors import BusyError, ExistsError, IsDirectoryError, OutcoreError
from outcore.storage import rights
from outcore.storage.pool_file import PoolFile
from outcore.storage.pool_future import PoolFuture
from outcore.storage.pool_locks import held
from outcore.storage.pool_parts import held_name, new_part, remove_left_once
from outcore.storage.pool_path import PoolPath
from outcore.storage.pool_reading import read_one
from outcore.storage.pool_stat import PoolStat

COPY_BYTES = 8 << 20
"""Size of the blocks of a copy, of which two are in memory."""


def make_way(path: PoolPath) -> None:
    """Create the parents of a deep name, since the manager creates at most 16 with the name."""
    for above in path.parents[::-1][16::16]:
        with contextlib.suppress(ExistsError):
            above.root.core.make_directory(above.inside)


class WholeFile:
    """A file that gets its name, durably, when it is committed.

    Until then it is a part beside that name, which remains if the process is killed. The next
    process of that machine that creates a file in the directory removes the part. ``outcore rm`` of
    the name and ``outcore pool fsck --repair`` remove it too.

    Parameters
    ----------
    path
        Name of the file. An existing file, or that behind a symbolic link, is replaced; its owner,
        group and mode are kept.
    hints
        As in `outcore.Pool.open`.
    exclusive
        Whether the name must not exist: if several calls create it at once, one succeeds.

    Raises
    ------
    ExistsError
        If it is `exclusive`, and the name exists or another call is creating it.
    """

    def __init__(
        self, path: PoolPath, hints: dict[str, Any] | None = None, *, exclusive: bool = False
    ) -> None:
        if not path.inside:
            raise IsDirectoryError(f"{path} is the pool itself; name a file in it")
        if not exclusive:
            path = path.written()
        self.path = path
        self._is_over, self._is_new = False, exclusive
        self._part = new_part(path)
        self._held = contextlib.ExitStack()
        make_way(path)
        remove_left_once(path.parent)
        try:
            if exclusive:
                self._hold(held_name(path))
            self.file: PoolFile = self._part.open("x", hints)
        except BaseException:
            self._held.close()
            raise

    def _hold(self, name: PoolPath) -> None:
        """Lock the name against other calls, and refuse an existing file."""
        try:
            self._held.enter_context(held(name, "making a file"))
        except BusyError:
            raise ExistsError(
                f"{self.path} is being made by another; wait for that, or remove {name} if its "
                "process is gone"
            ) from None
        if self.path.exists(follow_symlinks=False):
            raise ExistsError(f"{self.path} exists; choose another name, or remove it")

    def commit(self) -> None:
        """Make the file durable, and give it its name.

        Raises
        ------
        IsDirectoryError
            If a directory has the name by now.
        """
        root = self.path.root
        if not self._is_new:
            rights.give(self._part, rights.rights_of(self.path))
        self.file.sync()
        # This call reports the time of the last write to the manager, before the part is renamed.
        root.volume.modified_ns(self._part.inside)
        self.file.close()
        try:
            root.volume.rename(self._part.inside, self.path.inside)
        except ExistsError:
            raise IsDirectoryError(
                f"{self.path} is a directory; choose another name, or remove it"
            ) from None
        self._is_over = True
        self._held.close()

    def discard(self) -> None:
        """Remove the part. After a commit there is nothing to remove."""
        if self._is_over:
            return
        self._is_over = True
        # The caller reports the earlier error.
        with contextlib.suppress(OutcoreError):
            self.file.close()
        with contextlib.suppress(OutcoreError):
            self.path.root.core.remove_one(self._part.inside)
        with contextlib.suppress(OutcoreError):
            self._held.close()

    def __enter__(self) -> "WholeFile":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            try:
                self.commit()
            except BaseException:
                self.discard()
                raise
        else:
            self.discard()


def write_whole(
    path: PoolPath, data: Any, hints: dict[str, Any] | None = None, *, exclusive: bool = False
) -> None:
    """Write a file that appears complete or not at all; arguments as in `WholeFile`."""
    with WholeFile(path, hints, exclusive=exclusive) as whole:
        whole.file.write_at(0, data)


def copy_whole(source: PoolPath, path: PoolPath) -> None:
    """Copy a file within a pool, in bounded memory; the copy has the layout of the original."""
    core = source.root.core
    found = PoolStat.of(core.stat(core.follow(source.inside)), 0)
    hints = {"stripe_unit_bytes": found.stripe_unit_bytes, "stripe_count": len(found.servers)}
    if found.round_units is not None:
        hints["round_units"] = found.round_units
    with WholeFile(path, hints) as whole:
        copy_current(source, whole.file)


def copy_current(source: PoolPath, target: PoolFile) -> int:
    """Copy a file, which others may replace meanwhile, into a new one; return the bytes copied."""

    def copy(file: PoolFile) -> int:
        if target.nbytes:  # bytes of a replaced file
            target.truncate(0)
        return _copy_bytes(file, target)

    return read_one(source, copy)


def _copy_bytes(source: PoolFile, target: PoolFile) -> int:
    nbytes = source.nbytes
    blocks = [np.empty(min(COPY_BYTES, nbytes), np.uint8) for _ in range(2)]
    writes: deque[PoolFuture[None]] = deque()
    for number, at in enumerate(range(0, nbytes, COPY_BYTES)):
        if number >= 2:
            writes.popleft().result()
        block: npt.NDArray[np.uint8] = blocks[number % 2][: nbytes - at]
        source.read_at(at, out=block)
        writes.append(target.start_write(Regions.contiguous(at, len(block)), block))
    for write in writes:
        write.result()
    return nbytes
