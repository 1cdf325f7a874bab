"""Solves of several processes whose budget holds few right-hand sides at once."""

from pathlib import Path

import pytest
from test_cholesky_processes import HELPERS
from test_lu_processes import run

GROUPS = """
from outcore.linalg._lu import solve as solve_module

grouped, lengths = solve_module.solve_groups, []

def solve_groups(rhs, into, groups, *more):
    lengths.append(len(groups))
    return grouped(rhs, into, groups, *more)

solve_module.solve_groups = solve_groups
n, k = options["order"], options["columns"]
for kind, dtype, of_b, trans, on_disk, memory in options["cases"]:
    a, x = random(n, dtype) if kind == "lu" else definite(n, dtype), random(n, of_b, 2)
    b = (a if trans == 0 else a.T) @ x[:, :1] * np.arange(1, k + 1)
    A, name = put(f"A{kind}{dtype}{of_b}", a, order="F"), f"{home}/{kind}{dtype}{of_b}"
    B = put(f"B{kind}{dtype}{of_b}", b, order="F") if on_disk else b
    same, more = SAME | {"memory": memory}, {"trans": trans} if kind == "lu" else {}
    f = (lu_factor if kind == "lu" else cho_factor)(A, **same)
    by = lu_solve if kind == "lu" else cho_solve
    X = by(f, B, out=f"{name}.x", **same, **more)
    together = lengths[-1]
    counted(X.report, exactly=False)
    eps = np.finfo(dtype).eps
    if kind == "lu":
        right = scipy.linalg.lu_solve(scipy.linalg.lu_factor(a), b, trans=trans)
    else:
        right = scipy.linalg.cho_solve(scipy.linalg.cho_factor(a, lower=True), b)
    limit = 100 * eps * np.linalg.cond(a) * np.abs(right).max()
    assert X.dtype == right.dtype and X.shape == (n, k)
    assert np.abs(X[...] - right).max() <= limit, (kind, dtype)
    if comm.rank == 0:
        one = by(f, B, out=f"{name}.one", **same | {"comm": None}, **more)
        assert np.abs(X[...] - one[...]).max() <= limit
        assert 2 <= together <= lengths[-1], (together, lengths[-1])
    comm.barrier()
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("size", [3, 2, 4])
def test_groups_of_right_hand_sides(tmp_path: Path, size: int) -> None:
    cases = [
        ("lu", "f8", "f8", 1, True, 300_000),
        ("cho", "c16", "c16", 0, True, 500_000),
        ("lu", "f4", "c16", 0, True, 400_000),
        ("cho", "f4", "f8", 0, False, 300_000),
    ]
    run(tmp_path, size, HELPERS + GROUPS, order=257, columns=401, cases=cases)
