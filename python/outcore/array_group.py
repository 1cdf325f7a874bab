"""Groups of arrays that a program writes again and again: steps to look at, states to go on."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from outcore import time_steps
from outcore.array import Array, open_array
from outcore.array_spec import ArraySpec, group_metadata
from outcore.create import make_array
from outcore.elements import elements
from outcore.errors import ClosedError, InvalidError, NotFoundError
from outcore.group_transfer import Ranks
from outcore.time_steps import GroupOnDisk
from outcore.volumes import AnyPath, PathLike, place


class ArrayGroup(AbstractContextManager["ArrayGroup"]):
    """Arrays that belong together, written by one call, at one time.

    `timestep` appends the arrays of one time to a Zarr group that xarray opens. `checkpoint` saves
    what a program goes on from after a crash, and `restart` loads it.

    Parameters
    ----------
    path
        Directory of the group. It is made, or opened if it is there.
    arrays
        Names and `ArraySpec` of the arrays. Of a group that is there, shapes, types and names of
        dimensions must be these; `None` takes it as it is.
    time
        Name of the dimension along which the steps lie, and of the coordinate with their times.
    time_attributes
        Attributes of that coordinate, such as ``{"units": "s"}``.
    attributes
        The user's attributes of the group.
    keep
        How many checkpoints are kept, the newest.
    comm
        Communicator of the processes that write together, as mpi4py's; `None` for one alone. All
        of them make the same calls, in the same order.

    Raises
    ------
    ExistsError
        If there is something else at `path`.
    InvalidError
        If the arrays cannot be in one group, or are not those of the group that is there.
    NotFoundError
        If there is no group, and `arrays` are not given.
    """

    def __init__(
        self,
        path: PathLike,
        arrays: Mapping[str, ArraySpec] | None = None,
        *,
        time: str = "time",
        time_attributes: dict[str, Any] | None = None,
        attributes: dict[str, Any] | None = None,
        keep: int = 2,
        comm: Any = None,
    ) -> None:
        self._place = place(path)
        if not isinstance(keep, int) or keep < 1:
            raise InvalidError(f"keep must be an integer of at least 1, have {keep!r}")
        self._keep = keep
        self._ranks = Ranks(comm)
        wanted = None if arrays is None else group_metadata(arrays, time)
        self._time_attributes = dict(time_attributes or {})
        self._is_closed = False

        def begin() -> None:
            if not self._place.exists():
                self._make(wanted, time, dict(attributes or {}))

        self._ranks.first(begin)
        self._disk: GroupOnDisk = self._ranks.first(lambda: time_steps.read_group(self._place))
        if wanted is not None:
            self._check(wanted, time)

    def _make(self, wanted: Any, time: str, attributes: dict[str, Any]) -> None:
        if wanted is None:
            raise NotFoundError(
                f"there is no group at {self.path}; give the arrays that it is to have"
            )
        if "outcore" in attributes:
            raise InvalidError("the attribute 'outcore' is outcore's own; choose another name")
        made = {}
        for name, metadata in wanted.items():
            where = self._place.below(name)
            made[name] = metadata.on(where.volume)
            make_array(where, made[name], overwrite=time_steps.is_empty(where), reserve=True)
        time_steps.write_group(self._place, GroupOnDisk(made, time, None, attributes))

    def _check(self, wanted: Any, time: str) -> None:
        found = self._disk
        if (set(wanted), time) != (set(found.arrays), found.time):
            raise InvalidError(
                f"the group {self.path} has the arrays {sorted(found.arrays)} along "
                f"{found.time!r}, not {sorted(wanted)} along {time!r}; choose another name for "
                "the group, or give these"
            )
        for name, metadata in wanted.items():
            there = found.arrays[name]
            have = (there.shape[1:], there.dtype, there.dims)
            need = (metadata.shape[1:], metadata.dtype, metadata.dims)
            if have != need:
                raise InvalidError(
                    f"the array {name!r} of the group {self.path} has shape, type and dimensions "
                    f"{have}, not {need}; choose another name for the group, or give these"
                )

    def __repr__(self) -> str:
        names = ", ".join(self._disk.arrays)
        return f"<outcore.ArrayGroup {self.path} ({names}), {self._disk.steps} steps>"

    def __getitem__(self, name: str) -> Array:
        """Open the time steps of an array, for reading."""
        if name not in self._disk.members():
            raise InvalidError(f"the group {self.path} has no array {name!r}; have {self.names}")
        return open_array(self._place.below(name).path)

    @property
    def path(self) -> AnyPath:
        """Directory of the group."""
        return self._place.path

    @property
    def names(self) -> list[str]:
        """Names of the arrays."""
        return list(self._disk.arrays)

    @property
    def steps(self) -> int:
        """How many time steps this group had when it was opened or last written to."""
        return self._disk.steps

    @property
    def attrs(self) -> dict[str, Any]:
        """The user's attributes (a copy)."""
        return dict(self._disk.attributes)

    def timestep(
        self,
        local: Mapping[str, npt.ArrayLike],
        time: float | None = None,
        *,
        comm: Any = None,
        schema: Any = None,
    ) -> int:
        """Append a step of all arrays.

        When it returns the step is durable. Stopped at any moment, it leaves the steps that were
        there, or one more of all arrays.

        Parameters
        ----------
        local
            Names and elements of all arrays of the group.
        time
            The time, for a coordinate along the steps: of all of them, or of none.
        comm
            Communicator, if it is another than the group's.
        schema
            How the arrays lie over the ranks: one for all of them, or a dictionary by their names.

        Returns
        -------
        int
            Number of the step, from 0 on.

        Raises
        ------
        InvalidError
            If the arrays are not those of the group, or times are given for some steps only.
        BusyError
            If another call appends to the group.
        DiskFullError
            If the disk has no room for the step; the group is as it was.
        """
        self._check_open()
        ranks = self._ranks if comm is None else Ranks(comm)
        arrays = ranks.each(lambda: self._arrays(local, ranks))
        schemas = self._schemas(schema)
        self._disk = time_steps.append(
            self._place, arrays, time, self._time_attributes, schemas, ranks
        )
        return self._disk.steps - 1

    def _arrays(
        self, local: Mapping[str, npt.ArrayLike], ranks: Ranks
    ) -> dict[str, npt.NDArray[Any]]:
        """Check what is to be written."""
        if set(local) != set(self._disk.arrays):
            raise InvalidError(
                f"need the arrays {sorted(self._disk.arrays)}, have {sorted(local)}; give all of "
                "the group"
            )
        found = {}
        for name, metadata in self._disk.arrays.items():
            given = np.asarray(local[name])
            if ranks.size == 1 and given.shape != metadata.shape[1:]:
                raise InvalidError(
                    f"need {name!r} of shape {metadata.shape[1:]}, have {given.shape}; give the "
                    "whole array"
                )
            found[name] = elements(given, metadata.dtype, given.shape)
        return found

    def _schemas(self, schema: Any) -> dict[str, Any]:
        if isinstance(schema, Mapping):
            return dict(schema)
        return dict.fromkeys(self._disk.arrays, schema)

    def close(self) -> None:
        """End the use of the group. Closing twice is harmless."""
        self._is_closed = True

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError(f"the group {self.path} was closed; open it again")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()
