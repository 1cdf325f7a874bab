"""Cholesky resumes after any interruption, with the same bits, and refuses a wrong state."""

import functools
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from definite import cholesky_ratio, definite, factor_of, lower_only, upper_only
from linpack import Matrix, names_below, on_disk, one_thread
from stopping import (
    DECISIVE,
    LEFT_LOOKING,
    after_notes,
    before_notes,
    in_a_fork,
    interrupt,
    interrupted_again_and_again,
    kill_at_random_moments,
    killed_again_and_again,
    killed_at_lines,
    stop_after,
    stopped_by_a_full_disk,
    whole_or_again,
)

import outcore as oc
from outcore.errors import (
    BusyError,
    ConsumedError,
    ForkedError,
    IncompleteError,
    Interrupted,
    JournalError,
)
from outcore.linalg import CholeskyFactor, cho_factor, lu_factor, open_factor
from outcore.linalg._cholesky.conveyor import CholeskyConveyor
from outcore.linalg._cholesky.storage import CholeskyStorage
from outcore.linalg._factors.storage import FactorStorage
from outcore.linalg._output.journal import Journal, Record, read_journal
from outcore.storage.volumes import place

__all__ = ["one_thread"]  # a fixture for every test here

N, CHUNKS, MEMORY = 200, (32, 16), 150_000
PAGES = (*DECISIVE, "_cholesky/storage.py", "_factors/lower_tiles.py", "../storage/file_room.py")
RunPython = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(scope="module")
def matrix() -> Matrix:
    return definite(N, "f8")


def put(path: Path, a: Matrix) -> Path:
    on_disk(path, lower_only(a), CHUNKS).close()
    return path


def factor(path: Path, overwrite_a: bool = False, **options: Any) -> CholeskyFactor:
    options = {"memory": MEMORY, "threads": 1, "progress": False} | options
    return cho_factor(path, overwrite_a=overwrite_a, **options)


@pytest.fixture(scope="module", params=[False, True], ids=["beside", "overwrite_a"])
def undisturbed(
    request: pytest.FixtureRequest, matrix: Matrix, tmp_path_factory: pytest.TempPathFactory
) -> tuple[bool, Matrix, Path]:
    """Whether A is overwritten, the resulting bits, and an A to copy."""
    home = tmp_path_factory.mktemp("undisturbed")
    put(home / "A", matrix)
    shutil.copytree(home / "A", home / "Z")
    slabs: list[Record] = []
    append = Journal.append

    def noting(self: Journal, record: Record) -> None:
        slabs.append(record)
        append(self, record)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, "append", noting)
        found = factor(home / "Z", request.param)
    assert len(slabs) >= 4
    return request.param, factor_of(found), home / "A"


def assert_same(found: CholeskyFactor, expected: Matrix, why: str = "") -> None:
    np.testing.assert_array_equal(factor_of(found), expected, err_msg=why)


def assert_finished(found: CholeskyFactor, expected: Matrix) -> None:
    assert_same(found, expected)
    assert sorted(p.name for p in found.path.iterdir()) == ["l", "zarr.json"]


@pytest.mark.exhaustive
def test_killed_at_any_line(tmp_path: Path, undisturbed: tuple[bool, Matrix, Path]) -> None:
    """kill -9 between any two steps: the result counts as complete only if it is."""
    overwrite_a, expected, source = undisturbed
    path = tmp_path / "Z"

    def begin() -> None:
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(source, path)

    def numbers(lines: int) -> list[int]:
        """Every step of the beginning and of the end, and some of the many between."""
        return [*range(2, 200, 9), *range(200, lines - 120, 41), *range(lines - 120, lines, 7)]

    runs = killed_at_lines(
        begin, lambda: factor(path, overwrite_a), tmp_path / "Z.cho", PAGES, numbers
    )
    for found, where in runs:
        assert_same(found, expected, where)
        if overwrite_a:
            with pytest.raises(ConsumedError):
                oc.open_array(path)


def test_killed_again_and_again(tmp_path: Path, undisturbed: tuple[bool, Matrix, Path]) -> None:
    overwrite_a, expected, source = undisturbed
    path = tmp_path / "Z"
    shutil.copytree(source, path)
    found = killed_again_and_again(
        lambda: factor(path, overwrite_a), tmp_path / "Z.cho", (120, 37), PAGES, least=4
    )
    assert_same(found, expected)


def test_killed_at_random_moments(
    tmp_path: Path, undisturbed: tuple[bool, Matrix, Path], run_python: RunPython
) -> None:
    overwrite_a, expected, source = undisturbed
    path = tmp_path / "Z"
    shutil.copytree(source, path)
    script = f"""
import sys
from outcore.linalg import cho_factor
print("ready", flush=True)
cho_factor(sys.argv[1], overwrite_a={overwrite_a}, memory={MEMORY}, threads=1, progress=False)
"""
    kill_at_random_moments(lambda: run_python(script, str(path)), tmp_path / "Z.cho", 0.06)
    found = whole_or_again(lambda: factor(path, overwrite_a), tmp_path / "Z.cho")
    assert_same(found, expected)


def test_interrupted_at_any_line(tmp_path: Path, undisturbed: tuple[bool, Matrix, Path]) -> None:
    overwrite_a, expected, source = undisturbed
    pages = (
        *PAGES,
        *LEFT_LOOKING,
        "_cholesky/conveyor.py",
        "_cholesky/factorization.py",
        "_cholesky/checks.py",
    )
    for step in (331, 877):
        path = tmp_path / f"Z{step}"
        shutil.copytree(source, path)
        found = interrupted_again_and_again(
            functools.partial(factor, path, overwrite_a),
            tmp_path / f"Z{step}.cho", step, pages, least=3,
        )  # fmt: skip
        assert_finished(found, expected)


def test_a_journal_left_beside_whole_factors_does_no_harm(tmp_path: Path, matrix: Matrix) -> None:
    """Ctrl-C between the last two steps: the factors are complete, and their journal exists."""
    path, out = put(tmp_path / "Z", matrix), tmp_path / "Z.cho"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, "remove", lambda self: interrupt())
        with pytest.raises(KeyboardInterrupt):
            factor(path)
    assert sorted(p.name for p in out.iterdir()) == ["journal", "l", "zarr.json"]
    found = open_factor(out)
    assert isinstance(found, CholeskyFactor)
    assert cholesky_ratio(matrix, found) < 30
    expected = factor_of(found)
    with pytest.raises(oc.errors.ExistsError, match="complete factors"):
        factor(path)
    assert_finished(factor(path, if_exists="overwrite"), expected)


def test_a_slab_is_durable_before_its_note(
    tmp_path: Path, undisturbed: tuple[bool, Matrix, Path]
) -> None:
    """Write and sync a whole slab before its note, so that a power loss after it loses nothing."""
    overwrite_a, _, source = undisturbed
    path = tmp_path / "Z"
    shutil.copytree(source, path)

    def check(storage: CholeskyStorage, spans: Matrix, record: Record) -> None:
        g = storage.geometry
        at = spans[:, 4] // (g.tiles * g.tile_bytes)
        writes = spans[(spans[:, 0] == 1) & (spans[:, 1] == 1) & np.isin(at, record.places)]
        written = {p: int(writes[writes[:, 4] // (g.tiles * g.tile_bytes) == p, 5].sum())
                   for p in record.places}  # fmt: skip
        for panel, p in zip(range(record.first, record.last), record.places, strict=True):
            whole = (g.tiles - g.first_tile(panel)) * g.tile_bytes
            # A run that overwrites A may write a place a second time.
            assert written[p] == whole if not overwrite_a else written[p] >= whole
        syncs = spans[spans[:, 0] == 2]
        assert (syncs[:, 2] >= writes[:, 3].max()).any()

    with before_notes(CholeskyStorage, check) as noted:
        factor(path, overwrite_a)
    assert len(noted) >= 4


@pytest.mark.parametrize("overwrite_a", [False, True])
def test_nothing_is_overwritten_that_a_crash_would_need(
    tmp_path: Path, matrix: Matrix, overwrite_a: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No write goes to a recorded panel, or to columns of A that were not factored then.

    No write happens before the previous slab is recorded: a crash loses one slab at most.
    """
    path = put(tmp_path / "Z", matrix)
    panel_done, written = CholeskyConveyor.panel_done, []

    def leaving(self: CholeskyConveyor, panel: int) -> None:
        panel_done(self, panel)
        storage, journal = self._storage, self._storage.journal
        noted = {at for record in journal.records for at in record.places}
        at = storage.places[panel]
        assert at not in noted
        if overwrite_a:
            assert at not in range(journal.panels_done, storage.geometry.panels)
        assert journal.panels_done == self.part.slab.first
        written.append(at)

    monkeypatch.setattr(CholeskyConveyor, "panel_done", leaving)
    # As if each sync were slow: nothing becomes durable until the call waits for it.
    monkeypatch.setattr(FactorStorage, "commit_if_durable", lambda self: None)
    for memory in (MEMORY, 180_000):
        with after_notes(2, interrupt), pytest.raises(Interrupted):
            factor(path, overwrite_a, memory=memory)
    found = factor(path, overwrite_a)
    assert len(set(written)) > len(found.places) / 2
    assert cholesky_ratio(matrix, found) < 30


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_stop_cleanly(tmp_path: Path, matrix: Matrix, number: signal.Signals) -> None:
    path = put(tmp_path / "Z", matrix)
    handlers = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    text = r"Cholesky of Z stopped with [1-9]\d* of \d+ panels done; call cho_factor again with"
    with (
        after_notes(2, lambda: signal.raise_signal(number)),
        pytest.raises(Interrupted, match=text),
    ):
        factor(path)
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == handlers
    left = sorted(p.name for p in (tmp_path / "Z.cho").iterdir())
    assert left == ["journal", "l", "zarr.json"]
    with pytest.raises(IncompleteError, match=r"call cho_factor on .*Z again"):
        open_factor(tmp_path / "Z.cho")
    assert cholesky_ratio(matrix, factor(path)) < 30


def test_a_resumed_run_says_what_it_did(tmp_path: Path, matrix: Matrix) -> None:
    path = put(tmp_path / "Z", matrix)
    stop_after(2, path, cho_factor, memory=MEMORY, threads=1)
    journal = read_journal(place(tmp_path / "Z.cho"))
    assert journal is not None
    assert journal.header.kind == "cholesky"
    told: list[float] = []
    found = factor(path, progress=lambda done, left: told.append(done))
    assert found.report is not None
    (note,) = found.report.notes
    assert note.startswith(f"resumed at panel {journal.panels_done} of ")
    assert found.report.bytes_written == found.report.planned_bytes_written < N * N * 8
    assert found.report.flops < N**3 / 3
    assert found.norm1 == pytest.approx(np.linalg.norm(matrix, 1))


@pytest.mark.parametrize("overwrite_a", [False, True])
@pytest.mark.parametrize(
    "changes",
    [{"memory": [150_000, 180_000, 900_000]}, {"memory": [180_000, 150_000, 160_000]},
     {"threads": [1, 2, 1]}],
    ids=str,
)  # fmt: skip
def test_another_budget_or_thread_count_goes_on(
    tmp_path: Path, matrix: Matrix, overwrite_a: bool, changes: dict[str, list[int]]
) -> None:
    path = put(tmp_path / "Z", matrix)
    ((name, values),) = changes.items()
    options = {"memory": MEMORY, "threads": 1, "overwrite_a": overwrite_a}
    stop_after(1, path, cho_factor, **options | {name: values[0]})
    stop_after(1, path, cho_factor, **options | {name: values[1]})
    found = cho_factor(path, progress=False, **options | {name: values[2]})
    assert cholesky_ratio(matrix, found) < 30
    assert found.norm1 == pytest.approx(np.linalg.norm(matrix, 1))
    assert found.report is not None
    assert any("last bits may differ" in note for note in found.report.notes)


def test_a_torn_note_is_dropped(tmp_path: Path, matrix: Matrix) -> None:
    expected = factor_of(factor(put(tmp_path / "Y", matrix)))
    path = put(tmp_path / "Z", matrix)
    stop_after(2, path, cho_factor, memory=MEMORY, threads=1)
    journal = tmp_path / "Z.cho" / "journal"
    journal.write_bytes(journal.read_bytes()[:-3])
    assert_finished(factor(path), expected)


def test_changed_input_is_refused(tmp_path: Path, matrix: Matrix) -> None:
    path = put(tmp_path / "Z", matrix)
    stop_after(2, path, cho_factor, memory=MEMORY)
    with oc.open_array(path, "r+") as array:
        array[3, 3] = 7
    before = names_below(tmp_path)
    with pytest.raises(JournalError, match="was written to since"):
        factor(path)
    assert names_below(tmp_path) == before
    matrix = matrix.copy()
    matrix[3, 3] = 7
    assert cholesky_ratio(matrix, factor(path, resume=False)) < 30


def test_a_run_of_one_triangle_does_not_go_on_with_the_other(
    tmp_path: Path, matrix: Matrix
) -> None:
    A = oc.from_array(upper_only(matrix), tmp_path / "Z", chunks=(16, 32))
    expected = factor_of(factor(A.path, lower=False, out=tmp_path / "F"))
    stop_after(2, A, cho_factor, lower=False, memory=MEMORY, threads=1)
    with pytest.raises(JournalError, match="stopped factorization with lower=False"):
        factor(A.path)
    assert_finished(factor(A.path, lower=False), expected)


def test_one_kind_of_factorization_does_not_go_on_with_another(
    tmp_path: Path, matrix: Matrix
) -> None:
    path = on_disk(tmp_path / "Z", matrix, CHUNKS).path
    out = tmp_path / "F"
    stop_after(1, path, cho_factor, memory=MEMORY, out=out)
    with pytest.raises(JournalError, match="stopped factorization by cho_factor, not by lu_factor"):
        lu_factor(path, out=out, memory=MEMORY, progress=False)
    lu_factor(path, out=out, memory=MEMORY, resume=False, progress=False)
    with pytest.raises(oc.errors.ExistsError, match="complete factors"):
        factor(path, out=out)
    found = factor(path, out=out, if_exists="overwrite")
    assert sorted(p.name for p in out.iterdir()) == ["l", "zarr.json"]
    assert cholesky_ratio(matrix, found) < 30


def test_a_full_disk_stops_cleanly(tmp_path: Path, small_disk: Path) -> None:
    """The factor reserves its space at the start; the journal finds no space."""
    a, out = definite(1000, "f8"), small_disk / "F"
    A = on_disk(tmp_path / "Z", a)
    found = stopped_by_a_full_disk(
        lambda: cho_factor(A, memory=300_000, out=out, progress=False), out
    )
    assert cholesky_ratio(a, found) < 30


def test_two_calls_for_one_target(tmp_path: Path, matrix: Matrix) -> None:
    path = put(tmp_path / "Z", matrix)

    def meanwhile() -> None:
        with pytest.raises(BusyError, match="in use by another process"):
            factor(path)
        with pytest.raises(BusyError):
            lu_factor(path, out=tmp_path / "Z.cho", if_exists="overwrite")

    with after_notes(2, meanwhile):
        found = factor(path)
    assert cholesky_ratio(matrix, found) < 30


def test_a_forked_process_is_told(tmp_path: Path, matrix: Matrix) -> None:
    A = on_disk(tmp_path / "Z", matrix, CHUNKS)
    factor(A.path, out=tmp_path / "F")

    def with_the_parents_array() -> None:
        with pytest.raises(ForkedError, match="fork"):
            cho_factor(A, memory=MEMORY, progress=False)

    assert in_a_fork(with_the_parents_array) == 0
    assert not (tmp_path / "Z.cho").exists()
    # With the path, the call opens all files itself.
    assert in_a_fork(lambda: factor(A.path)) == 0
    found = whole_or_again(lambda: factor(A.path), tmp_path / "Z.cho")
    assert cholesky_ratio(matrix, found) < 30
