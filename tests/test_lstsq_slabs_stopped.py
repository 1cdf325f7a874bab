"""`lstsq` by slabs, of A or its transpose, is stopped or killed, and called again."""

import contextlib
import functools
import itertools
import shutil
import subprocess
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pytest
from linpack import Matrix, one_thread
from stopping import (
    DECISIVE,
    after_notes,
    interrupt,
    kill_at_line,
    killed_until_whole,
    lines_of,
)
from tall import tall

import outcore as oc
from outcore._util import progress
from outcore.errors import IncompleteError, Interrupted, JournalError, NotFoundError
from outcore.linalg import LeastSquaresReport, lstsq, open_factor
from outcore.linalg._output.journal import read_journal
from outcore.linalg._output.own import removed_at_end
from outcore.storage.volumes import Place, place

__all__ = ["one_thread"]  # a fixture for every test here

RunPython = Callable[..., "subprocess.Popen[str]"]


class Case(NamedTuple):
    """A matrix on disk, and the method that solves with it."""

    shape: tuple[int, int]
    order: str
    memory: int
    kind: str
    dtype: str = "f8"
    chunks: tuple[int, int] | None = None
    is_copied: bool = False

    def problem(self) -> tuple[Matrix, Matrix]:
        return tall(*self.shape, self.dtype), tall(self.shape[0], 2, self.dtype, 1)

    def store(self, path: Path, a: Matrix) -> oc.Array:
        options: dict[str, Any] = {"order": self.order, "chunks": self.chunks}
        return oc.from_array(a, path, progress=False, if_exists="overwrite", **options)

    def solve(self, A: Any, b: Any, **options: Any) -> tuple[Any, LeastSquaresReport]:
        x, report = lstsq(A, b, **{"memory": self.memory, "progress": False} | options)
        assert report.method is not None
        assert ("copied" in report.method) == self.is_copied or "existing" in report.method
        return x, report


TALL = Case((400, 300), "F", 700_000, "qr")
WIDE = Case((300, 400), "C", 700_000, "qr_transposed")
# With chunks this high, slabs of few rows load from a copy in tiles.
COPIED = WIDE._replace(order="F", memory=500_000, chunks=(256, 64), is_copied=True)
IN_F = COPIED._replace(memory=1_200_000, dtype="c16", is_copied=False)
CASES = {
    "tall": TALL,
    "wide": WIDE,
    "complex": WIDE._replace(dtype="c16"),
    "few": WIDE._replace(memory=1_200_000, dtype="c16"),
    "copied": COPIED._replace(memory=700_000, dtype="c16"),
    "in-f": IN_F,
}


@pytest.mark.exhaustive(every=2)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_stopped_call_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: Case
) -> None:
    """Stop the call while it factors A, and then while it computes x."""
    a, b = case.problem()
    A = case.store(tmp_path / "A", a)
    expected, whole = case.solve(A, b)

    def stop(**options: Any) -> None:
        with pytest.raises(Interrupted, match="call lstsq again"):
            case.solve(A, b, **options)

    def go_on() -> LeastSquaresReport:
        told: list[float] = []
        x, report = case.solve(A, b, progress=lambda done, left: told.append(done))
        np.testing.assert_array_equal(x, expected)
        assert report.bytes_read == report.planned_bytes_read
        assert report.bytes_written == report.planned_bytes_written < whole.bytes_written
        assert told == sorted(told)
        assert told[-1] == 1
        assert not (tmp_path / "A.qr").exists()
        return report

    with after_notes(2, interrupt):
        stop()
    journal = read_journal(place(tmp_path / "A.qr"))
    assert journal is not None
    assert (journal.header.kind, journal.header.m) == (case.kind, 400)
    begins = f"resumed at panel {journal.panels_done} of "
    assert go_on().notes[0].startswith(begins)

    with after_notes(2, interrupt):
        stop()
    clock = itertools.count()
    monkeypatch.setattr(progress, "time", types.SimpleNamespace(monotonic=lambda: next(clock)))

    def watch(done: float, left: float) -> None:
        with contextlib.suppress(IncompleteError):
            open_factor(tmp_path / "A.qr")
            interrupt()

    stop(progress=watch)
    assert open_factor(tmp_path / "A.qr").n == 300
    assert go_on().bytes_written == 0


@pytest.mark.parametrize("case", [TALL, WIDE], ids=["tall", "wide"])
def test_what_a_stopped_call_left_of_a_matrix_that_changed(tmp_path: Path, case: Case) -> None:
    a, b = case.problem()
    A = case.store(tmp_path / "A", a)
    with after_notes(2, interrupt), pytest.raises(Interrupted):
        case.solve(A, b)
    with oc.open_array(tmp_path / "A", "r+") as array:
        array[3, 3] = 7
    a[3, 3] = 7
    with pytest.raises(JournalError, match="resume=False to restart, or another factors="):
        case.solve(tmp_path / "A", b)
    x, _ = case.solve(tmp_path / "A", b, resume=False)
    np.testing.assert_allclose(x, np.linalg.lstsq(a, b)[0], atol=1e-11)
    assert not (tmp_path / "A.qr").exists()


def test_what_a_stopped_call_left_of_a_matrix_that_is_made_anew(tmp_path: Path) -> None:
    """The error describes the matrix, not its transpose."""
    a, b = WIDE.problem()
    A = WIDE.store(tmp_path / "A", a)
    with after_notes(2, interrupt), pytest.raises(Interrupted):
        WIDE.solve(A, b)
    A = WIDE.store(tmp_path / "A", a.T.copy())
    with pytest.raises(JournalError, match=r"\(transposed QR, not QR\); pass resume=False"):
        WIDE.solve(A, np.ones(400))
    A = WIDE.store(tmp_path / "A", a.astype("f4"))
    options = {"memory": WIDE.memory // 2}
    with pytest.raises(
        JournalError, match="of 300 x 400 float64; the matrix is now 300 x 400 float32; pass resume"
    ):
        WIDE.solve(A, b.astype("f4"), **options)
    x, _ = WIDE.solve(A, b, resume=False, **options)
    np.testing.assert_allclose(x, np.linalg.lstsq(a, b)[0], atol=1e-3)
    assert not (tmp_path / "A.qr").exists()


PAGES = (
    *DECISIVE,
    "_slab_qr/storage.py",
    "_lstsq/slabs.py",
    "_output/own.py",
    "_rhs/solutions.py",
    "_rhs/groups.py",
)


def to_kill(tmp_path: Path, case: Case) -> tuple[Callable[[], Any], Matrix]:
    """Return a call whose factors and solution lie below a path, and the solution."""
    a, b = case.problem()
    A = case.store(tmp_path / "A", a)
    expected, _ = case.solve(A, b, threads=1)
    run = functools.partial(
        case.solve,
        A.path,
        b,
        threads=1,
        factors=tmp_path / "F",
        out=tmp_path / "x",
        if_exists="overwrite",
    )
    return run, expected


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("case", "step"),
    [(TALL, 45), (WIDE._replace(memory=500_000), 60), (COPIED, 60)],
    ids=["tall", "wide", "copied"],
)
def test_killed_at_any_line(tmp_path: Path, case: Case, step: int, all_lines: bool) -> None:
    """kill -9 in the factorization or the solution: the next call resumes with identical bits."""
    run, expected = to_kill(tmp_path, case)
    count = lines_of(run, PAGES)
    begun = whole = 0
    step *= 1 if all_lines else 2
    for number in sorted({*range(20, count, step), *range(count - 120, count, step // 4)}):
        shutil.rmtree(tmp_path / "x")
        assert kill_at_line(number, run, PAGES)
        begun += (tmp_path / "F" / "journal").exists()
        with contextlib.suppress(IncompleteError, NotFoundError):
            whole += open_factor(tmp_path / "F").n == 300
        with contextlib.suppress(IncompleteError, NotFoundError):
            np.testing.assert_array_equal(oc.open_array(tmp_path / "x")[...], expected)
        x, _ = run()
        np.testing.assert_array_equal(x[...], expected)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["A", "x"]
    assert min(begun, whole) > 2


def test_killed_again_and_again(tmp_path: Path) -> None:
    run, expected = to_kill(tmp_path, TALL)
    kills = 0
    while kill_at_line(100 + 25 * kills, run, PAGES):
        kills += 1
    assert kills > 3
    np.testing.assert_array_equal(oc.open_array(tmp_path / "x")[...], expected)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["A", "x"]


class Dying:
    """A volume whose process dies while it removes a directory."""

    def __init__(self, volume: Any) -> None:
        self._volume = volume

    def __getattr__(self, name: str) -> Any:
        return getattr(self._volume, name)

    def remove(self, name: str) -> None:
        if name == "F":
            self._volume.remove("F/tau")
            raise KeyboardInterrupt
        self._volume.remove(name)


@pytest.mark.parametrize("case", [TALL, WIDE], ids=["tall", "wide"])
def test_factors_that_are_half_removed_are_made_again(tmp_path: Path, case: Case) -> None:
    a, b = case.problem()
    A = case.store(tmp_path / "A", a)
    expected, _ = case.solve(A, b, threads=1, factors=tmp_path / "F", keep_factors=True)
    where = place(tmp_path / "F")
    dying = Place(cast(Any, Dying(where.volume)), where.name, where.path)
    with pytest.raises(KeyboardInterrupt), removed_at_end(dying, keep=False, useless=()):
        pass
    again, _ = case.solve(A, b, threads=1, factors=tmp_path / "F")
    np.testing.assert_array_equal(again, expected)
    assert not (tmp_path / "F").exists()


@pytest.mark.exhaustive(keep=0)
@pytest.mark.parametrize("case", [TALL, WIDE], ids=["tall", "wide"])
def test_killed_at_random_moments(tmp_path: Path, run_python: RunPython, case: Case) -> None:
    a, b = case.problem()
    A = case.store(tmp_path / "A", a)
    expected, _ = case.solve(A, b, threads=1)
    np.save(tmp_path / "b.npy", b)
    options = f'memory={case.memory}, threads=1, factors="F", out="x", if_exists="overwrite"'
    script = f"""
import numpy as np
from outcore.linalg import lstsq
b = np.load("b.npy")
print("ready", flush=True)
lstsq("A", b, {options}, progress=False)
"""
    # A kill may also come after the end.
    delays_s = np.random.default_rng(0).uniform(0, 0.3, 5)
    killed_until_whole(lambda is_killed: run_python(script), tmp_path / "x", delays_s)
    np.testing.assert_array_equal(oc.open_array(tmp_path / "x")[...], expected)
    # A kill may hit between the solution and the removal of the factors.
    again, _ = case.solve(A, b, threads=1, factors=tmp_path / "F")
    np.testing.assert_array_equal(again, expected)
    assert not (tmp_path / "F").exists()
