"""Rename files and directories, or copy them to another disk and remove the source."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from outcore._util.if_exists import Replace, overwrites
from outcore._util.progress import ProgressLike
from outcore._util.signals import stop_on_signals
from outcore.errors import ExistsError, InvalidError, NotFoundError
from outcore.files.copy import CopyOptions, copy_one
from outcore.files.copy_job import CopyJob
from outcore.files.destinations import (
    is_whole_by_itself,
    refuse_just_made,
    refuse_special,
    targets_of,
)
from outcore.files.several import Failed, expanded, tried
from outcore.storage.file_status import FileStatus, status_of
from outcore.storage.volumes import (
    AnyPath,
    PathLike,
    as_path,
    is_same,
    is_there,
    move,
    on_one_disk,
    place,
    without_links_above,
)


def move_files(
    sources: PathLike | Sequence[PathLike],
    target: PathLike,
    *,
    if_exists: Replace = "error",
    resume: bool = False,
    memory: int | str | None = None,
    progress: ProgressLike = True,
    done: Callable[[AnyPath, AnyPath], None] | None = None,
    failed: Failed | None = None,
) -> list[tuple[AnyPath, AnyPath]]:
    """Rename files and directories, or move them to another pool or disk.

    Parameters
    ----------
    sources, target, if_exists, memory, progress, failed
        As for `copy_files`; directories are moved with their content.
    resume
        For moves to another disk: resume a stopped one.
    done
        Function to call with each source and its target, as soon as it is moved.

    Returns
    -------
    list
        (source, target) of each moved source.

    Raises
    ------
    ExistsError
        If the target exists, and may not or cannot be replaced; or if two sources have the same
        target.
    InvalidError
        If a file or directory would be moved to itself, into itself, or to the place of a directory
        that contains it; links in the directories above are followed. If a link would replace its
        own target. If a file would be moved to another hard link of it.
    """
    several = [sources] if isinstance(sources, str | os.PathLike) else sources
    given = [as_path(path) for path in several]
    options = CopyOptions(
        recursive=True, preserve=True, if_exists=if_exists, resume=resume, verify=True,
        memory=memory, progress=progress,
    )  # fmt: skip
    moved: list[tuple[AnyPath, AnyPath]] = []
    made: set[AnyPath] = set()
    with stop_on_signals():
        for source, new in targets_of(expanded(given, failed), target, several=len(given) > 1):
            with tried(source, failed):
                _move_one(source, new, options, made)
                moved.append((source, new))
                if done is not None:
                    done(source, new)
    return moved


def _move_one(source: AnyPath, new: AnyPath, options: CopyOptions, made: set[AnyPath]) -> None:
    status = status_of(source)
    if not source.name:
        raise InvalidError(f"{source} is the pool itself, and cannot be moved; name files in it")
    old_real, new_real = without_links_above(source), without_links_above(new)
    if old_real == new_real or old_real in new_real.parents:
        raise InvalidError(f"{source} cannot be moved into itself; choose another target")
    if new_real in old_real.parents:
        raise InvalidError(f"{source} lies in {new}, and cannot replace it; choose another target")
    refuse_just_made(new, source, made)
    if not _is_on_one_disk(source, new):
        copy_one(source, new, options, made)
        where = place(source)
        where.volume.remove(where.name)
    elif is_there(new):
        _replace(source, new, status, options.if_exists)
    else:
        if isinstance(new, Path) and not new.parent.is_dir():
            raise NotFoundError(f"there is no directory {new.parent}; make it first")
        move(place(source), place(new))
    made.add(new)


def _is_on_one_disk(source: AnyPath, target: AnyPath) -> bool:
    above = target.parent
    if isinstance(above, Path) and not above.is_dir():
        return True  # the rename will raise the right error
    if isinstance(source, Path) and isinstance(above, Path) and source.is_symlink():
        # A rename moves the link itself, not its target.
        return source.lstat().st_dev == above.stat().st_dev
    return on_one_disk(source, above)


def _replace(source: AnyPath, target: AnyPath, status: FileStatus, if_exists: Replace) -> None:
    refuse_special(target)
    if not overwrites(if_exists):
        raise ExistsError(
            f"{target} exists; choose another name or pass if_exists='overwrite' (-f)"
        )
    if status.kind == "link" and is_same(source, without_links_above(target)):
        raise InvalidError(f"{source} is a link to {target}, and cannot replace it; remove it")
    if status.number and status.number == status_of(target).number:
        # A rename of one hard link to another link of the same file does nothing.
        raise InvalidError(f"{source} and {target} are the same file; remove one of the names")
    if not status.is_directory and not target.is_dir():
        move(place(source), place(target))
        return
    if target.is_dir() and not is_whole_by_itself(target):
        raise ExistsError(
            f"{target} is a directory and no array, so it is not replaced; remove it first, or "
            "choose another name"
        )
    old = place(CopyJob.directory_for(target)).below("old")
    move(place(target), old)
    move(place(source), place(target))
    where = place(old.path.parent)
    where.volume.remove(where.name)
