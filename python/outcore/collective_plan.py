"""What a collective will exchange with which server, before it starts."""

from dataclasses import asdict, dataclass, field
from typing import Any

from outcore._core import Collective, Grid, Stripes
from outcore.array import Array, open_array
from outcore.array_spec import ArraySpec
from outcore.errors import InvalidError
from outcore.pool_path import PoolPath
from outcore.pool_stat import PoolStat
from outcore.rates import Rates, stored_or_measured
from outcore.schema import Schema, SchemaLike
from outcore.sizes import format_bytes, format_seconds
from outcore.volumes import AnyPath, PathLike, as_path, place

VERBS = ("write_all", "read_all")

MEETING_MESSAGES = 4
"""Of a process to a server, to meet the others before and after a write: to join, and to end."""


@dataclass(frozen=True)
class CollectivePlan:
    """What a collective exchanges. Messages and bytes are exact; print it to read it.

    Attributes
    ----------
    verb, path, schema
        What is planned, of which array, and the memory schema.
    processes
        How many take part.
    server_bytes
        Bytes of the array that are exchanged with each server, by its number.
    process_bytes
        Bytes that each process has.
    messages
        Messages of each process to each server, by the number of that: one to join, one for each
        round in which the process has a share, one for each share, and one for the end. To write,
        the processes meet before and after it at the servers of the first shard file, by two
        messages to each of them.
    direct_messages
        The same of a write of which the servers read the memory of the processes, as those on one
        machine do: of the rounds and shares, those that lie in short runs in arrays as NumPy makes
        them. ``report.direct_bytes`` says whether it was so.
    seconds
        Time of the fullest server at the pool's measured rate.
    notes
        What the reader should know.
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
        """Bytes of the array that are exchanged."""
        return sum(self.server_bytes.values())

    @property
    def total_messages(self) -> int:
        """Messages of all processes to all servers."""
        return sum(sum(each.values()) for each in self.messages)

    @property
    def total_direct_messages(self) -> int:
        """The same where servers read the memory of processes."""
        return sum(sum(each.values()) for each in self.direct_messages)

    @property
    def imbalance(self) -> float:
        """Bytes of the fullest server over the mean; 1 is balanced."""
        mean = self.nbytes / max(len(self.server_bytes), 1)
        return max(self.server_bytes.values(), default=0) / mean if mean else 1.0

    def to_dict(self) -> dict[str, Any]:
        """Figures as plain values, for JSON."""
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
    """An array that is planned for: one that is there, or would be.

    `files` are its shard files in their order: of each how it is cut, and its servers.
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
        The array, or where it is, in a pool; or what it would be, an `outcore.ArraySpec`.
    schema, processes
        The memory schema, and the size of the communicator.
    path
        For an array that is not there: a directory of the pool in which it would be.
    servers
        For such an array: how many I/O servers the pool would have; by default those it has. They
        are numbered as those of the pool, from the first on; which ones a pool chooses for a new
        file cannot be known.
    skip_disk
        As of the call that is planned. The time is that with disks all the same.
    rates
        Of the pool; by default those that are known of it, or are measured now.

    Raises
    ------
    InvalidError
        If the array is or would be on a plain path, the schema does not fit it, or there is an
        argument too many or too few.
    """
    if isinstance(array, ArraySpec):
        target = _to_be(verb, array, path, servers)
    elif servers is not None or path is not None:
        raise InvalidError(
            "path= and servers= are for arrays that are not there yet, have array="
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
        # Each file begins at the server after that of the one before.
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
    # It was measured over all servers that the pool has, each with as much to do.
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
