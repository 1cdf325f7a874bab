"""Invalid arguments of iterative methods, refused before any read of A."""

import inspect
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from iterative_cases import DTYPES, kms, on_disk, random
from linpack import names_below, one_thread

import outcore as oc
from outcore.errors import InvalidError
from outcore.linalg import cg, gauss_seidel, gmres, jacobi, lu_factor

__all__ = ["one_thread"]  # a fixture for every test here

N = 96
METHODS = [gauss_seidel, jacobi, cg, gmres]


@pytest.fixture
def untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if the call reads the matrix."""

    def opened(*_: object) -> None:
        raise AssertionError("it was opened")

    monkeypatch.setattr("outcore.linalg.iterative.opening.Iteration", opened)


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        *(
            ("omega", value, "omega must be (between 0 and 2|positive).*, have ")
            for value in ("1", None, 1 + 0j, np.ones(2), True, np.nan, [1.0], 0, -1)
        ),
        *(
            ("pin", value, "pin must be 'auto', None or a fraction from 0 to 1, have ")
            for value in ([0.5], np.ones(2), "all", True, 0.5j, 1.5, np.nan)
        ),
        ("tol", np.ones(2), "tol must be a number"),
        ("tol", "1e-3", "tol must be a number"),
        ("block", [32], "block must be an integer"),
        ("storage", np.ones(2), "storage must be None or 'f4'"),
    ],
)
def test_values_of_another_type(
    tmp_path: Path, method: Any, option: str, value: Any, message: str
) -> None:
    A = on_disk(tmp_path / "A", kms(N))
    with pytest.raises(InvalidError, match=message):
        method(A, np.ones(N), progress=False, **{option: value})


def test_names_that_are_arrays(tmp_path: Path) -> None:
    A = on_disk(tmp_path / "A", kms(N))
    for method, option in (
        (gauss_seidel, "direction"), (gauss_seidel, "assume_a"), (cg, "preconditioner"),
        (gmres, "preconditioner"), (jacobi, "assume_a"),
    ):  # fmt: skip
        with pytest.raises(InvalidError, match=f"{option} must be"):
            method(A, np.ones(N), progress=False, **{option: np.ones(2)})


@pytest.mark.parametrize("method", METHODS)
def test_numbers_of_numpy_will_do(tmp_path: Path, method: Any) -> None:
    A = on_disk(tmp_path / "A", kms(N))
    x, _ = method(A, np.ones(N), omega=np.float32(1), pin=np.float64(0.5), progress=False)
    np.testing.assert_allclose(kms(N) @ x, np.ones(N), atol=1e-3)


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_that_are_none_are_found_first(tmp_path: Path, method: Any, dtype: str) -> None:
    """Bad numbers in the last column, and in a complex right-hand side of a real matrix."""
    A = on_disk(tmp_path / "A", kms(N).astype(dtype))
    for bad, kind in ((np.nan, dtype), (np.inf, dtype), (complex(0, np.nan), "c16")):
        b = random((N, 3), kind, 1)
        b[70, 2] = bad
        with pytest.raises(InvalidError, match=r"the right-hand side has a NaN.* in row 70"):
            method(A, b, progress=False)
        with pytest.raises(InvalidError, match="x0 has a NaN or an infinity"):
            method(A, np.ones((N, 3), kind), x0=b, progress=False)
    if np.dtype(dtype).itemsize == np.dtype(dtype).alignment == 4:
        with pytest.raises(InvalidError, match="a number too large for float32"):
            method(A, np.full(N, 1e300), dtype="f4", progress=False)


@pytest.mark.usefixtures("untouched")
def test_saved_factors_that_do_not_fit_are_refused_first(tmp_path: Path) -> None:
    A = on_disk(tmp_path / "A", kms(N))
    small = lu_factor(on_disk(tmp_path / "B", kms(32), "F"), progress=False)
    with pytest.raises(InvalidError, match="need factors of order 96 for float64, have order 32"):
        gmres(A, np.ones(N), preconditioner=small, storage="f4", progress=False)


def test_what_is_wrong_on_disk_is_found_with_its_group(tmp_path: Path) -> None:
    A = on_disk(tmp_path / "A", kms(N))
    b = np.ones(N)
    b[5] = np.nan
    B = oc.from_array(b, tmp_path / "b", progress=False)
    before = names_below(tmp_path)
    with pytest.raises(InvalidError, match="in row 5"):
        cg(A, B, out=tmp_path / "x", progress=False)
    assert names_below(tmp_path) == before


@pytest.mark.parametrize("method", METHODS)
def test_each_method_shows_and_names_all_arguments(method: Any) -> None:
    shown = inspect.signature(method).parameters
    assert {"tol", "block", "pin", "memory", "out", "resume", "progress"} <= shown.keys()
    assert not any(each.kind is each.VAR_KEYWORD for each in shown.values())
    assert (shown["tol"].default, shown["if_exists"].default) == (1e-5, "error")
    about = inspect.getdoc(method)
    assert about
    described = about[about.index("Parameters") : about.index("Returns")]
    assert {name for name in shown if not re.search(rf"\b{name}\b", described)} == set()
    with pytest.raises(TypeError, match="unexpected keyword argument 'tolerance'"):
        method("A", np.ones(N), tolerance=1)
