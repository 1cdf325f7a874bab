"""Read and write the metadata and the version of arrays."""

import json
import re
from typing import NamedTuple

from outcore.errors import (
    CorruptError,
    IncompleteError,
    InvalidError,
    LostError,
    NotFoundError,
    OutcoreError,
)
from outcore.layout.zarr_format import Metadata, parse
from outcore.storage.volumes import Place

_GENERATION = "outcore.generation"


def read_metadata(where: Place) -> Metadata:
    """Read the metadata of an array in outcore's own layout, in any state.

    If `where` is transposed, the result describes the transpose.
    """
    try:
        text = where.volume.read_small(where.inside("zarr.json"))
    except NotFoundError:
        raise _no_array(where) from None
    metadata = parse(text, str(where.path))
    if metadata is None:
        _refuse_group(text, where)
        raise InvalidError(
            f"{where.path} is Zarr, but no array of outcore's own layout; read it with "
            "zarr.open_array and copy it with oc.from_array"
        )
    return metadata.transposed() if where.is_transposed else metadata


def _refuse_group(text: bytes, where: Place) -> None:
    """Refuse a group, and name the call that opens factors."""
    document = json.loads(text)
    if document.get("node_type") != "group":
        return
    own = (document.get("attributes") or {}).get("outcore")
    if isinstance(own, dict) and "kind" in own:
        raise InvalidError(
            f"{where.path} holds factors, need an array; open them with oc.linalg.open_factor"
        )
    raise InvalidError(f"{where.path} is a group, need an array; name one that is in it")


def _no_array(where: Place) -> OutcoreError:
    if is_half_made(where):
        return IncompleteError(
            f"{where.path} is only half made: its making was stopped; make it again with "
            "if_exists='overwrite'"
        )
    if where.path.exists() and not where.path.is_dir():
        return NotFoundError(
            f"there is no array at {where.path}, but a file; copy it with oc.from_array, or "
            "outcore convert"
        )
    return NotFoundError(f"there is no array at {where.path}; make one with oc.create_array")


def is_half_made(where: Place) -> bool:
    """Whether the directory is the rest of a killed creation: an array without ``zarr.json``."""
    try:
        names = {name for name, _, _ in where.names()}
    except OutcoreError:
        return False
    lasting = {name for name in names if not name.endswith(".new")}
    return _GENERATION in lasting and lasting <= {_GENERATION, "c"}


def write_metadata(where: Place, metadata: Metadata) -> None:
    """Replace the metadata of an array, atomically."""
    where.replace_small("zarr.json", metadata.to_json())


def read_generation(where: Place) -> int:
    """Return the generation: how often the array was opened and written to."""
    try:
        text = where.volume.read_small(where.inside(_GENERATION)).strip()
    except NotFoundError:
        return 0
    if not re.fullmatch(rb"[0-9]{1,18}", text):
        raise CorruptError(
            f"{where.path / _GENERATION} holds no number; write one larger than the last known one"
        )
    return int(text)


def write_first_generation(where: Place) -> None:
    """Write the generation of a new array."""
    where.make_small(_GENERATION, b"1")


def bump_generation(where: Place) -> None:
    """Raise the generation before a write, so that a resumed call detects changed input."""
    number = str(read_generation(where) + 1).encode()
    where.replace_small(_GENERATION, number)


class Version(NamedTuple):
    """Two numbers of which at least one changes when an array changes.

    The generation counts openings that wrote. It does not change when a program writes again
    through an array that it wrote to before and still has open. It restarts when the array is
    created again. So the version also contains the time of the last write to the files, in
    nanoseconds.
    """

    generation: int
    modified_ns: int


def version_of(source: Place) -> Version:
    """Return the version of an array. If its files were removed, the modification time is 0."""
    volume = source.volume
    times = [volume.modified_ns(file) for file in _files(source) if volume.exists(file)]
    return Version(read_generation(source), max(times, default=0))


def settle(source: Place) -> None:
    """Make an array and its version durable: both must be the same after a power loss.

    Raises
    ------
    LostError
        If some earlier writes to the array may be lost.
    """
    for file in _files(source):
        try:
            source.volume.settle(file)
        except LostError:
            raise
        except OutcoreError:
            # On a read-only disk, or if a file is missing, there is nothing to make durable.
            continue


def _files(source: Place) -> list[str]:
    grid = read_metadata(source).grid()
    return [source.inside(grid.shard_key(shard)) for shard in range(grid.shards)]
