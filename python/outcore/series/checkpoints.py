"""Checkpoints of a group on disk: directories that get their names once they are durable."""

import contextlib
import json
import math
import re
import secrets
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from outcore._core import crc32c
from outcore._util.progress import Meter, ProgressLike, is_shown
from outcore.array.array import Array, open_array
from outcore.array.existing import make_array
from outcore.array.verification import LEAST_BYTES, verify
from outcore.array_files.metadata import read_metadata
from outcore.errors import (
    CorruptError,
    DamagedCheckpointWarning,
    DiskError,
    IncompleteError,
    InvalidError,
    NotFoundError,
    OutcoreError,
    TruncatedError,
)
from outcore.layout.attributes import restored
from outcore.layout.zarr_format import Metadata, consolidated_json, group_json
from outcore.series import group_transfer
from outcore.series.group_transfer import Own, Ranks
from outcore.storage.pool_path import PoolPath
from outcore.storage.volumes import Place, exclusive

_FORMAT = 2
"""In format 1, attributes have no tagged form, and arrays and attributes are not named."""
LOCK = ".writing"
"""Lock below the directory of the checkpoints; the writer of a checkpoint holds it."""

_NAME = re.compile(r"[0-9]{8}")
LEFT_OVER = re.compile(r"\.[0-9]{8}\.[0-9a-f]{8}\.(part|old)")
_DAMAGE = (CorruptError, DiskError, IncompleteError, NotFoundError, TruncatedError)


@dataclass(frozen=True)
class Restart:
    """The state from which a program resumes, as returned by `ArrayGroup.restart`.

    Attributes
    ----------
    number
        Number of the checkpoint.
    arrays
        Names and elements of its arrays; lists of arrays where the schema names boxes.
        ``restart["u"]`` is one of them.
    attributes
        The attributes that were passed to the checkpoint.
    damaged
        Newer checkpoints that could not be used: number, and the defect.
    """

    number: int
    arrays: dict[str, Any]
    attributes: dict[str, Any]
    damaged: dict[int, str]

    def __getitem__(self, name: str) -> Any:
        return self.arrays[name]


@dataclass(frozen=True)
class State:
    """Content of a checkpoint: the layout of its arrays, this rank's parts, and attributes."""

    metadata: Mapping[str, Metadata]
    local: Mapping[str, Own]
    schema: Mapping[str, Any]
    attributes: dict[str, Any]
    """Encoded by `checkpoint_attributes`."""
    memory: int | None = None
    """Memory for copies in a pool; see `memory` of `Array.write_all`."""


def read_back_bytes(metadata: Metadata) -> int:
    """Memory in bytes in which a written array's checksums are computed: two chunks."""
    return max(2 * metadata.grid().slot_bytes, LEAST_BYTES)


def numbers(where: Place) -> list[int]:
    """List the checkpoints of a group, in increasing order; `where` is their directory."""
    return [int(name) for name, _, _ in where.names() if _NAME.fullmatch(name)]


def write(
    where: Place,
    state: State,
    keep: int,
    unwanted: frozenset[int],
    ranks: Ranks,
    progress: ProgressLike = False,
) -> int:
    """Write a checkpoint, then remove older ones; return its number.

    Parameters
    ----------
    where
        Directory of the checkpoints.
    keep, unwanted
        Number of checkpoints to keep, including this one; checkpoints not to keep, because they are
        damaged.
    progress
        Whether to show progress, or a function ``f(fraction, seconds_left)``. It covers writing,
        and this rank's share of reading back.

    Raises
    ------
    BusyError
        If another call is writing a checkpoint of the group.
    """
    with _meter("checkpoint", state.metadata, ranks, progress) as part, ExitStack() as stack:
        number, name = ranks.first(lambda: _begin(stack, where))
        begun = where.below(name)
        for array, metadata in state.metadata.items():
            of_rank = state.local[array], state.schema.get(array), ranks
            _write_array(begun.below(array), metadata, *of_rank, part(metadata), state.memory)
        mine, nbytes = _own(state.metadata, ranks), sum(map(_nbytes, state.metadata.values()))
        ranks.each(lambda: _record_checksums(begun, mine, part), nbytes=nbytes)
        ranks.first(lambda: _publish(where, begun, state, number))
        ranks.first(lambda: _prune(where, keep, unwanted))
    return number


def _own(members: Mapping[str, Metadata], ranks: Ranks) -> dict[str, Metadata]:
    """Return the arrays whose checksums this rank computes."""
    return {name: members[name] for name in list(members)[ranks.rank :: ranks.size]}


@contextmanager
def _meter(
    title: str, members: Mapping[str, Metadata], ranks: Ranks, progress: ProgressLike
) -> Iterator[Callable[[Metadata], ProgressLike]]:
    """Show progress: each array is transferred once, and read once for checksums.

    Yields a function that returns the share of an array for one of these.
    """
    work = sum(map(_nbytes, members.values())) + sum(map(_nbytes, _own(members, ranks).values()))
    mine = ranks.progress(progress)
    with Meter(title, work, mine) as meter:
        yield lambda metadata: meter.part(_nbytes(metadata)) if is_shown(mine) else False


def _nbytes(metadata: Metadata) -> int:
    return math.prod(metadata.shape) * metadata.dtype.itemsize


def _begin(stack: ExitStack, where: Place) -> tuple[int, str]:
    """Lock the checkpoints; choose a number, and a temporary name until it is complete."""
    stack.enter_context(exclusive(where.below(LOCK), "a checkpoint"))
    if not where.exists():
        where.replace_small("zarr.json", group_json({}))
    number = max(numbers(where), default=-1) + 1
    name = f".{number:08}.{secrets.token_hex(4)}.part"
    stack.callback(_discard, where.below(name))
    return number, name


def _write_array(
    where: Place,
    metadata: Metadata,
    local: Own,
    schema: Any,
    ranks: Ranks,
    progress: ProgressLike,
    memory: int | None,
) -> None:
    ranks.first(lambda: make_array(where, metadata, if_exists="error", reserve=True))
    with ranks.each(lambda: Array(where, metadata, "r+")) as array:
        group_transfer.write(array, local, schema, ranks, progress, memory)


def _record_checksums(
    begun: Place, members: dict[str, Metadata], part: Callable[[Metadata], ProgressLike]
) -> None:
    """Read the written arrays back, and record the checksums of their chunks."""
    for name, metadata in members.items():
        where = begun.below(name)
        memory_bytes = read_back_bytes(read_metadata(where))
        verify(where.path, record=True, memory=memory_bytes, progress=part(metadata))


def _publish(where: Place, begun: Place, state: State, number: int) -> None:
    """Give a checkpoint its name; from then on it is the newest."""
    own = {
        "format": _FORMAT,
        "kind": "checkpoint",
        "arrays": list(state.metadata),
        "attributes": list(state.attributes),
        "crc32c": _content_sum(state.attributes, state.metadata),
    }
    document = consolidated_json({**state.attributes, "outcore": own}, state.metadata)
    begun.replace_small("zarr.json", document)
    where.volume.rename(begun.name, where.inside(f"{number:08}"))


def _prune(where: Place, keep: int, unwanted: frozenset[int]) -> None:
    """Remove checkpoints beyond those to keep, and remains of killed calls.

    A checkpoint loses its name before its files, so a partial one never counts as a checkpoint.
    """
    there = numbers(where)
    kept = [number for number in there if number not in unwanted][-keep:]
    for number in set(there) - set(kept):
        hidden = f".{number:08}.{secrets.token_hex(4)}.old"
        where.volume.rename(where.inside(f"{number:08}"), where.inside(hidden))
    for name, _, _ in where.names():
        if LEFT_OVER.fullmatch(name):
            where.volume.remove(where.inside(name))


def _discard(begun: Place) -> None:
    # An earlier error takes precedence. Files that stay are removed after the next checkpoint.
    with contextlib.suppress(OutcoreError):
        if begun.volume.exists(begun.name):
            begun.volume.remove(begun.name)


def restart(where: Place, schema: Any, ranks: Ranks, progress: ProgressLike = False) -> Restart:
    """Load the newest whole checkpoint, and compare every chunk with its checksum.

    Raises
    ------
    NotFoundError
        If there is no checkpoint.
    CorruptError
        If all checkpoints are damaged.
    DiskError
        If servers of the pool cannot be reached.
    """
    damaged: dict[int, str] = {}
    for number in ranks.first(lambda: numbers(where)[::-1]):
        try:
            found = _load(where.below(f"{number:08}"), number, schema, ranks, progress)
        except _DAMAGE as error:
            ranks.check()
            if isinstance(error, DiskError):
                ranks.first(lambda: _check_servers(where))
            damaged[number] = str(error)
            warnings.warn(
                f"checkpoint {number} of {where.path.parent} cannot be used, trying the one "
                f"before: {error}",
                DamagedCheckpointWarning,
                stacklevel=3,
            )
            continue
        return Restart(number, *found, damaged)
    if damaged:
        raise CorruptError(
            f"all {len(damaged)} checkpoints of {where.path.parent} are damaged, the oldest: "
            f"{damaged[min(damaged)]}"
        )
    raise NotFoundError(f"there is no checkpoint of {where.path.parent}; start without one")


def _check_servers(where: Place) -> None:
    """Raise an error if servers cannot be reached, since damage cannot be judged without them."""
    if isinstance(where.path, PoolPath):
        where.path.root.core.servers()


def _load(
    where: Place, number: int, schema: Any, ranks: Ranks, progress: ProgressLike
) -> tuple[dict[str, Own], dict[str, Any]]:
    members, attributes = ranks.first(lambda: _read_group(where))
    schemas = ranks.each(lambda: group_transfer.schemas_of(schema, members))
    arrays = {}
    with _meter("restart", members, ranks, progress) as part:
        mine, nbytes = _own(members, ranks), sum(map(_nbytes, members.values()))
        ranks.each(lambda: _check_arrays(where, mine, part), nbytes=nbytes)
        for name, metadata in members.items():
            with ranks.each(lambda n=name: open_array(where.below(n).path)) as array:  # type: ignore[misc]
                of_rank = schemas.get(name), ranks
                arrays[name] = group_transfer.read(array, *of_rank, part(metadata))
    return arrays, attributes


def _read_group(where: Place) -> tuple[dict[str, Metadata], dict[str, Any]]:
    """Read the metadata of a checkpoint, and compare it with its checksum.

    Other software may have added arrays and attributes, and consolidated the metadata again.
    """
    try:
        document = json.loads(where.volume.read_small(where.inside("zarr.json")))
        attributes = dict(document["attributes"])
        own = attributes.pop("outcore")
        if own["format"] == 1:
            names = list(document["consolidated_metadata"]["metadata"])
        else:
            names = own["arrays"]
            attributes = {name: attributes[name] for name in own["attributes"]}
        members = {name: read_metadata(where.below(name)) for name in names}
        if own["crc32c"] != _content_sum(attributes, members):
            raise ValueError("its checksum is wrong")
        if own["format"] > 1:
            attributes = {name: restored(value) for name, value in attributes.items()}
    except (ValueError, KeyError, TypeError, AttributeError, InvalidError) as error:
        raise CorruptError(
            f"{where.path} cannot be read ({error!r}); restore its zarr.json, and those of its "
            "arrays, from a copy"
        ) from error
    return members, attributes


def _check_arrays(
    where: Place, members: dict[str, Metadata], part: Callable[[Metadata], ProgressLike]
) -> None:
    for name, metadata in members.items():
        array = where.below(name)
        if verify(array.path, progress=part(metadata)).checksums != "matched":
            raise CorruptError(
                f"{array.path} has no checksums, or was written to since they were "
                "recorded; restore it from a copy"
            )


def _content_sum(attributes: dict[str, Any], members: Mapping[str, Metadata]) -> int:
    arrays = {name: json.loads(one.to_json()) for name, one in members.items()}
    return crc32c(json.dumps([attributes, arrays], sort_keys=True).encode())
