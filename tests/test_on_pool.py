"""Arrays, streams and solvers in a pool: tests of plain paths again, with identical bits."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from definite import definite
from linpack import Matrix, on_disk, one_thread, packed, random_matrix
from rows_cases import Case, same
from stopping import note_each_step, stopped_at
from tall import tall
from test_arrays import (
    test_an_unwritten_array_is_zeros,
    test_many_arrays_in_use_at_once,
    test_memory_of_any_layout_is_written,
    test_values_are_broadcast,
)
from test_cholesky import test_kms
from test_factor_calls import test_any_layout_of_the_matrix
from test_lstsq import test_from_disk
from test_lu import test_four_types
from test_streams import (
    test_a_read_after_a_write_of_the_same_chunk_sees_it,
    test_by_default_every_chunk_once,
    test_every_schedule,
    test_rows_by_a_list,
    test_the_last_of_overlapping_writes_stays,
)

import outcore as oc
from outcore.errors import BusyError, ConsumedError, InvalidError, JournalError
from outcore.files.catalog import recognise
from outcore.linalg._output.journal import Journal, Record
from outcore.storage.volumes import exclusive, place

__all__ = [
    "one_thread",
    "test_a_read_after_a_write_of_the_same_chunk_sees_it",
    "test_an_unwritten_array_is_zeros",
    "test_any_layout_of_the_matrix",
    "test_by_default_every_chunk_once",
    "test_every_schedule",
    "test_four_types",
    "test_from_disk",
    "test_kms",
    "test_many_arrays_in_use_at_once",
    "test_memory_of_any_layout_is_written",
    "test_rows_by_a_list",
    "test_the_last_of_overlapping_writes_stays",
    "test_values_are_broadcast",
]

N, CHUNKS, MEMORY = 320, (64, 16), 300_000
SETTING: dict[str, Any] = {"memory": MEMORY, "threads": 1, "progress": False}


@pytest.fixture
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("plain")


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[oc.PoolPath]:
    """The directory of a test: the root of a pool of three servers."""
    home = tmp_path_factory.mktemp("pool")
    with oc.Pool.embedded([home / "a", home / "b", home / "c"]) as pool:
        yield pool / ""


@pytest.fixture
def matrix() -> Matrix:
    return random_matrix(N, "f8")


@pytest.mark.parametrize("overwrite_a", [False, True])
def test_lu_is_the_same_to_the_bit(
    tmp_path: oc.PoolPath, plain: Path, matrix: Matrix, overwrite_a: bool
) -> None:
    factors = []
    for where in (plain, tmp_path):
        on_disk(where / "A", matrix, CHUNKS).close()
        factors.append(oc.linalg.lu_factor(where / "A", overwrite_a=overwrite_a, **SETTING))
    one, other = factors
    assert (one.piv == other.piv).all()
    assert (packed(one) == packed(other)).all()
    assert (one.report.bytes_read, one.report.bytes_written) == (
        other.report.bytes_read,
        other.report.bytes_written,
    )
    b = np.ones((N, 2))
    x = [oc.linalg.lu_solve(lu, b, progress=False) for lu in factors]
    assert (x[0] == x[1]).all()
    assert np.allclose(matrix @ x[1], b)
    if overwrite_a:
        with pytest.raises(ConsumedError):
            oc.open_array(tmp_path / "A")
    assert oc.linalg.open_factor(str(tmp_path / "A.lu")).source == str(tmp_path / "A")


@pytest.mark.parametrize("overwrite_a", [False, True])
def test_cholesky_is_the_same_to_the_bit(
    tmp_path: oc.PoolPath, plain: Path, overwrite_a: bool
) -> None:
    a, found = definite(N, "f8"), []
    for where in (plain, tmp_path):
        on_disk(where / "A", a, CHUNKS).close()
        c = oc.linalg.cho_factor(where / "A", overwrite_a=overwrite_a, **SETTING)
        with oc.open_array(where / "A.cho" / "l") as array:
            found.append(array[...])
        assert np.allclose(a @ oc.linalg.cho_solve(c, np.ones(N), progress=False), 1)
    assert (found[0] == found[1]).all()


def test_a_cholesky_factor_takes_the_room_of_a_triangle(tmp_path: oc.PoolPath) -> None:
    """A triangle takes 78 of 12 x 12 tiles, in slots of 64 KiB."""
    on_disk(tmp_path / "A", definite(12 * 64, "f8"), (64, 128)).close()
    home = Path(tmp_path.root.url.removeprefix("outcore:").removesuffix("::")).parent

    def room() -> int:
        return sum(each.stat().st_blocks * 512 for each in home.glob("*/data/*/*"))

    before = room()
    oc.linalg.cho_factor(tmp_path / "A", memory="2 MB", threads=1, progress=False)
    taken = room() - before
    with oc.open_array(tmp_path / "A.cho" / "l") as factor:
        grid = factor.metadata.grid()
        assert (grid.counts, grid.slot_bytes) == ([12, 12], 65_536)
    # The rest is an index and the small files of the factor.
    assert 78 * 65_536 <= taken <= 82 * 65_536


def test_other_calls_give_the_same_bits(tmp_path: oc.PoolPath, plain: Path, matrix: Matrix) -> None:
    a, low = tall(400, 12, "f8"), matrix + N * np.eye(N)
    found = []
    for where in (plain, tmp_path):
        A, T = on_disk(where / "A", low, CHUNKS), oc.from_array(a, where / "T", progress=False)
        x = oc.linalg.solve(A, np.ones(N), factor_dtype="f4", memory="1 MB", progress=False)[0]
        y = oc.linalg.gmres(A, np.ones(N), memory="1 MB", progress=False)[0]
        z = oc.linalg.gauss_seidel(A, np.ones(N), memory="1 MB", progress=False)[0]
        w = oc.linalg.lstsq(T, np.ones(400), memory="1 MB", progress=False)[0]
        W = oc.from_array(tall(300, 400, "f8"), where / "W", progress=False)
        v = oc.linalg.lstsq(W, np.ones(300), memory="700 kB", progress=False)[0]
        C = oc.linalg.matmul(A, A, out=where / "C", memory="1 MB", progress=False)
        found.append([x, y, z, w, v, C[...]])
        assert not [each.name for each in where.iterdir() if each.name not in ("A", "C", "T", "W")]
    for one, other in zip(*found, strict=True):
        assert (one == other).all()
    assert np.allclose(low @ found[1][0], 1)


def test_a_stopped_factorization_goes_on(
    tmp_path: oc.PoolPath, matrix: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_disk(tmp_path / "A", matrix, CHUNKS).close()
    whole = packed(oc.linalg.lu_factor(tmp_path / "A", out=tmp_path / "whole", **SETTING))
    append, noted = Journal.append, []

    def stopping(self: Journal, record: Record) -> None:
        append(self, record)
        noted.append(record)
        if len(noted) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Journal, "append", stopping)
        with pytest.raises(KeyboardInterrupt):
            oc.linalg.lu_factor(tmp_path / "A", **SETTING)
    entry = recognise(tmp_path / "A.lu")
    assert entry is not None
    assert (entry.kind, entry.state) == ("factor", "incomplete")
    lu = oc.linalg.lu_factor(tmp_path / "A", **SETTING)
    assert "resumed" in lu.report.notes[0]
    assert (packed(lu) == whole).all()
    # It refuses to resume if the matrix was written to in between.
    noted.clear()
    with monkeypatch.context() as patched:
        patched.setattr(Journal, "append", stopping)
        with pytest.raises(KeyboardInterrupt):
            oc.linalg.lu_factor(tmp_path / "A", if_exists="overwrite", **SETTING)
    with oc.open_array(tmp_path / "A", "r+") as A:
        A[0, 0] = 1
    with pytest.raises(JournalError, match="written to since"):
        oc.linalg.lu_factor(tmp_path / "A", **SETTING)


@pytest.mark.exhaustive(keep=3)
@pytest.mark.parametrize("verb", ["lstsq", "qr", "svd", "least norm", "R", "gram in parts"])
def test_what_goes_by_once_goes_on(
    tmp_path: oc.PoolPath, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """The saved state lies in the pool, too."""
    note_each_step(monkeypatch)
    case = Case(verb, tmp_path)
    whole = case.run(tmp_path / "W")
    for note in (2, 2):
        with stopped_at(note):
            case.run(tmp_path / "X")
    found = case.run(tmp_path / "X")
    case.assert_right(found)
    same(found, whole)
    assert "resumed" in found[2].notes[0]


def test_a_matrix_written_to_meanwhile_is_noticed(
    tmp_path: oc.PoolPath, matrix: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Write through an array that stays open, so that the generation does not change."""
    A, append = on_disk(tmp_path / "A", matrix, CHUNKS), Journal.append

    def writing(self: Journal, record: Record) -> None:
        append(self, record)
        A[0, 0] = 1

    with monkeypatch.context() as patched:
        patched.setattr(Journal, "append", writing)
        with pytest.raises(JournalError, match="written to while"):
            oc.linalg.lu_factor(A, **SETTING)


def test_one_call_at_a_time(tmp_path: oc.PoolPath, matrix: Matrix) -> None:
    on_disk(tmp_path / "A", matrix, CHUNKS).close()
    with exclusive(place(tmp_path / "A.lu"), "a test"), pytest.raises(BusyError, match="in use"):
        oc.linalg.lu_factor(tmp_path / "A", **SETTING)
    oc.linalg.lu_factor(tmp_path / "A", **SETTING)
    assert [path.name for path in tmp_path.iterdir()] == ["A", "A.lu"]


def test_what_is_for_plain_directories_says_so(tmp_path: oc.PoolPath, matrix: Matrix) -> None:
    with on_disk(tmp_path / "A", matrix) as A:
        for call in (
            lambda: oc.export_array(A, tmp_path / "A.npy"),
            lambda: oc.BlockInterface(tmp_path / "f", block=4, blocks=4, dtype="f8", mode="x"),
        ):
            with pytest.raises(InvalidError, match="plain directories"):
                call()
