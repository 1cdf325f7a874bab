"""Time steps of a group on disk.

Each array's ``zarr.json`` counts its steps; the group has the steps that all of its arrays count.
The group's ``zarr.json`` lists these arrays. It also has the user's attributes, and the metadata of
the arrays (``consolidated_metadata``, as zarr-python writes it) for other software. That software
may rewrite the file, so a record in each array also lists the arrays of the group.
"""

import contextlib
import dataclasses
import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from outcore._util.at_once import at_once, entered_at_once
from outcore.array.array import open_array
from outcore.array.create import array_metadata
from outcore.array.existing import make_array
from outcore.array_files import growing
from outcore.array_files.metadata import is_half_made, read_metadata, write_metadata
from outcore.errors import CorruptError, InvalidError, NotFoundError, OutcoreError
from outcore.layout.zarr_format import Metadata, consolidated_json
from outcore.series import group_transfer
from outcore.series.array_spec import CHECKPOINTS
from outcore.series.group_transfer import Own, Ranks
from outcore.storage.volumes import Place

_FORMAT = 1
RECORD = "outcore.group"
"""File in each array with the list of the group's arrays.

It is not beside the group's ``zarr.json``, because zarr-python warns about files there.
"""

_FOREIGN = "other software may have rewritten it"


@dataclass(frozen=True)
class GroupOnDisk:
    """A group of time steps; all of its arrays have the same number of steps.

    ``times`` is the coordinate along the dimension ``time``, if steps have times, and ``bad_times``
    is the reason why it cannot be used. ``others`` are the entries of other software in
    ``consolidated_metadata``, and ``counted`` is the number of steps in this metadata.
    """

    arrays: dict[str, Metadata]
    time: str
    times: Metadata | None = None
    attributes: dict[str, Any] = field(default_factory=dict)
    bad_times: str = ""
    others: dict[str, Any] = field(default_factory=dict)
    counted: int = 0

    @property
    def steps(self) -> int:
        """Number of steps."""
        return next(iter(self.arrays.values())).shape[0]

    def members(self) -> dict[str, Metadata]:
        """Return all arrays, including the coordinate."""
        return self.arrays if self.times is None else {**self.arrays, self.time: self.times}

    def with_steps(self, steps: int) -> "GroupOnDisk":
        """Return the same group with the given number of steps."""
        return dataclasses.replace(
            self,
            arrays={name: growing.longer(one, steps) for name, one in self.arrays.items()},
            times=None if self.times is None else growing.longer(self.times, steps),
        )


def is_group(where: Place) -> bool:
    """Whether there is a group, of outcore or of other software."""
    return where.exists() or _record(where) is not None


def write_group(where: Place, group: GroupOnDisk) -> None:
    """Create a group of existing arrays."""
    record = json.dumps(_own(group)).encode()
    at_once(lambda name: where.below(name).make_small(RECORD, record), group.arrays)
    _replace_json(where, group)


def _own(group: GroupOnDisk) -> dict[str, Any]:
    return {
        "format": _FORMAT, "kind": "timesteps", "time": group.time, "arrays": list(group.arrays),
    }  # fmt: skip


def _record(where: Place) -> Any:
    """Read the record in one of the arrays; `None` if there is none."""
    for name, is_directory, _ in where.names():
        below = where.below(name)
        if is_directory and below.exists(RECORD):
            return json.loads(below.volume.read_small(below.inside(RECORD)))
    return None


def _replace_json(where: Place, group: GroupOnDisk) -> None:
    """Replace the group's ``zarr.json``, atomically."""
    attributes = {**group.attributes, "outcore": _own(group)}
    document = consolidated_json(attributes, group.members(), group.others)
    where.replace_small("zarr.json", document)


def read_group(where: Place) -> GroupOnDisk:
    """Read the arrays of a group, and their steps from the ``zarr.json`` of each.

    Raises
    ------
    NotFoundError
        If the group does not exist.
    InvalidError
        If it is not the group of an `outcore.ArrayGroup`.
    CorruptError
        If it cannot be read.
    """
    group = _read_all(where)
    return group.with_steps(min(one.shape[0] for one in group.members().values()))


@dataclass(frozen=True)
class _Listed:
    """A group's ``zarr.json``: names of arrays, attributes, and the metadata of arrays there."""

    names: list[str]
    time: str
    attributes: dict[str, Any]
    entries: dict[str, Any]


def _listed(where: Place) -> _Listed:
    if not is_group(where):
        raise NotFoundError(f"there is no group at {where.path}; make one with oc.ArrayGroup")
    try:
        document = _read_json(where) if where.exists() else {}
        attributes = dict(document.get("attributes") or {})
        own = attributes.pop("outcore", None) or _record(where)
        if not isinstance(own, dict) or own.get("kind") != "timesteps":
            raise InvalidError(
                f"{where.path} exists, but was not made by oc.ArrayGroup; choose another name"
            )
        inline = document.get("consolidated_metadata") or {}
        entries, time = dict(inline.get("metadata") or {}), own["time"]
        # Old groups name their arrays in the consolidated metadata only.
        names = own.get("arrays") or [name for name in entries if name != time]
        if not names:
            raise ValueError("it names no arrays")
        return _Listed(names, time, attributes, entries)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, OutcoreError):
            raise
        raise CorruptError(
            f"{where.path}/zarr.json cannot be read ({error!r}); restore it from a copy"
        ) from error


def _read_all(where: Place) -> GroupOnDisk:
    """Read a group like `read_group`, with all steps that each array counts."""
    # This is read before the arrays, which may then count more steps, but not fewer.
    listed = _listed(where)
    entries, time = listed.entries, listed.time
    read = at_once(lambda name: _read_member(where.below(name)), listed.names)
    arrays = dict(zip(listed.names, read, strict=True))
    has_steps = all(one.shape[0] for one in read)
    times, bad_times = _read_times(where.below(time)) if has_steps else (None, "")
    members = [*arrays, *([] if times is None else [time])]
    others = {name: one for name, one in entries.items() if _is_other(name, one, members, time)}
    counts = [_steps_of(entries.get(name)) for name in members]
    return GroupOnDisk(arrays, time, times, listed.attributes, bad_times, others, min(counts))


def _read_json(where: Place) -> dict[str, Any]:
    found = json.loads(where.volume.read_small(where.inside("zarr.json")))
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")
    return found


def _read_member(where: Place) -> Metadata:
    try:
        found = read_metadata(where)
        if found.growing:
            return found
        why = "it does not grow"
    except (CorruptError, InvalidError, NotFoundError) as error:
        why = str(error)
    raise CorruptError(
        f"need an array of time steps of outcore's at {where.path}, {_FOREIGN} ({why}); restore "
        "its zarr.json from a copy"
    )


def _read_times(where: Place) -> tuple[Metadata | None, str]:
    """Read the metadata of the coordinate, if any, or the reason why it is unusable."""
    if not where.exists("outcore.generation"):
        return None, ""
    try:
        found = _read_member(where)
    except CorruptError as error:
        return None, str(error)
    return (found if found.shape[0] else None), ""


def _is_other(name: str, entry: Any, members: list[str], time: str) -> bool:
    """Whether an entry of other software stays in ``consolidated_metadata``.

    An array along the steps does not stay: it keeps its length, and xarray would refuse the group.
    """
    first = name.split("/")[0]
    dims = entry.get("dimension_names") if isinstance(entry, dict) else None
    return first not in (*members, time, CHECKPOINTS) and time not in (dims or ())


def _steps_of(entry: Any) -> int:
    try:
        return int(entry["shape"][0])
    except (TypeError, KeyError, IndexError, ValueError):
        return 0


def is_empty(where: Place) -> bool:
    """Whether there is an array without steps, as left by a call that was killed early."""
    if not where.exists():
        return is_half_made(where)
    with contextlib.suppress(OutcoreError):
        found = read_metadata(where)
        return found.growing and found.shape[0] == 0
    return False


def append(
    where: Place,
    local: Mapping[str, Own],
    time: float | None,
    time_attributes: dict[str, Any],
    schema: Mapping[str, Any],
    ranks: Ranks,
) -> GroupOnDisk:
    """Append a step of all arrays; return the group with it.

    Parameters
    ----------
    local, schema
        For each array, the data of this rank, and its schema over the ranks.
    time, time_attributes
        Time of the step, and the attributes of the coordinate if this is the first step.

    Raises
    ------
    BusyError
        If another call appends to one of the arrays.
    InvalidError
        If some steps would have a time and others not, or the time is not a number.
    """
    with ExitStack() as stack:
        group = ranks.first(lambda: _begin(stack, where, time, time_attributes))
        _write_step(where, group.arrays, local, schema, ranks)
        ranks.first(lambda: _count(where, group, time))
    return group.with_steps(group.steps + 1)


def _write_step(
    where: Place,
    arrays: Mapping[str, Metadata],
    local: Mapping[str, Own],
    schema: Mapping[str, Any],
    ranks: Ranks,
) -> None:
    """Write the files of a step of all arrays, and rename them into the arrays."""

    def begin(name: str) -> None:
        growing.begin_file(where.below(name).below(growing.BEGUN), arrays[name], reserve=True)

    def place(name: str) -> None:
        array, metadata = where.below(name), arrays[name]
        growing.place_file(array.below(growing.BEGUN), array, metadata, metadata.shape[0])

    begun = {
        name: (where.below(name).below(growing.BEGUN), growing.step_metadata(metadata))
        for name, metadata in arrays.items()
    }
    group_transfer.write_new(begun, local, schema, ranks, begin)
    ranks.first(lambda: at_once(place, arrays))


def _begin(
    stack: ExitStack, where: Place, time: float | None, time_attributes: dict[str, Any]
) -> GroupOnDisk:
    """Lock all arrays of the group, and remove steps that the group does not count."""
    try:
        float(0 if time is None else time)
    except (TypeError, ValueError, OverflowError):
        raise InvalidError(
            f"time must be a number, have {time!r}; give its unit in time_attributes="
        ) from None
    # Several calls may begin at once. The one that locks the first array gets the others, too.
    first, *others = sorted(_listed(where).names)
    stack.enter_context(growing.appending(where.below(first)))
    stack.enter_context(entered_at_once(growing.appending(where.below(name)) for name in others))
    longest = _read_all(where)
    steps = {name: metadata.shape[0] for name, metadata in longest.members().items()}
    group = longest.with_steps(min(steps.values()))
    _check_times(where, group)
    for name, count in steps.items():
        if count < group.counted:
            raise CorruptError(
                f"need {group.counted} steps in {where.path / name}, have {count}; restore "
                "its zarr.json from a copy"
            )
    for name, metadata in group.members().items():
        if steps[name] > group.steps:
            # A killed call counted a step in this array, but not in every array.
            write_metadata(where.below(name), metadata)
    if time is not None and group.times is None and group.steps == 0:
        times = array_metadata(
            (0,), "f8", None, "C", None, (group.time,), time_attributes, growing=True
        ).on(where.volume)
        make_array(where.below(group.time), times, if_exists="overwrite", reserve=True)
        group = dataclasses.replace(group, times=times)
    if (time is None) != (group.times is None):
        have, fix = ("has no", "leave time= out") if group.times is None else ("has", "give time=")
        raise InvalidError(f"the group {where.path} {have} times of its steps; {fix}")
    return group


def _check_times(where: Place, group: GroupOnDisk) -> None:
    """Refuse a coordinate that other software has changed.

    Raises
    ------
    CorruptError
        If the coordinate was changed or damaged.
    """
    times, why = where.below(group.time), group.bad_times
    try:
        if group.times is not None:
            open_array(times.path).close()
    except OutcoreError as error:
        why = str(error)
    if why:
        raise CorruptError(
            f"need the times at {times.path} as outcore wrote them, {_FOREIGN} ({why}); restore "
            "that directory from a copy, or remove it and append without time="
        )


def _count(where: Place, group: GroupOnDisk, time: float | None) -> None:
    """Count the step, first in each array, then in the group."""
    if time is not None:
        with open_array(where.below(group.time).path, "r+") as times:
            times.append(np.float64(time))
    longer = group.with_steps(group.steps + 1)
    at_once(lambda name: write_metadata(where.below(name), longer.arrays[name]), longer.arrays)
    _replace_json(where, longer)
