"""One process's part in one collective: agree with the others, exchange data, publish."""

import contextlib
import math
import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from outcore._core import Collective, Grid, MemorySchema, PoolFile
from outcore._core import Pool as PoolCore
from outcore._util import budget
from outcore._util.at_once import at_once
from outcore._util.communicator import TIMEOUT_S, Alone, Communicator
from outcore._util.progress import ProgressLike, is_shown
from outcore._util.signals import stop_on_signals
from outcore.array_files import atomic_write, growing
from outcore.array_files.metadata import read_metadata
from outcore.array_files.stored_array import NewArray, StoredArray, check_open
from outcore.collective.agreement import Agreement, layout_of
from outcore.collective.memory import Local, arrays_of, offers_memory
from outcore.collective.progress import shown
from outcore.errors import (
    BudgetError,
    Interrupted,
    InvalidError,
    NotFoundError,
    OutcoreError,
    ReadOnlyError,
    from_kind,
)
from outcore.layout.schema import Schema, SchemaLike
from outcore.pool.connect import connect
from outcore.pool.pool import Pool
from outcore.report import tracing
from outcore.report.collective_report import CollectiveReport, WithServer
from outcore.storage.pool_path import PoolPath
from outcore.storage.pool_root import open_root
from outcore.storage.pool_stat import PoolStat
from outcore.storage.volumes import Place

MEMORY_BYTES = 64 << 20
LEAST_MEMORY_BYTES = 1 << 20
"""Bytes of one share of a piece."""

LEAST_BYTES_S = 16 << 20
"""Bytes of all ranks that extend the timeout of a reading or writing rank by one second."""

_MOST_SECONDS = 1 << 32

_STATE = "incomplete"
_WHY = "write_all was stopped, or failed; write all of it again with allow_incomplete=True"


class Call:
    """One process's part in one collective."""

    def __init__(
        self,
        verb: Literal["write_all", "read_all"],
        array: StoredArray | NewArray,
        schema: SchemaLike,
        comm: Any,
        timeout: float,
        memory: int | str | None,
        progress: ProgressLike = False,
        *,
        atomic: bool = False,
        skip_disk: bool = False,
    ) -> None:
        self._verb, self._array = verb, array
        self._comm = Communicator(Alone() if comm is None else comm, patience_of(timeout))
        self._schema: SchemaLike = schema
        self._timeout, self._memory = timeout, memory
        # A process reports its invalid arguments only once all processes take part; until then,
        # defaults.
        self._patience_s, self._memory_bytes, self._offers_memory = 1, LEAST_MEMORY_BYTES, False
        self._is_atomic, self._skip_disk = atomic, skip_disk
        is_first = self._comm.rank == 0
        self._progress = progress if is_first or callable(progress) else False
        self._tell: Callable[[], None] | None = None
        self._fresh: Place | None = None
        self._before = array.metadata
        self._held = contextlib.ExitStack()
        self._begun: Agreement | None = None
        self._found: MemorySchema
        self._files: list[PoolFile] = []
        self._core: PoolCore | None = None
        self._visited: Pool | None = None
        self._failed: Exception | None = None
        """An error of this process that the others do not know yet."""
        self._passed = 0
        self._trace, self._since_ns = tracing.new_trace(), 0
        if self._trace is not None:
            self._since_ns = self._trace.now_ns()
        self._exchanged: list[tuple[tuple[int, ...], list[WithServer]]] = []

    @property
    def _path(self) -> PoolPath:
        path = self._array.path
        if self._array.place.is_transposed:
            raise InvalidError(
                f"{self._verb} needs an array, have the {self._array!r}; call it on the array, and "
                "transpose what each process has"
            )
        if not isinstance(path, PoolPath):
            raise InvalidError(
                f"{self._verb} needs an array in a pool, have the plain path {path}; make it in "
                "oc.Pool.from_comm(comm, directory) or a served pool, or, for threads of one "
                "process, in oc.Pool.embedded(directories)"
            )
        return path

    @property
    def _stored(self) -> StoredArray:
        assert not isinstance(self._array, NewArray), "nothing of a new array is marked or counted"
        return self._array

    def _begin(self) -> None:
        # Assign at once: a signal may stop this process after the others have the result.
        self._begun = self._prepare()

    def _prepare(self) -> Agreement:
        array, path, atomic = self._array, self._path, self._is_atomic
        self._check_own()
        metadata, grid, where = array.metadata, array.metadata.grid(), array.place
        is_written = self._verb == "write_all" and not self._skip_disk
        if is_written and not grid.shards:
            raise InvalidError(f"{array.path} has no step yet to write; append one first")
        if is_written and atomic:
            self._check_whole()
            where = self._fresh = atomic_write.make(where, metadata)
        if isinstance(array, NewArray):
            array.make()
        files = tuple(where.inside(grid.shard_key(shard)) for shard in range(grid.shards))
        return Agreement(
            verb=self._verb,
            pool=path.root.core.id,
            url=path.root.url,
            name=path.inside,
            layout=layout_of(array),
            schema=Schema.of(self._schema).key(),
            files=files,
            servers=tuple(PoolStat.of(path.root.core.stat(name), 0).servers for name in files),
            numbers=tuple(secrets.randbits(128) for _ in range(len(files) + 2)),
            is_atomic=atomic,
            skips_disk=self._skip_disk,
            is_fresh=is_written and atomic,
            is_marked=is_written and not atomic and not isinstance(array, NewArray),
            timeout_s=self._patience_s,
        )

    def _check_own(self) -> None:
        """Check the arguments of this process, except its part of the array."""
        self._patience_s = seconds_of(self._timeout)
        self._memory_bytes = MEMORY_BYTES if self._memory is None else budget.resolve(self._memory)
        self._offers_memory = offers_memory()
        check_open(self._array)
        if self._verb == "write_all" and self._array.mode != "r+":
            raise ReadOnlyError(f'{self._array.path} is open for reading; open it with mode="r+"')

    def exchange(self, local: Local) -> list[npt.NDArray[Any]]:
        """Take part in the exchange, and return the arrays of this process."""
        begun, comm = self._agreed, self._comm
        core = self._core = self._pool_of_all()
        arrays: list[npt.NDArray[Any]] = []
        self._found = MemorySchema.boxes([[] for _ in range(comm.size)])
        try:
            schema = Schema.of(self._schema)
            is_write = self._verb == "write_all"
            self._found = schema.on(self._array.shape, comm.size, is_write=is_write)
            self._check_pool()
            self._check_own()
            self._check_same()
            shapes = schema.local_shapes(self._array.shape, comm.size, comm.rank)
            arrays = arrays_of(local, shapes, self._array.dtype, comm.rank, is_write=is_write)
        except Exception as error:
            self._failed = error
        self._patience_s = begun.timeout_s
        self._open(core)
        if begun.meets:
            # Before all have met, some may not have opened the files; an error does no harm yet.
            self._meet(-2)
            if comm.rank == 0:
                self._failed = self._mark()
        progress = self._progress if self._failed is None and is_shown(self._progress) else False
        nbytes = self._bytes_of_all() if progress else 0
        title = f"{self._verb} of {self._array.path.name}"
        with shown(core, self._verb, title, nbytes, progress) as self._tell:
            for shard, number in enumerate(begun.numbers[: len(self._files)]):
                work = self._collective(number, self._array.metadata.grid(), shard)
                self._run(work, shard, arrays)
        self._tell = None
        if begun.meets:
            # Rank 0 has counted the write before it took part.
            self._stored.count_writing(elsewhere=True)
        return arrays

    @property
    def _agreed(self) -> Agreement:
        assert self._begun is not None, "begin() is called first"
        return self._begun

    def _open(self, core: PoolCore) -> None:
        """Open the files; an earlier error takes precedence."""
        begun, writable = self._agreed, self._verb == "write_all"
        try:
            self._files = [core.open(name, writable) for name in begun.files]
        except Exception as error:
            self._raise_own()
            if not (begun.is_fresh and isinstance(error, NotFoundError)):
                raise
            raise InvalidError(
                f"process {self._comm.rank} came to {self._verb} of {self._array.path} when "
                "process 0 had aborted it; the error of process 0 says why"
            ) from error

    def _check_pool(self) -> None:
        path = self._path
        if path.root.core.id != self._agreed.pool:
            raise InvalidError(
                f"process {self._comm.rank} has {path}, which is in another pool than "
                f"{self._agreed.name} of process 0; open the same array everywhere"
            )

    def _pool_of_all(self) -> PoolCore:
        """Return the pool in which the others meet, even if this process's array is elsewhere."""
        path, begun = self._array.path, self._agreed
        if isinstance(path, PoolPath) and path.root.core.id == begun.pool:
            return path.root.core
        root = open_root(begun.url)
        if root is not None and root.core.id == begun.pool:
            return root.core
        try:
            key = path.root.key if isinstance(path, PoolPath) else None
            self._visited = connect(begun.url, key=key)
            if self._visited.core.id == begun.pool:
                return self._visited.core
        except OutcoreError:
            pass  # the others will time out on this process
        self._check_pool()
        raise AssertionError("the pool is another one")

    def _mark(self) -> Exception | None:
        """Count the write for all processes, and mark the array incomplete."""
        array = self._stored
        try:
            array.count_writing()
            if self._agreed.is_marked:
                is_growing = array.metadata.growing
                if is_growing:
                    # An append replaces zarr.json, too.
                    self._held.enter_context(growing.appending(array.place, self._verb))
                if array.place.exists():  # a time step in progress has no metadata yet
                    self._before = read_metadata(array.place)
                if is_growing:
                    growing.check_last_file(array.place, array.metadata, self._before)
                array.mark(_STATE, _WHY)
        except OutcoreError as error:
            return error
        return None

    def _check_whole(self) -> None:
        """Refuse an atomic write that does not cover the whole array."""
        shape, comm, schema = self._array.shape, self._comm, Schema.of(self._schema)
        schema.on(shape, comm.size, is_write=True)
        given = sum(schema.nbytes(shape, comm.size, rank, 1) for rank in range(comm.size))
        if given != math.prod(shape):
            raise InvalidError(
                f"atomic=True replaces {self._array.path}: need boxes that cover its "
                f"{math.prod(shape)} elements, have {given}; add boxes, or pass atomic=False"
            )

    def _check_same(self) -> None:
        self._agreed.check(
            self._comm.rank,
            verb=self._verb,
            is_atomic=self._is_atomic,
            skips_disk=self._skip_disk,
            timeout_s=self._patience_s,
            name=self._path.inside,
            layout=layout_of(self._array),
            schema=Schema.of(self._schema).key(),
        )
        if self._memory_bytes < LEAST_MEMORY_BYTES:
            raise BudgetError(
                f"need {LEAST_MEMORY_BYTES} bytes of memory for a collective, process "
                f"{self._comm.rank} has {self._memory_bytes}; raise memory="
            )

    def _bytes_of_all(self) -> int:
        """Return the bytes of the array in the memory of all processes."""
        shape, size = self._array.shape, self._comm.size
        parts = (part for rank in range(size) for part in self._found.shapes(shape, size, rank))
        return sum(map(math.prod, parts)) * self._array.dtype.itemsize

    def _collective(self, number: int, grid: Grid, shard: int) -> Collective:
        return Collective(
            number,
            self._verb == "write_all",
            self._comm.size,
            grid,
            shard,
            self._found,
            self._patience_s,
            self._skip_disk,
        )

    def _run(
        self,
        work: Collective,
        shard: int,
        arrays: list[npt.NDArray[Any]],
    ) -> None:
        """Take part at the servers of one file, or tell the others that this process cannot."""
        why = None if self._failed is None else _why(self._failed)
        try:
            found = work.run(
                self._files[shard],
                self._comm.rank,
                arrays,
                self._memory_bytes,
                self._offers_memory,
                why,
                self._tell,
                self._trace,
            )
        except OutcoreError:
            self._raise_own()
            raise
        self._passed += 1
        self._exchanged.append((self._agreed.servers[shard], found))

    def end(self) -> None:
        """Publish a write, and return when every process may rely on it."""
        if self._verb == "read_all" or self._skip_disk:
            return
        if self._comm.rank == 0:
            try:
                self._publish()
            except Exception as error:
                self._failed = error
        self._meet(-1)
        if self._agreed.is_fresh:
            self._stored.refresh()

    def _raise_own(self) -> None:
        """Raise the error of this process, if there is one."""
        failed, self._failed = self._failed, None
        try:
            if failed is not None:
                raise failed from None
        finally:
            del failed  # it is in no cycle with the frames of this call

    def _publish(self) -> None:
        array, before = self._stored, self._before
        if self._fresh is None:
            # A half-written array becomes whole only if this call replaced all of it.
            is_whole = before.state is None or before.nbytes == self._bytes_of_all()
            array.mark(*((None, "") if is_whole else (before.state, before.why)))
            self._held.close()
            return
        atomic_write.take_place(self._fresh, array.place, array.metadata)
        self._fresh = None

    def _meet(self, number: int) -> None:
        """Wait for the others at the servers, which detect a process that never comes."""
        nothing = MemorySchema.boxes([[] for _ in range(self._comm.size)])
        one = Grid([1], [1], 1, "C", "row-major", 1)
        work = Collective(
            self._agreed.numbers[number],
            False,
            self._comm.size,
            one,
            0,
            nothing,
            self._patience_s,
            True,
        )
        self._run(work, 0, [])

    def _clean_up(self) -> None:
        """Release the locks and memory of the call after an error; remove the new files."""
        with contextlib.suppress(OutcoreError):
            self._held.close()
        if self._visited is not None:
            self._visited.close()
        if self._fresh is not None:
            with contextlib.suppress(OutcoreError):
                self._fresh.volume.remove(self._fresh.name)

    def report(self, seconds: float) -> CollectiveReport:
        """Return the report of this call, and add the call to a trace that is being recorded."""
        if self._trace is not None:
            tracing.add(f"{self._verb} of {self._array.path}", self._since_ns, self._trace)
        return CollectiveReport.of(self._verb, seconds, self._exchanged)


def begin(calls: Sequence[Call]) -> None:
    """Agree with the others on some collectives, by one message; rank 0 prepares all at once.

    Raises
    ------
    OutcoreError
        On every rank, if rank 0 fails.
    """
    said: Any = None
    mine: BaseException | None = None
    comm = calls[0]._comm
    if comm.rank == 0:
        try:
            at_once(Call._begin, calls)
            said = [call._begun for call in calls]
        except BaseException as error:
            mine, said = error, _why(error)
    said = comm.bcast(said, 0)
    if mine is not None:
        try:
            raise mine
        finally:
            del mine  # it is in no cycle with this frame
    if isinstance(said, tuple):
        raise from_kind(said[0], f"process 0: {said[1]}")
    for call, begun in zip(calls, said, strict=True):
        call._begun = begun


@contextlib.contextmanager
def giving_up(calls: Sequence[Call], doing: str) -> Iterator[None]:
    """Report a failure to the other processes, and name the remedy after Ctrl-C."""
    try:
        with stop_on_signals():
            yield
    except BaseException as error:
        give_up(calls, error)
        if isinstance(error, KeyboardInterrupt):
            raise Interrupted(f"{doing} was stopped; call it again on all processes") from None
        raise


def give_up(calls: Sequence[Call], error: BaseException) -> None:
    """Report the error to the others, at any stage of these calls; remove their new files."""
    with contextlib.suppress(OutcoreError):
        _tell_others(calls, error)
    for call in calls:
        call._clean_up()


def _tell_others(calls: Sequence[Call], error: BaseException) -> None:
    """Let no process wait for this one, whether it has reached the servers or not.

    No process gets beyond the first number of a call that this process has not completed. After a
    signal, that may be one number more than this process has counted. Completed collectives stay as
    they are.
    """
    begun = [(call, call._begun) for call in calls if call._begun is not None]
    if not begun or calls[0]._comm.size == 1:
        return
    core = next((call._core for call, _ in begun if call._core is not None), None)
    if core is None and not isinstance(error, OutcoreError):
        # A signal stopped it before it reached the pool.
        core = calls[0]._pool_of_all()
    numbers = [number for call, of in begun for number in of.order[call._passed :][:2]]
    if core is not None and numbers:
        servers = sorted(set().union(*(each for _, of in begun for each in of.servers)))
        core.abandon(servers, numbers, calls[0]._comm.rank, _why(error))


def _why(error: BaseException) -> tuple[str, str]:
    """Return the kind and the message of an error, for the other processes."""
    if isinstance(error, OutcoreError):
        return error.kind, str(error)
    if isinstance(error, KeyboardInterrupt):
        return OutcoreError.kind, "it was stopped, as by Ctrl-C"
    return OutcoreError.kind, f"{type(error).__name__}: {error}"


def patience_of(timeout: Any) -> int:
    """Return a timeout in whole seconds; the default for an invalid one, reported later."""
    try:
        return seconds_of(timeout)
    except InvalidError:
        return TIMEOUT_S


def seconds_of(timeout: Any) -> int:
    """Return a timeout in whole seconds, at least 1."""
    is_number = isinstance(timeout, int | float | np.number) and not isinstance(timeout, bool)
    if not is_number or not 0 <= timeout <= _MOST_SECONDS:
        raise InvalidError(
            f"timeout is seconds from 0 to {_MOST_SECONDS}, have {timeout!r}; give a number such "
            "as 600"
        )
    return max(math.ceil(float(timeout)), 1)
