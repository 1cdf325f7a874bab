"""Matrices of any order with known solutions, or a known condition."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import scipy.linalg
from linpack import Matrix

System: TypeAlias = Callable[[int], tuple[Matrix, Matrix, Matrix]]
"""Makes A, b and the solution."""


def kahan(n: int) -> Matrix:
    s, c = np.sin(1.2), np.cos(1.2)
    scaled: Matrix = s ** np.arange(n)[:, None] * (np.eye(n) - c * np.triu(np.ones((n, n)), 1))
    return scaled


def circulant(n: int) -> tuple[Matrix, Matrix, Matrix]:
    draw = np.random.default_rng(1)
    c, b = draw.standard_normal(n), draw.standard_normal(n)
    x = np.fft.ifft(np.fft.fft(b) / np.fft.fft(c)).real
    return scipy.linalg.circulant(c), b, x


def reflector(n: int) -> tuple[Matrix, Matrix, Matrix]:
    draw = np.random.default_rng(2)
    v, b = (draw.standard_normal((n, 1)) + 1j * draw.standard_normal((n, 1)) for _ in "vb")
    v /= np.linalg.norm(v)
    a = np.eye(n) - 2 * v @ v.conj().T
    return a, b[:, 0], a @ b[:, 0]


def rank_one_change(n: int) -> tuple[Matrix, Matrix, Matrix]:
    draw = np.random.default_rng(4)
    d, u, v, b = 1 + draw.random(n), draw.random(n), draw.random(n), draw.random(n)
    x = b / d - (u / d) * (v @ (b / d)) / (1 + v @ (u / d))
    return np.diag(d) + np.outer(u, v), b, x


def hadamard(n: int) -> tuple[Matrix, Matrix, Matrix]:
    a = scipy.linalg.hadamard(n).astype(float)
    b = np.random.default_rng(6).standard_normal(n)
    return a, b, a.T @ b / n


def fourier(n: int) -> tuple[Matrix, Matrix, Matrix]:
    b = np.random.default_rng(7).standard_normal(n) + 0j
    return scipy.linalg.dft(n, scale="sqrtn"), b, np.fft.ifft(b, norm="ortho")


SYSTEMS: list[tuple[System, int]] = [
    (circulant, 501), (reflector, 300), (rank_one_change, 450), (hadamard, 512), (fourier, 331)
]  # fmt: skip
