"""Calls that stream rows, with a result on disk, and the expected results."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from linpack import random_matrix

import outcore as oc
from outcore.array_files.blocks_done import REFLECTIONS, STATE, STEPS
from outcore.linalg import gram, lstsq, qr, svd
from outcore.storage.volumes import place

Result = tuple[oc.Array, list[np.ndarray[Any, Any]], oc.Report]
Call = Callable[..., Any]

M, N, K = 900, 24, 3


def tall_of(dtype: str) -> Any:
    """Make a matrix of M rows and N columns."""
    return columns_of(M, dtype, N).copy()


@functools.cache
def columns_of(n: int, dtype: str, count: int, seed: int = 0) -> Any:
    """Return the first columns of a random matrix, which callers must not change."""
    return random_matrix(n, dtype, seed)[:, :count].copy()


class Case:
    """A call with a result on disk, and the expected result."""

    def __init__(self, verb: str, where: Any, dtype: str = "c16") -> None:
        a = tall_of(dtype)
        if verb == "least norm":
            a = a.T.copy()
        elif verb == "wide qr":
            a = random_matrix(256, dtype)[:100].copy()
        elif verb == "gram in parts":
            a = random_matrix(192, dtype)
        if verb == "svd":
            a /= 4.0 ** np.arange(N)
        self.a, self.b = a, columns_of(len(a), dtype, K, 1).copy(order="F")
        chunks = (N, 64) if verb == "least norm" else (64 if len(a) == M else 16, a.shape[1])
        order = "F" if verb == "least norm" else "C"
        self.source = where / "A"
        oc.from_array(a, self.source, order=order, chunks=chunks, progress=False).close()
        self.right = where / "b"
        # The blocks differ from those of A.
        oc.from_array(self.b, self.right, chunks=(48, K), progress=False).close()
        # Some rows have weight zero.
        self.weights = np.arange(len(a)) % 5 / 2.0
        self.weighing = where / "weights"
        oc.from_array(self.weights, self.weighing, chunks=(80,), progress=False).close()
        calls: dict[str, tuple[Call, Call]] = {
            "lstsq": (lambda **o: lstsq(self.source, self.right, **o), self.solves),
            "ridge": (lambda **o: lstsq(self.source, self.b, damp=2.0, **o), self.solves_ridge),
            "weighted": (
                lambda **o: lstsq(
                    self.source, self.b, **{"damp": 2.0, "weights": self.weighing} | o
                ),
                self.solves_weighted,
            ),
            "least norm": (lambda **o: lstsq(self.source, self.b, **o), self.solves),
            "R": (lambda **o: qr(self.source, **o), self.is_triangle),
            "qr": (lambda **o: qr(self.source, mode="economic", **o), self.is_qr),
            "wide qr": (lambda **o: qr(self.source, mode="economic", **o), self.is_qr),
            "gram": (lambda **o: gram(self.source, **o), self.is_gram),
            "gram in parts": (lambda **o: gram(self.source, **o), self.is_gram),
            "svd": (
                lambda **o: svd(self.source, **{"k": K, "power": 1, "tol": None, "seed": 1} | o),
                self.is_svd,
            ),
        }
        # Least squares, R and the solution of least norm use two lanes.
        self.memory = {
            "lstsq": 350_000,
            "weighted": 350_000,
            "R": 300_000,
            "least norm": 360_000,
            "gram in parts": 240_000,
            "qr": 240_000,
            "wide qr": 1_200_000,
            "svd": 330_000,
        }.get(verb, 210_000)
        self.call, self.check = calls[verb]

    def run(self, out: Any, **more: Any) -> Result:
        """Return the result on disk, those in memory, and the report."""
        found = self.call(**{"out": out, "memory": self.memory, "progress": False} | more)
        return found[0], list(found[1:-1]), found[-1]

    def solves(self, x: Any) -> None:
        expected = np.linalg.lstsq(self.a, self.b)[0]
        np.testing.assert_allclose(x, expected, rtol=0, atol=1e-11)

    def solves_ridge(self, x: Any) -> None:
        above = np.vstack([self.a, 2.0 * np.eye(N)])
        expected = np.linalg.lstsq(above, np.vstack([self.b, np.zeros((N, K))]))[0]
        np.testing.assert_allclose(x, expected, rtol=0, atol=1e-11)

    def solves_weighted(self, x: Any) -> None:
        rows = self.weights[:, None] * self.a
        expected = np.linalg.solve(self.a.conj().T @ rows + 4 * np.eye(N), rows.conj().T @ self.b)
        np.testing.assert_allclose(x, expected, rtol=0, atol=1e-11)

    def is_triangle(self, R: Any) -> None:
        np.testing.assert_allclose(R.conj().T @ R, self.a.conj().T @ self.a, rtol=0, atol=1e-9)
        assert not np.tril(R, -1).any()

    def is_qr(self, Q: Any, R: Any) -> None:
        np.testing.assert_allclose(Q @ R, self.a, rtol=0, atol=1e-11)
        np.testing.assert_allclose(Q.conj().T @ Q, np.eye(Q.shape[1]), rtol=0, atol=1e-12)

    def is_gram(self, G: Any) -> None:
        np.testing.assert_allclose(G, self.a.conj().T @ self.a, rtol=0, atol=1e-9)

    def is_svd(self, U: Any, s: Any, Vh: Any) -> None:
        expected = np.linalg.svd(self.a, compute_uv=False)
        np.testing.assert_allclose(s, expected[:K], rtol=1e-6)
        np.testing.assert_allclose(U.conj().T @ U, np.eye(K), rtol=0, atol=1e-12)
        np.testing.assert_allclose(U * s, self.a @ Vh.conj().T, rtol=0, atol=1e-6 * s[0])

    def assert_right(self, found: Result) -> None:
        self.check(found[0][...], *found[1])
        names = {name for name, *_ in place(found[0].path).names()}
        assert not names & {STEPS, STATE, REFLECTIONS}


VERBS = [
    "lstsq",
    "ridge",
    "weighted",
    "least norm",
    "R",
    "qr",
    "wide qr",
    "gram",
    "gram in parts",
    "svd",
]


def same(found: Result, other: Result) -> None:
    """Compare the results bit for bit."""
    np.testing.assert_array_equal(found[0][...], other[0][...])
    for one, two in zip(found[1], other[1], strict=True):
        np.testing.assert_array_equal(one, two)
    assert found[2].triplet_residuals == other[2].triplet_residuals
