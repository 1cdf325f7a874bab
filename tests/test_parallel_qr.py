"""Rows of which threads factor their own triangles: results and memory."""

import contextlib
import itertools
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.linalg
from linpack import two_threads
from rows_cases import Case, same
from stopping import interrupted_after, note_each_step
from tall import DTYPES, RATES, ragged, tall
from timeouts import HANG_S

import outcore as oc
from outcore._core import Trace
from outcore.blas import blas_choice
from outcore.errors import Interrupted
from outcore.linalg import lstsq, qr
from outcore.linalg._rows import tsqr_plan
from outcore.linalg._rows.plan import RowLayout
from outcore.linalg._rows.tsqr import ParallelQR, TallQR
from outcore.linalg._rows.tsqr_plan import lanes_of
from outcore.linalg._tiles.crew import Crew

__all__ = ["two_threads"]  # a fixture for every test here

M, N = 3000, 20
FACTOR_ROWS = tsqr_plan.FACTOR_ROWS


@pytest.fixture(autouse=True)
def nothing_left(two_threads: None) -> Iterator[None]:
    """Check that the BLAS has its threads back, and that no thread of a crew remains."""
    yield
    assert blas_choice.in_use()[1] == 2
    assert not [t for t in threading.enumerate() if t.name.startswith("outcore-crew")]


@pytest.fixture(autouse=True)
def lanes(monkeypatch: pytest.MonkeyPatch) -> list[ParallelQR]:
    """Use steps of few rows; return the created objects with all their lanes."""
    begin, made = ParallelQR.__init__, list[ParallelQR]()

    def beginning(self: ParallelQR, *arguments: Any, **options: Any) -> None:
        begin(self, *arguments, **options)
        made.append(self)

    monkeypatch.setattr(ParallelQR, "__init__", beginning)
    monkeypatch.setattr(tsqr_plan, "FACTOR_ROWS", (32, 64))
    return made


Act = Callable[[int], None]


@contextlib.contextmanager
def before_each_step(act: Act) -> Iterator[None]:
    """Call `act` with the number of the step before each step in a lane."""
    add, numbers = TallQR.add_below, itertools.count()

    def adding(self: TallQR, *rows: Any) -> Any:
        act(next(numbers))
        return add(self, *rows)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TallQR, "add_below", adding)
        yield


def late(number: int) -> None:
    """Delay steps, by different times, beyond the time that preparing other rows takes."""
    time.sleep((0.002, 0.008, 0.001)[number % 3])


def by_two_threads() -> Act:
    """Return an act that holds each thread at its first step until another thread has one too."""
    met, both = set[str](), threading.Barrier(2)

    def meet(number: int) -> None:
        name = threading.current_thread().name
        if name not in met:
            met.add(name)
            both.wait(HANG_S)

    return meet


def is_triangle_of(R: npt.NDArray[Any], a: npt.NDArray[Any]) -> bool:
    """Compare with LAPACK's triangle, whose rows may have other signs."""
    want = scipy.linalg.qr(a, mode="economic")[1]
    signs = np.diag(R).conj() / np.diag(want).conj()
    tolerance = 100 * float(np.finfo(R.dtype).eps) * np.linalg.norm(want)
    return np.allclose(np.abs(signs), 1, atol=1e-4) and np.allclose(
        R, signs.conj()[:, None] * want, rtol=0, atol=tolerance
    )


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("order", ["C", "F"])
def test_from_disk(tmp_path: Path, dtype: str, order: str, lanes: list[ParallelQR]) -> None:
    a, b = tall(M, N, dtype), tall(M, 3, dtype, seed=1)
    A = oc.from_array(a, tmp_path / "A", order=order, chunks=(256, N), progress=False)
    with before_each_step(by_two_threads()):
        R = qr(A, memory="3 MiB", progress=False)[0]
    with before_each_step(by_two_threads()):
        x, report = lstsq(A, b, memory="3 MiB", progress=False)
    for made in lanes:
        assert len(made._lanes) == tsqr_plan.LANES
        # One lane has merged the others. All had rows.
        assert all(lane.R.any() for lane in made._lanes)
        assert made.rows == M
    assert is_triangle_of(R, a)
    rtol = 1e3 * float(np.finfo(x.dtype).eps)
    np.testing.assert_allclose(x, scipy.linalg.lstsq(a, b)[0], rtol=rtol, atol=rtol)
    norms = np.linalg.norm(b - a @ x, axis=0)
    np.testing.assert_allclose(report.residual_norms, norms, rtol=rtol)
    planned = oc.plan(
        "lstsq", m=M, n=N, rhs=3, dtype=dtype, memory="3 MiB", order=order, chunks=(256, N),
        rates=RATES,
    )  # fmt: skip
    assert report.peak_memory_bytes <= planned.peak_memory_bytes <= 3 << 20
    assert report.bytes_read == planned.bytes_read


def test_the_same_whichever_thread_is_late(tmp_path: Path) -> None:
    """The memory of a block holds no other rows before its steps are done."""
    # Some twenty blocks.
    a, b = tall(8000, N, "f8"), tall(8000, 2, "f8", seed=1)
    A = oc.from_array(a, tmp_path / "A", progress=False)
    sources: list[Callable[[], tuple[Any, Any]]] = [
        lambda: (A, b),
        lambda: (a, b),
        lambda: (ragged(a, [70, 500]), ragged(b, [33, 900])),
    ]
    for source in sources:
        found = []
        for act in (late, lambda number: None):
            with before_each_step(act):
                found.append(lstsq(*source(), memory="700 KiB", progress=False)[0])
        np.testing.assert_array_equal(found[0], found[1])
        np.testing.assert_allclose(found[0], np.linalg.lstsq(a, b)[0], atol=1e-12)


def test_ridge_and_fewer_rows_than_lanes() -> None:
    """Some blocks have too few rows for all lanes."""
    for m in (1, 15, 40, 90):
        a, b = tall(m, 12, "c16"), tall(m, 2, "c16", seed=1)
        x = lstsq(iter([a]), b, damp=0.5, memory="3 MiB", progress=False)[0]
        want = np.linalg.solve(a.conj().T @ a + 0.25 * np.eye(12), a.conj().T @ b)
        np.testing.assert_allclose(x, want, atol=1e-12)
        x, report = lstsq(iter([a]), b, memory="3 MiB", progress=False)
        np.testing.assert_allclose(x, np.linalg.lstsq(a, b)[0], atol=1e-11)
        assert report.rank == min(m, 12)


@pytest.mark.parametrize("verb", ["lstsq", "R", "least norm"])
def test_what_is_kept_is_of_all_rows(
    tmp_path: Path, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A note covers finished steps only, even if threads are late."""
    note_each_step(monkeypatch)
    case = Case(verb, tmp_path)
    whole, out = case.run(tmp_path / "W"), tmp_path / "X"
    for note in (1, 3):
        with (
            before_each_step(late),
            contextlib.suppress(Interrupted),
            interrupted_after(note),
        ):
            case.run(out)
        found = case.run(out)
        assert "resumed" in found[2].notes[0]
        same(found, whole)
        case.assert_right(found)
        shutil.rmtree(out)


def test_right_hand_sides_count(lanes: list[ParallelQR]) -> None:
    """Each lane needs memory for right-hand sides; with many of them there is one lane."""
    a, b = tall(900, 8, "f8"), tall(900, 50_000, "f4", seed=1)
    x, report = lstsq(a, b, memory="400 MB", progress=False)
    assert len(lanes[0]._lanes) == 1
    assert report.peak_memory_bytes <= 400_000_000
    np.testing.assert_allclose(x, np.linalg.lstsq(a, b)[0], atol=1e-5)


def test_work_is_not_said_to_be_waiting_for_the_disk(
    tmp_path: Path, lanes: list[ParallelQR]
) -> None:
    """A caller that needs the memory of a block computes steps instead of waiting."""
    a, b = tall(8000, N, "f8"), np.ones(8000)
    A = oc.from_array(a, tmp_path / "A", progress=False)
    helped, moments_ns = threading.Event(), list[int]()

    def held(number: int) -> None:
        if threading.current_thread() is threading.main_thread():
            moments_ns.append(lanes[0]._trace.now_ns())
            helped.set()
        else:
            assert helped.wait(HANG_S), "the caller waits for this step"

    with before_each_step(held):
        report = lstsq(A, b, memory="700 KiB", progress=False)[1]
    assert moments_ns
    spans = report.spans
    assert spans is not None
    waits = spans[spans[:, 0] == Trace.kinds().index("wait")]
    assert len(waits)
    for moment_ns in moments_ns:
        assert not ((waits[:, 2] < moment_ns) & (moment_ns < waits[:, 3])).any()


def test_given_up_while_steps_are_left() -> None:
    """A wait for a step of a closed crew returns."""
    crew, started, go_on = Crew(Trace()), threading.Event(), threading.Event()

    def slow() -> None:
        started.set()
        go_on.wait(HANG_S)

    with crew:
        step = crew.add([("a", slow), ("a", slow)])
        assert started.wait(HANG_S)
        # The state after a second Ctrl-C, while `close` waits for the threads.
        crew._due.clear()
        crew._is_over = True
        assert not step.done()
        step.wait()
        go_on.set()
        crew.close()
    assert step.done()
    step.wait()


def test_what_a_step_raises_is_raised_by_the_call() -> None:
    a, b = tall(M, N, "f8"), np.ones(M)
    for number in (0, 5, 20):

        def fail(step: int, number: int = number) -> None:
            if step == number:
                raise ArithmeticError("here")

        with before_each_step(fail), pytest.raises(ArithmeticError, match="here"):
            lstsq(a, b, memory="3 MiB", progress=False)
    np.testing.assert_allclose(
        lstsq(a, b, memory="3 MiB", progress=False)[0], np.linalg.lstsq(a, b)[0], atol=1e-12
    )


def test_interrupted_while_threads_work() -> None:
    a, b = tall(M, N, "f8"), np.ones(M)
    for number in (0, 7, 30):

        def stop(step: int, number: int = number) -> None:
            late(step)
            if step == number:
                signal.raise_signal(signal.SIGINT)

        with before_each_step(stop), pytest.raises(Interrupted, match="nothing is left"):
            lstsq(a, b, memory="3 MiB", progress=False)


@pytest.mark.parametrize(
    ("m", "n", "dtype", "memory", "lanes"),
    [
        (2_000_000, 512, "f8", 512 << 20, 8),
        (2_000_000, 512, "c16", 512 << 20, 6),
        (2_000_000, 1024, "f8", 512 << 20, 3),
        (2_000_000, 2048, "f8", 1 << 30, 1),  # blocks are lower than the triangle
        (512 * 16 * 3, 512, "f8", 512 << 20, 3),
        (512 * 16, 512, "f8", 512 << 20, 1),
        (2_000_000, 512, "f8", 20 << 20, 1),  # 8 triangles would take all of that
        (None, 100, "f8", 64 << 20, 8),
        (2_000_000, 100, "f8", 1_700_000, 1),  # with more lanes, blocks would have 130 rows
    ],
)
def test_how_many(
    m: int | None, n: int, dtype: str, memory: int, lanes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Use as many lanes as pay, if their triangles take little memory."""
    monkeypatch.setattr(tsqr_plan, "FACTOR_ROWS", FACTOR_ROWS)
    kind = np.dtype(dtype)
    plans, need = tsqr_plan.fit_tall(
        [RowLayout(m, n, kind, by_row=True)], kind, memory,
        lambda plans: tsqr_plan.tsqr_bytes(n, 0, kind, lanes=lanes_of(plans[0]))
        + plans[0].memory_bytes,
    )  # fmt: skip
    assert plans is not None
    assert lanes_of(plans[0]) == lanes
    assert need <= memory
