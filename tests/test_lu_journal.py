"""The journal of a stopped factorization: torn, damaged, or of another matrix."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from linpack import Matrix, lapack_ratio, names_below, on_disk, one_thread, random_matrix
from stopping import after_notes, bits, stop_after

import outcore as oc
from outcore.errors import ConsumedError, JournalError
from outcore.linalg import LUFactor, lu_factor
from outcore.linalg._output.journal import read_journal
from outcore.storage.volumes import place

__all__ = ["one_thread"]  # a fixture for every test here

N, CHUNKS, MEMORY = 200, (64, 32), 200_000


def factor(path: Path, **options: Any) -> LUFactor:
    return lu_factor(path, **{"memory": MEMORY, "threads": 1, "progress": False} | options)


@pytest.fixture
def matrix() -> Matrix:
    return random_matrix(N, "f8")


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("overwrite_a", [False, True])
@pytest.mark.parametrize("torn_bytes", [1, 3, 60])
def test_a_torn_note_is_dropped_for_good(
    tmp_path: Path, matrix: Matrix, overwrite_a: bool, torn_bytes: int
) -> None:
    """A torn line is dropped, and the line after it survives."""
    for name in "YZ":
        on_disk(tmp_path / name, matrix, CHUNKS).close()
    undisturbed = factor(tmp_path / "Y", overwrite_a=overwrite_a)
    path = tmp_path / "Z"
    stop_after(2, path, memory=MEMORY, overwrite_a=overwrite_a)
    journal = tmp_path / "Z.lu" / "journal"
    text = journal.read_bytes()
    notes = len(text.splitlines()) - 1
    journal.write_bytes(text[:-torn_bytes])
    found = read_journal(place(tmp_path / "Z.lu"))
    assert found is not None
    assert len(found.records) == notes - 1
    stop_after(1, path, memory=MEMORY, overwrite_a=overwrite_a)
    again = read_journal(place(tmp_path / "Z.lu"))
    assert again is not None
    assert len(again.records) >= notes
    assert not again.is_torn
    lu = factor(path, overwrite_a=overwrite_a)
    for have, want in zip(bits(lu), bits(undisturbed), strict=True):
        np.testing.assert_array_equal(have, want)


@pytest.mark.parametrize("line", [0, 1])
def test_a_damaged_journal_is_refused(tmp_path: Path, matrix: Matrix, line: int) -> None:
    A = on_disk(tmp_path / "Z", matrix, CHUNKS)
    stop_after(2, A, memory=MEMORY)
    journal = tmp_path / "Z.lu" / "journal"
    lines = journal.read_bytes().splitlines(keepends=True)
    lines[line] = lines[line].replace(b"1", b"2", 1)
    journal.write_bytes(b"".join(lines))
    with pytest.raises(JournalError, match="damaged; pass resume=False"):
        factor(A.path)
    assert lapack_ratio(matrix, factor(A.path, resume=False)) < 30


def written_since(path: Path) -> None:
    with oc.open_array(path, "r+") as array:
        array[3, 5] = 0


def made_anew(path: Path) -> None:
    """Replace the matrix; its generation restarts, and is the same as before."""
    shutil.rmtree(path)
    on_disk(path, random_matrix(N, "f8", 1), CHUNKS).close()


def another_type(path: Path) -> None:
    oc.from_array(random_matrix(N, "f4"), path, order="F", if_exists="overwrite").close()


def another_order(path: Path) -> None:
    oc.from_array(random_matrix(N + 1, "f8"), path, order="F", if_exists="overwrite").close()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (written_since, "was written to since"),
        (made_anew, "was written to, or created again"),
        (another_type, "of order 200 in float64; the matrix is now of order 200 in float32"),
        (another_order, "of order 200 in float64; the matrix is now of order 201"),
    ],
)
def test_changed_input_is_refused(
    tmp_path: Path, matrix: Matrix, change: Callable[[Path], None], reason: str
) -> None:
    path = on_disk(tmp_path / "Z", matrix, CHUNKS).path
    stop_after(2, path, memory=MEMORY)
    change(path)
    before = names_below(tmp_path)
    with pytest.raises(JournalError, match=reason):
        factor(path)
    assert names_below(tmp_path) == before
    now = oc.open_array(path)[...]
    lu = factor(path, resume=False)
    assert lapack_ratio(now, lu) < 30
    assert lu.report is not None
    assert lu.report.notes == []


def test_writes_through_an_array_that_stayed_open(tmp_path: Path, matrix: Matrix) -> None:
    A = on_disk(tmp_path / "Z", matrix, CHUNKS)
    stop_after(2, A, memory=MEMORY)
    A[3, 5] = 0
    with pytest.raises(JournalError, match="written to, or created again"):
        factor(A.path)

    def meanwhile() -> None:
        A[3, 5] = 1

    with after_notes(2, meanwhile), pytest.raises(JournalError, match="while it was factored"):
        factor(A.path, resume=False)
    assert not any((tmp_path / "Z.lu").iterdir())
    matrix = A[...]
    assert lapack_ratio(matrix, factor(A.path)) < 30


def test_another_matrix_is_refused(tmp_path: Path, matrix: Matrix) -> None:
    path = on_disk(tmp_path / "Z", matrix, CHUNKS).path
    other = on_disk(tmp_path / "Y", matrix, CHUNKS).path
    stop_after(2, path, memory=MEMORY)
    with pytest.raises(JournalError, match=r"stopped factorization of .*Z, not of .*Y"):
        factor(other, out=tmp_path / "Z.lu")
    assert lapack_ratio(matrix, factor(path)) < 30


def test_a_given_up_matrix_cannot_begin_anew(tmp_path: Path, matrix: Matrix) -> None:
    path = on_disk(tmp_path / "Z", matrix, CHUNKS).path
    stop_after(2, path, memory=MEMORY, overwrite_a=True)
    for options in ({"resume": False}, {"out": tmp_path / "other"}):
        with pytest.raises(ConsumedError):
            factor(path, **options)  # type: ignore[arg-type]
    # A new matrix of the same name is another matrix: neither may destroy the other.
    on_disk(tmp_path / "Y", matrix, CHUNKS).close()
    shutil.copytree(path, tmp_path / "kept")
    shutil.rmtree(path)
    shutil.copytree(tmp_path / "Y", path)
    with pytest.raises(JournalError, match="created again"):
        factor(path)
    np.testing.assert_array_equal(oc.open_array(path)[...], matrix)
    shutil.rmtree(path)
    shutil.copytree(tmp_path / "kept", path)
    # For a consumed matrix, a call resumes with or without overwrite_a.
    assert lapack_ratio(matrix, factor(path)) < 30
