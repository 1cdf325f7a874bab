"""QR by slabs resumes with identical bits; `test_factor_resume.py` has the tests of each kind."""

import shutil
from pathlib import Path

import pytest
from linpack import one_thread
from qr_factors import assert_factors
from resumed_kinds import QR
from stopping import stop_after
from tall import tall

from outcore.errors import JournalError
from outcore.linalg import qr_factor
from outcore.linalg._output.journal import read_journal
from outcore.storage.volumes import place

__all__ = ["one_thread"]  # a fixture for every test here

put, factor = QR.put, QR.factor


@pytest.mark.parametrize("shape", [(200, 150), (100, 240)])
def test_a_resumed_run_says_what_it_did(tmp_path: Path, shape: tuple[int, int]) -> None:
    a = tall(*shape, "c16")
    path = put(tmp_path / "Z", a)
    stop_after(2, path, qr_factor, memory=350_000, threads=1)
    journal = read_journal(place(tmp_path / "Z.qr"))
    assert journal is not None
    assert (journal.header.kind, journal.header.m, journal.header.n) == ("qr", *shape)
    told: list[float] = []
    qr = factor(path, memory=350_000, progress=lambda done, left: told.append(done))
    assert qr.report is not None
    (note,) = qr.report.notes
    assert note.startswith(f"resumed at panel {journal.panels_done} of ")
    assert qr.report.bytes_written == qr.report.planned_bytes_written < a.nbytes
    whole = factor(path, memory=350_000, if_exists="overwrite", resume=False)
    assert whole.report is not None
    assert qr.report.flops < whole.report.flops
    QR.assert_same(qr, QR.bits(whole))
    assert qr.norm1 == whole.norm1
    assert_factors(a, qr)


def test_a_matrix_of_another_shape_is_refused(tmp_path: Path) -> None:
    path = put(tmp_path / "Z")
    stop_after(1, path, qr_factor, memory=QR.memory)
    shutil.rmtree(path)
    put(path, QR.matrix[:-1])
    with pytest.raises(JournalError, match="of 200 x 150 float64; the matrix is now 199 x 150"):
        factor(path)
