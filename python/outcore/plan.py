"""What a call will need and take, before it starts: ``oc.plan("lu", n=..., memory=...)``."""

from __future__ import annotations

import dataclasses
import functools
import json
import shutil
from dataclasses import dataclass, field
from typing import Any, Literal, overload

import numpy as np
import numpy.typing as npt

from outcore import budget
from outcore.collective_plan import VERBS as COLLECTIVE_VERBS
from outcore.collective_plan import CollectivePlan, plan_collective
from outcore.counts import count_of
from outcore.errors import BudgetError, DiskFullError, InvalidError
from outcore.linalg.cost import Cost, Problem
from outcore.machine import nearest_directory
from outcore.pool_path import PoolPath
from outcore.rates import Rates, stored_or_measured
from outcore.report import over_the_least
from outcore.sizes import format_bytes, format_seconds
from outcore.volumes import PathLike, as_path
from outcore.zarr_format import check_dtype

_OBLONG = ("qr", "qr_factor", "form_q", "qr_solve", "lstsq", "gram", "svd", "matmul")
"""Verbs whose matrix need not be square: they have ``m=``."""

_INNER = ("matmul", "svd")
"""Verbs that have ``k=``."""


@dataclass(frozen=True)
class Plan:
    """What a call will need and take.

    Attributes
    ----------
    verb, n, dtype, method, path
        What is planned, how it will be done, and where the files go.
    memory_bytes, peak_memory_bytes
        The budget, and the most that will be taken from it.
    disk_bytes
        Disk space for the factors, beyond the matrix.
    bytes_read, bytes_written
        Bytes that will be moved: exact for a matrix with ``order="F"`` and default chunks whose
        order is a multiple of the tile's rows, else a few more for the ragged edge. Of LU by slabs,
        Cholesky and QR exact for any layout, on disks.
    words_lower_bound
        Least words that any algorithm must move with this memory; `None` if not known.
    flops
        Real operations.
    compute_seconds, io_seconds, seconds
        Arithmetic alone, disk alone, and both with the overlap that is expected, at the rates that
        were measured on this machine.
    notes
        What the reader should know, such as from which order lower precision pays.
    """

    verb: str
    n: int
    dtype: str
    method: str
    path: str
    memory_bytes: int
    peak_memory_bytes: int
    disk_bytes: int
    bytes_read: int
    bytes_written: int
    words_lower_bound: float | None
    flops: float
    compute_seconds: float
    io_seconds: float
    seconds: float
    m: int | None = None
    k: int | None = None
    notes: list[str] = field(default_factory=list)

    def validate(self) -> Plan:
        """Return the plan if memory and disk suffice.

        Raises
        ------
        BudgetError
            If the machine, or a control group, does not have the memory.
        DiskFullError
            If the disk does not have the space.
        """
        available = budget.available_bytes()
        if self.peak_memory_bytes > available:
            raise BudgetError(
                f"need {format_bytes(self.peak_memory_bytes)} of memory, "
                f"{format_bytes(available)} are available; choose a smaller memory="
            )
        path = as_path(self.path)
        if isinstance(path, PoolPath):
            free = path.root.volume.free_bytes()
        else:
            free = shutil.disk_usage(nearest_directory(path)).free
        if self.disk_bytes > free:
            raise DiskFullError(
                f"need {self.disk_bytes} bytes ({format_bytes(self.disk_bytes)}) on disk for the "
                f"results in {self.path}, {free} ({format_bytes(free)}) are free; free some room, "
                "choose another directory, or pass overwrite_a=True where there is one"
            )
        return self

    @property
    def summary(self) -> str:
        """One line: time, bytes, memory, disk."""
        return (
            f"plan: about {format_seconds(self.seconds)}, reading {format_bytes(self.bytes_read)} "
            f"and writing {format_bytes(self.bytes_written)}, with "
            f"{format_bytes(self.peak_memory_bytes)} of memory and {format_bytes(self.disk_bytes)} "
            f"of disk in {self.path}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Figures as plain values, for JSON."""
        return dataclasses.asdict(self)

    def to_json(self) -> str:
        """Figures as JSON text."""
        return json.dumps(self.to_dict(), indent=2)

    def __str__(self) -> str:
        itemsize = np.dtype(self.dtype).itemsize
        words = (self.bytes_read + self.bytes_written) / itemsize
        rows = [
            ("method", self.method),
            (
                "memory",
                f"{format_bytes(self.peak_memory_bytes)} of {format_bytes(self.memory_bytes)}",
            ),
            (
                "disk",
                f"{format_bytes(self.disk_bytes)} in {self.path} for results, beside the "
                f"matrix of {format_bytes((self.m or self.n) * self.n * itemsize)}",
            ),
            ("read", format_bytes(self.bytes_read)),
            ("write", format_bytes(self.bytes_written)),
        ]
        if self.words_lower_bound:
            rows.append(("words moved", over_the_least(words, self.words_lower_bound)))
        rows.append(
            (
                "time",
                f"{format_seconds(self.seconds)} (arithmetic "
                f"{format_seconds(self.compute_seconds)}, disk "
                f"{format_seconds(self.io_seconds)}, overlapped)",
            )
        )
        rows += [("note", note) for note in self.notes]
        rows_of = f"m = {self.m}, " if self.m else ""
        title = f"plan: {self.verb}, {rows_of}n = {self.n}, {self.dtype}"
        return "\n".join([title, *(f"  {name:<12} {text}" for name, text in rows)])


@overload
def plan(
    verb: Literal["write_all", "read_all"],
    *,
    rates: Rates | None = ...,
    **options: Any,
) -> CollectivePlan: ...


@overload
def plan(
    verb: str,
    *,
    n: int,
    m: int | None = ...,
    k: int | None = ...,
    dtype: npt.DTypeLike = ...,
    memory: int | str | None = ...,
    path: PathLike = ...,
    rhs: int = ...,
    rates: Rates | None = ...,
    **options: Any,
) -> Plan: ...


def plan(
    verb: str,
    *,
    n: int | None = None,
    m: int | None = None,
    k: int | None = None,
    dtype: npt.DTypeLike = "f8",
    compute_dtype: npt.DTypeLike | None = None,
    memory: int | str | None = None,
    path: PathLike | None = None,
    rhs: int = 1,
    rates: Rates | None = None,
    **options: Any,
) -> Plan | CollectivePlan:
    """Plan a call: disk, memory, words moved and time, without allocating anything.

    Parameters
    ----------
    verb
        What is to be done: the name of the function, such as ``"solve"`` or ``"lu_factor"``, of
        which ``"lu"`` will do, as ``"cholesky"`` will for ``"cho_factor"``.
    n, dtype
        Order (of one that is not square: columns) and element type of the matrix.
    compute_dtype
        Type of the arithmetic, where it is another than that of the matrix: that which the matrix
        and the right-hand sides promote to, or ``dtype=`` of the call.
    m, k
        Rows of a matrix that is not square; inner length, or number of vectors.
    memory
        Budget; by default half of the available memory.
    path
        Directory in which the factors will be; by default the current one.
    rhs
        Right-hand sides.
    options
        Further arguments of the function that matter, such as ``overwrite_a=True`` of ``"lu"``;
        and how the matrix lies on disk, as ``order=`` and ``chunks=``. Without these it lies as its
        verb likes it: with default chunks, in order F for factorizations, `solve` and products, in
        order C for iterative methods and those that read rows. `create_array` has order C unless
        told otherwise: plan with ``order="C"`` for what it made. Operands of ``"matmul"`` that
        differ have ``order_a=``, ``chunks_a=``, ``order_b=``, ``chunks_b=``. What is done with
        factors takes ``tile=``; without it they are those that the same budget makes.
        `gram`, `lstsq`, `qr` and `svd` take ``out=True`` for a result on disk. `lstsq` takes
        ``weights=True``, ``damp=`` and ``keep_r=True``, too. Iterative methods
        take ``out=`` for a solution there, and right-hand sides on disk or of another type as
        ``b=``. ``"gauss_seidel"`` takes ``processes=``: then bytes and
        time are of the process that reads most, and memory is of each.
        ``"write_all"`` and ``"read_all"`` take ``array=``, ``schema=`` and ``processes=`` instead
        of a matrix, ``skip_disk=`` as of the call, and ``path=`` and ``servers=`` for an array that
        is not there yet; see `outcore.collective_plan.plan_collective`.
    rates
        Rates to plan with; by default those kept for this machine and disk, measured in about two
        seconds if there are none. Where they cannot be measured, as in a directory that cannot be
        written to, they are nominal, and the plan has a note on it.

    Returns
    -------
    Plan or CollectivePlan
        Print it, or call ``.validate()`` of a `Plan` to be refused now rather than later.

    Raises
    ------
    BudgetError
        If not even the narrowest slab fits into the budget.
    InvalidError
        For an unusable verb, order or type.
    """
    if verb in COLLECTIVE_VERBS:
        return plan_collective(verb, path=path, rates=rates, **options)
    # Here, and not above: they bring SciPy, which takes longer to import than all the rest.
    from outcore.linalg.assumptions import assumption
    from outcore.linalg.planners import FUNCTIONS, PLANNERS
    from outcore.linalg.result_dtype import result_dtype, work_dtype
    from outcore.linalg.systems.plan import solve_notes

    verb = FUNCTIONS.get(verb, verb)
    if verb not in PLANNERS:
        raise InvalidError(f"there is a plan for {' and '.join(PLANNERS)}, not for {verb!r}")
    if n is None:
        raise InvalidError(f"need n=, the order of the matrix, to plan {verb!r}, have none")
    n, rhs = count_of("n", n), count_of("rhs", rhs)
    m = None if m is None else count_of("m", m)
    k = None if k is None else count_of("k", k)
    if m not in (None, n) and verb not in _OBLONG:
        raise InvalidError(f"the matrix of {verb!r} is square: need m= as n={n}, or none, have {m}")
    if k is not None and verb not in _INNER:
        raise InvalidError(f"the plan of {verb!r} has no k=, have {k}; leave it out")
    kind = check_dtype(dtype)
    path = "." if path is None else path
    found = functools.cache(lambda: rates or stored_or_measured(path))

    def seconds(cost: Cost) -> float:
        return cost.seconds(found())

    if "assume_a" in options:
        options["assume_a"] = assumption(options["assume_a"])
    computed_in = work_dtype("the matrix", kind)
    if compute_dtype is not None:
        computed_in = result_dtype({"compute_dtype=": compute_dtype})
        if not np.can_cast(kind, computed_in, "same_kind"):
            raise InvalidError(f"compute_dtype={computed_in} cannot hold what is {kind}; use 'c16'")
    problem = Problem(
        n, computed_in, budget.resolve(memory), m, k, rhs, options, seconds,
        lambda: found().reads, None if kind == computed_in else kind,
    )  # fmt: skip
    cost = PLANNERS[verb](problem)
    problem.refuse_unasked()
    known = found()
    return Plan(
        verb=verb,
        n=n,
        dtype=computed_in.name,
        method=cost.method,
        path=str(path),
        memory_bytes=problem.memory_bytes,
        peak_memory_bytes=cost.peak_memory_bytes,
        disk_bytes=cost.disk_bytes,
        bytes_read=cost.bytes_read,
        bytes_written=cost.bytes_written,
        words_lower_bound=cost.words_lower_bound,
        flops=cost.flops,
        compute_seconds=sum(part.compute_seconds(known) for part in cost.phases),
        io_seconds=sum(part.io_seconds(known) for part in cost.phases),
        seconds=seconds(cost),
        m=m,
        k=k,
        notes=(
            (solve_notes(problem, seconds) if verb == "solve" else [])
            + ([f"A, in {kind}, is converted as it is read"] if kind != computed_in else [])
            + known.notes
        ),
    )
