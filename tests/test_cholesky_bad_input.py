"""Input that Cholesky refuses: one clear error each, and an unchanged disk."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from definite import cholesky_ratio, definite, lower_only, upper_only
from linpack import names_below, on_disk, one_thread, order_beyond
from stopping import stop_after
from test_lu_bad_input import refused

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
    NotPositiveDefiniteError,
    TruncatedError,
)
from outcore.linalg import cho_factor, open_factor

__all__ = ["one_thread"]  # a fixture for every test here

N, CHUNKS, MEMORY = 200, (32, 16), 150_000


@pytest.fixture(name="A")
def matrix(tmp_path: Path) -> oc.Array:
    return on_disk(tmp_path / "Z", definite(N, "f8"), CHUNKS)


@pytest.mark.parametrize("shape", [(8,), (8, 9), (9, 8), (8, 8, 8)])
def test_not_square(tmp_path: Path, shape: tuple[int, ...]) -> None:
    B = oc.create_array(tmp_path / "Z", shape, "f8")
    with refused(tmp_path, InvalidError, "need a square matrix, have shape"):
        cho_factor(B)


@pytest.mark.parametrize("dtype", ["i4", "bool", "f2"])
def test_types_without_cholesky(tmp_path: Path, dtype: str) -> None:
    """Widen types without Cholesky; refuse a type that would round them."""
    B = oc.from_array(np.eye(*(8, 8)).astype(dtype), tmp_path / "Z", progress=False)
    if dtype in ("i4", "i8"):
        with refused(tmp_path, InvalidError, "in a type that holds its elements, have .*float32"):
            cho_factor(B, dtype="f4")
    factors = cho_factor(B, progress=False)
    assert factors.dtype == ("f4" if dtype == "f2" else "f8")


def test_no_matrix(tmp_path: Path, A: oc.Array) -> None:
    with refused(tmp_path, NotFoundError, "there is no array at"):
        cho_factor(tmp_path / "nothing")
    path = cho_factor(A, progress=False).path
    with refused(tmp_path, InvalidError):
        cho_factor(path)


@pytest.mark.parametrize("dtype", ["f4", "c16"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("index", [(0, 0), (199, 0), (101, 3), (101, 100), (150, 150), (199, 199)])
def test_a_number_that_is_none(
    tmp_path: Path, dtype: str, value: float, index: tuple[int, int]
) -> None:
    a = lower_only(definite(N, dtype))
    a[index] = value if dtype == "f4" else complex(1, value)
    a[199, 199] = value  # the error names the first one, not this later one
    B = on_disk(tmp_path / "Z", a, CHUNKS)
    with refused(tmp_path, NonFiniteError, rf"A\[{index[0]}, {index[1]}\] is") as caught:
        cho_factor(B, memory=MEMORY, progress=False)
    assert caught.value.index == index


def test_a_number_that_is_none_in_the_upper_triangle(tmp_path: Path) -> None:
    a = upper_only(definite(N, "f8"))
    a[7, 101] = np.nan
    B = oc.from_array(a, tmp_path / "Z", chunks=CHUNKS)
    with refused(tmp_path, NonFiniteError, r"A\[7, 101\] is nan") as caught:
        cho_factor(B, lower=False, memory=MEMORY, progress=False)
    assert caught.value.index == (7, 101)
    with refused(tmp_path, InvalidError, "overwrite_a needs lower=True"):
        cho_factor(B, lower=False, overwrite_a=True)


def test_a_nan_that_is_found_after_a_stop(tmp_path: Path) -> None:
    a = definite(N, "f8")
    kept, a[195, 190] = a[195, 190], np.nan
    B = on_disk(tmp_path / "Z", a, CHUNKS)
    stop_after(2, B, cho_factor, memory=MEMORY)
    with pytest.raises(NonFiniteError):
        cho_factor(B, memory=MEMORY, progress=False)
    assert names_below(tmp_path / "Z.cho") == []
    with oc.open_array(B.path, "r+") as array:
        array[195, 190] = kept
    a[195, 190] = kept
    assert cholesky_ratio(a, cho_factor(B, memory=MEMORY, progress=False)) < 30


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
@pytest.mark.parametrize("order", [1, 2, 16, 17, 100, 199, 200])
def test_not_positive_definite(tmp_path: Path, dtype: str, order: int) -> None:
    """The error has LAPACK's info and SciPy's words, wherever the bad pivot is."""
    a = definite(N, dtype)
    a[order - 1, order - 1] = -1
    # Zeros beside it, so that the result does not depend on rounding.
    a[order - 1, : order - 1] = a[order:, order - 1] = 0
    a[: order - 1, order - 1] = a[order - 1, order:] = 0
    *_, info = scipy.linalg.get_lapack_funcs(("potrf",), (a,))[0](a, lower=True)
    assert info == order
    with pytest.raises(np.linalg.LinAlgError) as theirs:
        scipy.linalg.cholesky(a, lower=True)
    words = str(theirs.value).split(" of ")[0]
    assert words.startswith(f"{order}-th leading minor")
    B = on_disk(tmp_path / "Z", lower_only(a), CHUNKS)
    with refused(
        tmp_path, NotPositiveDefiniteError, f"^{order}-th leading minor of Z is not"
    ) as ours:
        cho_factor(B, memory=MEMORY, progress=False)
    assert ours.value.info == order
    assert isinstance(ours.value, np.linalg.LinAlgError)


@pytest.mark.parametrize("a", [np.zeros((N, N)), np.ones((N, N)), np.zeros((1, 1))])
def test_semidefinite(tmp_path: Path, a: Any) -> None:
    B, order = on_disk(tmp_path / "Z", a), 1 if a[0, 0] == 0 else 2
    with refused(tmp_path, NotPositiveDefiniteError, f"^{order}-th"):
        cho_factor(B, memory=MEMORY, progress=False)


@pytest.mark.parametrize("memory", ["lots", "-1 GB", 0, [], "nan"])
def test_sizes_that_are_none(tmp_path: Path, A: oc.Array, memory: Any) -> None:
    with refused(tmp_path, InvalidError):
        cho_factor(A, memory=memory)


@pytest.mark.parametrize("overwrite_a", [False, True])
def test_too_small_a_budget(tmp_path: Path, A: oc.Array, overwrite_a: bool) -> None:
    with refused(tmp_path, BudgetError, r"need \d+ bytes .* raise memory="):
        cho_factor(A, memory="50 kB", overwrite_a=overwrite_a)


@pytest.mark.parametrize("threads", [0, 1.5, "2"])
def test_no_such_number_of_threads(tmp_path: Path, A: oc.Array, threads: Any) -> None:
    with refused(tmp_path, InvalidError, "threads must be"):
        cho_factor(A, threads=threads, overwrite_a=True)


def test_more_than_the_disk_holds(tmp_path: Path) -> None:
    """The triangle is half of the matrix, which is a sparse file."""
    n, free = order_beyond(tmp_path, 300_000), shutil.disk_usage(tmp_path).free
    B = oc.create_array(tmp_path / "Z", (n, n), "f8", order="F", reserve=False)
    names = names_below(tmp_path)
    for overwrite_a in (False, True):
        with pytest.raises(DiskFullError, match=r"need \d{12,} bytes on disk") as told:
            cho_factor(B, memory="8 GB", overwrite_a=overwrite_a, progress=False)
        assert 4 * n * n <= int(str(told.value).split()[1]) < 10 * n * n
    assert names_below(tmp_path) == names
    assert shutil.disk_usage(tmp_path).free > free - (1 << 30)


def test_a_disk_with_room_for_the_triangle_only(tmp_path: Path, small_disk: Path) -> None:
    """18 MB of matrix, 9 MB of triangle: the call works with 12 MB free, and is refused with 8."""
    a = definite(1500, "f8")
    A = on_disk(tmp_path / "Z", a)
    free = shutil.disk_usage(small_disk).free
    (small_disk / "filler").write_bytes(bytes(free - (12 << 20)))
    found = cho_factor(A, memory="2 MB", out=small_disk / "F", progress=False)
    assert cholesky_ratio(a, found) < 30
    shutil.rmtree(found.path)
    with (small_disk / "filler").open("ab") as file:
        file.write(bytes(4 << 20))
    with refused(small_disk, DiskFullError, "on disk"):
        cho_factor(A, memory="2 MB", out=small_disk / "F", progress=False)


def test_complete_factors_are_kept(tmp_path: Path, A: oc.Array) -> None:
    cho_factor(A, progress=False)
    with refused(
        tmp_path, ExistsError, r"open_factor, or pass if_exists='open', if_exists='overwrite'"
    ):
        cho_factor(A)


@pytest.mark.parametrize("state", ["incomplete", "consumed"])
def test_without_a_matrix_factors_are_not_replaced(tmp_path: Path, A: oc.Array, state: str) -> None:
    cho_factor(A, progress=False)
    A.mark(state, "for a test")
    error = IncompleteError if state == "incomplete" else ConsumedError
    with refused(tmp_path, error, "for a test"):
        cho_factor(A, if_exists="overwrite")


def test_targets_that_are_something_else(tmp_path: Path, A: oc.Array) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder" / "l").mkdir(parents=True)
    (tmp_path / "folder" / "l" / "mine").write_text("mine")
    oc.create_array(tmp_path / "array", (3, 3))
    with refused(tmp_path, InvalidError, "out= is the matrix itself"):
        cho_factor(A, out=tmp_path / "Z" / ".." / "Z")
    for target in ("file", "folder", "array", "."):
        with refused(tmp_path, ExistsError):
            cho_factor(A, out=tmp_path / target, if_exists="overwrite")


@pytest.mark.parametrize(
    "layout", [{"order": "C"}, {"chunks": (64, 48)}, {"chunks": (100, 100)}], ids=str
)
def test_layouts_that_cannot_be_overwritten(tmp_path: Path, layout: dict[str, Any]) -> None:
    a = definite(N, "f8")
    B = oc.from_array(a, tmp_path / "Z", **{"order": "F", "chunks": CHUNKS} | layout)
    with refused(tmp_path, InvalidError, "overwrite_a needs a matrix with order='F'"):
        cho_factor(B, memory="10 MB", overwrite_a=True)


def test_damaged_factors(tmp_path: Path, A: oc.Array) -> None:
    path = cho_factor(A, progress=False).path
    group, sound = path / "zarr.json", (path / "zarr.json").read_text()
    document = json.loads(sound)
    own = document["attributes"]["outcore"]
    for key in ("kind", "state", "n", "tile", "places", "norm1"):
        less = {name: value for name, value in own.items() if name != key}
        group.write_text(json.dumps(document | {"attributes": {"outcore": less}}))
        with pytest.raises(CorruptError, match="does not describe factors"):
            open_factor(path)
    group.write_text(sound)
    shard = next(file for file in (path / "l" / "c").rglob("*") if file.is_file())
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-4096])
    with pytest.raises(TruncatedError):
        open_factor(path)
    shard.write_bytes(whole)
    assert open_factor(path).n == N
