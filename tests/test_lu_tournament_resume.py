"""LU with tournament pivoting resumes after any stop, with identical bits."""

import functools
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from linpack import Matrix, lapack_ratio, one_thread, random_matrix
from lu_by_method import assert_finished, assert_synced, some_lines
from stopping import (
    DECISIVE,
    after_notes,
    assert_known_and_removed,
    before_notes,
    bits,
    interrupt,
    interrupted_again_and_again,
    kill_at_random_moments,
    killed_again_and_again,
    killed_at_lines,
    whole_or_again,
)
from tournament_cases import cut, played

import outcore as oc
from outcore.errors import BudgetError, Interrupted, JournalError
from outcore.linalg import lu_factor
from outcore.linalg._lu.block_columns import factor_columns as block_columns
from outcore.linalg._lu.block_columns.storage import TournamentStorage
from outcore.linalg._lu.block_columns.tournament import TournamentFactorization
from outcore.linalg._output.journal import Record, read_journal
from outcore.storage.volumes import place

__all__ = ["one_thread"]  # a fixture for every test here

N, MEMORY, CHUNKS = 320, 165_000, (64, 32)
PAGES = (
    *DECISIVE,
    "_lu/block_columns/storage.py",
    "_lu/block_columns/tournament.py",
    "_lu/block_columns/factor_columns.py",
)
ALL_PAGES = (
    *PAGES,
    "_lu/block_columns/column_update.py",
    "_tiles/relay.py",
)


RunPython = Callable[..., "subprocess.Popen[str]"]


def factor(path: Path, **options: Any) -> oc.linalg.LUFactor:
    options = {"memory": MEMORY, "threads": 1, "progress": False, "method": "tournament"} | options
    return lu_factor(path, **options)


@pytest.fixture(scope="module", params=["C", "F"])
def undisturbed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, tuple[Matrix, Matrix]]:
    """Yield a path to A on disk, and the resulting bits."""
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


@pytest.mark.exhaustive
def test_killed_at_any_line(
    tmp_path: Path, undisturbed: tuple[Path, tuple[Matrix, Matrix]]
) -> None:
    source, expected = undisturbed
    run = functools.partial(factor, source, out=tmp_path / "F")
    numbers = some_lines(8)
    for lu, where in killed_at_lines(lambda: None, run, tmp_path / "F", PAGES, numbers):
        assert_finished(lu, expected, where)


@pytest.mark.exhaustive
def test_killed_again_and_again(
    tmp_path: Path, undisturbed: tuple[Path, tuple[Matrix, Matrix]]
) -> None:
    source, expected = undisturbed
    run = functools.partial(factor, source, out=tmp_path / "F")
    lu = killed_again_and_again(run, tmp_path / "F", (400, 150), PAGES, least=2)
    assert_finished(lu, expected)


@pytest.mark.exhaustive(keep=0)
def test_killed_at_random_moments(
    tmp_path: Path, undisturbed: tuple[Path, tuple[Matrix, Matrix]], run_python: RunPython
) -> None:
    source, expected = undisturbed
    script = f"""
import sys
from outcore.linalg import lu_factor
print("ready", flush=True)
lu_factor(sys.argv[1], out=sys.argv[2], memory={MEMORY}, method="tournament", threads=1,
          progress=False)
"""
    kill_at_random_moments(
        lambda: run_python(script, str(source), str(tmp_path / "F")), tmp_path / "F", 0.3, 4
    )
    lu = whole_or_again(lambda: factor(source, out=tmp_path / "F"), tmp_path / "F")
    assert_finished(lu, expected)


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("phase", ["copy_to_segments", "update", "play", "make_lower", "factor"])
def test_killed_at_the_end_of_a_phase(
    tmp_path: Path,
    undisturbed: tuple[Path, tuple[Matrix, Matrix]],
    phase: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Stop after all writes of a phase and before its note, or right after the note."""
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
    source, expected = undisturbed
    run = functools.partial(factor, source, out=tmp_path / "F")
    lu = interrupted_again_and_again(run, tmp_path / "F", 3000, ALL_PAGES, least=2)
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
    tmp_path: Path, undisturbed: tuple[Path, tuple[Matrix, Matrix]]
) -> None:
    """Write and sync data before their note, so that a power loss after the note loses nothing."""
    source, _ = undisturbed

    def check(storage: TournamentStorage, spans: Matrix, record: Record) -> None:
        for array in range(1, len(TournamentStorage.arrays)):
            assert_synced(spans, array)

    with before_notes(TournamentStorage, check) as noted:
        factor(source, out=tmp_path / "F")
    assert len(noted) >= 4


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("notes", [3, 4, 5])
def test_another_budget_goes_on_if_it_suffices(
    tmp_path: Path, undisturbed: tuple[Path, tuple[Matrix, Matrix]], notes: int
) -> None:
    source, _ = undisturbed
    out = tmp_path / "F"
    with after_notes(notes, interrupt), pytest.raises(Interrupted):
        factor(source, out=out)
    with pytest.raises(BudgetError, match="begun with more memory: its cuts need"):
        factor(source, out=out, memory=150_000)
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
    assert_known_and_removed(out)


def test_another_matrix_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "Z"
    oc.from_array(random_matrix(N, "f8"), path, order="C", chunks=CHUNKS, progress=False).close()
    with after_notes(3, interrupt), pytest.raises(Interrupted):
        factor(path)
    with oc.open_array(path, "r+") as A:
        A[0, 0] = 1
    with pytest.raises(JournalError, match="written to since"):
        factor(path)
