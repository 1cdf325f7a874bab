"""Time steps of a group on disk.

Each array's ``zarr.json`` counts its steps; the group has the steps that all of its arrays count.
The group's ``zarr.json`` says which arrays these are. It also has the user's attributes, and the
metadata of the arrays (``consolidated_metadata``, as zarr-python writes it) for other software.
That software may rewrite the file, so a record in each array says which ones the group has, too.
"""

import contextlib
import dataclasses
import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from outcore import group_transfer, growing
from outcore.array import Array, open_array
from outcore.array_metadata import is_half_made, read_metadata, write_metadata
from outcore.array_spec import CHECKPOINTS
from outcore.create import array_metadata, make_array
from outcore.errors import CorruptError, InvalidError, NotFoundError, OutcoreError
from outcore.group_transfer import Own, Ranks
from outcore.volumes import Place
from outcore.zarr_format import Metadata, consolidated_json

_FORMAT = 1
RECORD = "outcore.group"
"""In each array: which ones the group has. Beside the group's ``zarr.json``, zarr-python warns."""

_FOREIGN = "other software may have rewritten it"


@dataclass(frozen=True)
class GroupOnDisk:
    """A group of time steps. Each array has the same number of steps.

    ``times`` is the coordinate along the dimension ``time``, where steps have times, and
    ``bad_times`` says why it cannot be used. ``others`` are the entries of other software in
    ``consolidated_metadata``, and ``counted`` the steps that were counted there.
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
        """How many steps there are."""
        return next(iter(self.arrays.values())).shape[0]

    def members(self) -> dict[str, Metadata]:
        """All arrays, the coordinate too."""
        return self.arrays if self.times is None else {**self.arrays, self.time: self.times}

    def with_steps(self, steps: int) -> "GroupOnDisk":
        """Describe the same group with so many steps."""
        return dataclasses.replace(
            self,
            arrays={name: growing.longer(one, steps) for name, one in self.arrays.items()},
            times=None if self.times is None else growing.longer(self.times, steps),
        )


def is_group(where: Place) -> bool:
    """Whether there is a group, of outcore's or any other."""
    return where.exists() or _record(where) is not None


def write_group(where: Place, group: GroupOnDisk) -> None:
    """Make a group of arrays that are there."""
    record = json.dumps(_own(group)).encode()
    for name in group.arrays:
        where.below(name).replace_small(RECORD, record)
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
        If there is none.
    InvalidError
        If it is not that of an `outcore.ArrayGroup`.
    CorruptError
        If it cannot be read.
    """
    if not is_group(where):
        raise NotFoundError(f"there is no group at {where.path}; make one with oc.ArrayGroup")
    try:
        # Before the arrays: these may count more steps by then, but not fewer.
        document = _read_json(where) if where.exists() else {}
        attributes = dict(document.get("attributes") or {})
        own = attributes.pop("outcore", None) or _record(where)
        if not isinstance(own, dict) or own.get("kind") != "timesteps":
            raise InvalidError(
                f"{where.path} is there, but was not made by oc.ArrayGroup; choose another name"
            )
        inline = document.get("consolidated_metadata") or {}
        entries, time = dict(inline.get("metadata") or {}), own["time"]
        # Groups were made once that name their arrays in the consolidated metadata only.
        names = own.get("arrays") or [name for name in entries if name != time]
        if not names:
            raise ValueError("it names no arrays")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, OutcoreError):
            raise
        raise CorruptError(
            f"{where.path}/zarr.json cannot be read ({error!r}); restore it from a copy"
        ) from error
    arrays = {name: _read_member(where.below(name)) for name in names}
    steps = min(one.shape[0] for one in arrays.values())
    times, bad_times = _read_times(where.below(time)) if steps else (None, "")
    if times is not None:
        steps = min(steps, times.shape[0])
    members = [*arrays, *([] if times is None else [time])]
    others = {name: one for name, one in entries.items() if _is_other(name, one, members, time)}
    counts = [_steps_of(entries.get(name)) for name in members]
    group = GroupOnDisk(arrays, time, times, attributes, bad_times, others, min(counts))
    return group.with_steps(steps)


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
    """Read the metadata of the coordinate, if there is one; else say what is wrong with it."""
    if not where.exists("outcore.generation"):
        return None, ""
    try:
        found = _read_member(where)
    except CorruptError as error:
        return None, str(error)
    return (found if found.shape[0] else None), ""


def _is_other(name: str, entry: Any, members: list[str], time: str) -> bool:
    """Whether an entry of other software stays in ``consolidated_metadata``.

    An array along the steps does not: it keeps its length, and xarray would refuse the group.
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
    """Whether there is an array without steps, as a call leaves it that was killed early."""
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
    """Append a step of all arrays; return what the group is then.

    Parameters
    ----------
    local, schema
        Of each array what this rank has, and how it lies over the ranks.
    time, time_attributes
        Time of the step, and the attributes of the coordinate, should this be the first step.

    Raises
    ------
    BusyError
        If another call appends to one of the arrays.
    InvalidError
        If some steps would have a time and others not, or it is no number.
    """
    with ExitStack() as stack:
        group = ranks.first(lambda: _begin(stack, where, time, time_attributes))
        for name, metadata in group.arrays.items():
            _write_step(where.below(name), metadata, local[name], schema.get(name), ranks)
        ranks.first(lambda: _count(where, group, time))
    return group.with_steps(group.steps + 1)


def _write_step(where: Place, metadata: Metadata, local: Own, schema: Any, ranks: Ranks) -> None:
    """Write the files of a step of one array, and give them their place."""
    begun, step = where.below(growing.BEGUN), growing.step_metadata(metadata)
    ranks.first(lambda: growing.begin_file(begun, metadata, reserve=True))
    with ranks.each(lambda: Array(begun, step, "r+")) as array:
        group_transfer.write(array, local, schema, ranks)
    ranks.first(lambda: growing.place_file(begun, where, metadata, metadata.shape[0]))


def _begin(
    stack: ExitStack, where: Place, time: float | None, time_attributes: dict[str, Any]
) -> GroupOnDisk:
    """Hold all arrays of the group, and leave no step that it does not count."""
    try:
        float(0 if time is None else time)
    except (TypeError, ValueError, OverflowError):
        raise InvalidError(
            f"time must be a number, have {time!r}; say in time_attributes= what it counts"
        ) from None
    first = read_group(where)
    for name in sorted(first.arrays):
        stack.enter_context(growing.appending(where.below(name)))
    group = read_group(where)
    _check_times(where, group)
    steps = {name: read_metadata(where.below(name)).shape[0] for name in group.members()}
    for name, count in steps.items():
        if count < group.counted:
            raise CorruptError(
                f"need {group.counted} steps in {where.path / name}, have {count}; restore "
                "its zarr.json from a copy"
            )
    for name, metadata in group.members().items():
        if steps[name] > group.steps:
            # A call was killed that had counted a step here, and not yet in every array.
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
    """Refuse a coordinate that is not as outcore wrote it.

    Raises
    ------
    CorruptError
        If it is such.
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
    """Count the step: in each array, then in the group."""
    if time is not None:
        with open_array(where.below(group.time).path, "r+") as times:
            times.append(np.float64(time))
    for name, metadata in group.arrays.items():
        write_metadata(where.below(name), growing.longer(metadata, group.steps + 1))
    _replace_json(where, group.with_steps(group.steps + 1))
