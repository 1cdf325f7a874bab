"""Cholesky resumes with identical bits; `test_factor_resume.py` has the tests of each kind."""

from pathlib import Path

import numpy as np
import pytest
from definite import cholesky_ratio, upper_only
from linpack import one_thread
from resumed_kinds import CHOLESKY
from stopping import interrupt, stop_after

import outcore as oc
from outcore.errors import JournalError
from outcore.linalg import CholeskyFactor, cho_factor, open_factor
from outcore.linalg._output.journal import Journal, read_journal
from outcore.storage.volumes import place

__all__ = ["one_thread"]  # a fixture for every test here

matrix, put, factor = CHOLESKY.matrix, CHOLESKY.put, CHOLESKY.factor


def test_a_journal_left_beside_whole_factors_does_no_harm(tmp_path: Path) -> None:
    """Ctrl-C between the last two steps: the factors are complete, and their journal exists."""
    path, out = put(tmp_path / "Z"), tmp_path / "Z.cho"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, "remove", lambda self: interrupt())
        with pytest.raises(KeyboardInterrupt):
            factor(path)
    assert sorted(p.name for p in out.iterdir()) == ["journal", "l", "zarr.json"]
    found = open_factor(out)
    assert isinstance(found, CholeskyFactor)
    assert cholesky_ratio(matrix, found) < 30
    expected = CHOLESKY.bits(found)
    with pytest.raises(oc.errors.ExistsError, match="complete factors"):
        factor(path)
    CHOLESKY.assert_finished(factor(path, if_exists="overwrite"), expected)


def test_a_resumed_run_says_what_it_did(tmp_path: Path) -> None:
    path = put(tmp_path / "Z")
    stop_after(2, path, cho_factor, memory=CHOLESKY.memory, threads=1)
    journal = read_journal(place(tmp_path / "Z.cho"))
    assert journal is not None
    assert journal.header.kind == "cholesky"
    told: list[float] = []
    found = factor(path, progress=lambda done, left: told.append(done))
    assert found.report is not None
    (note,) = found.report.notes
    assert note.startswith(f"resumed at panel {journal.panels_done} of ")
    assert found.report.bytes_written == found.report.planned_bytes_written < matrix.nbytes
    assert found.report.flops < len(matrix) ** 3 / 3
    assert found.norm1 == pytest.approx(np.linalg.norm(matrix, 1))


def test_a_run_of_one_triangle_does_not_go_on_with_the_other(tmp_path: Path) -> None:
    A = oc.from_array(upper_only(matrix), tmp_path / "Z", chunks=(16, 32))
    expected = CHOLESKY.bits(factor(A.path, lower=False, out=tmp_path / "F"))
    stop_after(2, A, cho_factor, lower=False, memory=CHOLESKY.memory, threads=1)
    with pytest.raises(JournalError, match="stopped factorization with lower=False"):
        factor(A.path)
    CHOLESKY.assert_finished(factor(A.path, lower=False), expected)
