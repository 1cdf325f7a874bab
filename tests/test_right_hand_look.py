"""Checks of right-hand sides on disk before a matrix is factored."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from linpack import names_below, on_disk, one_thread, random_matrix
from tall import tall

import outcore as oc
from outcore.errors import InvalidError, NonFiniteError
from outcore.linalg import lstsq, solve
from outcore.linalg._lstsq import slabs as least_squares
from outcore.linalg._rhs.right_hand_side import RightHandSide
from outcore.linalg._rows.right_hand_look import look_at
from outcore.linalg._systems import direct

__all__ = ["one_thread"]  # a fixture for every test here

N, K = 300, 40


@pytest.fixture
def nothing_is_factored(monkeypatch: pytest.MonkeyPatch) -> None:
    def factor(*_: Any, **__: Any) -> None:
        raise AssertionError("it is factored")

    for module in (direct, least_squares):
        monkeypatch.setattr(module, "own_factors", factor)


Stored = Callable[[np.ndarray[Any, Any]], oc.Array]


@pytest.fixture(params=[("C", (64, 8)), ("F", (64, 8)), ("F", (256, 1)), ("C", (1, K))])
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Stored:
    """Write right-hand sides in one order and chunk shape."""
    order, chunks = request.param

    def write(b: np.ndarray[Any, Any]) -> oc.Array:
        return oc.from_array(
            b,
            tmp_path / "b",
            order=order,
            chunks=chunks[: b.ndim],
            if_exists="overwrite",
            progress=False,
        )

    return write


@pytest.mark.exhaustive(each=True)
@pytest.mark.usefixtures("nothing_is_factored")
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused_first(tmp_path: Path, stored: Stored, bad: float) -> None:
    A = on_disk(tmp_path / "A", random_matrix(N, "f8"))
    tall_A = on_disk(tmp_path / "T", tall(2 * N, N, "f8"))
    for b in (np.ones((N, K)), np.ones(N), np.ones((N, K), "c8")):
        b[(291, 38)[: b.ndim]] = bad
        at = r"\[291, 38\]" if b.ndim == 2 else r"\[291, 0\]"
        B = stored(b)
        before = names_below(tmp_path)
        for assume in ("gen", "auto", "pos"):
            with pytest.raises(InvalidError, match=r"a NaN, an infinity .* in row 291$"):
                solve(A, B, assume_a=assume, memory="1 MB", keep_factors=True, progress=False)
        assert names_below(tmp_path) == before
        B = stored(np.concatenate([b, b]))
        before = names_below(tmp_path)
        with pytest.raises(NonFiniteError, match=rf"b{at} is ") as refused:
            lstsq(tall_A, B, memory=700_000, keep_factors=True, progress=False)
        assert refused.value.index == (291, 38 if b.ndim == 2 else 0)
        assert names_below(tmp_path) == before


@pytest.mark.usefixtures("nothing_is_factored")
def test_what_is_too_large_for_the_type_is_refused_first(tmp_path: Path) -> None:
    A = on_disk(tmp_path / "A", random_matrix(N, "f4"))
    b = np.ones(N)
    b[7] = 1e300
    B = oc.from_array(b, tmp_path / "b")
    with pytest.raises(InvalidError, match="a number too large for float32 in row 7"):
        solve(A, B, dtype="f4", memory="1 MB", progress=False)


@pytest.mark.exhaustive(every=2)
def test_it_is_counted(tmp_path: Path, stored: Stored) -> None:
    """The report counts these reads and their memory."""
    a, b = random_matrix(N, "f8"), tall(N, K, "c16")
    A, B = on_disk(tmp_path / "A", a), stored(b)
    rhs = RightHandSide.read(N, A.dtype, B, "N", tmp_path / "x", if_exists="error")
    look = look_at(rhs, 1_000_000, False)
    assert look is not None
    assert look.bytes_read == look.planned_bytes_read >= b.nbytes
    assert look.peak_memory_bytes <= 1_000_000
    x, report = solve(A, B, memory="1 MB", progress=False)
    np.testing.assert_allclose(x[...], np.linalg.solve(a, b), atol=1e-9)
    in_memory = solve(A, b, memory="1 MB", progress=False)[1]
    assert report.planned_bytes_read is not None
    assert report.bytes_read >= report.planned_bytes_read > look.bytes_read + b.nbytes
    assert report.peak_memory_bytes <= 1_000_000
    assert (report.verb, report.method, report.n) == ("solve", in_memory.method, N)
    assert report.words_lower_bound == in_memory.words_lower_bound
    assert len(report.notes) == len(in_memory.notes)
    tall_a = tall(2 * N, N, "f8")
    both = np.concatenate([b.real, b.imag])
    x, found = lstsq(on_disk(tmp_path / "T", tall_a), stored(both), memory=700_000, progress=False)
    np.testing.assert_allclose(x, np.linalg.lstsq(tall_a, both)[0], atol=1e-10)
    assert found.planned_bytes_read is not None
    assert found.bytes_read >= found.planned_bytes_read > 2 * both.nbytes
    assert found.peak_memory_bytes <= 700_000
    assert (found.verb, found.m, found.n) == ("lstsq", 2 * N, N)


def test_with_little_memory_it_is_not_looked_at(tmp_path: Path) -> None:
    """If a few rows exceed the budget, the call reports bad elements later, with their columns."""
    a, b = random_matrix(64, "f8"), np.ones((64, 6000))
    b[5, 5000] = np.nan
    A, B = (
        on_disk(tmp_path / "A", a),
        oc.from_array(b, tmp_path / "b", order="C", chunks=(16, 6000)),
    )
    with pytest.raises(InvalidError, match=r"in row 5$"):
        solve(A, B, memory="200 kB", progress=False)
