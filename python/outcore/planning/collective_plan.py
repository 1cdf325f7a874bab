"""Predict the messages and bytes of a collective before it starts."""

from dataclasses import asdict, dataclass, field
from typing import Any

from outcore._core import Collective, Grid, Stripes
from outcore._util.sizes import format_bytes, format_seconds
from outcore.array.array import Array, open_array
from outcore.errors import InvalidError
from outcore.layout.schema import Schema, SchemaLike
from outcore.machine.rates import Rates, stored_or_measured
from outcore.series.array_spec import ArraySpec
from outcore.storage.pool_path import PoolPath
from outcore.storage.pool_stat import PoolStat
from outcore.storage.volumes import AnyPath, PathLike, as_path, place

VERBS = ("write_all", "read_all")

MEETING_MESSAGES = 4
"""Messages of a process to a server for the meetings before and after a write, two for each."""


@dataclass(frozen=True)
class CollectivePlan:
    """Messages and bytes of a collective, both exact; print it to read it.

    Attributes
    ----------
    verb, path, schema
        The planned call, its array, and the memory schema.
    processes
        Number of processes that take part.
    server_bytes
        Bytes of the array that each server exchanges, by server number.
    process_bytes
        Bytes of the array in each process.
    messages
        Messages of each process to each server, by server number: one to join, one for each round
        in which the process has a share, one for each share, and one to end. For a write, the
        processes meet before and after it at the servers of the first shard file, with two messages
        to each server.
    direct_messages
        The same for a write in which servers read the processes' memory, as on a single machine. It
        counts only rounds and shares with short runs in arrays in NumPy's default layout.
        ``report.direct_bytes`` shows whether servers did so.
    seconds
        Time of the fullest server at the pool's measured rate.
    notes
        Remarks for the reader.
    """

    verb: str
    path: str
    schema: str
    processes: int
    server_bytes: dict[int, int]
    process_bytes: tuple[int, ...]
    messages: tuple[dict[int, int], ...]
    direct_messages: tuple[dict[int, int], ...]
    seconds: float
    notes: list[str] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        """Bytes of the array that the call exchanges."""
        return sum(self.server_bytes.values())

    @property
    def total_messages(self) -> int:
        """Messages of all processes to all servers."""
        return sum(sum(each.values()) for each in self.messages)

    @property
    def total_direct_messages(self) -> int:
        """Messages of all processes to all servers, if servers read the processes' memory."""
        return sum(sum(each.values()) for each in self.direct_messages)

    @property
    def imbalance(self) -> float:
        """Bytes of the fullest server over the mean; 1 is balanced."""
        mean = self.nbytes / max(len(self.server_bytes), 1)
        return max(self.server_bytes.values(), default=0) / mean if mean else 1.0

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain values, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        servers = ", ".join(f"{n}: {format_bytes(b)}" for n, b in self.server_bytes.items())
        return "\n".join(
            [
                f"plan: {self.verb} of {self.path}, {self.schema}, {self.processes} processes",
                f"  bytes        {format_bytes(self.nbytes)}",
                f"  servers      {servers}",
                f"  imbalance    {self.imbalance:.3f}",
                f"  messages     {self.total_messages}, or {self.total_direct_messages} if servers "
                "read the memory of the processes",
                f"  time         {format_seconds(self.seconds)}",
                *(f"  note         {note}" for note in self.notes),
            ]
        )


@dataclass(frozen=True)
class _Target:
    """An array to plan for, existing or not.

    `files` are its shard files in order; each is described by its stripes and its servers.
    """

    where: PoolPath
    shape: tuple[int, ...]
    grid: Grid
    files: list[tuple[Stripes, list[int]]]


def plan_collective(
    verb: str,
    *,
    array: Array | ArraySpec | PathLike,
    schema: SchemaLike,
    processes: int,
    path: PathLike | None = None,
    servers: int | None = None,
    skip_disk: bool = False,
    rates: Rates | None = None,
) -> CollectivePlan:
    """Plan a collective; see `outcore.plan`.

    Parameters
    ----------
    verb
        ``"write_all"`` or ``"read_all"``.
    array
        The array, or its path in a pool; or an `outcore.ArraySpec` of a future array.
    schema, processes
        The memory schema, and the size of the communicator.
    path
        For a future array: its directory in the pool.
    servers
        For a future array: the number of I/O servers; by default those of the pool. They get the
        numbers of the pool's servers, from the first on. The pool chooses the servers of a new file
        later, so the plan cannot know them.
    skip_disk
        As for the planned call. The predicted time includes the disks nevertheless.
    rates
        Rates of the pool; by default the stored ones, else a new measurement.

    Raises
    ------
    InvalidError
        If the array is on a plain path, the schema does not fit it, or there is an argument too
        many or too few.
    """
    if isinstance(array, ArraySpec):
        target = _to_be(verb, array, path, servers)
    elif servers is not None or path is not None:
        raise InvalidError(
            "path= and servers= are for arrays that do not exist yet, have array="
            f"{getattr(array, 'path', array)}; leave them out, or give an oc.ArraySpec"
        )
    elif isinstance(array, Array):
        target = _there(verb, array)
    else:
        with open_array(array, allow_incomplete=True) as opened:
            target = _there(verb, opened)
    meets = verb == "write_all" and not skip_disk
    return _plan(verb, target, Schema.of(schema), processes, rates, meets=meets)


def _there(verb: str, array: Array) -> _Target:
    where = _in_pool(verb, array.path)
    grid, core = array.metadata.grid(), where.root.core
    stats = [core.stat(f"{where.inside}/{grid.shard_key(shard)}") for shard in range(grid.shards)]
    found = [PoolStat.of(stat, 0) for stat in stats]
    files = [(one.stripes, list(one.servers)) for one in found]
    return _Target(where, array.shape, grid, files)


def _to_be(verb: str, spec: ArraySpec, path: PathLike | None, servers: int | None) -> _Target:
    if path is None:
        raise InvalidError(
            f"{verb} of an array that is not there needs path=, where it would be, have none; "
            'pass a name in a pool, such as pool / "u"'
        )
    where = _in_pool(verb, as_path(path))
    numbers = where.root.core.server_ids
    if servers is not None:
        if not isinstance(servers, int) or servers < 1:
            raise InvalidError(f"servers must be an integer of at least 1, have {servers!r}")
        more = range(max(numbers) + 1, max(numbers) + 1 + servers)
        numbers = [*numbers, *more][:servers]
    metadata = spec.alone(place(where), len(numbers))
    grid = metadata.grid()
    files = []
    for shard in range(grid.shards):
        # Each file begins at the next server.
        turn = shard % len(numbers)
        used = [*numbers[turn:], *numbers[:turn]][: metadata.stripe_count]
        stripes = Stripes(grid.stripe_unit_bytes, len(used), grid.round_units)
        files.append((stripes, used))
    return _Target(where, metadata.shape, grid, files)


def _in_pool(verb: str, path: AnyPath) -> PoolPath:
    if not isinstance(path, PoolPath):
        raise InvalidError(f"{verb} needs an array in a pool, have the plain path {path}")
    return path


def _plan(
    verb: str,
    target: _Target,
    schema: Schema,
    processes: int,
    rates: Rates | None,
    *,
    meets: bool,
) -> CollectivePlan:
    found = schema.on(target.shape, processes, is_write=verb == "write_all")
    server_bytes: dict[int, int] = {}
    process_bytes = [0] * processes
    messages: list[dict[int, int]] = [{} for _ in range(processes)]
    direct: list[dict[int, int]] = [{} for _ in range(processes)]
    for shard, (stripes, servers) in enumerate(target.files):
        work = Collective(0, verb == "write_all", processes, target.grid, shard, found, 1, False)
        _, exchanged = work.plan(stripes)
        for rank, of_rank in enumerate(exchanged):
            for server, (rounds, shares, nbytes, *given) in zip(servers, of_rank, strict=True):
                least = 2 + (MEETING_MESSAGES if meets and shard == 0 else 0)
                for sent, needed in ((messages, (rounds, shares)), (direct, given)):
                    sent[rank][server] = sent[rank].get(server, 0) + least + sum(needed)
                server_bytes[server] = server_bytes.get(server, 0) + nbytes
                process_bytes[rank] += nbytes
    known = rates or stored_or_measured(target.where)
    rate = known.write_bytes_s if verb == "write_all" else known.read_bytes_s
    # The rate was measured over all servers of the pool, with equal load.
    of_server = rate / len(target.where.root.core.server_ids)
    return CollectivePlan(
        verb=verb,
        path=str(target.where),
        schema=str(schema),
        processes=processes,
        server_bytes=server_bytes,
        process_bytes=tuple(process_bytes),
        messages=tuple(messages),
        direct_messages=tuple(direct),
        seconds=max(server_bytes.values(), default=0) / of_server,
        notes=[] if rates else known.notes,
    )
