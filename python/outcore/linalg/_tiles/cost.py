"""The cost of a call, as computed by its planner: exact bytes, and weighted operations.

A planner is a function of a `Problem` that does arithmetic only: it opens and allocates nothing.
`oc.plan` converts its `Cost` into time with the rates of the machine.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from outcore._util.sizes import parse_rate
from outcore.errors import InvalidError
from outcore.layout.disk_reads import DiskReads
from outcore.machine.rates import Rates

# Processor time per byte of direct I/O. The BLAS splits its work evenly over the cores, so all of
# them wait for the core that does I/O. The second constant is the time of a short request,
# including the threads that it wakes.
_IO_CPU_S_PER_BYTE = 0.06e-9
_REQUEST_CPU_S = 10e-6

SCAN_S_PER_BYTE = 0.08e-9
"""Seconds per byte of a single pass over memory by one thread."""

SWEEPS = 20
"""Default number of sweeps or iterations in plans of iterative methods."""


@dataclass(frozen=True)
class Problem:
    """The problem to plan.

    Attributes
    ----------
    n, m, k
        Order or columns of the matrix; its rows if they differ; the inner length or number of
        vectors, if there is one. `None` if not given.
    rhs
        Number of right-hand sides.
    dtype
        Type of the arithmetic and of the result.
    memory_bytes
        The budget.
    options
        Other options of the verb, by the names of its function's arguments.
    seconds
        Function that predicts the time of a cost, for plans that depend on it.
    disk
        Function that returns the granularity of the disk's reads.
    stored
        Type of the matrix on disk, if it differs.
    """

    n: int
    dtype: np.dtype[Any]
    memory_bytes: int
    m: int | None = None
    k: int | None = None
    rhs: int = 1
    options: dict[str, Any] = field(default_factory=dict)
    seconds: "Callable[[Cost], float] | None" = field(default=None, compare=False, repr=False)
    disk: Callable[[], DiskReads] = field(default=DiskReads, compare=False, repr=False)
    stored: np.dtype[Any] | None = None
    _asked: set[str] = field(default_factory=set, compare=False, repr=False)

    def option(self, name: str, default: Any) -> Any:
        """Return an option."""
        self._asked.add(name)
        return self.options.get(name, default)

    def refuse_unasked(self) -> None:
        """Refuse options that the planner has not used."""
        if unknown := sorted(self.options.keys() - self._asked):
            known = ", ".join(sorted(self._asked)) or "none"
            raise InvalidError(f"this plan has no option {unknown[0]!r}; those it has: {known}")

    @property
    def on_disk(self) -> np.dtype[Any]:
        """Type of the matrix on disk."""
        return self.stored or self.dtype

    def needed(self, name: str) -> int:
        """Return `m` or `k`, which this verb needs."""
        value = getattr(self, name)
        if value is None:
            raise InvalidError(f"this plan needs {name}= beside n=; give it")
        return int(value)


@dataclass(frozen=True)
class Phase:
    """A part of a call in which disk and arithmetic overlap.

    Attributes
    ----------
    dtype
        Type of the arithmetic.
    bytes_read, bytes_written
        Exact numbers of bytes.
    flops
        Real operations.
    gemm_flops
        The same, with each kind of operation weighted by its slowness relative to a large matrix
        product; `None` if all are as fast.
    other_seconds
        Work at the speed of the memory, such as row swaps and norms.
    requests
        Number of short requests, each of which takes time regardless of its size.
    ends_read_bytes, ends_written_bytes
        Bytes that are moved before the arithmetic can begin, and after its end.
    bytes_sent, network_seconds
        Bytes that a process sends to others; time of the network alone, which overlaps with both.
    workers
        Largest number of computing threads; `None` for all.
    slowdown
        Fraction of the shorter of disk and arithmetic that does not overlap with the longer. The
        disk is slower while all cores compute, and the cores are slower while the disk moves bytes.
    """

    dtype: np.dtype[Any]
    bytes_read: int
    bytes_written: int = 0
    flops: float = 0.0
    gemm_flops: float | None = None
    other_seconds: float = 0.0
    ends_read_bytes: int = 0
    ends_written_bytes: int = 0
    requests: int = 0
    slowdown: float = 0.0
    workers: int | None = None
    bytes_sent: int = 0
    network_seconds: float = 0.0

    def compute_seconds(self, rates: Rates) -> float:
        """Return the time of the arithmetic alone, at the measured speed of matrix products."""
        work = self.flops if self.gemm_flops is None else self.gemm_flops
        idle = 1.0 if self.workers is None else max(rates.threads / self.workers, 1.0)
        return idle * work / rates.gemm_flops_s[self.dtype.name] + self.other_seconds

    def io_seconds(self, rates: Rates) -> float:
        """Return the time of the disk alone."""
        moving = self.bytes_read / rates.read_bytes_s + self.bytes_written / rates.write_bytes_s
        return moving + self.requests * rates.request_s

    def seconds(self, rates: Rates) -> float:
        """Return the time with the expected overlap."""
        io_cpu = (self.bytes_read + self.bytes_written) * _IO_CPU_S_PER_BYTE
        io_cpu += self.requests * _REQUEST_CPU_S
        ends = self.ends_read_bytes / rates.read_bytes_s
        ends += self.ends_written_bytes / rates.write_bytes_s
        compute, io = self.compute_seconds(rates) + io_cpu, self.io_seconds(rates)
        return max(compute, io, self.network_seconds) + self.slowdown * min(compute, io) + ends


@dataclass(frozen=True)
class Cost:
    """The cost of a call.

    Attributes
    ----------
    method
        Description of the method, as text.
    peak_memory_bytes
        Largest amount of memory that the call uses of its budget.
    disk_bytes
        Disk space for results and temporary files.
    words_lower_bound
        Least number of words that any algorithm must move with this memory; `None` if unknown.
    phases
        Parts of the call, in order.
    processes, bytes_sent
        Number of processes, of which this is the cost of one, and the bytes that it sends.
    """

    method: str
    peak_memory_bytes: int
    disk_bytes: int
    words_lower_bound: float | None
    phases: tuple[Phase, ...]
    processes: int = 1
    bytes_sent: int = 0

    @property
    def bytes_read(self) -> int:
        """Bytes read in all phases."""
        return sum(phase.bytes_read for phase in self.phases)

    @property
    def bytes_written(self) -> int:
        """Bytes written in all phases."""
        return sum(phase.bytes_written for phase in self.phases)

    @property
    def flops(self) -> float:
        """Operations of all phases."""
        return sum(phase.flops for phase in self.phases)

    def seconds(self, rates: Rates) -> float:
        """Return the time of all phases, one after the other."""
        return sum(phase.seconds(rates) for phase in self.phases)


def of_several(costs: Sequence[Cost], link: Any) -> Cost:
    """Return the cost of a call of several processes: that of the one that moves most.

    Parameters
    ----------
    costs
        The costs of all processes, in the same phases. One alone is its own result.
    link
        Rate of each process's network, such as ``"10 Gbit/s"``; `None` for one that takes no time.
        Each block goes to every process, so each link carries all that the processes send.
    """
    if len(costs) == 1:
        return costs[0]
    rate = None if link is None else parse_rate(link)
    sent = [sum(phase.bytes_sent for phase in cost.phases) for cost in costs]
    moved = [cost.bytes_read + cost.bytes_written for cost in costs]
    most = max(range(len(costs)), key=lambda rank: (moved[rank], sent[rank]))
    phases = [
        dataclasses.replace(
            own,
            network_seconds=0.0 if rate is None else sum(each.bytes_sent for each in of_all) / rate,
        )
        for own, *of_all in zip(costs[most].phases, *(cost.phases for cost in costs), strict=True)
    ]
    return dataclasses.replace(
        costs[most], phases=tuple(phases), processes=len(costs), bytes_sent=sent[most],
        words_lower_bound=None,
    )  # fmt: skip


Planner: TypeAlias = Callable[[Problem], Cost]


def flop_weight(dtype: np.dtype[Any]) -> int:
    """Return the real operations per operation of this type: 4 for complex, as LAPACK counts."""
    return 4 if dtype.kind == "c" else 1
