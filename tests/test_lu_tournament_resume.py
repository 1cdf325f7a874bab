"""LU with tournament pivoting goes on after whatever stopped it, to the same bits."""

import contextlib
import itertools
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from linpack import Matrix, lapack_ratio, one_thread, random_matrix
from stopping import DECISIVE, after_notes, at_line, bits, interrupt, kill_at_line, lines_of
from tournament_cases import cut, played

import outcore as oc
from outcore import catalog
from outcore.errors import BudgetError, IncompleteError, Interrupted, JournalError, NotFoundError
from outcore.linalg import lu_factor, open_factor
from outcore.linalg.factors.journal import Journal, Record, read_journal
from outcore.linalg.lu import block_columns
from outcore.linalg.lu.block_columns_storage import TournamentStorage
from outcore.linalg.lu.tournament import TournamentFactorization
from outcore.longcall import LongCall
from outcore.volumes import place

__all__ = ["one_thread"]  # a fixture for every test here

N, MEMORY, CHUNKS = 320, 160_000, (64, 32)
PAGES = (
    *DECISIVE,
    "lu/phases.py",
    "lu/block_columns_storage.py",
    "lu/tournament.py",
    "lu/block_columns.py",
)
ALL_PAGES = (*PAGES, "lu/column_update.py", "lu/relay.py", "lu/row_copy.py")


def factor(path: Path, **options: Any) -> oc.linalg.LUFactor:
    options = {"memory": MEMORY, "threads": 1, "progress": False, "method": "tournament"} | options
    return lu_factor(path, **options)


@pytest.fixture(scope="module", params=["C", "F"])
def undisturbed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, tuple[Matrix, Matrix]]:
    """An A on disk, and the bits that result."""
    home = tmp_path_factory.mktemp("undisturbed")
    a = random_matrix(N, "f8")
    oc.from_array(a, home / "Z", order=request.param, chunks=CHUNKS, progress=False).close()
    g = cut(N, "f8", MEMORY, request.param, CHUNKS)
    assert played(g) >= 2
    assert g.is_whole(g.block_columns[-1])
    assert g.is_copied == (request.param == "F")
    expected = bits(factor(home / "Z"))
    shutil.rmtree(home / "Z.lu")
    return home / "Z", expected


def assert_finished(lu: oc.linalg.LUFactor, expected: tuple[Matrix, Matrix], why: str = "") -> None:
    for have, want in zip(bits(lu), expected, strict=True):
        np.testing.assert_array_equal(have, want, err_msg=why)
    names = {p.name for p in lu.path.iterdir()} - {"lock", "journal"}
    assert names == {"lu", "piv", "zarr.json"}


def test_killed_at_any_line(
    tmp_path: Path, undisturbed: tuple[Path, tuple[Matrix, Matrix]]
) -> None:
    source, expected = undisturbed
    out = tmp_path / "F"

    def run() -> oc.linalg.LUFactor:
        return factor(source, out=out)

    count = lines_of(run, PAGES)
    draw = np.random.default_rng(0)
    numbers = {*draw.integers(2, count, 8).tolist(), *range(count - 60, count, 20)}
    for number in sorted(numbers):
        shutil.rmtree(out, ignore_errors=True)
        if not kill_at_line(number, run, PAGES):
            continue
        try:
            lu = open_factor(out)
        except oc.OutcoreError:
            lu = run()
        assert_finished(lu, expected, f"killed at line {number} of {count}")


def test_killed_again_and_again(
    tmp_path: Path, undisturbed: tuple[Path, tuple[Matrix, Matrix]]
) -> None:
    """Each call is killed a little further on than the one before, until one comes to the end."""
    source, expected = undisturbed
    out = tmp_path / "F"
    for kills in itertools.count(1):
        kill_at_line(400 + 150 * kills, lambda: factor(source, out=out), PAGES)
        # A kill may come after the factors are whole, and before the call is at its end.
        with contextlib.suppress(IncompleteError, NotFoundError):
            lu = open_factor(out)
            break
    assert kills > 2
    assert_finished(lu, expected)


@pytest.mark.parametrize("phase", ["copy_to_segments", "update", "play", "make_lower", "factor"])
def test_killed_at_the_end_of_a_phase(
    tmp_path: Path,
    undisturbed: tuple[Path, tuple[Matrix, Matrix]],
    phase: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All that it wrote is there, and no note of it, or nothing after the note."""
    source, expected = undisturbed
    where: Any = TournamentFactorization
    if phase == "copy_to_segments":
        where = block_columns
    method, calls = getattr(where, phase), [0]

    def stopping(*arguments: Any) -> Any:
        found = method(*arguments)
        calls[0] += 1
        if calls[0] == 2 or phase in ("factor", "copy_to_segments"):
            interrupt()
        return found

    monkeypatch.setattr(where, phase, stopping)
    with oc.open_array(source) as A:
        is_copied = A.metadata.order == "F"
    if phase == "copy_to_segments" and not is_copied:
        factor(source, out=tmp_path / "F")
        assert not calls[0]
        return
    with pytest.raises(Interrupted):
        factor(source, out=tmp_path / "F")
    monkeypatch.undo()
    lu = factor(source, out=tmp_path / "F")
    assert_finished(lu, expected, phase)


def test_interrupted_at_any_line(
    tmp_path: Path, undisturbed: tuple[Path, tuple[Matrix, Matrix]]
) -> None:
    """Ctrl-C again and again, in the arithmetic too: every call leaves a state to go on from."""
    source, expected = undisturbed
    out = tmp_path / "F"
    for stops in itertools.count(1):
        try:
            with at_line(3000 * stops, interrupt, ALL_PAGES):
                lu = factor(source, out=out)
            break
        except KeyboardInterrupt:
            assert not (out / "lock").exists()
    assert stops > 2
    assert_finished(lu, expected)


def test_the_bytes_of_the_rest_are_as_planned(
    tmp_path: Path, undisturbed: tuple[Path, tuple[Matrix, Matrix]]
) -> None:
    source, expected = undisturbed
    with oc.open_array(source) as A:
        g = cut(N, "f8", MEMORY, A.metadata.order, CHUNKS)
    read, written = g.bytes_moved()
    most = 2 * played(g) + g.is_copied
    for notes in (1, 2, 3, most):
        out = tmp_path / f"F{notes}"
        with after_notes(notes, interrupt), pytest.raises(Interrupted, match="lu_factor again"):
            factor(source, out=out)
        journal = read_journal(place(out))
        assert journal is not None
        assert journal.header.cuts is not None
        assert journal.header.cuts["method"] == "tournament"
        lu = factor(source, out=out, method="slabs")
        report = lu.report
        assert report is not None
        assert report.method.startswith("tournament pivoting"), "as it was begun"
        assert report.bytes_written == report.planned_bytes_written < written
        assert report.bytes_read == report.planned_bytes_read < read
        assert report.flops <= 2 * N**3 / 3 * (1 + 1e-9)
        assert_finished(lu, expected)


def test_what_is_noted_is_durable_before(
    tmp_path: Path,
    undisturbed: tuple[Path, tuple[Matrix, Matrix]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Power loss after a note must find what it speaks of: written, then synced."""
    source, _ = undisturbed
    calls: list[LongCall] = []
    storage_open, append, noted = TournamentStorage.open, Journal.append, []

    def opening(self: TournamentStorage, call: LongCall) -> None:
        calls.append(call)
        storage_open(self, call)

    def noting(self: Journal, record: Record) -> None:
        spans = calls[0].trace.spans()
        for array in range(1, len(TournamentStorage.arrays)):
            writes = spans[(spans[:, 0] == 1) & (spans[:, 1] == array)]
            syncs = spans[(spans[:, 0] == 2) & (spans[:, 1] == array)]
            if len(writes):
                assert (syncs[:, 2] >= writes[:, 3].max()).any(), array
        noted.append((record.trailing, record.last))
        append(self, record)

    monkeypatch.setattr(TournamentStorage, "open", opening)
    monkeypatch.setattr(Journal, "append", noting)
    factor(source, out=tmp_path / "F")
    assert len(noted) >= 4


@pytest.mark.parametrize("notes", [3, 4, 5])
def test_another_budget_goes_on_if_it_suffices(
    tmp_path: Path, undisturbed: tuple[Path, tuple[Matrix, Matrix]], notes: int
) -> None:
    source, _ = undisturbed
    out = tmp_path / "F"
    with after_notes(notes, interrupt), pytest.raises(Interrupted):
        factor(source, out=out)
    with pytest.raises(BudgetError, match="begun with more memory: its cuts need"):
        factor(source, out=out, memory=144_000)
    lu = factor(source, out=out, memory=300_000)
    assert lu.report is not None
    assert any("last bits may differ" in note for note in lu.report.notes)
    assert lu.report.bytes_read == lu.report.planned_bytes_read
    assert lu.report.bytes_written == lu.report.planned_bytes_written
    with oc.open_array(source) as A:
        assert lapack_ratio(A[...], lu) < 30


def test_begun_anew(tmp_path: Path, undisturbed: tuple[Path, tuple[Matrix, Matrix]]) -> None:
    source, _ = undisturbed
    out = tmp_path / "F"
    with after_notes(4, interrupt), pytest.raises(Interrupted):
        factor(source, out=out)
    assert {p.name for p in out.iterdir()} & {"lower", "spill"}
    lu = factor(source, out=out, method="slabs", resume=False)
    assert lu.report is not None
    assert lu.report.method == "slabs"
    assert sorted(p.name for p in lu.path.iterdir()) == ["lu", "piv", "zarr.json"]


def test_what_a_stopped_run_leaves_is_known_and_removed(
    tmp_path: Path, undisturbed: tuple[Path, tuple[Matrix, Matrix]]
) -> None:
    source, _ = undisturbed
    out = tmp_path / "F.lu"
    with after_notes(4, interrupt), pytest.raises(Interrupted):
        factor(source, out=out)
    entry = catalog.recognise(out)
    assert entry is not None
    assert (entry.kind, entry.state) == ("factor", "incomplete")
    # Killed while it was removed: what is left is still known.
    os.unlink(out / "zarr.json")
    entry = catalog.recognise(out)
    assert entry is not None
    assert entry.kind == "left-over"
    catalog.remove(entry)
    assert not out.exists()


def test_another_matrix_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "Z"
    oc.from_array(random_matrix(N, "f8"), path, order="C", chunks=CHUNKS, progress=False).close()
    with after_notes(3, interrupt), pytest.raises(Interrupted):
        factor(path)
    with oc.open_array(path, "r+") as A:
        A[0, 0] = 1
    with pytest.raises(JournalError, match="opened for writing since"):
        factor(path)
