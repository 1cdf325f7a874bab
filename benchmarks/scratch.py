"""Files of a benchmark: a directory that is always removed, and files without cached pages."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def scratch_directory(parent: Path) -> Iterator[Path]:
    """Create a directory below `parent`, and remove it and its contents at the end."""
    parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix="scratch-", dir=parent))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def files_below(path: Path) -> list[Path]:
    """Return the files in a directory tree; a file is its own tree."""
    if path.is_file():
        return [path]
    return [Path(where) / name for where, _, names in os.walk(path) for name in names]


def sync(path: Path) -> None:
    """Return once every file below `path`, and every directory entry, would survive power loss."""
    directories = [Path(where) for where, _, _ in os.walk(path)]
    for name in [*files_below(path), *directories]:
        handle = os.open(name, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def drop_cached(path: Path) -> None:
    """Drop the cached pages of the files below `path`."""
    sync(path)
    for name in files_below(path):
        handle = os.open(name, os.O_RDONLY)
        try:
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)
    # Directory entries, and pages that the advice left; for root only, and not in every container.
    with suppress(OSError):
        Path("/proc/sys/vm/drop_caches").write_text("3")
