"""Matrices in memory: each function accepts them, or names a function that does."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.linalg

import outcore as oc
from outcore import linalg
from outcore.errors import InvalidError

N = 8
B = np.arange(1.0, N + 1)

WORKS: dict[str, tuple[Any, Any]] = {
    "solve_triangular": (
        lambda A: linalg.solve_triangular(A, B, lower=True),
        lambda a: scipy.linalg.solve_triangular(a, B, lower=True),
    ),
    "lstsq": (lambda A: linalg.lstsq(A, B)[0], lambda a: np.linalg.lstsq(a, B)[0]),
    "gram": (lambda A: linalg.gram(A)[0], lambda a: a.T @ a),
    "qr": (lambda A: abs(linalg.qr(A)[0]), lambda a: abs(np.linalg.qr(a)[1])),
    "svd": (
        lambda A: linalg.svd(A, k=N)[1],
        lambda a: np.linalg.svd(a, compute_uv=False),
    ),
    "matmul": (lambda A: linalg.matmul(A, B), lambda a: a @ B),
}

ON_DISK = {
    "solve": lambda A: linalg.solve(A, B),
    "solve pos": lambda A: linalg.solve(A, B, assume_a="pos"),
    "solve refined": lambda A: linalg.solve(A, B, factor_dtype="f4"),
    "lu_factor": linalg.lu_factor,
    "cho_factor": linalg.cho_factor,
    "qr_factor": linalg.qr_factor,
    "slogdet": linalg.slogdet,
    "cg": lambda A: linalg.cg(A, B),
    "gmres": lambda A: linalg.gmres(A, B),
    "jacobi": lambda A: linalg.jacobi(A, B),
    "gauss_seidel": lambda A: linalg.gauss_seidel(A, B),
}

OF_FACTORS = {
    "lu_solve": lambda A: linalg.lu_solve(A, B),
    "cho_solve": lambda A: linalg.cho_solve(A, B),
    "qr_solve": lambda A: linalg.qr_solve(A, B),
    "cond_est": linalg.cond_est,
    "export_lapack": linalg.export_lapack,
    "form_q": linalg.form_q,
}


def matrix() -> npt.NDArray[np.float64]:
    return np.random.default_rng(0).standard_normal((N, N)) + 9 * np.eye(N)


class OfAnotherLibrary:
    """An array like those of JAX, PyTorch or h5py."""

    shape = (N, N)
    dtype = np.dtype("f8")

    def __array__(self, dtype: Any = None, copy: Any = None) -> npt.NDArray[Any]:
        return matrix()

    def __getitem__(self, key: Any) -> Any:
        return matrix()[key]


GIVEN: list[Any] = [matrix(), matrix().tolist(), OfAnotherLibrary()]


@pytest.mark.parametrize("name", WORKS)
@pytest.mark.parametrize("given", GIVEN, ids=["numpy", "list", "other"])
def test_it_is_computed_with(name: str, given: Any) -> None:
    ours, scipys = WORKS[name]
    np.testing.assert_allclose(ours(given), scipys(matrix()), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", [*ON_DISK, *OF_FACTORS])
@pytest.mark.parametrize("given", [*GIVEN, [[1.0], [1.0, 2.0]]])
def test_it_is_refused_with_what_to_do(name: str, given: Any) -> None:
    call = (ON_DISK | OF_FACTORS)[name]
    with pytest.raises(InvalidError) as refused:
        call(given)
    text = str(refused.value)
    assert text.startswith("need ")
    assert "in memory; " in text
    fix = text.rpartition("; ")[2]
    assert "oc.from_array" in fix
    assert "scipy.linalg" in fix


def test_every_function_is_tried() -> None:
    tried = {name.split()[0] for name in (*WORKS, *ON_DISK, *OF_FACTORS)}
    functions = {name for name in linalg.__all__ if name.islower()}
    assert functions - tried == {"open_factor"}


def test_factors_are_needed_where_a_matrix_on_disk_is_given(tmp_path: Path) -> None:
    A = oc.from_array(matrix(), tmp_path / "A", progress=False)
    for given in (A, A.T, A.path, None):
        with pytest.raises(InvalidError, match=r"have .*; factor a matrix with lu_"):
            linalg.lu_solve(given, B)  # type: ignore[arg-type]


def test_other_places_of_paths_name_what_puts_it_on_disk(tmp_path: Path) -> None:
    A = oc.from_array(matrix(), tmp_path / "A", progress=False)
    for call in (
        oc.open_array,
        linalg.open_factor,
        lambda given: linalg.solve(A, B, out=given, progress=False),
        lambda given: linalg.lu_factor(A, out=given, progress=False),
    ):
        with pytest.raises(InvalidError, match=r"need a path, have ndarray of shape .*from_array"):
            call(matrix())  # type: ignore[operator]
