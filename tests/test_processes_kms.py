"""A matrix with known factors, larger than the memory of all processes together."""

from pathlib import Path

import pytest
from test_lu_processes import run

PERMUTED = """
from outcore.linalg import cond_est, slogdet

n, memory = options["n"], options["memory"]
order = np.random.default_rng(n).permutation(n)

def kms(rows, cols):
    return 0.5 ** abs(rows[:, None] - cols)

def fill(rows, cols):
    # Kac, Murdock and Szego, with its rows in another order.
    return kms(order[rows], np.arange(cols.start, cols.stop))

same = SAME | {"memory": memory}
A = oc.create_array(f"{home}/A", (n, n), order="F", fill=fill, fill_id=n, chunks=(128, 32), **same)
assert A.nbytes > comm.size * memory
f = lu_factor(A, **same)
assert len(f.report.processes) == (comm.size if comm.size > 1 else 0)
assert f.report.peak_memory_bytes <= memory and f.growth == 1
for i, swapped in enumerate(f.piv):
    order[[i, swapped]] = order[[swapped, i]]
assert (order == np.arange(n)).all(), "the pivots undo the order"
if comm.rank == 0:
    # L has the powers of 1/2, and U those and the pivots 1, 3/4, 3/4, ...
    i = np.arange(n)
    found, right = export_lapack(f, f"{home}/L", progress=False)[0][...], kms(i, i)
    right[1:] *= np.where(i[1:, None] > i, 1, 0.75)
    assert np.abs(found - right).max() < 1e-14
comm.barrier()
x = lu_solve(f, A[:, 7:9], **same)
x[[7, 8], [0, 1]] -= 1
assert np.abs(x).max() < 1e-13
# Sums of absolute values of a column are below 3 in A, and 3 in its inverse.
assert abs(cond_est(f, **same)[0] - 9) < 1e-6
assert abs(slogdet(f, **same).logabsdet - (n - 1) * np.log(0.75)) < 1e-10
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("size", [3, 1, 2, 4])
def test_a_permuted_matrix_larger_than_all_memory(tmp_path: Path, size: int) -> None:
    run(tmp_path, size, PERMUTED, n=513, memory=2_000_000 // max(size, 2))


@pytest.mark.exhaustive(keep=0)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_a_large_permuted_matrix(tmp_path: Path, size: int) -> None:
    run(tmp_path, size, PERMUTED, n=2049, memory=16_000_000 // size)
