"""What a call will need and take, before it starts: ``oc.plan("lu", n=..., memory=...)``."""

import dataclasses
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from outcore import budget
from outcore.errors import BudgetError, DiskFullError, InvalidError
from outcore.linalg.lu_plan import LuGeometry, flops, lu_geometry, panel_flops, update_flops
from outcore.linalg.lu_solve import solve_bytes_read
from outcore.machine import nearest_directory
from outcore.rates import Rates, stored_or_measured
from outcore.sizes import format_bytes, format_seconds
from outcore.volumes import PathLike
from outcore.zarr_format import check_dtype

VERBS = ("lu", "solve")

# Shares of the speed of a large matrix product that the other steps of LU reach, measured with
# OpenBLAS 0.3.30; they are a twentieth of the operations, so they need not be exact.
_PANEL_SHARE = 0.40
_TRIANGLE_SHARE = 0.35

# Seconds per byte: a row swap moves each element of a slab once per row of L, at random; norms and
# extremes read A and U once each.
_SWAP_S_PER_BYTE = 0.6e-9
_SCAN_S_PER_BYTE = 0.15e-9

# Processor time of moving a byte by direct I/O. The BLAS splits its work evenly over the cores, so
# all of them wait for the one that does it.
_IO_CPU_S_PER_BYTE = 0.06e-9


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
        order is a multiple of the tile's rows, else a few more for the ragged edge.
    words_lower_bound
        Least words that any algorithm must move with this memory.
    flops
        Real operations.
    compute_seconds, io_seconds, seconds
        Arithmetic alone, disk alone, and both with the overlap that is expected, at the rates that
        were measured on this machine.
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
    words_lower_bound: float
    flops: float
    compute_seconds: float
    io_seconds: float
    seconds: float

    def validate(self) -> "Plan":
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
        free = shutil.disk_usage(nearest_directory(Path(self.path))).free
        if self.disk_bytes > free:
            raise DiskFullError(
                f"need {self.disk_bytes} bytes ({format_bytes(self.disk_bytes)}) on disk for the "
                f"factors in {self.path}, {free} ({format_bytes(free)}) are free; free some room, "
                "choose another directory, or pass overwrite_a=True"
            )
        return self

    def to_dict(self) -> dict[str, Any]:
        """Figures as plain values, for JSON."""
        return dataclasses.asdict(self)

    def to_json(self) -> str:
        """Figures as JSON text."""
        return json.dumps(self.to_dict(), indent=2)

    def __str__(self) -> str:
        words = (self.bytes_read + self.bytes_written) / np.dtype(self.dtype).itemsize
        rows = [
            ("method", self.method),
            (
                "memory",
                f"{format_bytes(self.peak_memory_bytes)} of {format_bytes(self.memory_bytes)}",
            ),
            (
                "disk",
                f"{format_bytes(self.disk_bytes)} in {self.path} for the factors, beside the "
                f"matrix of {format_bytes(self.n**2 * np.dtype(self.dtype).itemsize)}",
            ),
            ("read", format_bytes(self.bytes_read)),
            ("write", format_bytes(self.bytes_written)),
            ("words moved", f"{words / self.words_lower_bound:.2f} x the lower bound"),
            (
                "time",
                f"{format_seconds(self.seconds)} (arithmetic "
                f"{format_seconds(self.compute_seconds)}, disk "
                f"{format_seconds(self.io_seconds)}, overlapped)",
            ),
        ]
        title = f"plan: {self.verb}, n = {self.n}, {self.dtype}"
        return "\n".join([title, *(f"  {name:<12} {text}" for name, text in rows)])


def plan(
    verb: str,
    *,
    n: int,
    dtype: npt.DTypeLike = "f8",
    memory: int | str | None = None,
    path: PathLike = ".",
    rhs: int = 1,
    overwrite_a: bool = False,
    rates: Rates | None = None,
) -> Plan:
    """Plan a call: disk, memory, words moved and time, without allocating anything.

    Parameters
    ----------
    verb
        ``"lu"``, or ``"solve"`` (LU, substitution and the residual).
    n, dtype
        Order and element type of the matrix.
    memory
        Budget; by default half of the available memory.
    path
        Directory in which the factors will be.
    rhs
        Right-hand sides of ``"solve"``.
    overwrite_a
        Whether the factors will take the space of the matrix.
    rates
        Rates to plan with; by default those kept for this machine and disk, measured in about two
        seconds if there are none.

    Returns
    -------
    Plan
        Print it, or call ``.validate()`` to be refused now rather than later.

    Raises
    ------
    BudgetError
        If not even the narrowest slab fits into the budget.
    InvalidError
        For an unusable verb, order or type.
    """
    if verb not in VERBS:
        raise InvalidError(f"there is a plan for {' and '.join(VERBS)}, not for {verb!r}")
    kind = check_dtype(dtype)
    g = lu_geometry(n, kind, budget.resolve(memory))
    known = rates or stored_or_measured(path)
    read = g.matrix_bytes_read() + g.factor_bytes_read()
    written = g.factor_bytes_written()
    operations = flops(n, kind)
    rate = known.gemm_flops_s[kind.name]
    compute = _lu_compute_seconds(g, rate)
    io_cpu = (read + written) * _IO_CPU_S_PER_BYTE
    io = read / known.read_bytes_s + written / known.write_bytes_s
    # The first slab must be read before, and the last written after, everything else.
    panel = g.height * g.columns * kind.itemsize
    ends = panel * g.slab_panels / known.read_bytes_s + panel / known.write_bytes_s
    seconds = max(compute + io_cpu, io) + ends
    if verb == "solve":
        # A pass over L and one over U, then one over A for the residual.
        extra = solve_bytes_read(n, kind, (g.rows, g.columns)) + n * n * kind.itemsize
        substitution = 3 * operations / n * rhs * 2
        read += extra
        io += extra / known.read_bytes_s
        compute += substitution / rate
        operations += substitution
        seconds += max(extra / known.read_bytes_s, substitution / rate)
    disk = g.tile_bytes * g.tiles * (g.slab_panels if overwrite_a else g.panels)
    return Plan(
        verb=verb,
        n=n,
        dtype=kind.name,
        method=f"slabs of {g.slab_panels * g.columns} columns ({len(g.slabs())} of them), tiles of "
        f"{g.rows} x {g.columns}",
        path=str(path),
        memory_bytes=g.budget_bytes,
        peak_memory_bytes=g.memory_bytes,
        disk_bytes=disk,
        bytes_read=read,
        bytes_written=written,
        words_lower_bound=g.words_lower_bound(),
        flops=operations,
        compute_seconds=compute,
        io_seconds=io,
        seconds=seconds,
    )


def _lu_compute_seconds(g: LuGeometry, rate: float) -> float:
    """Time of LU's arithmetic, given the speed of its matrix products."""
    weight = 4 if g.dtype.kind == "c" else 1
    panels = triangles = products = swaps = 0.0
    for K in range(g.panels):
        k = min(g.columns, g.n - K * g.columns)
        right = g.n - K * g.columns - k
        panels += panel_flops(g, K)
        triangles += weight * k**2 * right
        products += (update_flops(g, K) - weight * k**2) * right
        swaps += k * right
    seconds = (panels / _PANEL_SHARE + triangles / _TRIANGLE_SHARE + products) / rate
    itemsize = g.dtype.itemsize
    return seconds + swaps * itemsize * _SWAP_S_PER_BYTE + 2 * g.n**2 * itemsize * _SCAN_S_PER_BYTE
