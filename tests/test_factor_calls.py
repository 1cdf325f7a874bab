"""Each factorization with any layout of its matrix, and its progress, threads and bits."""

import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from definite import definite
from linpack import Matrix, on_disk, one_thread, random_matrix
from resumed_kinds import CHOLESKY, KINDS, LU, QR, Kind
from tall import tall

import outcore as oc
from outcore._util import progress
from outcore.blas import blas_choice

__all__ = ["one_thread"]  # a fixture for every test here

TINY = {LU: 300_000, CHOLESKY: 212_000, QR: 400_000}
"""Budgets for many slabs."""

MATRICES = {
    LU: lambda n, dtype: random_matrix(n, dtype),
    CHOLESKY: lambda n, dtype: definite(n, dtype),
    QR: lambda n, dtype: tall(n + 80, n, dtype),
}


def factor(kind: Kind, path: Path, a: Matrix, **options: Any) -> Any:
    A = on_disk(path, kind.stored(a))
    return kind.function(A, memory=TINY[kind], progress=False, **options)


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize(
    "layout",
    [
        ((300, 300), "C", "row-major"),
        ((37, 53), "C", "hilbert"),
        ((37, 53), "F", "row-major"),
        ((300, 8), "F", "column-major"),
        ((8, 300), "C", "row-major"),
        ((128, 32), "F", "hilbert"),
        ((16, 96), "F", "column-major"),
    ],
    ids=str,
)
def test_any_layout_of_the_matrix(
    tmp_path: Path, kind: Kind, layout: tuple[tuple[int, int], str, str]
) -> None:
    a, (chunks, order, chunk_order) = MATRICES[kind](250, "f8"), layout
    A = oc.from_array(
        kind.stored(a), tmp_path / "Z", order=order, chunks=chunks, chunk_order=chunk_order
    )
    kind.check(a, kind.function(A, memory=TINY[kind], progress=False))


@pytest.mark.parametrize(
    ("kind", "a", "count"),
    [
        (LU, random_matrix(400, "c16"), 100),
        (CHOLESKY, definite(400, "c16"), 100),
        (QR, tall(500, 260, "c16"), 50),
        (QR, tall(380, 380, "c16"), 50),
        (QR, tall(170, 760, "c16"), 50),
    ],
    ids=["LU", "Cholesky", "QR tall", "QR square", "QR wide"],
)
def test_progress_rises_to_one(
    tmp_path: Path, kind: Kind, a: Matrix, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(10**6))
    monkeypatch.setattr(progress, "time", types.SimpleNamespace(monotonic=lambda: next(clock)))
    told: list[tuple[float, float]] = []
    A = on_disk(tmp_path / "Z", a)
    kind.function(A, memory=TINY[kind], progress=lambda done, left: told.append((done, left)))
    fractions = [done for done, _ in told]
    assert len(fractions) > count
    assert fractions == sorted(fractions)
    assert fractions[0] < 0.05
    assert (0.99 if kind is LU else 0.999) < fractions[-2] <= (1 if kind is LU else 1.0001)
    assert told[-1] == (1.0, 0.0)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("threads", [1, 2])
def test_threads_are_set_and_set_back(tmp_path: Path, kind: Kind, threads: int) -> None:
    a = MATRICES[kind](300, "f8")
    with blas_choice.threads(3 - threads):
        found = factor(kind, tmp_path / "Z", a, threads=threads)
        blas = blas_choice.scipy_blas()
    assert found.report is not None
    assert found.report.threads == threads
    assert blas is not None
    assert blas.threads == 3 - threads
    kind.check(a, found)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_same_again_is_the_same_bits(tmp_path: Path, kind: Kind) -> None:
    a = MATRICES[kind](400, "f8")
    first, second = (kind.bits(factor(kind, tmp_path / name, a, threads=2)) for name in "YZ")
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)
