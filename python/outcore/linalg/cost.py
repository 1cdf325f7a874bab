"""What a call costs, as its planner says it: exact bytes, and what the arithmetic is worth.

A planner is a function of a `Problem` that does arithmetic only: it opens and allocates nothing.
`oc.plan` turns its `Cost` into time with the rates of the machine.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from outcore.disk_reads import DiskReads
from outcore.errors import InvalidError
from outcore.rates import Rates

# Processor time of moving a byte by direct I/O. The BLAS splits its work evenly over the cores, so
# all of them wait for the one that does it. And of a short request, with the threads it wakes.
_IO_CPU_S_PER_BYTE = 0.06e-9
_REQUEST_CPU_S = 10e-6

SCAN_S_PER_BYTE = 0.08e-9
"""Seconds for each byte of memory that is read once by one thread."""

SWEEPS = 20
"""Sweeps or iterations of an iterative method that are planned if nothing else is said."""


@dataclass(frozen=True)
class Problem:
    """What is to be planned.

    Attributes
    ----------
    n, m, k
        Order or columns of the matrix; its rows where they differ, and the inner length or number
        of vectors where there is one. `None` where not given.
    rhs
        Right-hand sides.
    dtype
        Type of the arithmetic and of the result.
    memory_bytes
        Budget.
    options
        What else a verb knows, by the names of its function's arguments.
    seconds
        Predicts the time of a cost, where the plan depends on it.
    disk
        Says how reads of the disk grow.
    stored
        Type of the matrix on disk, if that is another.
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
        """Look up an option."""
        self._asked.add(name)
        return self.options.get(name, default)

    def refuse_unasked(self) -> None:
        """Refuse options that the planner has not looked up."""
        if unknown := sorted(self.options.keys() - self._asked):
            known = ", ".join(sorted(self._asked)) or "none"
            raise InvalidError(f"this plan has no option {unknown[0]!r}; those it has: {known}")

    @property
    def on_disk(self) -> np.dtype[Any]:
        """Type of the matrix on disk."""
        return self.stored or self.dtype

    def needed(self, name: str) -> int:
        """Look up `m` or `k`, which this verb cannot do without."""
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
        Type in which the arithmetic is done.
    bytes_read, bytes_written
        Exact.
    flops
        Real operations.
    gemm_flops
        The same, each kind of operation weighted by how much slower than a large matrix product it
        is; `None` if all are as fast.
    other_seconds
        Work at the speed of the memory: row swaps, norms.
    requests
        Short requests, of which each takes time however few bytes it is for.
    ends_read_bytes, ends_written_bytes
        What is moved before the arithmetic can begin, and after its end.
    workers
        Threads that compute at most; `None` for as many as there are.
    slowdown
        Share of the shorter of disk and arithmetic that is not hidden behind the longer: the disk
        gives less while all cores compute, and these compute less while it moves bytes.
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

    def compute_seconds(self, rates: Rates) -> float:
        """Time of the arithmetic alone, at the measured speed of matrix products."""
        work = self.flops if self.gemm_flops is None else self.gemm_flops
        idle = 1.0 if self.workers is None else max(rates.threads / self.workers, 1.0)
        return idle * work / rates.gemm_flops_s[self.dtype.name] + self.other_seconds

    def io_seconds(self, rates: Rates) -> float:
        """Time of the disk alone."""
        moving = self.bytes_read / rates.read_bytes_s + self.bytes_written / rates.write_bytes_s
        return moving + self.requests * rates.request_s

    def seconds(self, rates: Rates) -> float:
        """Time with the overlap that is expected."""
        io_cpu = (self.bytes_read + self.bytes_written) * _IO_CPU_S_PER_BYTE
        io_cpu += self.requests * _REQUEST_CPU_S
        ends = self.ends_read_bytes / rates.read_bytes_s
        ends += self.ends_written_bytes / rates.write_bytes_s
        compute, io = self.compute_seconds(rates) + io_cpu, self.io_seconds(rates)
        return max(compute, io) + self.slowdown * min(compute, io) + ends


@dataclass(frozen=True)
class Cost:
    """What a call costs.

    Attributes
    ----------
    method
        How it will be done, for people.
    peak_memory_bytes
        The most that the call takes from its budget.
    disk_bytes
        Disk space for results and temporary files.
    words_lower_bound
        Least words that any algorithm must move with this memory; `None` if not known.
    phases
        Parts of the call, one after the other.
    """

    method: str
    peak_memory_bytes: int
    disk_bytes: int
    words_lower_bound: float | None
    phases: tuple[Phase, ...]

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
        """Time of all phases, one after the other."""
        return sum(phase.seconds(rates) for phase in self.phases)


Planner: TypeAlias = Callable[[Problem], Cost]


def flop_weight(dtype: np.dtype[Any]) -> int:
    """Real operations for one of this type: 4 for complex, as LAPACK counts."""
    return 4 if dtype.kind == "c" else 1
