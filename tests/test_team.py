"""Products shared by threads: each is computed, by the expected thread."""

import threading
from typing import Any, cast

import numpy as np
import pytest
from linpack import Matrix, two_threads
from timeouts import HANG_S

from outcore.blas import blas_choice
from outcore.blas.lapack import Kernels, kernels
from outcore.linalg._tiles.team import Team

__all__ = ["two_threads"]  # a fixture for every test here

LONG = HANG_S


class _Recorder:
    """A fake of `Kernels` that records each product, its thread and the number of BLAS threads."""

    def __init__(self) -> None:
        self.done: list[tuple[int, str, int]] = []
        self.together = threading.Barrier(2)

    def gemm(self, A: Matrix, B: Matrix, C: Matrix, **_: Any) -> None:
        if len(C) == 8:
            # The test needs two threads here at the same time.
            self.together.wait(LONG)
        if len(C) == 13:
            raise MemoryError("no room")
        name = threading.current_thread().name
        self.done.append((len(C), name, blas_choice.in_use()[1]))

    def team(self) -> Team:
        return Team(cast("Kernels", self))


def note(team: Team, *sizes: int) -> None:
    for m in sizes:
        A = np.zeros((m, 4), order="F")
        team.gemm(A, np.zeros((5, 4), order="F"), np.zeros((m, 5), order="F"), alpha=1, beta=1,
                  trans_b="C")  # fmt: skip


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
@pytest.mark.parametrize("sizes", [(), (40,), (300, 2), (40, 50, 60), (7, 30, 100, 64, 64, 9, 0)])
def test_all_products_are_done(sizes: tuple[int, ...], dtype: str) -> None:
    rng = np.random.default_rng(len(sizes))

    def random(*shape: int) -> Matrix:
        values = rng.standard_normal(shape) + 1j * rng.standard_normal(shape)
        return np.asfortranarray((values if dtype[0] == "c" else values.real).astype(dtype))

    wanted, made = [], []
    with Team(kernels(np.dtype(dtype))) as team:
        for m in sizes:
            A, B, C, S = random(m, 20), random(33, 20), random(m, 33), random(m, m)
            wanted += [C - 2 * A @ B.conj().T, np.tril(S - A @ A.conj().T)]
            S[np.diag_indices(m)] = S.diagonal().real
            wanted[-1] = np.tril(S - A @ A.conj().T)
            team.gemm(A, B, C, alpha=-2, beta=1, trans_b="C")
            team.herk(A, S, alpha=-1, beta=1, lower=True)
            made += [C, S]
        team.run()
        again = [C.copy() for C in made]
        team.run()
    for number, (C, want) in enumerate(zip(made, wanted, strict=True)):
        np.testing.assert_allclose(np.tril(C) if number % 2 else C, want, rtol=0, atol=1e-4)
        assert np.array_equal(C, again[number], equal_nan=True), "once only"


def test_small_products_are_shared_and_large_ones_left_to_the_blas() -> None:
    recorder = _Recorder()
    with recorder.team() as team:
        note(team, 8, 100, 8)
        team.run()
    large, *small = recorder.done
    assert large == (100, threading.current_thread().name, 2)
    assert {m for m, _, _ in small} == {8}
    assert {count for _, _, count in small} == {1}
    assert len({name for _, name, _ in small}) == 2
    assert blas_choice.in_use()[1] == 2


def test_of_one_product_the_blas_has_all_threads() -> None:
    recorder = _Recorder()
    with recorder.team() as team:
        note(team, 3)
        team.run()
        note(team, 2, 3)
        team.run()
    assert [(m, count) for m, _, count in recorder.done] == [(3, 2), (3, 2), (2, 2)]


def test_with_one_thread_nothing_is_shared() -> None:
    recorder = _Recorder()
    with blas_choice.threads(1), recorder.team() as team:
        note(team, 6, 6, 6)
        team.run()
    assert recorder.done == [(6, threading.current_thread().name, 1)] * 3


@pytest.mark.parametrize("sizes", [(13,), (13, 13), (6, 13, 6, 6), (13, 6, 6, 13)])
def test_an_error_is_told_wherever_it_was(sizes: tuple[int, ...]) -> None:
    recorder = _Recorder()
    with recorder.team() as team:
        note(team, *sizes)
        with pytest.raises(MemoryError, match="no room"):
            team.run()
        assert blas_choice.in_use()[1] == 2
        recorder.done.clear()
        note(team, 6, 6)
        team.run()
        assert [m for m, *_ in recorder.done] == [6, 6], "nothing is left of what failed"


def test_of_two_teams_at_once_one_shares_and_the_other_leaves_the_blas_alone() -> None:
    """The inner team leaves the thread count alone; it would restore the count it found, 1."""
    inner = _Recorder()

    class Outer(_Recorder):
        def gemm(self, A: Matrix, B: Matrix, C: Matrix, **kwargs: Any) -> None:
            if threading.current_thread() is threading.main_thread() and not inner.done:
                with inner.team() as team:
                    team._size = 2  # as if the number of threads allowed two before
                    note(team, 6, 6, 6)
                    team.run()
            super().gemm(A, B, C, **kwargs)

    outer = Outer()
    with outer.team() as team:
        note(team, 8, 8)
        team.run()
    assert inner.done == [(6, threading.current_thread().name, 1)] * 3
    assert {name for _, name, _ in outer.done} > {threading.current_thread().name}
    assert blas_choice.in_use()[1] == 2


def test_a_thread_that_cannot_set_the_threads_of_the_blas_shares_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(blas_choice, "set_threads", lambda count: 2)
    recorder = _Recorder()
    with recorder.team() as team:
        note(team, 6, 6, 6)
        team.run()
    assert recorder.done == [(6, threading.current_thread().name, 2)] * 3
