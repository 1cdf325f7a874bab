"""Deflation: slow directions of refinement, found by random vectors and solved for directly."""

from pathlib import Path

import numpy as np
import pytest
from linpack import Matrix, on_disk, one_thread, random_matrix
from mixed_precision import EPS, LOW, N, backward_error, mixed

from outcore.linalg._rhs.deflation import Deflation, vectors_for
from outcore.linalg._systems import refine_plan
from outcore.linalg._systems.refine import Refinement
from outcore.linalg._systems.refine_plan import refine_geometry

__all__ = ["one_thread"]  # a fixture for every test here

SIZE = 400


class Slow:
    """A = I, with an inverse M⁻¹ for which I - M⁻¹ is some slow directions plus 10⁻⁴."""

    def __init__(self, dtype: str, leaves: list[float], vectors: int, columns: int = 1) -> None:
        self.b = random_matrix(SIZE, dtype, 1)[:, :columns]
        V = np.linalg.qr(random_matrix(SIZE, dtype, 2)[:, : len(leaves)])[0]
        self.error = (V * leaves) @ V.conj().T + 1e-4 * np.linalg.qr(random_matrix(SIZE, dtype))[0]
        room = [np.zeros((SIZE, vectors + columns), dtype, order="F") for _ in range(2)]
        self.solved: list[int] = []
        self.refinement = Refinement(
            *(each[:, vectors:] for each in room), self.load, self.subtract, self.solve, 1.0,
            np.dtype("f4"), tolerance=SIZE * EPS, deflation=Deflation(*room, vectors),
        )  # fmt: skip

    def load(self, R: Matrix) -> None:
        R[...] = self.b

    def subtract(self, X: Matrix, R: Matrix) -> None:
        R -= X

    def solve(self, D: Matrix) -> None:
        self.solved.append(D.shape[1])
        D -= self.error @ D


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("columns", [1, 3])
def test_slow_directions_are_gone_after_two_steps(dtype: str, columns: int) -> None:
    slow = Slow(dtype, [0.9, 0.8, -0.7, 0.6], 8, columns)
    assert len(slow.refinement.refine()) == 0
    history = slow.refinement.history
    assert history[1] > 0.4 * history[0], "the vectors are being found"
    assert history[2] < 2e-3 * history[1], "none of the slow directions is left"
    assert slow.refinement.steps <= 5
    assert slow.solved[:3] == [columns + 8, columns + 8, columns], "they go along twice"
    assert np.abs(slow.refinement.X - slow.b).max() < 1e-12


def test_without_room_for_them_it_stalls() -> None:
    slow = Slow("float64", [0.9, 0.8, -0.7, 0.6], 0)
    assert len(slow.refinement.refine()) == 1
    assert slow.solved == [1, 1]


def test_fewer_directions_than_vectors() -> None:
    """A step leaves a matrix of rank 1, or zero: the refinement drops the other vectors."""
    for leaves in ([0.9], []):
        slow = Slow("float64", leaves, 8)
        slow.error -= 1e-4 * np.linalg.qr(random_matrix(SIZE, "f8"))[0]
        assert len(slow.refinement.refine()) == 0
        assert slow.refinement.steps <= 2
        assert np.abs(slow.refinement.X - slow.b).max() < 1e-12


def test_they_do_not_go_along_twice_where_two_steps_do() -> None:
    slow = Slow("float64", [], 8)
    slow.error *= 1e-5
    assert len(slow.refinement.refine()) == 0
    assert slow.solved == [9, 1]


def test_a_second_group_finds_them_there() -> None:
    slow = Slow("float64", [0.9, 0.8, -0.7, 0.6], 8)
    slow.refinement.refine()
    slow.b = random_matrix(SIZE, "f8", 5)[:, :1]
    solved = len(slow.solved)
    slow.refinement.history.clear()
    assert len(slow.refinement.refine()) == 0
    assert slow.refinement.history[1] < 2e-3 * slow.refinement.history[0]
    assert set(slow.solved[solved:]) == {1}


def test_what_is_not_finite_ends_it() -> None:
    slow = Slow("float64", [0.9], 8)
    slow.error[3, 5] = np.inf
    assert len(slow.refinement.refine()) == 1
    assert slow.solved == [9]


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("condition", [1e7, 1e10])
def test_a_few_small_singular_values_need_no_gmres(
    tmp_path: Path, dtype: str, condition: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without deflation this takes GMRES and more passes."""
    U, V = (np.linalg.qr(random_matrix(N, dtype, seed))[0] for seed in (1, 2))
    values = np.ones(N)
    values[-1] = 1 / condition
    a, b = (U * values) @ V, random_matrix(N, dtype, 3)[:, 0]
    A = on_disk(tmp_path / "Z", a)
    x, report = mixed(A, b)
    assert report.method in (
        f"LU in {np.dtype(LOW[dtype])}, {steps} steps of refinement" for steps in (2, 3, 4)
    )
    assert backward_error(a, x, b) < 16 * EPS
    monkeypatch.setattr(refine_plan, "vectors_for", lambda n, room: 0)
    _, plain = mixed(A, b)
    assert "GMRES" in plain.method or len(plain.history) > len(report.history)


def test_how_many_vectors_there_are() -> None:
    assert [vectors_for(n, 1000) for n in (1, 127, 128, 1280, 10**6)] == [0, 0, 1, 10, 16]
    assert [vectors_for(10**6, room) for room in (-3, 0, 5)] == [0, 0, 5]


@pytest.mark.parametrize("columns", [1, 40, 1000])
def test_they_take_what_nothing_else_needs(columns: int) -> None:
    types = np.dtype("f8"), np.dtype("f4")
    before = 0
    for memory in range(1 << 20, 64 << 20, 1 << 20):
        g = refine_geometry(5000, *types, (128, 64), memory, columns)
        assert g.memory_bytes <= memory
        assert g.deflated >= before
        before = g.deflated
        if g.deflated:
            assert g.columns == columns, "none has to wait for another group"
            assert g.krylov(columns) == 20, "nor does GMRES get less"
    assert (before > 0) == (columns < 1000)
