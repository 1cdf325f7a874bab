"""Iterative methods on matrices larger than their budget with a known inverse."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import outcore as oc
from outcore.linalg import cg, gauss_seidel, gmres, jacobi

N, RHO, MEMORY = 1300, 0.3, 3 << 20


def inverse_times(b: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Multiply by the inverse of RHO^|i-j| (Kac, Murdock & Szegő 1953), which is tridiagonal."""
    x = b * (1 + RHO**2)
    x[0], x[-1] = b[0], b[-1]
    x[1:] -= RHO * b[:-1]
    x[:-1] -= RHO * b[1:]
    return x / (1 - RHO**2)


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(
    ("method", "options"),
    [
        (gauss_seidel, {}),
        (gauss_seidel, {"direction": "symmetric"}),
        (gauss_seidel, {"pin": None}),
        (jacobi, {}),
        (cg, {}),
        (gmres, {"restart": 10}),
    ],
    ids=["sweeps", "symmetric", "nothing pinned", "jacobi", "cg", "gmres"],
)
def test_the_tridiagonal_inverse(
    tmp_path: Path, method: Any, options: dict[str, Any], order: str
) -> None:
    """A matrix of 13.5 MB and a budget of less than a quarter of it."""

    def fill(rows: slice, cols: slice) -> npt.NDArray[np.float64]:
        i, j = np.ogrid[rows, cols]
        return RHO ** np.abs(i - j).astype(float)

    A = oc.create_array(
        tmp_path / "A", (N, N), order=order, chunks=(128, 128), fill=fill, progress=False
    )
    b = np.random.default_rng(0).standard_normal((N, 2))
    x, report = method(A, b, memory=MEMORY, tol=1e-13, progress=False, **options)
    np.testing.assert_allclose(x, inverse_times(b), rtol=1e-10, atol=1e-10)
    assert report.peak_memory_bytes <= MEMORY < A.nbytes / 4
    assert report.bytes_read > A.nbytes
