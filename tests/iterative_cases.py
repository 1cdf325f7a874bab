"""Matrices for iterative methods, sweeps in NumPy, and really small budgets."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from linpack import Matrix

import outcore as oc
from outcore.errors import BudgetError
from outcore.report.report import Report

DTYPES = ("f4", "f8", "c8", "c16")

LAYOUTS = [("C", (16, 64)), ("F", (64, 16)), ("C", (64, 16)), ("F", (16, 64)), ("C", (32, 32)),
           ("F", (32, 32))]  # fmt: skip
"""Orders and chunks whose strips are rows and columns, of whole pages in every type."""


def random(shape: Any, dtype: npt.DTypeLike, seed: int = 0) -> Matrix:
    draw = np.random.default_rng(seed)
    a = draw.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        a = a + 1j * draw.standard_normal(shape)
    return np.asarray(a.astype(dtype))


def dominant(n: int, dtype: npt.DTypeLike, seed: int = 0) -> Matrix:
    """A random matrix, diagonally dominant and not symmetric."""
    return np.asarray(random((n, n), dtype, seed) + (2 * n * np.eye(n)).astype(dtype))


def poisson(side: int) -> Matrix:
    """The five-point Laplacian on a square grid: symmetric positive definite."""
    line = 2 * np.eye(side) - np.eye(side, k=1) - np.eye(side, k=-1)
    return np.asarray(np.kron(line, np.eye(side)) + np.kron(np.eye(side), line))


def kms(n: int, rho: complex = 0.6) -> Matrix:
    """Kac, Murdock & Szegő: rho^(i-j) below the diagonal, its conjugate above; Hermitian."""
    distance = np.subtract.outer(np.arange(n), np.arange(n))
    lower = np.tril(rho ** np.abs(distance))
    return np.asarray(lower + np.tril(lower, -1).conj().T)


def swept(
    a: Matrix, b: Matrix, x: Matrix, block: int, omega: float, direction: str, sweeps: int
) -> tuple[Matrix, list[float]]:
    """Compute sweeps of block SOR and their residuals, by the definition in NumPy."""
    x, history = x.copy(), []
    norms = np.linalg.norm(b, axis=0)
    for sweep in range(sweeps):
        firsts = range(0, len(a), block)
        squares = np.zeros(b.shape[1])
        for first in firsts if direction == "forward" or sweep % 2 == 0 else firsts[::-1]:
            here = slice(first, first + block)
            r = b[here] - a[here] @ x
            squares += (np.abs(r) ** 2).sum(axis=0)
            x[here] += omega * np.linalg.solve(a[here, here], r)
        history.append(float((np.sqrt(squares) / norms).max()))
    return x, history


def swept_by_several(
    a: Matrix,
    b: Matrix,
    x: Matrix,
    block: int,
    omega: float,
    direction: str,
    sweeps: int,
    size: int,
) -> tuple[Matrix, list[float]]:
    """Compute sweeps by processes with ranges of blocks, by the definition in NumPy.

    All processes compute their next blocks at once, and then exchange the new values.
    """
    x, history = x.copy(), []
    norms = np.linalg.norm(b, axis=0)
    blocks = [slice(first, min(first + block, len(a))) for first in range(0, len(a), block)]
    cuts = [len(blocks) * rank // size for rank in range(size + 1)]
    for sweep in range(sweeps):
        own = [blocks[cuts[rank] : cuts[rank + 1]] for rank in range(size)]
        if direction == "alternating" and sweep % 2:
            own = [each[::-1] for each in own]
        squares = np.zeros(b.shape[1])
        for step in range(max(map(len, own))):
            known, fresh = x.copy(), x.copy()
            for here in [each[step] for each in own if step < len(each)]:
                r = b[here] - a[here] @ known
                squares += (np.abs(r) ** 2).sum(axis=0)
                fresh[here] += omega * np.linalg.solve(a[here, here], r)
            x = fresh
        history.append(float((np.sqrt(squares) / norms).max()))
    return x, history


def on_disk(
    path: Path, a: Matrix, order: str = "C", chunks: tuple[int, int] | None = (16, 64)
) -> oc.Array:
    return oc.from_array(a, path, order=order, chunks=chunks, if_exists="overwrite", progress=False)


def least_budget(method: Any, A: oc.Array, b: Matrix, **options: Any) -> int:
    """Return the least budget that a refusal names."""
    with pytest.raises(BudgetError, match=r"need .* bytes .* raise memory=") as refused:
        method(A, b, memory=1, progress=False, **options)
    found = re.search(r"need (\d+) bytes", str(refused.value))
    assert found
    return int(found[1])


def block_of(report: Report) -> int:
    """Return the order of the diagonal blocks in a report."""
    found = re.search(r"diagonal blocks of (\d+)", report.method)
    assert found
    return int(found[1])


def assert_as_planned(report: Report, memory: int) -> None:
    assert report.bytes_read == report.planned_bytes_read
    assert report.bytes_written == report.planned_bytes_written
    assert report.memory_bytes == memory
    assert report.peak_memory_bytes <= memory


def residual(a: Matrix, x: Matrix, b: Matrix) -> float:
    """Largest ‖b - Ax‖₂ / ‖b‖₂, in double precision."""
    wide = np.result_type(a.dtype, x.dtype, np.float64)
    error = np.linalg.norm(b.astype(wide) - a.astype(wide) @ x.astype(wide), axis=0)
    return float((error / np.linalg.norm(b, axis=0)).max())
