"""Q from reflections on disk, against LAPACK's orgqr on the same reflections."""

import itertools
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from linpack import Matrix, names_below, on_disk, one_thread, unit_roundoff
from qr_factors import q_and_r
from stopping import interrupt, kill_at_line
from tall import DTYPES, tall

import outcore as oc
from outcore._util import progress
from outcore.errors import BudgetError, ExistsError, Interrupted, InvalidError
from outcore.files import catalog
from outcore.linalg import QRFactor, form_q, lu_factor, open_factor, qr_factor

__all__ = ["one_thread"]  # a fixture for every test here

TINY = 400_000
SHAPES = [(333, 200), (200, 200), (150, 220), (257, 16), (300, 1), (1, 5), (193, 129)]


def factored(path: Path, a: Matrix, memory: int = TINY, **more: Any) -> QRFactor:
    return qr_factor(on_disk(path, a, (64, 16)), memory=memory, threads=1, progress=False, **more)


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_as_lapack(tmp_path: Path, dtype: str, shape: tuple[int, int]) -> None:
    a = tall(*shape, dtype)
    qr = factored(tmp_path / "Z", a, overwrite_a=dtype in ("f4", "c16"))
    Q, report = form_q(qr, memory=TINY, progress=False)
    assert Q.path == tmp_path / "Z.qr.q"
    assert (Q.shape, Q.dtype) == ((shape[0], min(shape)), a.dtype)
    expected, R = q_and_r(qr)
    eps, m = unit_roundoff(a.dtype), shape[0]
    np.testing.assert_allclose(Q[...], expected, rtol=0, atol=30 * eps)
    # LAPACK's test ratio, which must be below 30.
    assert np.linalg.norm(np.eye(min(shape)) - expected.conj().T @ Q[...], 1) < 30 * m * eps
    assert np.linalg.norm(a - Q[...] @ R, 1) < 30 * m * eps * np.linalg.norm(a, 1)
    assert report.bytes_read == report.planned_bytes_read
    assert report.bytes_written == report.planned_bytes_written


def test_the_plan_says_what_is_moved(tmp_path: Path) -> None:
    qr = factored(tmp_path / "Z", tall(333, 200, "f8"))
    Q, report = form_q(qr, memory=TINY, progress=False)
    plan = oc.plan("form_q", m=333, n=200, memory=TINY, path=tmp_path)
    assert (plan.bytes_read, plan.bytes_written) == (report.bytes_read, report.bytes_written)
    assert plan.flops == report.flops
    assert report.peak_memory_bytes <= plan.peak_memory_bytes <= TINY
    # More memory reads less: with space for all of Q, the reflections once.
    more, report = form_q(qr, memory=4_000_000, out=tmp_path / "more", progress=False)
    np.testing.assert_allclose(more[...], Q[...], atol=1e-14)
    assert report.bytes_read < plan.bytes_read / 2


def test_bad_input(tmp_path: Path) -> None:
    qr = factored(tmp_path / "Z", tall(100, 60, "f8"))
    before = names_below(tmp_path)
    with pytest.raises(BudgetError, match="raise memory="):
        form_q(qr, memory=1000, progress=False)
    with pytest.raises(InvalidError, match="need QR factors"):
        form_q(lu_factor(on_disk(tmp_path / "S", np.eye(9)), progress=False))  # type: ignore[arg-type]
    (tmp_path / "there").write_text("mine")
    with pytest.raises(ExistsError, match="there"):
        form_q(qr, out=tmp_path / "there", progress=False)
    (tmp_path / "there").unlink()
    assert [name for name in names_below(tmp_path) if not name.startswith("S")] == before
    Q, _ = form_q(qr, progress=False)
    with pytest.raises(ExistsError, match="if_exists='overwrite'"):
        form_q(qr, progress=False)
    again, _ = form_q(qr, if_exists="overwrite", progress=False)
    np.testing.assert_array_equal(again[...], Q[...])


def test_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count()
    monkeypatch.setattr(progress, "time", types.SimpleNamespace(monotonic=lambda: next(clock)))
    qr = factored(tmp_path / "Z", tall(333, 200, "f8"))
    before = names_below(tmp_path)

    def watch(fraction: float, seconds_left: float | None) -> None:
        if fraction > 0.5:
            interrupt()

    with pytest.raises(Interrupted, match="nothing is left of it; call form_q again"):
        form_q(qr, memory=TINY, progress=watch)
    assert names_below(tmp_path) == before, "nothing is kept"
    assert form_q(qr, memory=TINY, progress=False)[0].shape == (333, 200)


def test_a_killed_call_is_recognised_and_begun_anew(tmp_path: Path, all_lines: bool) -> None:
    path = factored(tmp_path / "Z", tall(333, 200, "f8")).path
    before, out = sorted(p.name for p in tmp_path.iterdir()), tmp_path / "Q"
    pages, seen = ("_output/result.py", "_slab_qr/form_q.py"), set()

    def make() -> oc.Array:
        return form_q(open_factor(path), out=out, memory=TINY, threads=1, progress=False)[0]

    for line in itertools.count(1, 12 if all_lines else 37):
        if not kill_at_line(line, make, pages):
            break
        try:
            oc.open_array(out).close()
        except oc.OutcoreError as error:
            seen.add(error.kind)
            Q = make()
            np.testing.assert_allclose(Q[...].T @ Q[...], np.eye(200), atol=1e-13)
        # A kill at the very end leaves the lock beside a whole result.
        left = catalog.recognise(out)
        assert left is not None
        catalog.remove(left)
        assert sorted(p.name for p in tmp_path.iterdir()) == before
    assert line > 200
    assert seen == {"incomplete", "not_found"}


def test_reflections_that_are_none(tmp_path: Path) -> None:
    a = np.zeros((70, 40))
    a[:, 7] = 1
    qr = factored(tmp_path / "Z", a, memory=130_000)
    Q, _ = form_q(qr, memory=130_000, progress=False)
    np.testing.assert_allclose(Q[...].T @ Q[...], np.eye(40), atol=1e-14)
