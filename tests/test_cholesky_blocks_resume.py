"""Cholesky by square blocks resumes after any interruption, with the same bits."""

import itertools
import shutil
from pathlib import Path

import numpy as np
import pytest
from definite import cholesky_ratio, definite, factor_of, lower_only
from linpack import Matrix, on_disk, one_thread
from stopping import (
    DECISIVE,
    LEFT_LOOKING,
    after_notes,
    at_line,
    interrupt,
    kill_at_line,
    stop_after,
)

from outcore.errors import IncompleteError, Interrupted, NotFoundError
from outcore.linalg import CholeskyFactor, cho_factor, open_factor
from outcore.linalg._cholesky.conveyor import CholeskyConveyor
from outcore.linalg._cholesky.plan import cholesky_geometry

__all__ = ["one_thread"]  # a fixture for every test here

N, MEMORY, CHUNKS = 450, 140_000, (64, 8)
PAGES = (
    *DECISIVE,
    "_cholesky/storage.py",
    "_cholesky/factorization.py",
    "_cholesky/conveyor.py",
    *LEFT_LOOKING,
)


@pytest.fixture(scope="module", params=[False, True], ids=["beside", "overwrite_a"])
def undisturbed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[bool, Matrix, Path]:
    """Whether A is overwritten, the resulting bits, and an A to copy."""
    home = tmp_path_factory.mktemp("undisturbed")
    on_disk(home / "A", lower_only(definite(N, "f8")), CHUNKS).close()
    shutil.copytree(home / "A", home / "Z")
    found = again(home / "Z", request.param)
    g = cholesky_geometry(N, np.dtype("f8"), MEMORY, found.tile)
    assert sum(len(g.parts(slab)) > 2 for slab in g.slabs()) >= 3
    return request.param, factor_of(found), home / "A"


def again(path: Path, overwrite_a: bool, memory: int = MEMORY) -> CholeskyFactor:
    return cho_factor(path, overwrite_a=overwrite_a, memory=memory, threads=1, progress=False)


@pytest.mark.exhaustive
def test_killed_at_any_line(tmp_path: Path, undisturbed: tuple[bool, Matrix, Path]) -> None:
    """kill -9 between any two steps: the result counts as complete only if it is."""
    overwrite_a, expected, source = undisturbed
    path = tmp_path / "Z"
    with at_line(0, interrupt, PAGES) as lines:
        shutil.copytree(source, path)
        again(path, overwrite_a)
    for number in range(150, lines[0], lines[0] // 10):
        shutil.rmtree(path)
        shutil.rmtree(tmp_path / "Z.cho", ignore_errors=True)
        shutil.copytree(source, path)
        assert kill_at_line(number, lambda: again(path, overwrite_a), PAGES)
        with pytest.raises((IncompleteError, NotFoundError)):
            open_factor(tmp_path / "Z.cho")
        found = again(path, overwrite_a)
        np.testing.assert_array_equal(
            factor_of(found), expected, err_msg=f"killed at line {number}"
        )
        assert found.norm1 == pytest.approx(np.linalg.norm(definite(N, "f8"), 1))


@pytest.mark.exhaustive
def test_killed_again_and_again(tmp_path: Path, undisturbed: tuple[bool, Matrix, Path]) -> None:
    """Each call is killed a little later than the previous one, until one completes."""
    overwrite_a, expected, source = undisturbed
    path = tmp_path / "Z"
    shutil.copytree(source, path)
    for kills in itertools.count(1):
        if not kill_at_line(1000 + 900 * kills, lambda: again(path, overwrite_a), PAGES):
            break
    assert kills > 3
    found = open_factor(tmp_path / "Z.cho")
    assert isinstance(found, CholeskyFactor)
    np.testing.assert_array_equal(factor_of(found), expected)


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("memories", [(140_000, 400_000, 150_000), (160_000, 140_000, 170_000)])
def test_another_budget_goes_on(
    tmp_path: Path, undisturbed: tuple[bool, Matrix, Path], memories: tuple[int, int, int]
) -> None:
    overwrite_a, _, source = undisturbed
    path = tmp_path / "Z"
    shutil.copytree(source, path)
    for memory in memories[:2]:
        stop_after(1, path, cho_factor, memory=memory, threads=1, overwrite_a=overwrite_a)
    found = again(path, overwrite_a, memories[2])
    assert cholesky_ratio(definite(N, "f8"), found) < 30
    assert found.report is not None
    assert found.report.bytes_written == found.report.planned_bytes_written


def test_nothing_is_overwritten_that_a_crash_would_need(
    tmp_path: Path, undisturbed: tuple[bool, Matrix, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No write goes to a recorded panel, or to columns of A that were not factored then.

    No write happens before the previous slab is recorded: a crash loses one slab at most.
    """
    overwrite_a, _, source = undisturbed
    path = tmp_path / "Z"
    shutil.copytree(source, path)
    panel_done, below = CholeskyConveyor.panel_done, []

    def leaving(self: CholeskyConveyor, panel: int) -> None:
        panel_done(self, panel)
        storage, journal = self._storage, self._storage.journal
        at = storage.places[panel]
        assert at not in {place for record in journal.records for place in record.places}
        if overwrite_a:
            assert at not in range(journal.panels_done, storage.geometry.panels)
        assert journal.panels_done == self.part.slab.first
        if not self.part.is_first:
            below.append(at)

    monkeypatch.setattr(CholeskyConveyor, "panel_done", leaving)
    with after_notes(2, interrupt), pytest.raises(Interrupted):
        again(path, overwrite_a)
    again(path, overwrite_a)
    assert len(below) > 20
