"""Groups of arrays that a program writes repeatedly: time steps to view, checkpoints to resume."""

import copy
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Literal, overload

from outcore._util.at_once import at_once
from outcore._util.communicator import TIMEOUT_S
from outcore._util.counts import count_of
from outcore._util.if_exists import IfExists
from outcore._util.progress import ProgressLike
from outcore.array.array import Array, open_array
from outcore.array.existing import make_array
from outcore.array_files import growing
from outcore.collective.call import patience_of, seconds_of
from outcore.errors import (
    ClosedError,
    CorruptError,
    ExistsError,
    InvalidError,
    NotFoundError,
    from_kind,
)
from outcore.layout.attributes import checkpoint_attributes, plain_attributes
from outcore.layout.elements import array_of, elements
from outcore.layout.zarr_format import Metadata
from outcore.series import checkpoints, time_steps
from outcore.series.array_spec import CHECKPOINTS, ArraySpec, group_metadata
from outcore.series.background import BackgroundCheckpoint, check_budget, copies
from outcore.series.checkpoints import Restart, State
from outcore.series.group_transfer import Own, Ranks, has_boxes, schemas_of
from outcore.series.time_steps import GroupOnDisk
from outcore.storage.pool_path import PoolPath
from outcore.storage.volumes import AnyPath, PathLike, place


class ArrayGroup(AbstractContextManager["ArrayGroup"]):
    """Arrays that belong together; one call writes all of them at once.

    `timestep` appends one step of each array to a Zarr group that xarray opens. `checkpoint` saves
    the state from which a program resumes after a crash, and `restart` loads it.

    Parameters
    ----------
    path
        Directory of the group. The call opens an existing group, or makes a new one.
    arrays
        Names and `ArraySpec` of the arrays. An existing group must have the same shapes, types and
        dimension names; `None` accepts any.
    time
        Name of the dimension of the steps, and of the coordinate with their times.
    time_attributes
        Attributes of that coordinate, such as ``{"units": "s"}``.
    attributes
        The user's attributes of the group, as for `create_array`.
    keep
        Number of checkpoints to keep; older ones are removed.
    comm
        Communicator of the processes that write together, such as mpi4py's; `None` for a single
        process. All ranks make the same calls, in the same order. To make a new group, several
        processes must pass the communicator here too, not only to the calls. Otherwise each of them
        makes the arrays, and they fail, or one removes the arrays of another.
    timeout
        Seconds until a rank that does not answer counts as lost. While each rank reads or writes
        alone, it gets one second more for each 16 MiB of the arrays. The timeout takes effect with
        a communicator whose calls need not block, such as MPI's. Other communicators use their own
        timeout.

    Raises
    ------
    DiskError
        Here and in all methods, if a rank is lost. The group is unusable from then on.
    ExistsError
        If `path` exists and is not a group.
    InvalidError
        If the arrays cannot form a group, or differ from those of the existing group.
    NotFoundError
        If there is no group, and `arrays` is `None`.
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
        timeout: float = TIMEOUT_S,
    ) -> None:
        self._timeout_s = patience_of(timeout)
        self._ranks = Ranks(comm, self._timeout_s)
        self._is_closed = False
        self._damaged: frozenset[int] = frozenset()
        self._background: BackgroundCheckpoint | None = None
        self._beside: list[tuple[Any, Ranks]] = []

        def check() -> tuple[dict[str, Metadata] | None, dict[str, Any]]:
            seconds_of(timeout)
            self._place = place(path)
            self._checkpoints = self._place.below(CHECKPOINTS)
            self._keep = count_of("keep", keep)
            self._time_attributes = plain_attributes(time_attributes)
            more = plain_attributes(attributes)
            return None if arrays is None else group_metadata(arrays, time), more

        def begin() -> GroupOnDisk | tuple[str, str]:
            try:
                if not time_steps.is_group(self._place):
                    return self._make(arrays, wanted, time, more)
                return time_steps.read_group(self._place)
            except (CorruptError, ExistsError, InvalidError, NotFoundError) as error:
                # Checkpoints do not depend on the time steps.
                if not self.checkpoints():
                    raise
                return error.kind, str(error)

        wanted, more = self._ranks.each(check, "ArrayGroup(...)")
        self._found = self._ranks.first(begin)
        self._ranks.each(lambda: self._check(wanted, time))

    @property
    def _disk(self) -> GroupOnDisk:
        """The group on disk; raise the error that reading its time steps gave."""
        if isinstance(self._found, tuple):
            raise from_kind(*self._found)
        return self._found

    def _make(
        self,
        specs: Mapping[str, ArraySpec] | None,
        wanted: dict[str, Metadata] | None,
        time: str,
        attributes: dict[str, Any],
    ) -> GroupOnDisk:
        if specs is None or wanted is None:
            raise NotFoundError(f"there is no group at {self.path}; pass its arrays to create it")
        made = {
            name: specs[name].laid_out(self._place.below(name), metadata)
            for name, metadata in wanted.items()
        }

        is_there = self._place.volume.exists(self._place.name)

        def make(name: str) -> None:
            where = self._place.below(name)
            is_left = is_there and time_steps.is_empty(where)
            if_exists: IfExists = "overwrite" if is_left else "error"
            make_array(where, made[name], if_exists=if_exists, reserve=True)

        at_once(make, made)
        group = GroupOnDisk(made, time, None, attributes)
        time_steps.write_group(self._place, group)
        return group

    def _check(self, wanted: dict[str, Metadata] | None, time: str) -> None:
        if wanted is None or isinstance(self._found, tuple):
            return
        found = self._found
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
        if isinstance(self._found, tuple):
            return f"<outcore.ArrayGroup {self.path}, of unreadable time steps>"
        names = ", ".join(self._disk.arrays)
        return f"<outcore.ArrayGroup {self.path} ({names}), {self._disk.steps} steps>"

    def __getitem__(self, name: str) -> Array:
        """Open the time steps of an array for reading."""
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
        """Number of time steps when this object opened the group or last wrote to it."""
        return self._disk.steps

    @property
    def attrs(self) -> dict[str, Any]:
        """The user's attributes (a copy)."""
        return copy.deepcopy(self._disk.attributes)

    def timestep(
        self,
        local: Mapping[str, Any],
        time: float | None = None,
        *,
        comm: Any = None,
        schema: Any = None,
    ) -> int:
        """Append a step of all arrays.

        When the call returns, the step is durable. If it is stopped, the group is unchanged or has
        one more step of all arrays.

        Parameters
        ----------
        local
            Names and elements of all arrays of the group. For an array whose schema names boxes, a
            list with one array for each box of the rank.
        time
            Time of the step, for the coordinate along the steps. Either every step has a time, or
            none has. With several ranks, the first rank's time is used.
        comm
            Communicator, if it differs from the group's.
        schema
            Distribution of the arrays over the ranks, as for `Array.write_all`: one for all arrays,
            or a dictionary by name.

        Returns
        -------
        int
            Number of the step, counted from 0.

        Raises
        ------
        InvalidError
            If the arrays are not those of the group, or only some steps have times.
        BusyError
            If another call is appending to the group.
        DiskFullError
            If the disk has no room for the step; the group is unchanged.
        """
        ranks = self._ranks if comm is None else Ranks(comm, self._timeout_s)

        def check() -> tuple[dict[str, Any], dict[str, Own]]:
            self._check_open()
            schemas = self._schemas(schema)
            return schemas, self._converted(self._given(local, schemas, ranks))

        schemas, arrays = ranks.each(check, "timestep")
        self._tell_background(ranks)
        self._found = time_steps.append(
            self._place, arrays, time, self._time_attributes, schemas, ranks
        )
        return self._disk.steps - 1

    def _given(
        self, local: Mapping[str, Any], schemas: Mapping[str, Any], ranks: Ranks
    ) -> dict[str, Own]:
        """Check the names and shapes of the arrays to be written, without converting any."""
        need, is_named = sorted(self._disk.arrays), isinstance(local, Mapping)
        if not is_named or set(local) != set(need):
            have = sorted(map(str, local)) if is_named else type(local).__name__
            raise InvalidError(f"need the arrays {need}, have {have}; give all of the group")
        found: dict[str, Own] = {}
        for name, metadata in self._disk.arrays.items():
            if has_boxes(schemas.get(name)):
                if not isinstance(local[name], list | tuple):
                    raise InvalidError(
                        f"need a list of arrays of {name!r}, one for each box of the schema, have "
                        f"{type(local[name]).__name__}"
                    )
                found[name] = [array_of(one, f"arrays of {name!r}") for one in local[name]]
                continue
            fix = "give one array, or name boxes by schema=oc.Schema.boxes(...)"
            given = array_of(local[name], f"an array {name!r}", fix)
            if ranks.size == 1 and given.shape != metadata.shape[1:]:
                raise InvalidError(
                    f"need {name!r} of shape {metadata.shape[1:]}, have {given.shape}; give the "
                    "whole array"
                )
            found[name] = given
        return found

    def _converted(self, given: Mapping[str, Own]) -> dict[str, Own]:
        found: dict[str, Own] = {}
        for name, own in given.items():
            dtype = self._disk.arrays[name].dtype
            if isinstance(own, list):
                found[name] = [elements(one, dtype, one.shape) for one in own]
            else:
                found[name] = elements(own, dtype, own.shape)
        return found

    def _schemas(self, schema: Any) -> dict[str, Any]:
        return schemas_of(schema, self._disk.arrays)

    @overload
    def checkpoint(
        self,
        local: Mapping[str, Any],
        attributes: dict[str, Any] | None = None,
        *,
        background: Literal[False] = False,
        memory: int | str | None = None,
        comm: Any = None,
        schema: Any = None,
        progress: ProgressLike = True,
    ) -> int: ...

    @overload
    def checkpoint(
        self,
        local: Mapping[str, Any],
        attributes: dict[str, Any] | None = None,
        *,
        background: Literal[True],
        memory: int | str | None = None,
        comm: Any = None,
        schema: Any = None,
        progress: ProgressLike = True,
    ) -> BackgroundCheckpoint: ...

    def checkpoint(
        self,
        local: Mapping[str, Any],
        attributes: dict[str, Any] | None = None,
        *,
        background: bool = False,
        memory: int | str | None = None,
        comm: Any = None,
        schema: Any = None,
        progress: ProgressLike = True,
    ) -> int | BackgroundCheckpoint:
        """Save all arrays for `restart`, completely or not at all.

        The call writes the checkpoint beside the older ones, and reads it back for the checksums of
        its chunks. Once all of it is durable, it gets its name. Only then does the call remove
        older checkpoints beyond `keep`, and the remains of killed calls. So the disk needs room for
        one more checkpoint.

        Parameters
        ----------
        local
            As for `timestep`.
        attributes
            Further state that the program needs to resume, such as its step number; the call copies
            it before it returns. Values may be text, bytes, numbers, `None`, NumPy scalars and
            arrays of numbers, text, bytes or dates, and tuples, lists and dictionaries of these;
            `restart` returns the same. The attributes of the first rank are kept.
        background
            Copy the arrays, return, and write the copies in a thread while the program computes.
            One checkpoint is written at a time: the next call waits for it.
        memory
            Budget in bytes on each rank for the copies and for transfers, including the read-back;
            by default half of the available memory. Used only in the background.
        comm, schema
            As for `timestep`.
        progress
            Whether rank 0 shows progress, or a function ``f(fraction, seconds_left)``. In the
            background there is no bar; the writing thread calls the function.

        Returns
        -------
        int or BackgroundCheckpoint
            Number of the checkpoint; in the background, an object that waits for the checkpoint.

        Raises
        ------
        BudgetError
            If `memory` does not hold the copies. Nothing has been written.
        InvalidError
            If the arrays are not those of the group, or attributes cannot be restored.
        BusyError
            If another process is writing a checkpoint of the group.
        DiskFullError
            If the disk has no room for it; older checkpoints are unchanged.
        """
        ranks = self._ranks if comm is None else Ranks(comm, self._timeout_s)
        metadata = {name: growing.step_metadata(one) for name, one in self._disk.arrays.items()}

        def check() -> tuple[dict[str, Any], dict[str, Any], dict[str, Own], int | None]:
            self._check_open()
            self._end_background()
            schemas = self._schemas(schema)
            given = self._given(local, schemas, ranks)
            left = None
            if background:
                is_collective = isinstance(self._place.path, PoolPath)
                left = check_budget(given, metadata, memory, is_collective=is_collective)
            # Conversion copies; so convert only after the budget check.
            more = checkpoint_attributes(attributes)
            return more, schemas, self._converted(given), left

        doing = "checkpoint in the background" if background else "checkpoint"
        more, schemas, arrays, left = ranks.each(check, doing)
        if background:
            ranks = self._ranks_beside(ranks)
            arrays = ranks.each(
                lambda: {name: copies(one, local[name]) for name, one in arrays.items()}
            )
            progress = progress if callable(progress) else False
        state = State(metadata, arrays, schemas, more, left)
        write = self._writing(state, ranks, progress)
        if not background:
            return write()
        self._background = BackgroundCheckpoint(write)
        return self._background

    def _writing(self, state: State, ranks: Ranks, progress: ProgressLike) -> Callable[[], int]:
        """Bind all that the writing thread needs, so that it does not access the group."""
        where, keep, damaged = self._checkpoints, self._keep, self._damaged
        return lambda: checkpoints.write(where, state, keep, damaged, ranks, progress)

    def _ranks_beside(self, ranks: Ranks) -> Ranks:
        """Duplicate a communicator once and keep the duplicate: MPI has only a few thousand."""
        for given, beside in self._beside:
            if given == ranks.given:
                return beside
        beside = ranks.duplicate()
        self._beside.append((ranks.given, beside))
        return beside

    def restart(
        self, *, comm: Any = None, schema: Any = None, progress: ProgressLike = True
    ) -> Restart:
        """Load the newest whole checkpoint.

        The call compares every chunk with its checksum. A warning names each damaged checkpoint,
        and the call then tries the one before. It reads only checkpoints: the time steps may be
        damaged, or rewritten by other software.

        Parameters
        ----------
        comm, schema
            As for `timestep`; they may differ from those of the call that wrote the checkpoint.
        progress
            Whether rank 0 shows progress, or a function ``f(fraction, seconds_left)``.

        Raises
        ------
        NotFoundError
            If there is no checkpoint: the program starts from the beginning.
        CorruptError
            If all checkpoints are damaged.
        """
        ranks = self._ranks if comm is None else Ranks(comm, self._timeout_s)

        def check() -> None:
            self._check_open()
            self._end_background()

        ranks.each(check, "restart")
        found = checkpoints.restart(self._checkpoints, schema, ranks, progress)
        self._damaged = frozenset(found.damaged)
        return found

    def checkpoints(self) -> list[int]:
        """List the numbers of the existing checkpoints, in increasing order."""
        return checkpoints.numbers(self._checkpoints)

    def _tell_background(self, ranks: Ranks) -> None:
        """Raise the error of a finished background checkpoint, unless a call has raised it already.

        If the checkpoint has ended on one rank, the others wait for theirs, which end soon.
        """
        if ranks.any(self._background is not None and self._background.done()):
            ranks.each(self._end_background)

    def _end_background(self) -> None:
        """Wait for the background checkpoint, and raise its error unless it was raised already."""
        one = self._background
        if one is not None and not one.is_told:
            one.wait()
        self._background = None

    def close(self) -> None:
        """Close the group, after its background checkpoint has ended.

        A second call does nothing.

        Raises
        ------
        OutcoreError
            The error of that checkpoint, unless a call has raised it already.
        """
        self._is_closed = True
        try:
            self._end_background()
        finally:
            for _, beside in self._beside:
                beside.free()
            self._beside.clear()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError(f"the group {self.path} was closed; open it again")

    def __exit__(self, *_: object) -> None:
        self.close()
