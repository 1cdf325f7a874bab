"""LU by block columns with products of several threads: right whatever their order."""

import random
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from linpack import Matrix, lapack_ratio, packed, random_matrix
from lu_by_method import factor_by

from outcore.blas import blas_choice
from outcore.blas.lapack import Kernels
from outcore.errors import NonFiniteError
from outcore.linalg._lu.block_columns import column_update
from outcore.linalg._tiles.crew import Crew

CASES = [
    ("f8", 700, 200_000, "C", (64, 32)),
    ("c8", 640, 200_000, "C", (64, 64)),
    ("c16", 512, 250_000, "F", (64, 32)),
    ("f8", 640, 330_000, "F", (32, 16)),
    ("f4", 640, 220_000, "C", (64, 32)),
]
Case = tuple[str, int, int, str, tuple[int, int]]
METHODS = ["block-columns", "tournament"]


def shuffled(seed: int, threads: int) -> type[Crew]:
    """Make a crew that reports several threads, and runs due work in random order."""

    class Shuffled(Crew):
        draw = random.Random(seed)
        most = 0

        def __enter__(self) -> Crew:
            return self

        @property
        def size(self) -> int:
            return threads

        def settle(self, most: int) -> None:
            Shuffled.most = max(Shuffled.most, self.unsettled)
            super().settle(most)

        def _next(self) -> "object | None":  # type: ignore[override]
            self.draw.shuffle(self._due)
            return super()._next()

    return Shuffled


def assert_right(path: Path, case: Case, method: str, threads: int) -> None:
    dtype, n, memory, order, chunks = case
    a = random_matrix(n, dtype)
    lu = factor_by(method, path, a, memory, order=order, chunks=chunks, threads=threads)
    assert lapack_ratio(a, lu) < 30
    assert lu.report is not None
    assert lu.report.method.startswith(method[:10])
    assert lu.report.bytes_read == lu.report.planned_bytes_read
    assert lu.report.bytes_written == lu.report.planned_bytes_written
    assert lu.report.peak_memory_bytes <= memory
    if method == "block-columns":
        theirs, piv = scipy.linalg.lu_factor(a)
        np.testing.assert_array_equal(lu.piv, piv)
        scale = np.abs(theirs).max() * np.finfo(dtype).eps * n
        np.testing.assert_allclose(packed(lu), theirs, rtol=0, atol=100 * scale)


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("threads", [2, 5])
@pytest.mark.parametrize("case", CASES)
def test_in_any_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: Case, threads: int, method: str
) -> None:
    crew = shuffled(threads, threads)
    monkeypatch.setattr(column_update, "Crew", crew)
    assert_right(tmp_path / "Z", case, method, 1)
    assert crew.most > 2, "steps are open at once"


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("case", CASES[:2])
def test_no_product_is_changed_by_two_threads_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: Case, method: str
) -> None:
    """Each product overwrites C after a delay, so that a concurrent change of C would be lost."""
    draw = random.Random(0)
    real = Kernels.gemm

    def slow(self: Kernels, a: Matrix, b: Matrix, c: Matrix, *rest: Any, **options: Any) -> None:
        made = np.array(c, order="F")
        real(self, a, b, made, *rest, **options)
        time.sleep(draw.random() / 1000)
        c[...] = made

    monkeypatch.setattr(Kernels, "gemm", slow)
    assert_right(tmp_path / "Z", case, method, 2)


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("case", CASES)
def test_by_threads(tmp_path: Path, case: Case, method: str) -> None:
    before = blas_choice.in_use()
    assert_right(tmp_path / "Z", case, method, 2)
    assert blas_choice.in_use() == before


@pytest.mark.parametrize("method", METHODS)
def test_a_stop_leaves_no_thread_behind(tmp_path: Path, method: str) -> None:
    a: Matrix = random_matrix(512, "f8")
    a[500, 400] = np.nan
    with pytest.raises(NonFiniteError):
        factor_by(method, tmp_path / "Z", a, 200_000, threads=2)
    assert not [t for t in threading.enumerate() if t.name.startswith("outcore-crew")]
