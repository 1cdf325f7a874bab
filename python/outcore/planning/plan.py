"""The resources and the time of a call, before it starts: ``oc.plan("lu", n=..., memory=...)``."""

from __future__ import annotations

import dataclasses
import functools
import json
import shutil
from dataclasses import dataclass, field
from typing import Any, Literal, overload

import numpy as np
import numpy.typing as npt

from outcore._util import budget
from outcore._util.counts import count_of
from outcore._util.sizes import format_bytes, format_seconds
from outcore.errors import BudgetError, DiskFullError, InvalidError
from outcore.layout.zarr_format import check_dtype
from outcore.linalg._tiles.cost import Cost, Problem
from outcore.machine.machine import nearest_directory
from outcore.machine.rates import Rates, stored_or_measured
from outcore.planning.collective_plan import VERBS as COLLECTIVE_VERBS
from outcore.planning.collective_plan import CollectivePlan, plan_collective
from outcore.planning.permute_plan import PermutePlan, plan_permute
from outcore.planning.relayout_plan import RelayoutPlan, plan_rechunk
from outcore.report.report import over_the_least
from outcore.storage.pool_path import PoolPath
from outcore.storage.volumes import PathLike, as_path

_OBLONG = ("qr", "qr_factor", "form_q", "qr_solve", "lstsq", "gram", "svd", "matmul")
"""Verbs that accept a matrix that is not square: they have ``m=``."""

_INNER = ("matmul", "svd")
"""Verbs that have ``k=``."""


_SOLVES = ("solve", "lu_solve", "cho_solve")
"""Verbs whose processes divide the right-hand sides."""


@dataclass(frozen=True)
class Plan:
    """The resources and the time that a call will need.

    Attributes
    ----------
    verb, n, dtype, method, path
        The planned operation, its method, and the directory of its files.
    m, k
        Rows of a matrix that is not square; inner length of a product, or number of vectors.
    memory_bytes, peak_memory_bytes
        The budget, and the largest amount that the call will use of it.
    disk_bytes
        Disk space for the factors, beyond the matrix.
    bytes_read, bytes_written
        Bytes that the call will move. They are exact for a matrix with ``order="F"`` and default
        chunks whose order is a multiple of the tile's rows; otherwise a ragged edge adds a few. On
        disks they are exact for LU by slabs, Cholesky and QR in any layout.
    words_lower_bound
        Least number of words that any algorithm must move with this memory; `None` if unknown.
    flops
        Real operations.
    compute_seconds, io_seconds, seconds
        Time of the arithmetic, time of the disk, and time of both with the expected overlap, at the
        rates measured on this machine.
    notes
        Remarks, such as the order from which lower precision pays.
    processes, bytes_sent, network_seconds
        Number of processes. If there are several, bytes, memory and times are those of the process
        that moves most, `bytes_sent` are those that it sends, and `network_seconds` is the time of
        the network alone.
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
    processes: int = 1
    bytes_sent: int = 0
    network_seconds: float = 0.0

    @property
    def bound(self) -> str:
        """The part that takes the longest: ``"arithmetic"``, ``"disk"`` or ``"network"``."""
        seconds = {
            "arithmetic": self.compute_seconds, "disk": self.io_seconds,
            "network": self.network_seconds,
        }  # fmt: skip
        return max(seconds, key=lambda name: seconds[name])

    def validate(self) -> Plan:
        """Return the plan if memory and disk suffice.

        Raises
        ------
        BudgetError
            If the machine, or a control group, has too little memory.
        DiskFullError
            If the disk has too little free space.
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
        """One line: time, bytes, memory, disk; of several processes also the bound."""
        if self.processes > 1:
            by = self.bound if self.bound == "arithmetic" else f"the {self.bound}"
            return (
                f"plan: about {format_seconds(self.seconds)}, bound by {by}; each of "
                f"{self.processes} processes reads up to {format_bytes(self.bytes_read)}, writes "
                f"{format_bytes(self.bytes_written)} and sends {format_bytes(self.bytes_sent)}, "
                f"with {format_bytes(self.peak_memory_bytes)} of memory; "
                f"{format_bytes(self.disk_bytes)} of disk in {self.path}"
            )
        return (
            f"plan: about {format_seconds(self.seconds)}, reading {format_bytes(self.bytes_read)} "
            f"and writing {format_bytes(self.bytes_written)}, with "
            f"{format_bytes(self.peak_memory_bytes)} of memory and {format_bytes(self.disk_bytes)} "
            f"of disk in {self.path}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain values, for JSON."""
        return dataclasses.asdict(self) | {"bound": self.bound}

    def to_json(self) -> str:
        """Return the figures as JSON text."""
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
        network = ""
        if self.processes > 1:
            rows.insert(1, ("processes", f"{self.processes}; figures of the one that moves most"))
            rows.append(("send", format_bytes(self.bytes_sent)))
            network = f", network {format_seconds(self.network_seconds)}"
        rows.append(
            (
                "time",
                f"{format_seconds(self.seconds)} (arithmetic "
                f"{format_seconds(self.compute_seconds)}, disk "
                f"{format_seconds(self.io_seconds)}{network}, overlapped)",
            )
        )
        if self.processes > 1:
            rows.append(("bound", self.bound))
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
    verb: Literal["rechunk"],
    *,
    source: Any,
    dtype: npt.DTypeLike | None = ...,
    memory: int | str | None = ...,
    path: PathLike | None = ...,
    rates: Rates | None = ...,
    **options: Any,
) -> RelayoutPlan: ...


@overload
def plan(
    verb: Literal["permute"],
    *,
    source: Any,
    memory: int | str | None = ...,
    path: PathLike | None = ...,
    rates: Rates | None = ...,
    **options: Any,
) -> PermutePlan: ...


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
    dtype: npt.DTypeLike | None = None,
    compute_dtype: npt.DTypeLike | None = None,
    memory: int | str | None = None,
    path: PathLike | None = None,
    rhs: int = 1,
    rates: Rates | None = None,
    **options: Any,
) -> Plan | CollectivePlan | PermutePlan | RelayoutPlan:
    """Plan a call: disk, memory, words moved and time, without allocating anything.

    Parameters
    ----------
    verb
        The operation: the name of the function, such as ``"solve"`` or ``"lu_factor"``. ``"lu"`` is
        short for ``"lu_factor"``, and ``"cholesky"`` for ``"cho_factor"``.
    n, dtype
        Order and element type of the matrix, by default ``"f8"``. For a matrix that is not square,
        `n` is its number of columns.
    compute_dtype
        Type of the arithmetic, if it differs from that of the matrix: the type that the matrix and
        the right-hand sides promote to, or ``dtype=`` of the call.
    m, k
        Rows of a matrix that is not square; inner length of a product, or number of vectors.
    memory
        Budget; by default half of the available memory.
    path
        Directory of the factors; by default the current one.
    rhs
        Number of right-hand sides.
    options
        Other arguments of the function that affect its cost, such as ``overwrite_a=True`` of
        ``"lu"``, and the layout of the matrix on disk, as ``order=`` and ``chunks=``. By default
        the plan assumes the layout that suits the verb: default chunks, in order F for
        factorizations, `solve` and products, and in order C for iterative methods and those that
        read rows. `create_array` has order C by default: pass ``order="C"`` for an array that it
        made. Operands of ``"matmul"`` that differ have ``order_a=``, ``chunks_a=``, ``order_b=``,
        ``chunks_b=``. Operations on existing factors take ``tile=``; by default they use the tile
        that the same budget yields. `gram`, `lstsq`, `qr` and `svd` take ``out=True`` for a result
        on disk. `lstsq` also takes ``weights=True``, ``damp=`` and ``keep_r=True``. Iterative
        methods take ``out=`` for a solution on disk, and ``b=`` for right-hand sides on disk or of
        another type. ``"gauss_seidel"``, ``"lu"``, ``"cholesky"``, ``"solve"``,
        ``"lu_solve"``, ``"cho_solve"``, ``"cond_est"``, ``"matmul"``, ``"solve_triangular"``,
        ``"gram"``, ``"lstsq"``, ``"qr"`` and ``"svd"`` take ``processes=``: then bytes and time are
        those of the process that moves most, and memory is per process. They also take
        ``link=``, the rate of each process's network link, such as ``"1 GB/s"`` or
        ``"10 Gbit/s"``; without `link`
        the network takes no time. Each process has a machine and a disk of its own.
        ``"write_all"`` and ``"read_all"`` take
        ``array=`` (an `Array`, its path, or an `ArraySpec`), ``schema=`` and ``processes=`` instead
        of a matrix,
        and ``skip_disk=`` as in the call. For an array that does not exist yet, ``path=`` is its
        directory, and ``servers=`` the number of I/O servers, by default all. ``"rechunk"`` takes
        ``source=``, and the new array as ``path=``, with the arguments of `rechunk` that describe
        both, instead of a matrix. So does ``"permute"``, with those of `permute`.
    rates
        Rates to plan with; by default those stored for this machine and disk. If there are none,
        outcore measures them in about two seconds. Where it cannot measure, as in a directory
        without write permission, the rates are nominal, and a note of the plan says so.

    Returns
    -------
    Plan, CollectivePlan, PermutePlan or RelayoutPlan
        Print it. ``.validate()`` of a `Plan` raises the errors of too little memory or disk now.

    Raises
    ------
    BudgetError
        If even the narrowest slab exceeds the budget.
    InvalidError
        For an unknown verb, order or type.
    """
    if verb in COLLECTIVE_VERBS:
        return plan_collective(verb, path=path, rates=rates, **options)
    if verb == "permute":
        return plan_permute(path=path, memory=memory, rates=rates, **options)
    if verb == "rechunk":
        return plan_rechunk(path=path, dtype=dtype, memory=memory, rates=rates, **options)
    # Imported here, not at the top: these modules import SciPy, which takes longer than all the
    # rest.
    from outcore.linalg._planners.planners import FUNCTIONS, PLANNERS
    from outcore.linalg._systems.plan import solve_notes
    from outcore.linalg._tiles.assumptions import assumption
    from outcore.linalg._tiles.result_dtype import result_dtype, work_dtype

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
    kind = check_dtype("f8" if dtype is None else dtype)
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
            raise InvalidError(
                f"compute_dtype={computed_in} cannot hold {kind} elements; use 'c16'"
            )
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
        processes=cost.processes,
        bytes_sent=cost.bytes_sent,
        network_seconds=sum(part.network_seconds for part in cost.phases),
        notes=(
            (solve_notes(problem, seconds) if verb == "solve" else [])
            + (_without_columns(rhs, cost.processes) if verb in _SOLVES else [])
            + ([f"A, in {kind}, is converted as it is read"] if kind != computed_in else [])
            + known.notes
        ),
    )


def _without_columns(rhs: int, processes: int) -> list[str]:
    """Say how many processes of a solve have no right-hand side."""
    if processes <= rhs:
        return []
    idle = processes - rhs
    return [
        f"the processes divide the right-hand sides: {idle} of {processes} have none, and only "
        "read and send the factors"
    ]
