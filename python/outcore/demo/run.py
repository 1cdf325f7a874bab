"""The demonstration: a dense complex system larger than its memory budget, solved and checked.

Acoustic scattering of a plane wave by a sound-soft sphere, by collocation (see
`outcore.demo.sphere`). The matrix is assembled block by block on disk, then factored and solved out
of core in about an eighth of the matrix's memory. The solution is compared with the analytic
partial-wave series.
"""

import contextlib
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outcore._util import budget
from outcore._util.progress import ProgressLike
from outcore._util.sizes import format_bytes, format_seconds
from outcore.array.array import Array
from outcore.array.create import create_array
from outcore.blas import blas_choice
from outcore.demo.pictures import draw_field
from outcore.demo.sphere import SphereProblem
from outcore.errors import InvalidError
from outcore.layout.zarr_format import default_chunks
from outcore.linalg._systems.solve import solve
from outcore.machine.machine import usable_cores
from outcore.planning.plan import Plan, plan
from outcore.report.report import Report
from outcore.timeline import draw_timeline

BUDGET_SHARE = 8
"""The default budget is this fraction of the matrix."""

LEVELS = range(6)


@dataclass(frozen=True)
class DemoResult:
    """The result of the demonstration.

    ``surface_error`` and ``far_field_error`` are relative 2-norms of the difference from the
    analytic series: of the normal derivative of the field on the sphere, and of the far field.
    """

    level: int
    n: int
    wave_number: float
    surface_error: float
    far_field_error: float
    assembly_seconds: float
    plan: Plan
    report: Report
    field_picture: Path
    timeline_picture: Path

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain values, for JSON."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return values | {
            "plan": self.plan.to_dict(),
            "report": self.report.to_dict(),
            "field_picture": str(self.field_picture),
            "timeline_picture": str(self.timeline_picture),
        }


def run_demo(
    level: int = 4,
    *,
    directory: Path | None = None,
    memory: int | str | None = None,
    output: Path = Path("demo-out"),
    progress: ProgressLike = True,
    say: Callable[[str], None] = print,
) -> DemoResult:
    """Assemble, plan, solve, check, and draw.

    Parameters
    ----------
    level
        Subdivisions of the icosahedron, 0 to 5: n = 20·4^level unknowns.
    directory
        Directory of the matrix and its factors; by default a directory below `output`. A stopped
        call leaves its files there for the next one; a complete call removes them.
    memory
        Budget; by default an eighth of the matrix, at least 1 MiB.
    output
        Directory for the pictures.
    progress, say
        Whether to show progress, and the function for lines of text.
    """
    if level not in LEVELS:
        raise InvalidError(f"level must be from 0 to {LEVELS[-1]}, have {level!r}")
    problem = SphereProblem(level)
    n, itemsize = problem.n, 16
    matrix_bytes = n * n * itemsize
    memory_bytes = (
        max(matrix_bytes // BUDGET_SHARE, 1 << 20) if memory is None else budget.resolve(memory)
    )
    work = (directory or output / "work") / f"level{level}"
    work.mkdir(parents=True, exist_ok=True)
    output.mkdir(parents=True, exist_ok=True)
    say(
        f"sphere, wave number {problem.k:g}: n = {n} unknowns, a matrix of "
        f"{format_bytes(matrix_bytes)}, solved in {format_bytes(memory_bytes)}"
    )
    planned = plan("solve", n=n, dtype="c16", memory=memory_bytes, path=work)
    say(str(planned))
    started = time.perf_counter()
    A = _assembled(problem, work / "matrix", memory_bytes, progress)
    assembly_seconds = time.perf_counter() - started
    say(f"assembled in {format_seconds(assembly_seconds)}")
    q, report = solve(A, problem.rhs(), memory=memory_bytes, progress=progress)
    say(str(report))
    surface, far = problem.surface_error(q), problem.far_field_error(q)
    say(f"against the analytic series: surface error {surface:.2e}, far-field error {far:.2e}")
    field_picture = output / f"field-level{level}.png"
    timeline_picture = output / f"timeline-level{level}.png"
    draw_field(problem, q, field_picture)
    draw_timeline(report, timeline_picture)
    say(f"pictures: {field_picture} and {timeline_picture}")
    A.close()
    shutil.rmtree(work)
    with contextlib.suppress(OSError):
        work.parent.rmdir()
    return DemoResult(
        level=level,
        n=n,
        wave_number=problem.k,
        surface_error=surface,
        far_field_error=far,
        assembly_seconds=assembly_seconds,
        plan=planned,
        report=report,
        field_picture=field_picture,
        timeline_picture=timeline_picture,
    )


def _assembled(
    problem: SphereProblem, path: Path, memory_bytes: int, progress: ProgressLike
) -> Array:
    """Open or resume the matrix of a stopped demonstration, or assemble it."""
    shape, itemsize = (problem.n, problem.n), 16
    rows, columns = default_chunks(shape, itemsize, "F")
    # Two blocks for each thread, and memory for padding those at the edge.
    while 4 * rows * columns * itemsize > memory_bytes and rows > 64:
        rows //= 2
    threads = min(usable_cores(), blas_choice.in_use()[1])
    threads = max(min(threads, memory_bytes // (4 * rows * columns * itemsize)), 1)
    return create_array(
        path, shape, "c16", chunks=(rows, columns), order="F", fill=problem.fill, if_exists="open",
        threads=threads, memory=memory_bytes, progress=progress,
    )  # fmt: skip
