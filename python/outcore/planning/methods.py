"""A comparison of the methods that solve A x = b, by planned time."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from outcore._util import budget
from outcore._util.counts import count_of
from outcore._util.sizes import format_bytes, format_seconds
from outcore.errors import BudgetError
from outcore.layout.zarr_format import check_dtype, default_chunks
from outcore.linalg._tiles.cost import SWEEPS
from outcore.machine.rates import Rates, stored_or_measured
from outcore.planning.plan import Plan, plan
from outcore.storage.volumes import PathLike


class _Way(NamedTuple):
    """One method for A x = b: a verb that has a plan, with options."""

    name: str
    verb: str
    needs: str
    options: dict[str, Any]
    steps: str = ""
    """Name of the option for the number of steps."""
    rival: str = "LU"
    """The direct method for the same systems."""


ANY = "any"

_WAYS = (
    _Way("LU", "solve", ANY, {}),
    _Way(
        "LU in single precision, refined",
        "solve",
        "of a condition below 1e7",
        {"factor_dtype": "single"},
    ),
    _Way("Cholesky", "solve", "positive definite", {"assume_a": "pos"}),
    _Way("Gauss-Seidel", "gauss_seidel", "positive definite, or diagonally dominant", {}, "sweeps"),
    _Way("Jacobi", "jacobi", "diagonally dominant", {}, "sweeps"),
    _Way("CG", "cg", "positive definite", {}, "iterations", "Cholesky"),
    _Way("GMRES", "gmres", "any for which it converges", {}, "iterations"),
)
"""One entry for each method. Methods without a planner are left out.

"Positive definite" includes Hermitian.
"""

COMPARABLE = ("solve", *dict.fromkeys(way.verb for way in _WAYS if way.steps), "lu", "cholesky")
"""Verbs that solve A x = b, or do most of the work."""


@dataclass(frozen=True)
class MethodPlan:
    """One method for a system, and its plan.

    Attributes
    ----------
    name
        Name of the method.
    needs
        Property that A must have.
    plan
        The plan of the method.
    steps
        Planned sweeps or iterations; `None` for a direct method.
    steps_to_win
        Approximate number of steps that take as long as the direct method for the same systems;
        `None` if that method does not fit into this memory.
    """

    name: str
    needs: str
    plan: Plan
    steps: int | None = None
    steps_to_win: int | None = None


@dataclass(frozen=True)
class MethodComparison:
    """Methods for a system, fastest first; print it for a table.

    Attributes
    ----------
    n, dtype, rhs
        Order and type of the matrix, and number of right-hand sides.
    memory_bytes
        The memory budget.
    methods
        The methods that fit into the memory, fastest first.
    refused
        Name of each method that does not fit, and the reason.
    order, chunks
        Layout of the matrix on disk.
    notes
        Remarks of the plans.
    """

    n: int
    dtype: str
    rhs: int
    memory_bytes: int
    methods: tuple[MethodPlan, ...]
    refused: dict[str, str]
    order: str
    chunks: tuple[int, ...]
    notes: list[str]

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain values, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        head = ("method", "time", "read", "write", "disk", "for A that is", "faster up to")
        rows = [head, *map(_row, self.methods)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        sides = "<>>>><>"
        table = [
            "  ".join(
                f"{text:{side}{width}}"
                for text, side, width in zip(row, sides, widths, strict=True)
            )
            for row in rows
        ]
        columns = f"{self.rhs} right-hand side" + "s" * (self.rhs != 1)
        title = (
            f"A x = b, n = {self.n}, {self.dtype}, order {self.order}, chunks of "
            f"{' x '.join(map(str, self.chunks))}, {columns}, "
            f"{format_bytes(self.memory_bytes)} of memory"
        )
        lines = [title, *(f"  {line.rstrip()}" for line in table)]
        lines += [f"  {name}: {why}" for name, why in self.refused.items()]
        lines.append(f"  fastest: {'; '.join(self._winners())}")
        if any(method.steps for method in self.methods):
            lines.append(
                "  how many steps a method needs depends on A; up to as many as said, it is faster "
                "than the\n  direct method for the same systems"
            )
        return "\n".join([*lines, *(f"  {note}" for note in self.notes)])

    def _winners(self) -> Iterator[str]:
        """Yield the fastest method overall, the fastest direct one, and the fastest for any A."""
        direct = [method for method in self.methods if not method.steps]
        sure = [method for method in direct if method.needs == ANY]
        yield _name(self.methods[0])
        if direct and direct[0] is not self.methods[0]:
            yield f"without steps: {_name(direct[0])}"
        if sure and sure[0] is not direct[0]:
            yield f"for any A: {_name(sure[0])}"


def _name(method: MethodPlan) -> str:
    return method.name + (f", {method.steps} steps" if method.steps else "")


def _row(method: MethodPlan) -> tuple[str, ...]:
    found = method.plan
    win = "" if method.steps_to_win is None else f"{method.steps_to_win} steps"
    sizes = (found.bytes_read, found.bytes_written, found.disk_bytes)
    return (
        _name(method), format_seconds(found.seconds), *map(format_bytes, sizes),
        method.needs, win,
    )  # fmt: skip


def compare_methods(
    *,
    n: int,
    dtype: npt.DTypeLike = "f8",
    memory: int | str | None = None,
    path: PathLike = ".",
    rhs: int = 1,
    order: str = "C",
    chunks: Sequence[int] | None = None,
    steps: int = SWEEPS,
    rates: Rates | None = None,
) -> MethodComparison:
    """Plan every method that solves A x = b, and order them by time.

    Every plan assumes the same matrix, in its layout on disk.

    Parameters
    ----------
    n, dtype, memory, path, rhs, rates
        As in `plan`.
    order, chunks
        Layout of the matrix; by default that of `create_array`. Factorizations are fastest with
        ``order="F"``.
    steps
        Planned sweeps or iterations of iterative methods. The number that they need depends on the
        matrix, so the comparison also reports the number of steps up to which each is faster than a
        direct method.

    Returns
    -------
    MethodComparison
        Print it for a table; ``.methods[0].plan`` is the plan of the fastest method.

    Raises
    ------
    InvalidError
        For an unknown order or type.
    BudgetError
        If no method fits into the memory.
    """
    kind = check_dtype(dtype)
    n, rhs, steps = count_of("n", n), count_of("rhs", rhs), count_of("steps", steps)
    known = rates or stored_or_measured(path)
    memory_bytes = budget.resolve(memory)
    lying = default_chunks((n, n), kind.itemsize, order) if chunks is None else chunks
    plans: dict[str, Plan] = {}
    refused: dict[str, str] = {}
    for way in _WAYS:
        options = _options_of(way, kind, steps)
        if options is None:
            continue
        try:
            plans[way.name] = plan(
                way.verb, n=n, dtype=kind, memory=memory_bytes, path=path, rhs=rhs, rates=known,
                order=order, chunks=lying, **options,
            )  # fmt: skip
        except BudgetError as error:
            refused[way.name] = str(error)
    if not plans:
        raise BudgetError(next(iter(refused.values())))
    methods = [
        MethodPlan(
            way.name, way.needs, plans[way.name], steps if way.steps else None,
            _steps_to_win(plans[way.name], plans.get(way.rival), steps) if way.steps else None,
        )
        for way in _WAYS
        if way.name in plans
    ]  # fmt: skip
    methods.sort(key=lambda method: method.plan.seconds)
    return MethodComparison(
        n, kind.name, rhs, memory_bytes, tuple(methods), refused, order, tuple(lying), known.notes
    )


def _options_of(way: _Way, dtype: np.dtype[Any], steps: int) -> dict[str, Any] | None:
    """Complete the options of a method; `None` if the method does not exist for this type."""
    if way.options.get("factor_dtype") == "single":
        single = {"float64": "f4", "complex128": "c8"}.get(dtype.name)
        return {"factor_dtype": single} if single else None
    return way.options | ({way.steps: steps} if way.steps else {})


def _steps_to_win(iterative: Plan, direct: Plan | None, steps: int) -> int | None:
    """Scale the planned steps to the time of a direct method.

    The estimate takes the time as proportional to the steps. It is off by the few passes over A
    that the method makes once.
    """
    return None if direct is None else int(steps * direct.seconds / iterative.seconds)
