"""Input that LU refuses: one clear error each, and the disk unchanged."""

import json
import shutil
import subprocess
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from linpack import (
    Matrix,
    names_below,
    on_disk,
    one_thread,
    order_beyond,
    random_matrix,
)
from stopping import stop_after

import outcore as oc
from outcore.errors import (
    BudgetError,
    ConsumedError,
    CorruptError,
    DiskFullError,
    ExistsError,
    IncompleteError,
    InvalidError,
    NonFiniteError,
    NotFoundError,
    ReadOnlyError,
    SingularMatrixError,
    TruncatedError,
)
from outcore.linalg import lu_factor, lu_solve, open_factor, solve

__all__ = ["one_thread"]  # a fixture for every test here

N, CHUNKS, MEMORY = 200, (64, 32), 200_000


@contextmanager
def refused(
    directory: Path, error: type[oc.OutcoreError], match: str | None = None
) -> Iterator[pytest.ExceptionInfo[Any]]:
    """Expect an error that changes no file below a directory."""

    def contents() -> dict[str, bytes]:
        return {
            name: (directory / name).read_bytes() if (directory / name).is_file() else b""
            for name in names_below(directory)
        }

    before = contents()
    with pytest.raises(error, match=match) as caught:
        yield caught
    assert contents() == before


@pytest.fixture(name="A")
def matrix(tmp_path: Path) -> oc.Array:
    return on_disk(tmp_path / "Z", random_matrix(N, "f8"), CHUNKS)


@pytest.mark.parametrize("shape", [(8,), (8, 9), (9, 8), (8, 8, 8), (8, 8, 1)])
def test_not_square(tmp_path: Path, shape: tuple[int, ...]) -> None:
    B = oc.create_array(tmp_path / "Z", shape, "f8")
    with refused(tmp_path, InvalidError, "need a square matrix, have shape"):
        lu_factor(B)
    with refused(tmp_path, InvalidError, "need a square matrix, have shape"):
        solve(B, np.ones(shape[0]))


@pytest.mark.parametrize(
    ("b", "message"),
    [
        (np.ones(N - 1), r"need a right-hand side of shape \(200,\) or \(200, k\), have \(199,\)"),
        (np.ones((1, N)), "have"),
        (np.ones((N, 2, 1)), "have"),
        (1.0, r"have \(\)"),
        (np.array([None] * N), "is numbers, have object"),
        (np.array(["1"] * N), "is numbers, have <U1"),
        (np.where(np.arange(N) == 77, np.nan, 1), "in row 77"),
        (np.where(np.arange(N) == 0, -np.inf, 1), "in row 0"),
        (np.where(np.arange(2 * N).reshape(N, 2) == 399, np.inf * 1j, 1), "in row 199"),
    ],
)
def test_right_hand_sides_that_do_not_fit(
    tmp_path: Path, A: oc.Array, b: Any, message: str
) -> None:
    lu = lu_factor(A, memory=MEMORY, progress=False)
    with refused(tmp_path, InvalidError, message):
        lu_solve(lu, b, progress=False)
    with refused(tmp_path, InvalidError, message):
        lu_solve(lu, b, out=tmp_path / "x", progress=False)
    if "row" not in message:
        shutil.rmtree(lu.path)
        with refused(tmp_path, InvalidError, message):
            solve(A, b, progress=False)


def test_numbers_too_large_for_the_factors(tmp_path: Path) -> None:
    lu = lu_factor(on_disk(tmp_path / "Z", random_matrix(50, "f4")), progress=False)
    b = np.ones(50)
    b[31] = 1e300
    with refused(tmp_path, InvalidError, "too large for float32 in row 31"):
        lu_solve(lu, b, dtype="f4", progress=False)


@pytest.mark.parametrize("trans", [3, -1, "n", "H", None, [0], 1.5])
def test_unknown_trans(tmp_path: Path, A: oc.Array, trans: Any) -> None:
    lu = lu_factor(A, memory=MEMORY, progress=False)
    with refused(tmp_path, InvalidError, "trans must be"):
        lu_solve(lu, np.ones(N), trans=trans)


@pytest.mark.parametrize("dtype", ["f4", "c16"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("index", [(0, 0), (199, 0), (3, 101), (101, 100), (0, 199), (199, 199)])
def test_a_number_that_is_none(
    tmp_path: Path, dtype: str, value: float, index: tuple[int, int]
) -> None:
    a = random_matrix(N, dtype)
    a[index] = value if dtype == "f4" else complex(1, value)
    a[199, 199] = value  # the error names the first one, not this later one
    B = on_disk(tmp_path / "Z", a, CHUNKS)
    with refused(tmp_path, NonFiniteError, rf"A\[{index[0]}, {index[1]}\] is") as caught:
        lu_factor(B, memory=MEMORY, progress=False)
    assert caught.value.index == index
    with refused(tmp_path, NonFiniteError):
        solve(B, np.ones(N), memory=MEMORY, progress=False)


def zero_column(at: int) -> Matrix:
    a = random_matrix(N, "f8", at)
    a[:, at] = 0
    return a


SINGULAR = {
    "zeros": np.zeros((N, N)),
    "ones": np.ones((N, N), "f4"),
    "one": np.zeros((1, 1), "c16"),
    "first column": zero_column(0),
    "middle column": zero_column(100),
    "last column": zero_column(N - 1),
    "shift": np.eye(N, k=1),
    "shift up": np.eye(N, k=-1, dtype="c8"),
    "identity with a hole": np.diag(np.arange(N) != 63).astype(float),
}


@pytest.mark.parametrize("name", SINGULAR)
def test_exactly_singular(tmp_path: Path, name: str) -> None:
    a = SINGULAR[name]
    _, piv, info = scipy.linalg.get_lapack_funcs(("getrf",), (a,))[0](a)
    with warnings.catch_warnings(record=True) as theirs:
        warnings.simplefilter("always")
        scipy.linalg.lu_factor(a)
    assert info > 0
    with warnings.catch_warnings(record=True) as ours:
        warnings.simplefilter("always")
        lu = lu_factor(on_disk(tmp_path / "Z", a), memory=MEMORY, progress=False)
    assert [str(w.message) for w in ours] == [str(w.message) for w in theirs]
    assert [w.category for w in ours] == [scipy.linalg.LinAlgWarning]
    assert ours[0].filename == __file__
    assert lu.info == info
    np.testing.assert_array_equal(lu.piv, piv)
    assert lu.report is not None
    assert lu.report.notes == [f"exactly singular: diagonal number {info} is zero"]
    again = open_factor(lu.path)
    with refused(tmp_path, SingularMatrixError, f"diagonal number {info}") as caught:
        lu_solve(again, np.ones(len(a)))
    assert caught.value.info == info
    assert isinstance(caught.value, np.linalg.LinAlgError)


@pytest.mark.parametrize("memory", ["lots", "", "-1 GB", "1 potato", 0, -5, [], "nan"])
def test_sizes_that_are_none(tmp_path: Path, A: oc.Array, memory: Any) -> None:
    with refused(tmp_path, InvalidError):
        lu_factor(A, memory=memory)
    with refused(tmp_path, InvalidError):
        solve(A, np.ones(N), memory=memory)


@pytest.mark.parametrize("overwrite_a", [False, True])
def test_too_small_a_budget(tmp_path: Path, A: oc.Array, overwrite_a: bool) -> None:
    with refused(tmp_path, BudgetError, r"need \d+ bytes .* raise memory="):
        lu_factor(A, memory="50 kB", overwrite_a=overwrite_a)
    assert A[0, 0] == random_matrix(N, "f8")[0, 0]
    with refused(tmp_path, BudgetError, "need"):
        solve(A, np.ones(N), memory="50 kB")


@pytest.mark.parametrize("threads", [0, -1, 1.5, "2"])
@pytest.mark.parametrize("overwrite_a", [False, True])
def test_no_such_number_of_threads(
    tmp_path: Path, A: oc.Array, threads: Any, overwrite_a: bool
) -> None:
    with refused(tmp_path, InvalidError, "threads must be"):
        lu_factor(A, threads=threads, overwrite_a=overwrite_a)
    with refused(tmp_path, InvalidError, "threads must be"):
        solve(A, np.ones(N), threads=threads, overwrite_a=overwrite_a)
    assert A[0, 0] == random_matrix(N, "f8")[0, 0]


def test_more_than_the_disk_holds(tmp_path: Path) -> None:
    """The matrix is a sparse file."""
    n, free = order_beyond(tmp_path, 200_000), shutil.disk_usage(tmp_path).free
    B = oc.create_array(tmp_path / "Z", (n, n), "f8", order="F", reserve=False)
    names = names_below(tmp_path)
    for overwrite_a in (False, True):
        with pytest.raises(DiskFullError, match=r"need \d{12,} bytes on disk") as told:
            lu_factor(B, memory="4 GB", overwrite_a=overwrite_a, progress=False)
        assert 8 * n * n <= int(str(told.value).split()[1]) < 16 * n * n
    assert names_below(tmp_path) == names
    assert oc.open_array(B.path).info().state == "whole"
    assert shutil.disk_usage(tmp_path).free > free - (1 << 30)


def test_a_matrix_that_cannot_be_moved_stays(tmp_path: Path, small_disk: Path) -> None:
    """Refuse another disk, and a disk without space for one more slab."""
    a = random_matrix(1500, "f8")
    B = on_disk(small_disk / "Z", a)
    with refused(tmp_path, InvalidError, "on the disk of the matrix"):
        lu_factor(B, memory="20 MB", out=tmp_path / "F", overwrite_a=True, progress=False)
    (small_disk / "filler").write_bytes(bytes(shutil.disk_usage(small_disk).free - (2 << 20)))
    with refused(small_disk, DiskFullError, "for one slab beside the matrix"):
        lu_factor(B, memory="20 MB", overwrite_a=True, progress=False)
    with refused(small_disk, DiskFullError, "on disk"):
        lu_factor(B, memory="20 MB", progress=False)
    with oc.open_array(B.path) as array:
        np.testing.assert_array_equal(array[:, :9], a[:, :9])


def test_a_read_only_disk(tmp_path: Path, small_disk: Path) -> None:
    B = on_disk(small_disk / "Z", random_matrix(50, "f8"))
    lu = lu_factor(B, progress=False)
    B.close()
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    x = lu_solve(lu, np.ones(50), progress=False)
    for work in (
        lambda: lu_factor(B, out=small_disk / "F"),
        lambda: lu_factor(B, out=small_disk / "F" / "G"),
        lambda: lu_factor(B, if_exists="overwrite"),
        lambda: lu_solve(lu, x, out=small_disk / "x"),
    ):
        with refused(small_disk, ReadOnlyError, "permissions"):
            work()


@pytest.mark.parametrize("state", ["incomplete", "consumed"])
def test_without_a_matrix_factors_are_not_replaced(tmp_path: Path, A: oc.Array, state: str) -> None:
    """Refuse even with if_exists='overwrite', since no new factors would replace the old ones."""
    lu_factor(A, progress=False)
    stop_after(1, A, memory=MEMORY, out=tmp_path / "F")
    A.mark(state, "for a test")
    error = IncompleteError if state == "incomplete" else ConsumedError
    for options in ({"if_exists": "overwrite"}, {"out": tmp_path / "F", "resume": False}):
        with refused(tmp_path, error, "for a test"):
            lu_factor(A, **options)  # type: ignore[arg-type]
    with refused(tmp_path, error, "for a test"):
        lu_factor(A, out=tmp_path / "new" / "below")


def test_targets_that_are_something_else(tmp_path: Path, A: oc.Array) -> None:
    (tmp_path / "file").write_text("mine")
    for name in ("lu", "piv/c", "other"):
        (tmp_path / "folder" / name.replace("/", "-") / name).mkdir(parents=True)
        (tmp_path / "folder" / name.replace("/", "-") / name / "mine").write_text("mine")
    oc.create_group(tmp_path / "group")
    oc.create_array(tmp_path / "array", (3, 3))
    (tmp_path / "link").symlink_to(tmp_path / "Z")
    with refused(tmp_path, InvalidError, "out= is the matrix itself"):
        lu_factor(A, out=tmp_path / "Z" / ".." / "Z")
    targets = ["file", "file/below", "folder/lu", "folder/other", "group", "array", "link", "."]
    for target in targets:
        with refused(tmp_path, ExistsError):
            lu_factor(A, out=tmp_path / target, if_exists="overwrite")
    with refused(tmp_path, InvalidError, "not a path"):
        lu_factor(A, out=7)  # type: ignore[arg-type]
    # The call accepts an empty directory, and the left-overs of a call killed at its start.
    (tmp_path / "empty").mkdir()
    (tmp_path / "left" / "lu" / "c" / "0").mkdir(parents=True)
    (tmp_path / "left" / "zarr.json.77.new").write_text("{")
    for target in ("empty", "left"):
        lu_factor(A, out=tmp_path / target, progress=False)


@pytest.mark.parametrize(
    "layout",
    [{"order": "C"}, {"chunks": (64, 48)}, {"chunks": (100, 100)}, {"chunk_order": "row-major"},
     {"chunk_order": "hilbert"}],
    ids=str,
)  # fmt: skip
def test_layouts_that_cannot_be_overwritten(tmp_path: Path, layout: dict[str, Any]) -> None:
    a = random_matrix(N, "f8")
    B = oc.from_array(a, tmp_path / "Z", **{"order": "F", "chunks": CHUNKS} | layout)
    with refused(tmp_path, InvalidError, "overwrite_a needs a matrix with order='F'"):
        lu_factor(B, memory="10 MB", overwrite_a=True)
    np.testing.assert_array_equal(B[...], a)


def test_a_damaged_matrix(tmp_path: Path, A: oc.Array) -> None:
    shard = next(path for path in (tmp_path / "Z" / "c").rglob("*") if path.is_file())
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-1])
    with refused(tmp_path, TruncatedError, "need"):
        lu_factor(A.path, memory=MEMORY)
    shard.write_bytes(whole[:-2] + b"xx")
    with refused(tmp_path, CorruptError):
        lu_factor(A.path, memory=MEMORY)
    shard.unlink()
    with refused(tmp_path, NotFoundError, "is missing"):
        lu_factor(A.path, memory=MEMORY)


def test_damaged_factors(tmp_path: Path, A: oc.Array) -> None:
    path = lu_factor(A, progress=False).path
    group, sound = path / "zarr.json", (path / "zarr.json").read_text()
    document = json.loads(sound)
    with pytest.raises(NotFoundError, match="make one with lu_factor"):
        open_factor(tmp_path / "nothing")
    with pytest.raises(CorruptError, match="does not describe factors"):
        open_factor(A.path)
    own = document["attributes"]["outcore"]
    for key in ("kind", "state", "n", "tile", "places", "info"):
        less = {name: value for name, value in own.items() if name != key}
        group.write_text(json.dumps(document | {"attributes": {"outcore": less}}))
        with pytest.raises(CorruptError, match="does not describe factors"):
            open_factor(path)
    for text in ("", "{", "[]", sound[:-5]):
        group.write_text(text)
        with pytest.raises(CorruptError):
            open_factor(path)
    group.write_text(sound)
    shard = next(file for file in (path / "lu" / "c").rglob("*") if file.is_file())
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-4096])
    with pytest.raises(TruncatedError):
        open_factor(path)
    shard.write_bytes(whole)
    assert open_factor(path).n == N
    shutil.rmtree(path / "piv")
    with pytest.raises(NotFoundError):
        open_factor(path)


def test_a_stopped_run_with_a_file_missing(tmp_path: Path, A: oc.Array) -> None:
    stop_after(2, A, memory=MEMORY)
    shutil.rmtree(tmp_path / "Z.lu" / "lu" / "c")
    with refused(tmp_path, NotFoundError, "is missing"):
        lu_factor(A, memory=MEMORY)
    assert lu_factor(A, memory=MEMORY, resume=False, progress=False).n == N


def test_unknown_assumptions(tmp_path: Path, A: oc.Array) -> None:
    with refused(tmp_path, InvalidError, "assume_a must be"):
        solve(A, np.ones(N), assume_a="lu")  # type: ignore[arg-type]
    oc.create_array(tmp_path / "x", 3)
    with refused(tmp_path, ExistsError, "another out="):
        solve(A, np.ones(N), out=tmp_path / "x")
