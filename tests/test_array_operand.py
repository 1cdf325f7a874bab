"""Arrays on disk as NumPy operands: products by blocks, lazy transposes, warnings about loads."""

import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.linalg
from chosen_cases import examples
from hypothesis import given
from hypothesis import strategies as st
from served_pools import above, in_memory
from strategies import values

import outcore as oc
from outcore._util import budget
from outcore.array.array import Array
from outcore.errors import InvalidError, LargeLoadWarning
from outcore.linalg._products import matmul as products

__all__ = ["above"]  # a fixture

DTYPES = ["f4", "f8", "c8", "c16"]


def stored(path: Any, model: npt.NDArray[Any], order: str = "C") -> oc.Array:
    array = oc.create_array(path, model.shape, model.dtype, order=order)
    array[...] = model
    return array


@pytest.fixture
def never_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where a test indexes or loads an array."""
    monkeypatch.setattr(Array, "__getitem__", lambda *_: pytest.fail("the array was loaded"))


@pytest.mark.usefixtures("never_loaded")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("order", ["C", "F"])
def test_products_go_by_blocks(above: Any, dtype: str, order: str) -> None:
    model = values((30, 20), dtype)
    A = stored(above / "A", model, order)
    tolerance = {"rtol": 1e-4, "atol": 1e-4} if dtype in ("f4", "c8") else {"rtol": 1e-12}
    x, X = values((20,), dtype, 1), values((20, 3), dtype, 2)
    y, Y = values((30,), dtype, 3), values((4, 30), dtype, 4)
    for found, expected in [
        (A @ x, model @ x),
        (A @ X, model @ X),
        (A @ X.tolist(), model @ X.tolist()),
        (y @ A, y @ model),
        (Y @ A, Y @ model),
        (np.matmul(A, X), model @ X),
        (np.matmul(Y, A), Y @ model),
        (A.T @ y, model.T @ y),
        (x @ A.T, x @ model.T),
        (X.T @ A.T, X.T @ model.T),
        (A.T.T @ x, model @ x),
        (list(y) @ A, y @ model),
    ]:
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        np.testing.assert_allclose(found, expected, **tolerance)


def test_products_take_the_default_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A matrix larger than the budget is multiplied without a warning, as by `matmul`."""
    model = values((700, 500), "f8")
    A = stored(tmp_path / "A", model, "F")
    monkeypatch.setattr(budget, "available_bytes", lambda: 4_000_000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_allclose(A @ np.ones(500), model @ np.ones(500), rtol=1e-10)
    report = oc.last_report()
    assert report.verb == "matmul"
    assert report.peak_memory_bytes <= 2_000_000 < A.nbytes


def test_two_arrays_on_disk_are_refused(tmp_path: Path) -> None:
    A = stored(tmp_path / "A", np.eye(4))
    for left, right in [(A, A), (A.T, A), (A, A.T)]:
        with pytest.raises(InvalidError, match=r"/A .*; call oc\.linalg\.matmul\(A, B, out=PATH\)"):
            left @ right
        with pytest.raises(InvalidError, match="one operand"):
            np.matmul(left, right)
        np.testing.assert_array_equal(oc.linalg.matmul(left, right), np.eye(4))


def test_products_that_do_not_fit(tmp_path: Path) -> None:
    A = stored(tmp_path / "A", np.eye(4))
    with pytest.raises(InvalidError, match="4 x 4"):
        A @ np.ones(5)
    with pytest.raises(TypeError):
        A @ "text"
    with pytest.raises(InvalidError, match="need an operand"):
        A @ [[1.0], [2.0, 3.0]]


@pytest.mark.parametrize(("shape", "dtype"), [((3, 4), "i8"), ((2, 3, 4), "f8"), ((3, 4), "f2")])
def test_products_that_blas_has_not_are_numpys(tmp_path: Path, shape: Any, dtype: str) -> None:
    model = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    A, x = stored(tmp_path / "A", model), np.arange(4).astype(dtype)
    found, expected = A @ x, model @ x
    assert (found.dtype, found.tolist()) == (expected.dtype, expected.tolist())


@examples(50)
@given(st.data())
def test_a_transpose_is_indexed_as_numpys(data: st.DataObject) -> None:
    model = values((5, 7), "i4")
    index = st.integers(-7, 6) | st.slices(7) | st.just(Ellipsis)
    key = data.draw(index | st.tuples(index) | st.tuples(index, st.integers(-5, 4) | st.slices(5)))
    with in_memory() as above:
        T = stored(above / "A", model).T
        try:
            expected = model.T[key]
        except IndexError:
            with pytest.raises(IndexError):
                T[key]
            return
        np.testing.assert_array_equal(T[key], expected)
        assert np.shape(T[key]) == expected.shape


def test_what_a_transpose_is(tmp_path: Path) -> None:
    model = values((5, 7), "c16")
    A = stored(tmp_path / "A", model)
    T = A.T
    assert (T.shape, T.ndim, T.size, T.nbytes, len(T)) == ((7, 5), 2, 35, 560, 7)
    assert T.dtype == model.dtype
    assert T.T is A
    assert "A (5, 7)" in repr(T)
    np.testing.assert_array_equal(np.asarray(T), model.T)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(T))[...], model.T)
    vector = stored(tmp_path / "v", np.arange(3.0))
    assert vector.T is vector
    with pytest.raises(InvalidError, match="need a matrix to transpose"):
        _ = stored(tmp_path / "B", np.zeros((2, 2, 2))).T
    for key in [(0, 0, 0), (7, 0), (slice(None), 5)]:
        with pytest.raises(IndexError):
            T[key]


@pytest.mark.parametrize("dtype", ["f8", "c16"])
@pytest.mark.parametrize("lower", [False, True])
def test_solvers_and_copies_take_a_transpose(tmp_path: Path, dtype: str, lower: bool) -> None:
    model = values((20, 20), dtype) + 20 * np.eye(20)
    b = values((20, 2), dtype, 1)
    A = stored(tmp_path / "A", model, "F")
    for trans in (0, 1, 2):
        np.testing.assert_allclose(
            oc.linalg.solve_triangular(A.T, b, trans=trans, lower=lower),
            scipy.linalg.solve_triangular(model.T, b, trans=trans, lower=lower),
            rtol=1e-12,
        )
        op = [model.T, model, model.conj()][trans]
        np.testing.assert_allclose(oc.linalg.matmul(A.T, b, trans_a=trans), op @ b, rtol=1e-12)
        np.testing.assert_allclose(oc.linalg.matmul(b.T, A.T, trans_b=trans), b.T @ op, rtol=1e-12)
    np.testing.assert_array_equal(oc.from_array(A.T, tmp_path / "T", progress=False)[...], model.T)
    gram, _ = oc.linalg.gram(A.T)
    np.testing.assert_allclose(gram, model.conj() @ model.T, rtol=1e-12)


LOADS = {
    "asarray": np.asarray,
    "sum": np.sum,
    "ufunc": lambda A: np.ones(A.shape) + A,
    "dot": lambda A: np.dot(A, np.ones(A.shape[-1])),
    "transpose": lambda A: np.asarray(A.T),
    "linalg": np.linalg.norm,
}


@pytest.mark.parametrize("how", LOADS)
def test_loads_larger_than_the_default_budget_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    model = values((600, 500), "f8")
    A = stored(tmp_path / "A", model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_allclose(LOADS[how](A), LOADS[how](model))
        monkeypatch.setattr(budget, "available_bytes", lambda: 4_000_000)
        assert A[...].shape == (600, 500)  # explicit
    with pytest.warns(LargeLoadWarning, match=r"need 2.29 MiB .*A.*1.91 MiB; read parts"):
        LOADS[how](A)


def test_a_ufunc_cannot_write_to_an_array(tmp_path: Path) -> None:
    A = stored(tmp_path / "A", np.ones((3, 3)))
    with pytest.raises(TypeError):
        np.add(np.ones((3, 3)), 1, out=A)
    assert products.matmul(A, np.ones(3)).tolist() == [3, 3, 3]
