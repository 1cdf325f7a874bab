"""QR by slabs resumes after any stop with identical bits, and refuses foreign journals."""

import functools
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from linpack import Matrix, names_below, on_disk, one_thread
from qr_factors import assert_factors, packed
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
from tall import tall

import outcore as oc
from outcore.errors import (
    BusyError,
    ConsumedError,
    ForkedError,
    IncompleteError,
    Interrupted,
    JournalError,
)
from outcore.linalg import QRFactor, lu_factor, open_factor, qr_factor
from outcore.linalg._factors.conveyor import SlabConveyor
from outcore.linalg._factors.storage import FactorStorage
from outcore.linalg._output.journal import Journal, Record, read_journal
from outcore.linalg._slab_qr.storage import SlabQrStorage
from outcore.storage.volumes import place

__all__ = ["one_thread"]  # a fixture for every test here

SHAPE, CHUNKS, MEMORY = (200, 150), (32, 16), 250_000
PAGES = (*DECISIVE, "_slab_qr/storage.py")
RunPython = Callable[..., "subprocess.Popen[str]"]
Bits = tuple[Matrix, Matrix]


@pytest.fixture(scope="module")
def matrix() -> Matrix:
    return tall(*SHAPE, "f8")


def put(path: Path, a: Matrix) -> Path:
    on_disk(path, a, CHUNKS).close()
    return path


def factor(path: Path, overwrite_a: bool = False, **options: Any) -> QRFactor:
    options = {"memory": MEMORY, "threads": 1, "progress": False} | options
    return qr_factor(path, overwrite_a=overwrite_a, **options)


def bits(qr: QRFactor) -> Bits:
    return packed(qr), qr.tau


def assert_same(qr: QRFactor, expected: Bits, text: str = "") -> None:
    for have, want in zip(bits(qr), expected, strict=True):
        np.testing.assert_array_equal(have, want, err_msg=text)


@pytest.fixture(scope="module", params=[False, True], ids=["beside", "overwrite_a"])
def undisturbed(
    request: pytest.FixtureRequest, matrix: Matrix, tmp_path_factory: pytest.TempPathFactory
) -> tuple[bool, Bits, Path]:
    """Return whether A is overwritten, the resulting bits, and an A to copy."""
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
        qr = factor(home / "Z", request.param)
    assert len(slabs) >= 4
    return request.param, bits(qr), home / "A"


def assert_finished(qr: QRFactor, expected: Bits) -> None:
    assert_same(qr, expected)
    assert sorted(p.name for p in qr.path.iterdir()) == ["qr", "tau", "zarr.json"]


@pytest.mark.exhaustive
def test_killed_at_any_line(tmp_path: Path, undisturbed: tuple[bool, Bits, Path]) -> None:
    """kill -9 between any two steps: only complete factors count as whole."""
    overwrite_a, expected, source = undisturbed
    path = tmp_path / "Z"

    def begin() -> None:
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(source, path)

    def numbers(lines: int) -> list[int]:
        """Return every step of the beginning and of the end, and some between."""
        return [*range(2, 150, 13), *range(150, lines - 90, 53), *range(lines - 90, lines, 7)]

    runs = killed_at_lines(
        begin, lambda: factor(path, overwrite_a), tmp_path / "Z.qr", PAGES, numbers
    )
    for qr, where in runs:
        assert_same(qr, expected, where)
        if overwrite_a:
            with pytest.raises(ConsumedError):
                oc.open_array(path)


def test_killed_again_and_again(tmp_path: Path, undisturbed: tuple[bool, Bits, Path]) -> None:
    overwrite_a, expected, source = undisturbed
    path = tmp_path / "Z"
    shutil.copytree(source, path)
    qr = killed_again_and_again(
        lambda: factor(path, overwrite_a), tmp_path / "Z.qr", (100, 31), PAGES, least=4
    )
    assert_same(qr, expected)


def test_killed_at_random_moments(
    tmp_path: Path, undisturbed: tuple[bool, Bits, Path], run_python: RunPython
) -> None:
    overwrite_a, expected, source = undisturbed
    path = tmp_path / "Z"
    shutil.copytree(source, path)
    script = f"""
import sys
from outcore.linalg import qr_factor
print("ready", flush=True)
qr_factor(sys.argv[1], overwrite_a={overwrite_a}, memory={MEMORY}, threads=1, progress=False)
"""
    kill_at_random_moments(lambda: run_python(script, str(path)), tmp_path / "Z.qr", 0.06)
    qr = whole_or_again(lambda: factor(path, overwrite_a), tmp_path / "Z.qr")
    assert_same(qr, expected)


def test_interrupted_at_any_line(tmp_path: Path, undisturbed: tuple[bool, Bits, Path]) -> None:
    overwrite_a, expected, source = undisturbed
    pages = (
        *PAGES,
        *(f"_slab_qr/{name}.py" for name in ("factorization", "reflections")),
        *LEFT_LOOKING,
    )
    for step in (599, 1051):
        path = tmp_path / f"Z{step}"
        shutil.copytree(source, path)
        qr = interrupted_again_and_again(
            functools.partial(factor, path, overwrite_a),
            tmp_path / f"Z{step}.qr", step, pages, least=3,
        )  # fmt: skip
        assert_finished(qr, expected)


def test_a_slab_is_durable_before_its_note(
    tmp_path: Path, undisturbed: tuple[bool, Bits, Path]
) -> None:
    """Write and sync a whole slab before its note, so that a power loss after it loses nothing."""
    overwrite_a, _, source = undisturbed
    path = tmp_path / "Z"
    shutil.copytree(source, path)

    def check(storage: SlabQrStorage, spans: Matrix, record: Record) -> None:
        g = storage.geometry
        at = spans[:, 4] // (g.tiles * g.tile_bytes)
        writes = spans[(spans[:, 0] == 1) & (spans[:, 1] == 1) & np.isin(at, record.places)]
        # A run that overwrites A may write a place twice.
        whole = len(record.places) * g.tiles * g.tile_bytes
        assert int(writes[:, 5].sum()) % whole == 0
        assert len(writes)
        syncs = spans[spans[:, 0] == 2]
        assert (syncs[:, 2] >= writes[:, 3].max()).any()
        assert [storage.places[p] for p in range(record.first, record.last)] == record.places

    with before_notes(SlabQrStorage, check) as noted:
        factor(path, overwrite_a)
    assert len(noted) >= 4


@pytest.mark.parametrize("overwrite_a", [False, True])
def test_nothing_is_overwritten_that_a_crash_would_need(
    tmp_path: Path, matrix: Matrix, overwrite_a: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Write neither to noted panels nor to columns of A that are not factored yet.

    A slab is written only after the note of the one before, so a crash loses at most one slab.
    """
    path = put(tmp_path / "Z", matrix)
    panel_done, written = SlabConveyor.panel_done, []

    def leaving(self: SlabConveyor, panel: int) -> None:
        panel_done(self, panel)
        storage, journal = self._storage, self._storage.journal
        noted = {at for record in journal.records for at in record.places}
        at = storage.places[panel]
        assert at not in noted
        if overwrite_a:
            assert at not in range(journal.panels_done, storage.geometry.panels)
        assert journal.panels_done == self.part.first
        written.append(at)

    monkeypatch.setattr(SlabConveyor, "panel_done", leaving)
    # As if each sync were slow: nothing becomes durable until the call waits for it.
    monkeypatch.setattr(FactorStorage, "commit_if_durable", lambda self: None)
    for memory in (MEMORY, 280_000):
        with after_notes(2, interrupt), pytest.raises(Interrupted):
            factor(path, overwrite_a, memory=memory)
    qr = factor(path, overwrite_a)
    assert len(set(written)) > len(qr.places) / 2
    assert_factors(matrix, qr)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_stop_cleanly(tmp_path: Path, matrix: Matrix, number: signal.Signals) -> None:
    path = put(tmp_path / "Z", matrix)
    handlers = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    text = r"QR of Z stopped with [1-9]\d* of \d+ panels done; call qr_factor again with"
    with (
        after_notes(2, lambda: signal.raise_signal(number)),
        pytest.raises(Interrupted, match=text),
    ):
        factor(path)
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == handlers
    left = sorted(p.name for p in (tmp_path / "Z.qr").iterdir())
    assert left == ["journal", "qr", "zarr.json"]
    with pytest.raises(IncompleteError, match=r"call qr_factor on .*Z again"):
        open_factor(tmp_path / "Z.qr")
    assert_factors(matrix, factor(path))


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
    assert_same(qr, bits(whole))
    assert qr.norm1 == whole.norm1
    assert_factors(a, qr)


@pytest.mark.parametrize("overwrite_a", [False, True])
@pytest.mark.parametrize(
    "changes",
    [{"memory": [250_000, 280_000, 900_000]}, {"memory": [280_000, 250_000, 260_000]},
     {"threads": [1, 2, 1]}],
    ids=str,
)  # fmt: skip
def test_another_budget_or_thread_count_goes_on(
    tmp_path: Path, matrix: Matrix, overwrite_a: bool, changes: dict[str, list[int]]
) -> None:
    path = put(tmp_path / "Z", matrix)
    ((name, values),) = changes.items()
    options = {"memory": MEMORY, "threads": 1, "overwrite_a": overwrite_a}
    stop_after(1, path, qr_factor, **options | {name: values[0]})
    stop_after(1, path, qr_factor, **options | {name: values[1]})
    qr = qr_factor(path, progress=False, **options | {name: values[2]})
    assert_factors(matrix, qr)
    assert qr.norm1 == pytest.approx(np.linalg.norm(matrix, 1))
    assert qr.report is not None
    assert any("last bits may differ" in note for note in qr.report.notes)


def test_a_torn_note_is_dropped(tmp_path: Path, matrix: Matrix) -> None:
    expected = bits(factor(put(tmp_path / "Y", matrix)))
    path = put(tmp_path / "Z", matrix)
    stop_after(2, path, qr_factor, memory=MEMORY, threads=1)
    journal = tmp_path / "Z.qr" / "journal"
    journal.write_bytes(journal.read_bytes()[:-3])
    assert_finished(factor(path), expected)


def test_changed_input_is_refused(tmp_path: Path, matrix: Matrix) -> None:
    path = put(tmp_path / "Z", matrix)
    stop_after(2, path, qr_factor, memory=MEMORY)
    with oc.open_array(path, "r+") as array:
        array[3, 3] = 7
    before = names_below(tmp_path)
    with pytest.raises(JournalError, match="was written to since"):
        factor(path)
    assert names_below(tmp_path) == before
    changed = matrix.copy()
    changed[3, 3] = 7
    assert_factors(changed, factor(path, resume=False))


def test_a_matrix_of_another_shape_is_refused(tmp_path: Path, matrix: Matrix) -> None:
    path = put(tmp_path / "Z", matrix)
    stop_after(1, path, qr_factor, memory=MEMORY)
    shutil.rmtree(path)
    put(path, matrix[:-1])
    with pytest.raises(JournalError, match="of 200 x 150 float64; the matrix is now 199 x 150"):
        factor(path)


def test_one_kind_of_factorization_does_not_go_on_with_another(tmp_path: Path) -> None:
    a = tall(180, 180, "f8")
    path, out = put(tmp_path / "Z", a), tmp_path / "F"
    stop_after(1, path, qr_factor, memory=MEMORY, out=out)
    with pytest.raises(JournalError, match="stopped factorization by qr_factor, not by lu_factor"):
        lu_factor(path, out=out, memory=MEMORY, progress=False)
    lu_factor(path, out=out, memory=MEMORY, resume=False, progress=False)
    with pytest.raises(oc.errors.ExistsError, match="complete factors"):
        factor(path, out=out)
    qr = factor(path, out=out, if_exists="overwrite")
    assert sorted(p.name for p in out.iterdir()) == ["qr", "tau", "zarr.json"]
    assert_factors(a, qr)


def test_a_full_disk_stops_cleanly(tmp_path: Path, small_disk: Path) -> None:
    """The factors reserve their space at the start; the journal finds no space."""
    a, out = tall(900, 700, "f8"), small_disk / "F"
    A = on_disk(tmp_path / "Z", a)
    qr = stopped_by_a_full_disk(lambda: qr_factor(A, memory=900_000, out=out, progress=False), out)
    assert_factors(a, qr)


def test_two_calls_for_one_target(tmp_path: Path, matrix: Matrix) -> None:
    path = put(tmp_path / "Z", matrix)

    def meanwhile() -> None:
        with pytest.raises(BusyError, match="in use by another process"):
            factor(path)

    with after_notes(2, meanwhile):
        qr = factor(path)
    assert_factors(matrix, qr)


def test_a_forked_process_is_told(tmp_path: Path, matrix: Matrix) -> None:
    A = on_disk(tmp_path / "Z", matrix, CHUNKS)
    factor(A.path, out=tmp_path / "F")

    def with_the_parents_array() -> None:
        with pytest.raises(ForkedError, match="fork"):
            qr_factor(A, memory=MEMORY, progress=False)

    assert in_a_fork(with_the_parents_array) == 0
    assert not (tmp_path / "Z.qr").exists()
    # A call by path opens everything again.
    assert in_a_fork(lambda: factor(A.path)) == 0
    assert_factors(matrix, whole_or_again(lambda: factor(A.path), tmp_path / "Z.qr"))
