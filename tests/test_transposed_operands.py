"""A lazy transpose in every verb of `oc.linalg`, against NumPy and a transpose on disk."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.linalg
from chosen_cases import examples
from definite import definite
from hypothesis import given
from hypothesis import strategies as st
from served_pools import above, in_memory
from stopping import stop_after
from strategies import values

import outcore as oc
from outcore import linalg
from outcore.errors import ExistsError, InvalidError, JournalError
from outcore.report.report import Report

__all__ = ["above"]  # a fixture

N, M = 40, 15
Matrix = npt.NDArray[Any]
QUIET: dict[str, Any] = {"progress": False}


def general(dtype: str) -> Matrix:
    return values((N, N), dtype) + N * np.eye(N, dtype=dtype)


def right(columns: int = 2) -> Matrix:
    return values((N, columns), "f8", 7)


def stored(path: Any, model: Matrix, order: str) -> oc.Array:
    chunks = (16, 8) if order == "F" else (8, 16)
    array = oc.create_array(path, model.shape, model.dtype, order=order, chunks=chunks)
    array[...] = model
    return array


def _lu(A: oc.Array, out: Any, **options: Any) -> Any:
    lu = linalg.lu_factor(A, out=out, **options, **QUIET)
    condition, _ = linalg.cond_est(lu, norm=np.inf, **QUIET)
    assert condition == pytest.approx(np.linalg.cond(A[...], np.inf), rel=0.5)
    return linalg.lu_solve(lu, right(), **QUIET), lu.report


def _lu_by(method: Any) -> Callable[[oc.Array, Any], Any]:
    return lambda A, out: _lu(A, out, method=method, memory="200 KiB")


def _cholesky(A: oc.Array, out: Any, **options: Any) -> Any:
    c = linalg.cho_factor(A, out=out, **options, **QUIET)
    return linalg.cho_solve(c, right(), **QUIET), c.report


def _solve(**options: Any) -> Callable[[oc.Array, Any], Any]:
    return lambda A, out: linalg.solve(A, right(), factors=out, **options, **QUIET)


def _iterate(method: str, **options: Any) -> Callable[[oc.Array, Any], Any]:
    options = {"tol": 1e-12} | options
    return lambda A, out: getattr(linalg, method)(A, right(), **options, **QUIET)


def _last(found: Any) -> Any:
    return found, oc.last_report()


def _qr(A: oc.Array, out: Any) -> Any:
    qr = linalg.qr_factor(A, out=out, **QUIET)
    return linalg.qr_solve(qr, right(), **QUIET), qr.report


def _form_q(A: oc.Array, out: Any) -> Any:
    Q, R, report = linalg.qr(A, mode="economic", out=out, **QUIET)
    return Q[...] @ R, report


def _svd(A: oc.Array, out: Any) -> Any:
    found = linalg.svd(A, k=M, **QUIET)
    return found[1], found[-1]


def _slogdet(A: oc.Array, out: Any) -> Any:
    found = linalg.slogdet(A, factors=out, **QUIET)
    return np.array(list(found)), found.report


SQUARE: dict[str, tuple[Callable[[oc.Array, Any], Any], Callable[[Matrix], Any]]] = {
    "lu": (_lu, lambda a: np.linalg.solve(a, right())),
    "block-columns": (_lu_by("block-columns"), lambda a: np.linalg.solve(a, right())),
    "tournament": (_lu_by("tournament"), lambda a: np.linalg.solve(a, right())),
    "solve": (_solve(condition=True), lambda a: np.linalg.solve(a, right())),
    "qr_factor": (_qr, lambda a: np.linalg.solve(a, right())),
    "slogdet": (_slogdet, lambda a: np.array(np.linalg.slogdet(a))),
    "jacobi": (_iterate("jacobi"), lambda a: np.linalg.solve(a, right())),
    "gmres": (_iterate("gmres"), lambda a: np.linalg.solve(a, right())),
    "gauss_seidel": (_iterate("gauss_seidel"), lambda a: np.linalg.solve(a, right())),
    "matmul": (
        lambda A, out: _last(linalg.matmul(A, right(), trans_a="C")),
        lambda a: a.conj().T @ right(),
    ),
    "solve_triangular": (
        lambda A, out: _last(linalg.solve_triangular(A, right(), lower=True)),
        lambda a: scipy.linalg.solve_triangular(a, right(), lower=True),
    ),
    "gram": (lambda A, out: linalg.gram(A, **QUIET), lambda a: a.conj().T @ a),
}

POSITIVE = {
    "lower": _cholesky,
    "upper": lambda A, out: _cholesky(A, out, lower=False),
    "pos": _solve(assume_a="pos"),
    "auto": _solve(assume_a="auto"),
    "cg": _iterate("cg"),
}

OBLONG: dict[str, tuple[Callable[[oc.Array, Any], Any], Callable[[Matrix], Any]]] = {
    "qr_factor": (_qr, lambda a: np.linalg.lstsq(a, right())[0]),
    "qr": (_form_q, lambda a: a),
    "svd": (_svd, lambda a: np.linalg.svd(a)[1]),
    "lstsq": (
        lambda A, out: _last(linalg.lstsq(A, right(), **QUIET)[0]),
        lambda a: np.linalg.lstsq(a, right())[0],
    ),
}


def assert_as_if_stored(
    place: Any, call: Callable[[oc.Array, Any], Any], model: Matrix, order: str, expected: Any
) -> None:
    """Check a call against NumPy, and its I/O against that of the transpose stored on disk."""
    A = stored(place / "A", np.ascontiguousarray(model.T), order)
    B = stored(place / "B", model, "C" if order == "F" else "F")
    assert A.T.chunks == B.chunks
    found, report = call(A.T, place / "of-A")
    _, same = call(B, place / "of-B")
    np.testing.assert_allclose(found, expected(model), rtol=1e-8, atol=1e-8)
    assert isinstance(report, Report)
    for name in ("bytes_read", "bytes_written", "planned_bytes_read", "planned_bytes_written"):
        assert getattr(report, name) == getattr(same, name), name
    np.testing.assert_array_equal(A[...], model.T)


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("name", SQUARE)
def test_square_matrices(above: Any, name: str, order: str) -> None:
    call, expected = SQUARE[name]
    dtype = "c16" if order == "C" else "f8"
    assert_as_if_stored(above, call, general(dtype), order, expected)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("name", POSITIVE)
def test_positive_definite_matrices(above: Any, name: str, order: str) -> None:
    """Use a complex matrix, which differs from its transpose."""
    model = definite(N, "c16")
    call = POSITIVE[name]
    assert_as_if_stored(above, call, model, order, lambda a: np.linalg.solve(a, right()))


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("name", OBLONG)
def test_tall_matrices(tmp_path: Path, name: str, order: str) -> None:
    call, expected = OBLONG[name]
    assert_as_if_stored(tmp_path, call, values((N, M), "f8"), order, expected)


def test_types_are_promoted_and_chosen(tmp_path: Path) -> None:
    """Solve a single-precision matrix with a double right-hand side, and with `factor_dtype`."""
    model = general("f4")
    A = stored(tmp_path / "A", model, "F")
    x, report = linalg.solve(A.T, right(), **QUIET)
    assert (x.dtype, report.dtype) == (np.dtype("f8"), "float64")
    np.testing.assert_allclose(x, np.linalg.solve(model.T.astype("f8"), right()), rtol=1e-10)
    D = stored(tmp_path / "D", model.astype("f8"), "C")
    x, report = linalg.solve(D.T, right(), factor_dtype="f4", **QUIET)
    np.testing.assert_allclose(x, np.linalg.solve(model.T.astype("f8"), right()), rtol=1e-10)
    assert report.backward_error < 1e-15
    B = stored(tmp_path / "B", np.ascontiguousarray(right().T), "C")
    x, _ = linalg.solve(D, B.T, **QUIET)
    np.testing.assert_allclose(x[...], np.linalg.solve(model.astype("f8"), right()), rtol=1e-10)
    assert x.path == tmp_path / "B.T.x"


def test_a_run_with_a_matrix_is_not_resumed_with_its_transpose(tmp_path: Path) -> None:
    model = values((200, 200), "f8") + 20 * np.eye(200)
    A = stored(tmp_path / "A", model, "F")
    options: dict[str, Any] = {"memory": 200_000, "threads": 1, "out": tmp_path / "F"}
    for one, other in [(A, A.T), (A.T, A)]:
        stop_after(2, one, **options)
        with pytest.raises(JournalError, match=r"holds a stopped factorization of .*, not of "):
            linalg.lu_factor(other, **options, **QUIET)
        lu = linalg.lu_factor(one, **options, **QUIET)
        assert lu.report is not None
        assert "resumed at panel" in lu.report.notes[0]
        with pytest.raises(ExistsError, match=r"holds factors of .*, not of "):
            linalg.lu_factor(other, **options, if_exists="open", **QUIET)
        assert linalg.lu_factor(one, **options, if_exists="open", **QUIET).report == lu.report
        expected = np.linalg.solve(one[...], np.ones(200))
        np.testing.assert_allclose(linalg.lu_solve(lu, np.ones(200)), expected, rtol=1e-9)
        lu.path.rename(tmp_path / f"of {one is A}")


def test_results_of_a_matrix_are_not_opened_for_its_transpose(tmp_path: Path) -> None:
    A = stored(tmp_path / "A", general("f8"), "F")
    for name, call in {
        "P": lambda A, out: linalg.matmul(A, right(), out=out, if_exists="open"),
        "S": lambda A, out: linalg.gmres(A, right(), out=out, if_exists="open", **QUIET),
    }.items():
        call(A.T, tmp_path / name)
        call(A.T, tmp_path / name)
        with pytest.raises(ExistsError, match="the transpose of"):
            call(A, tmp_path / name)
    linalg.lu_factor(A, **QUIET)
    linalg.lu_factor(A.T, **QUIET)
    assert {each.name for each in tmp_path.iterdir()} >= {"A.lu", "A.T.lu"}


@pytest.mark.parametrize("call", [linalg.lu_factor, linalg.cho_factor, linalg.qr_factor])
def test_a_matrix_is_not_given_up_to_factors_of_its_transpose(
    tmp_path: Path, call: Callable[..., Any]
) -> None:
    model = definite(N, "f8")
    A = oc.from_array(model, tmp_path / "A", order="C", **QUIET)
    with pytest.raises(InvalidError, match="needs the matrix itself, have the transpose of"):
        call(A.T, overwrite_a=True)
    with pytest.raises(InvalidError, match="needs the matrix itself"):
        linalg.solve(A.T, right(), assume_a="pos", overwrite_a=True, **QUIET)
    np.testing.assert_array_equal(A[...], model)


def test_a_matrix_that_was_written_to_is_factored_again(tmp_path: Path) -> None:
    A = stored(tmp_path / "A", general("f8"), "F")
    lu = linalg.lu_factor(A.T, **QUIET)
    A[0, 1] += 1
    with pytest.raises(InvalidError, match="has changed"):
        linalg.cond_est(lu, norm=np.inf)
    with pytest.raises(ExistsError, match="as it was before"):
        linalg.lu_factor(A.T, if_exists="open", **QUIET)


@examples(40)
@given(st.data())
def test_chunks_of_a_transpose_are_found_where_they_lie(data: st.DataObject) -> None:
    """Read chunks in any order, in one file or in one file per step."""
    shape = (data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9)))
    chunks = tuple(data.draw(st.integers(1, n)) for n in shape)
    order = data.draw(st.sampled_from("CF"))
    chunk_order = data.draw(st.sampled_from(["row-major", "column-major", "hilbert", "z-order"]))
    growing = data.draw(st.booleans())
    model = values(shape, "f8")
    with in_memory() as directory:
        A = oc.create_array(
            directory / "A", (0, shape[1]) if growing else shape, order=order,
            chunks=(1, chunks[1]) if growing else chunks, chunk_order=chunk_order, growing=growing,
        )  # fmt: skip
        T = A.T
        if growing:
            A.append(model)
        else:
            A[...] = model
        assert T.shape == shape[::-1]
        np.testing.assert_array_equal(T[...], model.T)
        seen = np.zeros(T.shape)
        for box, block in T.stream():
            np.testing.assert_array_equal(block, model.T[box])
            seen[box] += 1
        assert (seen == 1).all()
        np.testing.assert_array_equal(linalg.matmul(T, np.eye(shape[0])), model.T)
        np.testing.assert_array_equal(oc.from_array(T, directory / "B", **QUIET)[...], model.T)


def test_a_transpose_is_closed_with_its_matrix_and_not_written_to(tmp_path: Path) -> None:
    A = stored(tmp_path / "A", general("f8"), "F")
    T = A.T
    with pytest.raises(oc.errors.ReadOnlyError):
        T[0, 0] = 1
    with pytest.raises(InvalidError, match=r"read_all needs an array, have the <transpose of"):
        T.read_all(None, "*,*")
    A.close()
    with pytest.raises(oc.errors.ClosedError):
        T[0, 0]
