"""Copy files and directories from and to pools: verified, resumable, and all or nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from outcore._util import budget
from outcore._util.if_exists import Replace, overwrites
from outcore._util.progress import ProgressLike
from outcore._util.signals import stop_on_signals
from outcore._util.sizes import format_bytes, format_seconds, parse_bytes
from outcore.errors import (
    ExistsError,
    Interrupted,
    InvalidError,
    NotFoundError,
    OutcoreError,
    from_kind,
)
from outcore.files.copy_job import CopyJob
from outcore.files.destinations import (
    is_whole_by_itself,
    refuse_just_made,
    refuse_special,
    targets_of,
)
from outcore.files.pieces import workers_in
from outcore.files.several import Failed, expanded, tried, without_repeats
from outcore.storage.file_status import FileStatus, status_of, walk
from outcore.storage.pool_path import PoolPath
from outcore.storage.volumes import (
    AnyPath,
    PathLike,
    as_path,
    is_same,
    is_there,
    without_links,
    without_links_above,
)

DEFAULT_MEMORY_BYTES = 64 << 20

Links: TypeAlias = Literal["copy", "refuse", "leave", "follow"]


@dataclass(frozen=True)
class FileCopyReport:
    """Result and cost of one copy.

    Attributes
    ----------
    source, target
        The source, and the copy.
    files, directories, nbytes
        Number of files and directories, and the length of all files in bytes.
    links
        Number of symbolic links that were copied as links.
    resumed_bytes
        Bytes that an earlier call had copied, and that this call found to be right.
    verified
        Whether the copy was read back and compared.
    seconds
        Time of the copy.
    left_out
        Links that were not copied.
    """

    source: str
    target: str
    files: int
    directories: int
    nbytes: int
    resumed_bytes: int
    verified: bool
    seconds: float
    left_out: tuple[str, ...] = ()
    links: int = 0

    def __str__(self) -> str:
        what = "" if not self.directories else f" in {self.files} files"
        resumed = f", {format_bytes(self.resumed_bytes)} of it before" if self.resumed_bytes else ""
        checked = ", read back" if self.verified else ""
        return (
            f"{self.source} -> {self.target}: {format_bytes(self.nbytes)}{what} in "
            f"{format_seconds(self.seconds)}{resumed}{checked}"
        )


@dataclass(frozen=True)
class CopyOptions:
    """Options of `copy_one`: the arguments of `copy_files` with the same names."""

    recursive: bool = False
    preserve: bool = False
    if_exists: Replace = "error"
    resume: bool = False
    verify: bool | None = None
    hints: dict[str, Any] | None = None
    links: Links = "copy"
    memory: int | str | None = None
    progress: ProgressLike = True

    def memory_bytes(self) -> int:
        """Return the budget in bytes, at most the available memory."""
        given = DEFAULT_MEMORY_BYTES if self.memory is None else parse_bytes(self.memory)
        return min(given, max(budget.available_bytes(), 1))


def copy_files(
    sources: PathLike | Sequence[PathLike],
    target: PathLike,
    *,
    recursive: bool = False,
    preserve: bool = False,
    if_exists: Replace = "error",
    resume: bool = False,
    verify: bool | None = None,
    hints: dict[str, Any] | None = None,
    patterns: bool = True,
    links: Links = "copy",
    memory: int | str | None = None,
    progress: ProgressLike = True,
    done: Callable[[FileCopyReport], None] | None = None,
    failed: Failed | None = None,
) -> list[FileCopyReport]:
    """Copy files and directories to or from a pool, or within one.

    The call makes a copy in a hidden directory ``.NAME.copying`` beside its target. The copy gets
    its name when all of it is durable and verified. So a partial copy of a file or an array never
    passes for a whole one.

    Parameters
    ----------
    sources
        Paths; in pools also patterns: ``*``, ``?``, ``[...]``, and ``**`` for any number of
        directories. A repeated source is copied once.
    target
        The copy; or an existing directory, for copies under their own names. A slash at the end of
        a text marks a directory: no file gets that name.
    recursive
        Copy directories too. Arrays, factors and groups are always copied.
    preserve
        Keep mode, time and extended attributes, and owner and group where that is allowed. By
        default only the mode is kept, reduced by the umask.
    if_exists
        ``"overwrite"`` replaces files, arrays, factors and groups, once the copy is whole. It never
        replaces other directories, nor a copy that the same call made from another source.
    resume
        Resume a stopped copy. The call reads the copied pieces and compares them with the checksums
        in the journal. It copies pieces again that differ or whose source has changed.
    verify
        Read the copy back, and compare its checksums with those of the source data. By default the
        call does so for plain files, and reads them from the disk where possible. Files in a pool
        need it less. Their servers compare incoming data with the client's checksums, keep these,
        and compare them at each read.
    hints
        Layout of new files in a pool, as for `outcore.Pool.open`. A copy between pools keeps the
        stripe unit and the number of units per round, unless the hints change them.
    patterns
        Whether sources in pools are patterns, or literal names.
    links
        Treatment of symbolic links, also of broken ones: ``"copy"`` them as links with the same
        targets, as GNU ``cp -r`` does; ``"refuse"`` them before any work; ``"leave"`` them out, and
        name them in the report; or ``"follow"`` them, and copy their targets. Links below an array,
        factors or a group are refused, unless ``"follow"`` is given. A source that is itself a link
        is followed, except with ``"copy"`` and `recursive`.
    memory
        Bytes for the pieces in flight: 64 MiB by default, at least 4 MiB.
    progress
        Whether to show progress, or a function ``f(fraction, seconds_left)``.
    done
        Function to call with each report, as soon as its copy is whole.
    failed
        Function to call with each source that could not be copied, and with the error; the other
        sources are still copied. Without it, the first error is raised and ends the call.

    Returns
    -------
    list of FileCopyReport
        One for each source that the call has copied.

    Raises
    ------
    ExistsError
        If the target exists, or a copy to it was stopped before; or if two sources have the same
        target.
    InvalidError
        If a source is a directory and `recursive` is not set. If it contains devices or similar
        files, or links that `links` does not allow. If a followed link leads to a directory that
        contains it. If a source would be copied into itself, or changed during the copy. If a link
        would replace its own target.
    CorruptError
        If the data read back differ from the data written.
    """
    options = CopyOptions(
        recursive, preserve, if_exists, resume, verify, hints, links, memory, progress
    )
    workers_in(options.memory_bytes())
    several = [sources] if isinstance(sources, str | os.PathLike) else sources
    given = [as_path(path) for path in several]
    found = without_repeats(expanded(given, failed) if patterns else given)
    reports: list[FileCopyReport] = []
    made: set[AnyPath] = set()
    with stop_on_signals():
        for source, place in targets_of(found, target, several=len(given) > 1):
            with tried(source, failed):
                reports.append(copy_one(source, place, options, made))
                if done is not None:
                    done(reports[-1])
    return reports


def copy_one(
    source: AnyPath, target: AnyPath, options: CopyOptions, made: set[AnyPath]
) -> FileCopyReport:
    """Copy a source to its target, and add the target to the targets that this call `made`.

    It raises the errors of `copy_files`.
    """
    started = time.perf_counter()
    refuse_just_made(target, source, made)
    below, left_out = _found(source, options.recursive, options.links)
    _check_target(below[0], target, options.if_exists, options.resume)
    job = CopyJob(
        below, target, preserve=options.preserve, if_exists=options.if_exists,
        verify=options.verify, hints=options.hints or {}, memory_bytes=options.memory_bytes(),
        progress=options.progress,
    )  # fmt: skip
    try:
        job.run()
    except KeyboardInterrupt:
        raise Interrupted(_how_to_go_on(job)) from None
    except OutcoreError as error:
        if not job.can_resume:
            raise
        kept = "the copied part is kept; pass resume=True (--resume) to continue it"
        raise from_kind(error.kind, f"{error}; {kept}") from error
    finally:
        if job.is_placed or job.can_resume:
            made.add(target)
    files = [each for each in below if each.kind == "file"]
    return FileCopyReport(
        str(source), str(target), len(files), sum(each.is_directory for each in below),
        sum(each.nbytes for each in files), job.resumed_bytes, job.is_read_back,
        time.perf_counter() - started, left_out, sum(each.kind == "link" for each in below),
    )  # fmt: skip


def _found(
    source: AnyPath, recursive: bool, links: Links
) -> tuple[list[FileStatus], tuple[str, ...]]:
    """Find the source and everything below it; also return the links that are left out."""
    if isinstance(source, PoolPath):
        # The manager must know the times of earlier writes first, or the source would seem to
        # change.
        source.root.core.tell_written()
    top = status_of(source)
    if top.kind == "link" and recursive and links == "copy":
        return [top], ()
    source = without_links(source)
    top = status_of(source)
    if top.kind == "link" and isinstance(source, PoolPath):
        source.resolve(strict=True)
    if top.kind == "link":
        raise InvalidError(f"{source} is a link that leads back to itself; remove it")
    found = [top]
    if top.is_directory:
        is_whole = bool(source.name) and is_whole_by_itself(source)
        if not recursive and not is_whole:
            raise InvalidError(f"{source} is a directory; pass recursive=True (-r) to copy it")
        if is_whole and links in ("copy", "leave"):
            links = "refuse"  # a part of an array would pass for a whole one
        found += walk(top, follow=links == "follow")
    left_out: tuple[str, ...] = ()
    if links == "leave":
        left_out = tuple(str(each.path) for each in found if each.kind == "link")
        found = [each for each in found if each.kind != "link"]
    copied = ("file", "directory", "link") if links == "copy" else ("file", "directory")
    odd = [each for each in found if each.kind not in copied]
    if odd and odd[0].kind == "link":
        raise InvalidError(
            f"{odd[0].path} is a link, which this copy does not take along; replace it by its "
            "target, or pass links='follow' (-L)"
        )
    if odd:
        raise InvalidError(
            f"{odd[0].path} is no file or directory, which pools have none of; "
            "replace it by its content, or copy the others by name"
        )
    return found, left_out


def _check_target(top: FileStatus, target: AnyPath, if_exists: Replace, resume: bool) -> None:
    """Refuse an impossible copy before any work."""
    source = top.path
    real = (without_links(target), without_links(source))
    if top.kind == "link":
        real = (without_links_above(target), without_links_above(source))
    if real[0] == real[1] or (top.is_directory and real[1] in real[0].parents):
        raise InvalidError(f"{source} cannot be copied into itself; choose another target")
    if isinstance(target, Path) and not target.parent.is_dir():
        raise NotFoundError(f"there is no directory {target.parent}; make it first")
    working = CopyJob.directory_for(target)
    if is_there(working) and not resume:
        raise ExistsError(
            f"a copy to {target} was stopped before; pass resume=True (--resume) to continue, or "
            f"remove {working}"
        )
    if not is_there(target):
        return
    if top.kind == "link" and is_same(source, real[0]):
        raise InvalidError(f"{source} is a link to {target}, and cannot replace it; remove it")
    refuse_special(target)
    if not overwrites(if_exists):
        raise ExistsError(
            f"{target} exists; choose another name or pass if_exists='overwrite' (-f)"
        )
    if target.is_dir() and not is_whole_by_itself(target):
        raise ExistsError(
            f"{target} is a directory and no array, so it is not replaced; remove it first, or "
            "choose another name"
        )


def _how_to_go_on(job: CopyJob) -> str:
    if job.is_placed:
        return (
            f"copying to {job.target}, which is complete; the files in {job.working} can be removed"
        )
    if not job.can_resume:
        return f"copying to {job.target}; nothing is left of it, start it again"
    return (
        f"copying to {job.target} after {format_bytes(job.done_bytes)} of "
        f"{format_bytes(job.total_bytes)}; resume it with resume=True (--resume); to give "
        f"it up, remove {job.working}"
    )
