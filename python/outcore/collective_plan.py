"""What a collective will exchange with which server, before it starts."""

import dataclasses
from dataclasses import asdict, dataclass
from typing import Any

from outcore._core import Collective
from outcore.array import Array, open_array
from outcore.errors import InvalidError
from outcore.pool_path import PoolPath
from outcore.rates import Rates, stored_or_measured
from outcore.schema import Schema, SchemaLike
from outcore.sizes import format_bytes, format_seconds
from outcore.volumes import PathLike

VERBS = ("write_all", "read_all")


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
        round in which the process has a share, one for each share, and one for the end.
    seconds
        Time of the fullest server at the pool's measured rate.
    """

    verb: str
    path: str
    schema: str
    processes: int
    server_bytes: dict[int, int]
    process_bytes: tuple[int, ...]
    messages: tuple[dict[int, int], ...]
    seconds: float

    @property
    def nbytes(self) -> int:
        """Bytes of the array that are exchanged."""
        return sum(self.server_bytes.values())

    @property
    def total_messages(self) -> int:
        """Messages of all processes to all servers."""
        return sum(sum(each.values()) for each in self.messages)

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
                f"  messages     {self.total_messages}",
                f"  time         {format_seconds(self.seconds)}",
            ]
        )


def plan_collective(
    verb: str,
    *,
    array: Array | PathLike,
    schema: SchemaLike,
    processes: int,
    rates: Rates | None = None,
) -> CollectivePlan:
    """Plan a collective on an array that is there; see `outcore.plan`.

    Parameters
    ----------
    verb
        ``"write_all"`` or ``"read_all"``.
    array
        The array, or where it is; in a pool.
    schema, processes
        The memory schema, and the size of the communicator.
    rates
        Of the pool; by default those that are known of it, or are measured now.
    """
    if not isinstance(array, Array):
        with open_array(array, allow_incomplete=True) as opened:
            return plan_collective(
                verb, array=opened, schema=schema, processes=processes, rates=rates
            )
    where = array.path
    if not isinstance(where, PoolPath):
        raise InvalidError(f"{verb} needs an array in a pool, have the plain path {where}")
    chosen = Schema.of(schema)
    found = chosen.on(array.shape, processes)
    grid = array.metadata.grid()
    server_bytes: dict[int, int] = {}
    process_bytes = [0] * processes
    messages: list[dict[int, int]] = [{} for _ in range(processes)]
    for shard in range(grid.shards):
        stat = where.root.core.stat(f"{where.inside}/{grid.shard_key(shard)}")
        unit, servers = stat[-2], stat[-1]
        work = Collective(0, verb == "write_all", processes, grid, shard, found, 1, False)
        _, exchanged = work.plan(unit, len(servers))
        for rank, of_rank in enumerate(exchanged):
            for server, (rounds, shares, nbytes) in zip(servers, of_rank, strict=True):
                sent = messages[rank]
                sent[server] = sent.get(server, 0) + 2 + rounds + shares
                server_bytes[server] = server_bytes.get(server, 0) + nbytes
                process_bytes[rank] += nbytes
    known = rates or stored_or_measured(where)
    rate = known.write_bytes_s if verb == "write_all" else known.read_bytes_s
    found_plan = CollectivePlan(
        verb=verb,
        path=str(where),
        schema=str(chosen),
        processes=processes,
        server_bytes=server_bytes,
        process_bytes=tuple(process_bytes),
        messages=tuple(messages),
        seconds=0.0,
    )
    # The pool's rate is that of all its servers, each with as much to do.
    seconds = found_plan.nbytes * found_plan.imbalance / rate
    return dataclasses.replace(found_plan, seconds=seconds)
