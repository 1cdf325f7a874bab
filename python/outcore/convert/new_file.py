"""A new file or directory: it has a hidden name until it is whole."""

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from outcore._util.if_exists import Replace, overwrites
from outcore.convert.targets import writing
from outcore.errors import ExistsError, Interrupted
from outcore.storage.volumes import sync_file


def hidden_name(path: Path) -> Path:
    """Return a hidden name for an unfinished copy; it contains the number of this process."""
    return path.with_name(f".{path.name}.{os.getpid()}-{uuid.uuid4().hex[:8]}.part")


def check_replaceable(path: Path, if_exists: Replace) -> None:
    """Refuse to overwrite without leave, and anything but a file or a Zarr array."""
    if not os.path.lexists(path):
        return
    if not overwrites(if_exists):
        raise ExistsError(f"{path} exists; choose another name, or pass if_exists='overwrite'")
    zarr = path.is_dir() and any((path / name).is_file() for name in ("zarr.json", ".zarray"))
    if not path.is_file() and not zarr:
        raise ExistsError(
            f"{path} exists and is no file or Zarr array, so it is not overwritten; "
            "remove it yourself or choose another name"
        )


@contextmanager
def new_file(path: Path, if_exists: Replace) -> Iterator[Path]:
    """Yield a temporary name for a new file or directory, and rename it to `path` at the end.

    After a failure the unfinished copy is removed. A killed process leaves it under its hidden
    name, which contains the process number; `outcore.files.catalog` recognises it.
    """
    fresh = hidden_name(path)
    try:
        yield fresh
        check_replaceable(path, if_exists)
        with writing(path):
            _put_in_place(fresh, path)
    except KeyboardInterrupt:
        remove(fresh)
        raise Interrupted(
            f"exporting to {path} was stopped, and nothing is left of it; start it again"
        ) from None
    except BaseException:
        remove(fresh)
        raise


def _put_in_place(fresh: Path, path: Path) -> None:
    old = fresh.with_suffix(".old")
    # A rename can replace neither a directory, nor a file by a directory.
    if path.is_dir() or (fresh.is_dir() and path.exists()):
        os.rename(path, old)
    os.rename(fresh, path)
    sync_file(path.parent)
    remove(old)


def remove(path: Path) -> None:
    """Remove a file, or a directory with its contents, if it exists."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
