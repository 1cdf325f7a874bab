"""Checks and repairs the descriptions by which searches find the arrays and groups of a pool.

A client sends the description of an array in the commit that gives ``zarr.json`` its name. Arrays
of earlier versions, and those written through a mount, have none.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from outcore._core import description_of
from outcore.errors import BusyError, NotFoundError, OutcoreError
from outcore.layout import description
from outcore.pool.pool import Pool

_READERS = 8
_METADATA = "zarr.json"


def odd_descriptions(pool: Pool) -> Iterator[tuple[str, str]]:
    """Yield directories whose description does not fit their ``zarr.json``, and the reason.

    Arrays that another client changes meanwhile are not odd, nor are copies in progress.
    """
    find = pool.core.find
    try:
        described = {each[0]: each[3] for each in find("", 'kind = "array" or kind = "group"')}
        files = find("", f'name = "{_METADATA}" and kind = "file"')
    except BusyError:
        return  # the pool has no index, which is another finding
    with_metadata = {path.rpartition("/")[0] for path, *_ in files}
    paths = sorted(path for path in described.keys() | with_metadata if not _is_in_copy(path))
    with ThreadPoolExecutor(_READERS) as readers:
        odd = readers.map(lambda path: _is_odd(pool, path, described.get(path, b"")), paths)
        for path in (path for path, is_odd in zip(paths, odd, strict=True) if is_odd):
            if path in described:
                yield path, "searches find it by other metadata than its zarr.json has"
            else:
                yield path, "searches do not find it by its metadata"


def describe(pool: Pool, path: str) -> None:
    """Describe an array or a group by its ``zarr.json``; without one, remove its description."""
    right = description_of(_metadata(pool, path))
    pool.core.set_extended(path, description.ATTRIBUTE, right)


def _is_odd(pool: Pool, path: str, described: bytes) -> bool:
    try:
        metadata = _metadata(pool, path)
        right = _fields(metadata)
        if not path or right == description.read(described):
            return False
        # Both change in one commit, so the second reading of one shows that the other is new, too.
        now = description.read(_described(pool, path))
        return right != now and _metadata(pool, path) == metadata
    except OutcoreError:
        return False  # removed meanwhile, or damaged, which is another finding


def _fields(metadata: bytes) -> dict[str, Any]:
    return description.read(description_of(metadata) or b"")


def _metadata(pool: Pool, path: str) -> bytes:
    try:
        return pool.core.volume().read_small(f"{path}/{_METADATA}")
    except NotFoundError:
        return b""


def _described(pool: Pool, path: str) -> bytes:
    try:
        return pool.core.extended(path, description.ATTRIBUTE)
    except NotFoundError:
        return b""


def _is_in_copy(path: str) -> bool:
    names = path.split("/")
    return any(name.startswith(".") and name.endswith(".copying") for name in names)
