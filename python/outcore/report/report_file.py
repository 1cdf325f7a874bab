"""A report in a file: its figures as JSON and its spans as a NumPy array, in a zip archive.

``docs/format.md`` specifies the bytes. A directory of factors stores the figures of its
factorization.
"""

import contextlib
import io
import json
import struct
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import numpy as np
import numpy.typing as npt

from outcore.errors import CorruptError, DeniedError, ExistsError, InvalidError, NotFoundError
from outcore.layout import description
from outcore.storage import rights
from outcore.storage.file_attributes import attribute, attribute_names, set_attribute
from outcore.storage.pool_path import PoolPath
from outcore.storage.volumes import AnyPath, PathLike, as_path, place

FORMAT = 1
KIND = "outcore report"
FIGURES = "report.json"
SPANS = "spans.npy"

_ZIP = b"PK\3\4"
_NAME_AT = 30
"""Where the name of the first file stands in an archive."""

_MOST_BYTES = 256 << 20
"""Size of an archive that outcore reads without being asked to, and of the figures in any."""

Spans = npt.NDArray[np.uint64]
_Report = TypeVar("_Report")

_FIXED_TIME = (1980, 1, 1, 0, 0, 0)
"""Time stamp of all files in the archive, so that equal reports have equal bytes."""


def write(path: PathLike, values: dict[str, Any], spans: Spans | None) -> None:
    """Write a report, replacing an existing file; `path` never has a partial report."""
    document = {"format": FORMAT, "kind": KIND, "report": values}
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        text = json.dumps(document, indent=2, default=_as_plain)
        archive.writestr(zipfile.ZipInfo(FIGURES, _FIXED_TIME), text, zipfile.ZIP_DEFLATED)
        if spans is not None:
            columns = io.BytesIO()
            # Columns compress better than rows.
            np.save(columns, np.asarray(spans, "<u8", order="F"), allow_pickle=False)
            entry = zipfile.ZipInfo(SPANS, _FIXED_TIME)
            archive.writestr(entry, columns.getvalue(), zipfile.ZIP_DEFLATED)
    replace(path, packed.getvalue())
    where = as_path(path)
    if isinstance(where, PoolPath):
        _describe(where, values)


def begins_report(content: memoryview) -> bool:
    """Whether a file that begins with these bytes may be a report: its archive has it first."""
    begin = bytes(content[:64])
    return begin.startswith(_ZIP) and begin[_NAME_AT:].startswith(FIGURES.encode())


def describe(path: PoolPath) -> None:
    """Let searches of a pool find a report that was copied into it.

    Other files, and those of more than `_MOST_BYTES`, are ignored.
    """
    if path.stat().nbytes > _MOST_BYTES:
        return
    with contextlib.suppress(InvalidError, CorruptError, TypeError, ValueError):
        _describe(path, _unpacked(path)[0])


def _describe(path: PoolPath, values: dict[str, Any]) -> None:
    path.root.core.set_extended(path.inside, description.ATTRIBUTE, description.of_report(values))


def replace(path: PathLike, content: bytes) -> None:
    """Write a report or its page, replacing the file at the path or at the target of a link.

    The new file has the rights and the extended attributes of the old one, but for what searches
    know of it.
    """
    where = as_path(path)
    check_file(where, "report")
    if isinstance(where, Path):
        where = where.resolve()
    found = place(where)
    kept = {}
    if where.exists():
        with contextlib.suppress(DeniedError):  # of a file that may be replaced, but not read
            names = set(attribute_names(where)) - {description.ATTRIBUTE}
            kept = {name: attribute(where, name) for name in names}
    with rights.kept(found.path):
        found.volume.replace_small(found.name, content)
    for name, value in kept.items():
        set_attribute(where, name, value)


def check_replaceable(path: AnyPath) -> None:
    """Refuse to replace anything but a report.

    Raises
    ------
    InvalidError
        If `path` is a directory, device, pipe or socket.
    ExistsError
        If it is another kind of file.
    """
    check_file(path, "report")
    if not path.exists():
        return
    try:
        _unpacked(path)
    except (InvalidError, CorruptError):
        raise ExistsError(f"{path} exists and is no report; choose another name") from None


def check_file(path: AnyPath, what: str) -> None:
    """Refuse an existing path that is not a file, as a place for a report or trace."""
    if path.is_dir():
        raise InvalidError(f"{path} is a directory; name a file for the {what}")
    if path.exists() and not path.is_file():
        raise InvalidError(f"{path} is a device, pipe or socket; name a file for the {what}")


def read(path: PathLike, report: type[_Report], unsaid: Sequence[str] = ()) -> _Report:
    """Read a report.

    Parameters
    ----------
    path
        A file of `write`, or a directory of factors, whose report has no spans.
    report
        The dataclass of the result. Figures that it does not have are left out.
    unsaid
        Figures that become empty text if the file lacks them.

    Raises
    ------
    NotFoundError
        If `path` does not exist, or the directory has no report.
    InvalidError
        If it has other content, or was written by a later version.
    CorruptError
        If the report is damaged.
    """
    where = as_path(path)
    if not where.exists():
        raise NotFoundError(f"there is no report at {where}; check the path")
    if where.is_dir():
        values, spans = _of_factors(where), None
    else:
        values, spans = _unpacked(where)
    fields = get_type_hints(report)
    known = dict.fromkeys(unsaid, "") | {
        name: value for name, value in values.items() if name in fields
    }
    for name, value in known.items():
        if not _fits(value, fields[name]):
            raise _damaged(where, f"{name} is {value!r}")
    try:
        return report(**known, spans=spans)  # type: ignore[call-arg]
    except TypeError as error:
        raise _damaged(where, error) from None


def _unpacked(where: AnyPath) -> tuple[dict[str, Any], Spans | None]:
    packed = where.read_bytes()
    if not packed.startswith(_ZIP):
        raise InvalidError(
            f"{where} is not a report; write one with report.save(), or `outcore solve --report`"
        )
    try:
        with zipfile.ZipFile(io.BytesIO(packed)) as archive:
            if (size := archive.getinfo(FIGURES).file_size) > _MOST_BYTES:
                raise ValueError(f"its figures have {size} bytes")
            document = json.loads(archive.read(FIGURES))
            if document["kind"] != KIND:
                raise ValueError(f"kind {document['kind']!r}")
            version = document["format"]
            if version == FORMAT:
                return dict(document["report"]), _spans(archive)
    except _DAMAGE as error:
        raise _damaged(where, error) from None
    raise InvalidError(
        f"{where} is a report in format {version!r}, this version of outcore reads format "
        f"{FORMAT}; upgrade outcore"
    )


_DAMAGE = (
    ValueError, KeyError, TypeError, EOFError, RuntimeError, OSError, struct.error,
    zipfile.BadZipFile, zlib.error,
)  # fmt: skip
"""Exceptions of reading a damaged archive."""


def _damaged(where: AnyPath, why: object) -> CorruptError:
    return CorruptError(
        f"{where} is a damaged report ({why}); restore it from a copy, or run the call again"
    )


def _fits(value: Any, kind: Any) -> bool:
    """Whether a JSON value has the type of a dataclass's field."""
    if isinstance(kind, UnionType):
        return any(_fits(value, each) for each in get_args(kind))
    if get_origin(kind) is list:
        return isinstance(value, list) and all(_fits(item, get_args(kind)[0]) for item in value)
    if kind in (int, float):
        return isinstance(value, int | kind) and not isinstance(value, bool)
    return isinstance(value, get_origin(kind) or kind)


def _as_plain(value: Any) -> Any:
    """Convert a NumPy scalar into a plain number."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a report holds plain values, have {type(value).__name__}")


def _spans(archive: zipfile.ZipFile) -> Spans | None:
    if SPANS not in archive.namelist():
        return None
    spans = np.load(io.BytesIO(archive.read(SPANS)), allow_pickle=False)
    if spans.ndim != 2 or spans.shape[1] != 6 or spans.dtype != np.uint64:
        raise ValueError(f"spans of shape {spans.shape} and type {spans.dtype}")
    return np.ascontiguousarray(spans)


def _of_factors(directory: AnyPath) -> dict[str, Any]:
    """Read the report that a factorization left in the group of its factors."""
    try:
        document = json.loads((directory / "zarr.json").read_bytes())
        return dict(document["attributes"]["outcore"]["report"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        raise NotFoundError(
            f"{directory} holds no report: it is not a directory of complete factors; "
            "name a file that report.save() wrote"
        ) from None
