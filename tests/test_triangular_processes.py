"""Triangular systems by several processes of MPI, against SciPy and their plan."""

from pathlib import Path

import numpy as np
import pytest
from test_matmul_processes import BY_COLUMN, BY_ROW, MEMORY, run

import outcore as oc
from outcore.linalg._products.triangular_plan import TriangularSystem, triangular_geometry
from outcore.linalg._tiles.grains import Grains

SOLVED = """
import scipy.linalg
from outcore.linalg import solve_triangular

for number, (n, k, types, trans, lower, layouts, memory) in enumerate(options["cases"]):
    t = random(n, n, types[0]) / n + 2 * np.eye(n, dtype=types[0])
    b = random(n, k or 1, types[1], 2)
    b = b[:, 0] if k is None else b
    T = put(f"T{number}", t.astype(types[0]), **layouts[0])
    B = put(f"B{number}", b, **layouts[1]) if layouts[1] else b
    right = scipy.linalg.solve_triangular(t, b, lower=lower, trans=trans)
    X = solve_triangular(
        T, B, trans=trans, lower=lower, memory=memory + 5000 * rank, out=f"{home}/X{number}", **SAME
    )
    found = X[...]
    limit = 1e3 * np.finfo(found.dtype).eps * np.abs(right).max()
    assert found.dtype == right.dtype and np.abs(found - right).max() <= limit, number
    counted(X.report, whole_pages=(k or 1) >= 16)

# All processes raise LAPACK's info. Only one has the column of B with a NaN.
S = put("S", np.triu(random(64, 64, "f8") + 20 * np.eye(64)) * (np.arange(64) != 40), order="F")
b = np.ones((64, 32))
for bad in (S, put("R", np.eye(64), order="F")):
    b[3, 30] = np.nan if bad is not S else 1
    text = raised(OutcoreError, lambda: solve_triangular(bad, b, out=f"{home}/Y", **SAME))
    assert ("T[40, 40] is exactly zero" if bad is S else "B[3, 30] is nan") in text, text
comm.barrier()
assert not Path(home, "Y").exists()
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("size", [3, 1, 2, 4])
def test_solutions_are_those_of_scipy(tmp_path: Path, size: int) -> None:
    cases = [
        (128, 96, ("f8", "f8"), 0, False, (BY_COLUMN, BY_COLUMN), 120_000),
        (127, 65, ("f4", "f4"), 1, False, (BY_ROW, BY_COLUMN), 100_000),
        (129, 97, ("c16", "c16"), 2, True, (BY_ROW, BY_ROW), 250_000),
        (65, 64, ("c8", "c8"), 0, True, (BY_COLUMN, BY_ROW), 120_000),
        (97, 16, ("f8", "f8"), 1, True, (BY_COLUMN, None), 120_000),
        (33, 2, ("f8", "f8"), 0, False, (BY_COLUMN, BY_COLUMN), 120_000),
        (33, None, ("f8", "f8"), 0, False, (BY_COLUMN, None), 120_000),
    ]
    run(tmp_path, size, SOLVED, cases=cases)


@pytest.mark.exhaustive(keep=0)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_systems_of_orders_by_a_boundary(tmp_path: Path, size: int) -> None:
    """The order and the number of columns are multiples of those of chunks, or one off."""
    cases = [
        (128 + n, 64 + k, (dtype, dtype), 0, n > 0, (BY_COLUMN, BY_COLUMN), memory)
        for dtype, memory in MEMORY.items()
        for n, k in ((0, 0), (1, 1), (-1, -1), (1, -1), (-1, 0), (0, 1))
    ]
    run(tmp_path, size, SOLVED, cases=cases)


def test_parts_of_a_solution() -> None:
    """Each column of X belongs to one process, which has as many groups as the others."""
    b = Grains.of((32, 16), "C", 8)
    for n, rhs in ((500, 400), (64, 3), (65, 1)):
        shape = (n, rhs)
        system = TriangularSystem(n, rhs, np.dtype("f8"), b, b, True, shape, is_stored=True)
        for size in (1, 2, 3, 7):
            dealt = [triangular_geometry(system, 400_000, size, rank) for rank in range(size)]
            columns = sorted(j for g in dealt for group in g.groups() for j in range(rhs)[group])
            assert columns == list(range(rhs))
            assert len({len(g.groups()) for g in dealt}) == 1
            assert max(g.memory_bytes for g in dealt) <= 400_000
            read = sum(g.triangle_read()[0] for g in dealt)
            assert read == dealt[0].passes * dealt[0].triangle_bytes()


def test_plans_of_several_processes() -> None:
    one, two = (
        oc.plan("solve_triangular", n=20_000, rhs=20_000, memory=memory, processes=processes)
        for processes, memory in ((1, "400 MB"), (2, "200 MB"))
    )
    assert two.bytes_read < 0.7 * one.bytes_read
    assert two.bytes_sent > 0 == one.bytes_sent
