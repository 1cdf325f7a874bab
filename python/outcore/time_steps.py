"""Time steps of a group on disk: all arrays of a step are counted by one replaced file.

The group's ``zarr.json`` has the metadata of its arrays in it (``consolidated_metadata``, as
zarr-python writes it). It is replaced last: the steps that it counts are there in every array.
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
from outcore.create import array_metadata, make_array
from outcore.errors import CorruptError, InvalidError, NotFoundError, OutcoreError
from outcore.group_transfer import Own, Ranks
from outcore.volumes import Place
from outcore.zarr_format import Metadata, consolidated_json, parse

_FORMAT = 1


@dataclass(frozen=True)
class GroupOnDisk:
    """What the group's ``zarr.json`` says. Each array has the same number of steps.

    ``times`` is the coordinate along the dimension ``time``, where steps have times.
    """

    arrays: dict[str, Metadata]
    time: str
    times: Metadata | None = None
    attributes: dict[str, Any] = field(default_factory=dict)

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


def write_group(where: Place, group: GroupOnDisk) -> None:
    """Replace the group's ``zarr.json``, atomically."""
    own = {"format": _FORMAT, "kind": "timesteps", "time": group.time}
    document = consolidated_json({**group.attributes, "outcore": own}, group.members())
    where.replace_small("zarr.json", document)


def read_group(where: Place) -> GroupOnDisk:
    """Read the group's ``zarr.json``.

    Raises
    ------
    NotFoundError
        If there is none.
    InvalidError
        If it is not that of an `outcore.ArrayGroup`.
    CorruptError
        If it cannot be read.
    """
    if not where.exists():
        raise NotFoundError(f"there is no group at {where.path}; make one with oc.ArrayGroup")
    text = where.volume.read_small(where.inside("zarr.json"))
    try:
        document = json.loads(text)
        attributes = dict(document.get("attributes") or {})
        own = attributes.pop("outcore", None)
        if not isinstance(own, dict) or own.get("kind") != "timesteps":
            raise InvalidError(
                f"{where.path} is there, but was not made by oc.ArrayGroup; choose another name"
            )
        members = {}
        for name, one in document["consolidated_metadata"]["metadata"].items():
            metadata = parse(json.dumps(one).encode(), str(where.path / name))
            if metadata is None or not metadata.growing:
                raise ValueError(f"{name} is no array that grows")
            members[name] = metadata
        times = members.pop(own["time"], None)
        group = GroupOnDisk(members, own["time"], times, attributes)
        if len({one.shape[0] for one in group.members().values()}) != 1 or not members:
            raise ValueError("its arrays differ in their number of steps")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, OutcoreError):
            raise
        raise CorruptError(
            f"{where.path}/zarr.json cannot be read ({error!r}); restore it from a copy, or make "
            "the group anew"
        ) from error
    return group


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
    for name, metadata in group.members().items():
        steps = read_metadata(where.below(name)).shape[0]
        if steps > group.steps:
            # A call was killed that had counted a step here, and not yet in the group.
            write_metadata(where.below(name), metadata)
        elif steps < group.steps:
            raise CorruptError(
                f"need {group.steps} steps in {where.path / name}, have {steps}; restore "
                "its zarr.json from a copy"
            )
    if time is not None and group.times is None and group.steps == 0:
        times = array_metadata(
            (0,), "f8", None, "C", None, (group.time,), time_attributes, growing=True
        ).on(where.volume)
        make_array(where.below(group.time), times, overwrite=True, reserve=True)
        group = dataclasses.replace(group, times=times)
        write_group(where, group)
    if (time is None) != (group.times is None):
        have, fix = ("has no", "leave time= out") if group.times is None else ("has", "give time=")
        raise InvalidError(f"the group {where.path} {have} times of its steps; {fix}")
    return group


def _count(where: Place, group: GroupOnDisk, time: float | None) -> None:
    """Count the step: in each array, then in the group."""
    if time is not None:
        with open_array(where.below(group.time).path, "r+") as times:
            times.append(np.float64(time))
    for name, metadata in group.arrays.items():
        write_metadata(where.below(name), growing.longer(metadata, group.steps + 1))
    write_group(where, group.with_steps(group.steps + 1))
