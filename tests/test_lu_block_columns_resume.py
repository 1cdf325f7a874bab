"""LU by block columns resumes after any stop, with identical bits."""

import functools
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
import scipy.linalg
from linpack import Matrix, lapack_ratio, one_thread, random_matrix
from lu_by_method import assert_finished, assert_synced, some_lines
from partial_cases import cut
from stopping import (
    DECISIVE,
    LEFT_LOOKING,
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

import outcore as oc
from outcore._core import ArrayFile, Grid
from outcore.errors import BudgetError, Interrupted, JournalError
from outcore.linalg import lu_factor
from outcore.linalg._lu.block_columns.geometry import BlockColumn
from outcore.linalg._lu.block_columns.partial import PartialFactorization
from outcore.linalg._lu.block_columns.storage import PartialStorage, make_workspace
from outcore.linalg._output.journal import Record, read_journal
from outcore.storage.volumes import place

__all__ = ["one_thread"]  # a fixture for every test here

N, MEMORY, CHUNKS = 384, 160_000, (64, 32)
PAGES = (
    *DECISIVE,
    "_lu/block_columns/storage.py",
    "_lu/block_columns/factor_columns.py",
    "_lu/block_columns/partial.py",
)
ALL_PAGES = (
    *PAGES,
    "_lu/block_columns/column_update.py",
    "_tiles/relay.py",
    "_lu/slabs/factor_slabs.py",
    *LEFT_LOOKING,
)
RunPython = Callable[..., "subprocess.Popen[str]"]


def factor(path: Path, **options: Any) -> oc.linalg.LUFactor:
    options = {
        "memory": MEMORY,
        "threads": 1,
        "progress": False,
        "method": "block-columns",
    } | options
    return lu_factor(path, **options)


@pytest.fixture(scope="module")
def matrix() -> Matrix:
    return random_matrix(N, "f8")


@pytest.fixture(scope="module", params=[("C", N, 160_000), ("F", 512, 200_000)], ids=["C", "F"])
def undisturbed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, int, tuple[Matrix, Matrix]]:
    """Yield a path to A on disk, its budget, and the resulting bits."""
    order, n, memory = request.param
    home = tmp_path_factory.mktemp("undisturbed")
    a = random_matrix(n, "f8")
    oc.from_array(a, home / "Z", order=order, chunks=CHUNKS, progress=False).close()
    g = cut(n, "f8", memory, order, CHUNKS)
    assert len(g.widths) >= 2
    assert g.is_copied == (order == "F")
    expected = bits(factor(home / "Z", memory=memory))
    shutil.rmtree(home / "Z.lu")
    return home / "Z", memory, expected


@pytest.mark.exhaustive
def test_killed_at_any_line(
    tmp_path: Path, undisturbed: tuple[Path, int, tuple[Matrix, Matrix]]
) -> None:
    source, memory, expected = undisturbed
    run = functools.partial(factor, source, memory=memory, out=tmp_path / "F")
    numbers = some_lines(7)
    for lu, where in killed_at_lines(lambda: None, run, tmp_path / "F", PAGES, numbers):
        assert_finished(lu, expected, where)


@pytest.mark.exhaustive
def test_killed_again_and_again(
    tmp_path: Path, undisturbed: tuple[Path, int, tuple[Matrix, Matrix]]
) -> None:
    source, memory, expected = undisturbed
    run = functools.partial(factor, source, memory=memory, out=tmp_path / "F")
    lu = killed_again_and_again(run, tmp_path / "F", (400, 150), PAGES, least=2)
    assert_finished(lu, expected)


@pytest.mark.exhaustive(keep=0)
def test_killed_at_random_moments(
    tmp_path: Path, undisturbed: tuple[Path, int, tuple[Matrix, Matrix]], run_python: RunPython
) -> None:
    source, memory, expected = undisturbed
    script = f"""
import sys
from outcore.linalg import lu_factor
print("ready", flush=True)
lu_factor(sys.argv[1], out=sys.argv[2], memory={memory}, method="block-columns", threads=1,
          progress=False)
"""
    kill_at_random_moments(
        lambda: run_python(script, str(source), str(tmp_path / "F")), tmp_path / "F", 0.3, 4
    )
    lu = whole_or_again(lambda: factor(source, memory=memory, out=tmp_path / "F"), tmp_path / "F")
    assert_finished(lu, expected)


def test_interrupted_at_any_line(
    tmp_path: Path, undisturbed: tuple[Path, int, tuple[Matrix, Matrix]]
) -> None:
    source, memory, expected = undisturbed
    run = functools.partial(factor, source, memory=memory, out=tmp_path / "F")
    lu = interrupted_again_and_again(run, tmp_path / "F", 2500, ALL_PAGES, least=3)
    assert_finished(lu, expected)


def test_the_bytes_of_the_rest_are_as_planned(
    tmp_path: Path, undisturbed: tuple[Path, int, tuple[Matrix, Matrix]], all_lines: bool
) -> None:
    source, memory, expected = undisturbed
    with oc.open_array(source) as A:
        n, order = A.shape[0], A.metadata.order
    written = cut(n, "f8", memory, order, CHUNKS).bytes_moved()[1]
    for notes in range(1, 12, 2 if all_lines else 5):
        out = tmp_path / f"F{notes}"
        with after_notes(notes, interrupt), pytest.raises(Interrupted, match="lu_factor again"):
            factor(source, memory=memory, out=out)
        journal = read_journal(place(out))
        assert journal is not None
        assert journal.header.cuts is not None
        lu = factor(source, memory=memory, out=out, method="slabs")
        report = lu.report
        assert report is not None
        assert report.method == "block-columns", "as it was begun"
        assert report.bytes_written == report.planned_bytes_written < written
        assert report.flops <= 2 * n**3 / 3 * (1 + 1e-9)
        assert_finished(lu, expected)


def test_what_is_noted_is_durable_before(tmp_path: Path, matrix: Matrix) -> None:
    """Write and sync data before their note, so that a power loss after the note loses nothing."""

    def check(storage: PartialStorage, spans: Matrix, record: Record) -> None:
        for array in range(1, len(PartialStorage.arrays)):
            # While the last slabs are written, the next one may already be in flight.
            if record.trailing is not None or array != 1:
                assert_synced(spans, array)

    oc.from_array(matrix, tmp_path / "Z", order="C", chunks=CHUNKS, progress=False).close()
    with before_notes(PartialStorage, check) as noted:
        factor(tmp_path / "Z")
    g = cut(N, "f8", MEMORY, "C", CHUNKS)
    spilled = [k + 1 for k, s in enumerate(g.block_columns) if g.is_spilled(s)]
    assert [record.trailing for record in noted if record.trailing is not None] == spilled


def test_another_budget_goes_on_if_it_suffices(tmp_path: Path, matrix: Matrix) -> None:
    path = tmp_path / "Z"
    oc.from_array(matrix, path, order="C", chunks=CHUNKS, progress=False).close()
    with after_notes(8, interrupt), pytest.raises(Interrupted):
        factor(path)
    with pytest.raises(BudgetError, match="begun with more memory: its cuts need"):
        factor(path, memory=140_000)
    lu = factor(path, memory=300_000)
    assert lu.report is not None
    assert any("last bits may differ" in note for note in lu.report.notes)
    np.testing.assert_array_equal(lu.piv, scipy.linalg.lu_factor(matrix)[1])
    assert lapack_ratio(matrix, lu) < 30


def test_begun_anew(tmp_path: Path, matrix: Matrix) -> None:
    path = tmp_path / "Z"
    oc.from_array(matrix, path, order="C", chunks=CHUNKS, progress=False).close()
    with after_notes(10, interrupt), pytest.raises(Interrupted):
        factor(path)
    names = {p.name for p in (tmp_path / "Z.lu").iterdir()}
    assert names & {"lower", "spill"}
    lu = factor(path, method="slabs", resume=False)
    assert lu.report is not None
    assert lu.report.method == "slabs"
    assert sorted(p.name for p in lu.path.iterdir()) == ["lu", "piv", "zarr.json"]


def test_what_a_stopped_run_leaves_is_known_and_removed(tmp_path: Path, matrix: Matrix) -> None:
    path = tmp_path / "Z"
    oc.from_array(matrix, path, order="C", chunks=CHUNKS, progress=False).close()
    with after_notes(10, interrupt), pytest.raises(Interrupted):
        factor(path)
    assert_known_and_removed(tmp_path / "Z.lu")


def test_spilled_rows_take_the_room_of_those_before(
    tmp_path: Path, matrix: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reuse the file: to remove it and reserve its space again takes longer than writing."""
    path, opened = tmp_path / "Z", PartialStorage.open_spill
    oc.from_array(matrix, path, order="C", chunks=CHUNKS, progress=False).close()
    held: list[BinaryIO] = []
    found: list[tuple[int, int]] = []

    def noted(self: PartialStorage, s: BlockColumn, **options: Any) -> ArrayFile:
        file = opened(self, s, **options)
        (shard,) = (p for p in (tmp_path / "Z.lu" / "spill").rglob("*") if p.is_file())
        # While the test holds the file open, no other file can get its inode number.
        held.append(shard.open("rb"))
        found.append((shard.stat().st_ino, s.origin))
        return file

    monkeypatch.setattr(PartialStorage, "open_spill", noted)
    lu = factor(path)
    for file in held:
        file.close()
    assert len({number for number, _ in found}) == 1 < len({origin for _, origin in found})
    assert lu.report is not None
    assert lapack_ratio(matrix, lu) < 30


def test_a_workspace_without_its_file_is_made(tmp_path: Path) -> None:
    """A crash may leave the directory without the file, or with an empty file."""
    where, grid = place(tmp_path / "W"), Grid([64, 64], [32, 16], 8, "F", "column-major", 4096)
    (tmp_path / "W" / "c").mkdir(parents=True)
    for _ in range(2):
        make_workspace(where, grid, reserve=True)
        (shard,) = (p for p in (tmp_path / "W").rglob("*") if p.is_file())
        assert shard.stat().st_size > 64 * 64 * 8
        with shard.open("r+b") as file:
            file.truncate(0)


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("phase", ["update", "factor_slabs", "copy_lower", "factor"])
def test_stopped_at_the_end_of_a_phase(
    tmp_path: Path,
    undisturbed: tuple[Path, int, tuple[Matrix, Matrix]],
    phase: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Stop after all writes of a phase and before its note, or right after the note."""
    source, memory, expected = undisturbed
    method, calls = getattr(PartialFactorization, phase), [0]

    def stopping(*arguments: Any) -> Any:
        found = method(*arguments)
        calls[0] += 1
        if calls[0] == 2 or phase == "factor":
            interrupt()
        return found

    monkeypatch.setattr(PartialFactorization, phase, stopping)
    with pytest.raises(Interrupted):
        factor(source, memory=memory, out=tmp_path / "F")
    monkeypatch.undo()
    lu = factor(source, memory=memory, out=tmp_path / "F")
    assert_finished(lu, expected)
    assert lu.report is not None
    assert lu.report.bytes_read == lu.report.planned_bytes_read
    assert lu.report.bytes_written == lu.report.planned_bytes_written


def test_a_run_by_a_method_that_is_not_known(tmp_path: Path, matrix: Matrix) -> None:
    path = tmp_path / "Z"
    oc.from_array(matrix, path, order="C", chunks=CHUNKS, progress=False).close()
    with after_notes(8, interrupt), pytest.raises(Interrupted):
        factor(path)
    journal = read_journal(place(tmp_path / "Z.lu"))
    assert journal is not None
    assert journal.header.cuts is not None
    del journal.header.cuts["method"]
    journal.write()
    for method in ("auto", "slabs", "block-columns"):
        with pytest.raises(JournalError, match="by a method that this version does not have"):
            factor(path, method=method)
    lu = factor(path, resume=False)
    np.testing.assert_array_equal(lu.piv, scipy.linalg.lu_factor(matrix)[1])


def test_another_matrix_is_refused(tmp_path: Path, matrix: Matrix) -> None:
    path = tmp_path / "Z"
    oc.from_array(matrix, path, order="C", chunks=CHUNKS, progress=False).close()
    with after_notes(8, interrupt), pytest.raises(Interrupted):
        factor(path)
    with oc.open_array(path, "r+") as A:
        A[0, 0] = 1
    with pytest.raises(JournalError, match="written to since"):
        factor(path)
