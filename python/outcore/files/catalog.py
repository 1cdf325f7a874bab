"""Recognise outcore's objects in a directory: arrays, groups, factors, remains of stopped calls.

``outcore rm`` removes only objects that this module recognises.
"""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from outcore._util.this_machine import began_at
from outcore.array.array import Array
from outcore.array.existing import remove_array
from outcore.array_files import atomic_write
from outcore.array_files.blocks_done import RECORDS, WORKING, is_named
from outcore.array_files.foreign_shards import foreign_shards
from outcore.errors import BusyError, CorruptError, InvalidError, NotFoundError, OutcoreError
from outcore.layout.zarr_format import parse
from outcore.linalg._output.factor import KINDS
from outcore.linalg._output.kept_solves import is_kept_solve
from outcore.pool import directories
from outcore.series.checkpoints import LEFT_OVER, LOCK
from outcore.series.time_steps import RECORD
from outcore.storage.pool_locks import is_lock
from outcore.storage.pool_path import PoolPath, is_text
from outcore.storage.volumes import (
    AnyPath,
    Place,
    as_path,
    bytes_on_disk,
    filling,
    is_held,
    is_there,
    place,
)

Kind = Literal["array", "factor", "group", "left-over", "pool directory", "part of a pool"]

MOST_DIRECTORIES = 10_000
"""Largest number of directories that `find` visits."""

_CLOCK_S = 2.0
"""Coarseness of the times of processes and files."""

_FRESH = re.compile(r"(zarr\.json|journal|outcore\.[a-z]+(-[0-9]+)?)\.[0-9]+\.new")
_FILLING = re.compile(r"\.(.+)\.filling")
_EXPORTING = re.compile(r"\.(.+)\.([0-9]+)-[0-9a-f]{8}\.(part|old)")
_COPYING = re.compile(r"\.(.+)\.copying")
_MEASURING = re.compile(r"\.outcore-rates-.*")
_HALF_COPIED = frozenset(["journal", "content", "old"])
_HALF_MADE_ARRAY = frozenset(
    ["c", "outcore.checksums", "outcore.generation", RECORD, *RECORDS, *WORKING]
)
_HALF_MADE_FACTORS = {
    kind.suffix: frozenset(["journal", kind.array, *kind.vectors, *kind.workspaces])
    for kind in KINDS.values()
}


@dataclass(frozen=True)
class Entry:
    """One object of outcore.

    Attributes
    ----------
    path : str
        Its directory; for a left-over journal, the file.
    kind : str
        ``"array"``, ``"factor"``, ``"group"`` or ``"left-over"``; ``"pool directory"`` for a
        directory in which a pool stores its files, ``"part of a pool"`` for anything inside it.
    state : str
        ``"whole"``, ``"incomplete"``, ``"consumed"``, ``"damaged"``, ``"foreign"`` if it is valid
        Zarr that other software wrote to, or ``"in use"`` by a call that is making it.
    text : str
        Remark on its state: how to resume, or the defect.
    details : dict
        Shape, type and further facts, as far as they are known.
    """

    path: str
    kind: Kind
    state: str
    text: str = ""
    details: dict[str, Any] = field(default_factory=dict)


def recognise(path: AnyPath) -> Entry | None:
    """Identify the object of outcore at `path`; `None` if it is not outcore's.

    Raises
    ------
    NotFoundError
        If nothing exists at `path`.
    """
    path = as_path(path)
    if not is_there(path):
        raise NotFoundError(f"there is nothing at {path}; check the path")
    if path.is_symlink():
        return None
    if exported := _EXPORTING.fullmatch(path.name):
        return _half_exported(path, *exported.groups())
    if not path.is_dir():
        return _stray_journal(path)
    if path == path.parent:
        return None
    if copying := _COPYING.fullmatch(path.name):
        return _half_copied(path, copying[1])
    if atomic_write.FRESH.fullmatch(path.name):
        return _half_written(path)
    if LEFT_OVER.fullmatch(path.name):
        return _half_checkpoint(path)
    if not (path / "zarr.json").is_file():
        return _half_made(path)
    document = _read_json(path / "zarr.json")
    if document is None:
        if not (path / "outcore.generation").exists():
            return None
        text = "zarr.json cannot be read; restore it from a copy, or remove the array"
        return Entry(str(path), "array", "damaged", text)
    attributes = document.get("attributes")
    own = attributes.get("outcore") if isinstance(attributes, dict) else None
    if document.get("node_type") == "group":
        if isinstance(own, dict) and own.get("kind") in list(KINDS):
            return _factor(path, own)
        return Entry(str(path), "group", "whole")
    return None if own is None else _array(place(path))


def of_a_pool(path: AnyPath) -> Entry | None:
    """Identify a plain path that belongs to a pool's own files; otherwise return `None`.

    ``outcore rm`` never removes such files.
    """
    whole = None if isinstance(path, PoolPath) else directories.pool_directory_of(path)
    if whole is None:
        return None
    if whole != path:
        text = f"belongs to the pool in {whole}; see: outcore info {whole}"
        return Entry(str(path), "part of a pool", "whole", text)
    text = "the pool's first directory has its manager; name that one"
    if directories.has_manager(whole):
        text = f"see: outcore ls outcore:{whole}::, and: outcore pool status {whole}"
    return Entry(str(path), "pool directory", "whole", text, directories.about(whole))


def find(directory: AnyPath) -> tuple[list[Entry], bool]:
    """List the objects in and below a directory; also return whether the list is complete.

    The search does not follow links. It ends after `MOST_DIRECTORIES` directories.
    """
    found: list[Entry] = []
    pending = [as_path(directory)]
    looked_at = 0
    while pending and looked_at < MOST_DIRECTORIES:
        above = pending.pop(0)
        looked_at += 1
        for path in _children(above):
            if not is_text(path.name):
                continue  # no object of outcore has such a name
            if path.is_symlink():
                continue
            entry = recognise(path) or of_a_pool(path)
            if entry is not None and not _belongs_to_another(path):
                found.append(entry)
            if path.is_dir() and (entry is None or entry.kind == "group"):
                pending.append(path)
    return sorted(found, key=lambda entry: entry.path), not pending


def remove(entry: Entry) -> None:
    """Remove an object that `recognise` found, with all of its files.

    Raises
    ------
    BusyError
        If a call is making it.
    InvalidError
        If it is a group that contains something that outcore did not write.
    """
    check_removable(entry)
    where = place(entry.path)
    if is_there(where.path):
        if entry.kind == "array":
            remove_array(where)
        else:
            where.volume.remove(where.name)
    if is_there(filling(where).path):
        where.volume.remove(filling(where).name)


def check_removable(entry: Entry) -> None:
    """Raise the errors of `remove`, without removing anything."""
    path = as_path(entry.path)
    if entry.state == "in use":
        raise BusyError(f"{path} is being made by another process or call; stop that first")
    if entry.kind != "group":
        return
    for child in _children(path):
        if child.name == "zarr.json" or _FRESH.fullmatch(child.name):
            continue
        inner = None if child.is_symlink() else recognise(child)
        if inner is None:
            raise InvalidError(
                f"the group {path} holds {child.name}, which outcore did not write; "
                "remove that yourself first"
            )
        check_removable(inner)


def _children(directory: AnyPath) -> Iterator[AnyPath]:
    try:
        found: list[AnyPath] = sorted(directory.iterdir(), key=lambda path: path.name)
    except OSError:
        return
    for path in found:
        if is_there(path):
            yield path


def _read_json(path: AnyPath) -> dict[str, Any] | None:
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None


def _array(where: Place) -> Entry:
    path = str(where.path)
    try:
        metadata = parse(where.volume.read_small(where.inside("zarr.json")), path)
    except CorruptError as error:
        return Entry(path, "array", "damaged", str(error))
    if metadata is None:  # another version of Zarr
        return Entry(path, "array", "damaged", "its metadata is not of Zarr version 3")
    state, text = metadata.state or "whole", metadata.why
    details: dict[str, Any] = {"shape": metadata.shape, "dtype": metadata.dtype.name}
    try:
        with Array(where, metadata, "r") as array:
            details = asdict(array.info())
        for name in ("path", "state"):
            del details[name]
        if left := atomic_write.left(where):
            details["atomic_write_bytes"] = sum(bytes_on_disk(each.path) for each in left)
    except OutcoreError as error:
        # An incomplete array may lack files, and a consumed array's files now belong to a factor.
        if state == "whole":
            is_foreign = foreign_shards(where, metadata)
            state, text = "foreign" if is_foreign else "damaged", str(error)
    if is_held(filling(where).path):
        state, text = "in use", "being assembled now"
    return Entry(path, "array", state, text, details)


def _factor(path: AnyPath, own: dict[str, Any]) -> Entry:
    details = {
        name: value for name, value in own.items() if name not in ("kind", "state", "places")
    }
    if is_held(path):
        return Entry(str(path), "factor", "in use", "being factored now", details)
    if own.get("state") == "complete":
        return Entry(str(path), "factor", "whole", "", details)
    text = (
        f"the factorization of {own.get('source', 'its matrix')} was stopped; call "
        f"{KINDS[own['kind']].function} with the same arguments to resume"
    )
    try:
        # The first line is the header.
        slabs = max((path / "journal").read_bytes().count(b"\n") - 1, 0)
        text += f" ({slabs} slabs are done)"
    except OSError:
        text += " from the beginning: it has no journal"
    if own.get("overwrite_a"):
        text += "; the only copy of the rest of the matrix is in here"
    return Entry(str(path), "factor", "incomplete", text, details)


def _half_made(path: AnyPath) -> Entry | None:
    """Recognise a directory without metadata that a killed call left."""
    names = {child.name for child in _children(path)}
    names = {name for name in names if not _FRESH.fullmatch(name)}
    parts = {name for name in names if not is_lock(name)}

    def left_over(text: str) -> Entry:
        if is_held(path):
            return Entry(str(path), "left-over", "in use", "a call makes it now")
        return Entry(str(path), "left-over", "incomplete", text)

    if _FILLING.fullmatch(path.name) and not parts:
        return left_over("lock of an assembly that was killed; it can be removed")
    if path.name == LOCK and not parts:
        return left_over("lock of a checkpoint that was killed; it can be removed")
    if _MEASURING.fullmatch(path.name):
        return left_over("files of a measurement that was killed; they can be removed")
    factors = _HALF_MADE_FACTORS.get(path.suffix)
    if (
        names
        and factors is not None
        and all(name in factors or is_kept_solve(name) for name in parts)
    ):
        return left_over("factors killed while they were made or removed; they can be removed")
    is_array = bool(names) and all(is_named(name, _HALF_MADE_ARRAY) for name in names)
    if is_array and _are_shards(path / "c"):
        return left_over("an array killed while it was made or removed; it can be removed")
    return None


def _half_written(path: AnyPath) -> Entry:
    """Describe the new files of an atomic collective."""
    text = (
        f"the new files of an atomic write_all of {path.parent.name} that runs or was killed; the "
        "next one removes them, and you may if none runs"
    )
    return Entry(str(path), "left-over", "incomplete", text)


def _half_checkpoint(path: AnyPath) -> Entry:
    """Describe a checkpoint that has no name yet, or has lost it for removal."""
    if is_held(path.parent / LOCK):
        return Entry(str(path), "left-over", "in use", "a checkpoint is written now")
    text = "a checkpoint killed while it was written or removed; remove it, or the next one does"
    return Entry(str(path), "left-over", "incomplete", text)


def _are_shards(path: AnyPath) -> bool:
    """Whether everything below is named by numbers, as an array's shard files are."""
    if not path.is_dir():
        return path.is_file() or not is_there(path)
    return all(
        child.name.isdigit() and (child.is_file() or _are_shards(child))
        for child in _children(path)
    )


def _half_exported(path: AnyPath, name: str, process: str, what: str) -> Entry | None:
    """Recognise remains of a killed export: an unfinished copy, or the version to be replaced."""
    # A later process, or a thread, may have the number of one that was killed.
    began_s = None if isinstance(path, PoolPath) else began_at(int(process))
    if began_s is not None and began_s <= os.stat(path).st_mtime + _CLOCK_S:
        return Entry(str(path), "left-over", "in use", f"{name} is exported now")
    if what == "part":
        text = f"an export to {name} was killed; it can be removed"
        return Entry(str(path), "left-over", "incomplete", text)
    if (path.parent / name).exists():
        return Entry(
            str(path), "left-over", "whole", f"{name} before it was replaced; it can be removed"
        )
    # Killed between two renames: this is the only copy.
    return None


def _half_copied(path: AnyPath, name: str) -> Entry | None:
    """Recognise remains of a stopped copy of files: copied files, or the version to be replaced."""
    names = {child.name for child in _children(path)}
    if {each for each in names if not (_FRESH.fullmatch(each) or is_lock(each))} - _HALF_COPIED:
        return None
    if is_held(path):
        return Entry(str(path), "left-over", "in use", f"{name} is copied now")
    if "old" in names and not is_there(path.parent / name):
        return None  # killed between two renames: this is the only copy
    text = f"a copy to {name} was stopped; outcore cp --resume continues it, or remove it"
    return Entry(str(path), "left-over", "incomplete", text)


def _stray_journal(path: AnyPath) -> Entry | None:
    """Recognise the journal of a finished factor, which no longer needs it."""
    if path.name != "journal" or not path.is_file():
        return None
    factor = None if path.parent == path.parent.parent else recognise(path.parent)
    if factor is None or factor.kind != "factor" or factor.state != "whole":
        return None
    return Entry(
        str(path), "left-over", "whole", "journal of a finished factorization; it can be removed"
    )


def _belongs_to_another(path: AnyPath) -> bool:
    """Whether `path` is the lock of an assembly whose array is listed separately."""
    found = _FILLING.fullmatch(path.name)
    return found is not None and (path.parent / found[1]).is_dir()
