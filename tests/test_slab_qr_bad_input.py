"""Input that QR by slabs refuses: one clear error each, and the disk unchanged."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import outcore
from linpack import names_below, on_disk, one_thread, order_beyond
from qr_factors import assert_factors
from stopping import stop_after
from tall import tall
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
    TruncatedError,
)
from outcore.linalg import open_factor, qr_factor

__all__ = ["one_thread"]  # a fixture for every test here

M, N, CHUNKS, MEMORY = 200, 150, (32, 16), 250_000


@pytest.fixture(name="A")
def matrix(tmp_path: Path) -> oc.Array:
    return on_disk(tmp_path / "Z", tall(M, N, "f8"), CHUNKS)


@pytest.mark.parametrize("shape", [(8,), (8, 8, 8)])
def test_no_matrix(tmp_path: Path, shape: tuple[int, ...]) -> None:
    B = oc.create_array(tmp_path / "Z", shape, "f8")
    with refused(tmp_path, InvalidError, "need a matrix, have shape"):
        qr_factor(B)


@pytest.mark.parametrize("dtype", ["i4", "bool", "f2"])
def test_types_without_qr(tmp_path: Path, dtype: str) -> None:
    """Widen types without QR; refuse a type that would round them."""
    B = oc.from_array(np.eye(*(8, 7)).astype(dtype), tmp_path / "Z", progress=False)
    if dtype in ("i4", "i8"):
        with refused(tmp_path, InvalidError, "in a type that holds its elements, have .*float32"):
            qr_factor(B, dtype="f4")
    factors = qr_factor(B, progress=False)
    assert factors.dtype == ("f4" if dtype == "f2" else "f8")


def test_nothing_there_and_factors_themselves(tmp_path: Path, A: oc.Array) -> None:
    with refused(tmp_path, NotFoundError, "there is no array at"):
        qr_factor(tmp_path / "nothing")
    path = qr_factor(A, progress=False).path
    with refused(tmp_path, InvalidError):
        qr_factor(path)
    with refused(tmp_path, NotFoundError, "lu_factor, cho_factor or qr_factor"):
        open_factor(tmp_path / "nothing")


@pytest.mark.parametrize("dtype", ["f4", "c16"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("index", [(0, 0), (199, 0), (3, 101), (101, 100), (150, 149), (0, 149)])
def test_a_number_that_is_none(
    tmp_path: Path, dtype: str, value: float, index: tuple[int, int]
) -> None:
    a = tall(M, N, dtype)
    a[index] = value if dtype == "f4" else complex(1, value)
    a[199, 149] = value  # the error names the first one, not this later one
    B = on_disk(tmp_path / "Z", a, CHUNKS)
    with refused(tmp_path, NonFiniteError, rf"A\[{index[0]}, {index[1]}\] is") as caught:
        qr_factor(B, memory=400_000, progress=False)
    assert caught.value.index == index


def test_a_nan_that_is_found_after_a_stop(tmp_path: Path) -> None:
    a = tall(M, N, "f8")
    a[195, 149] = np.nan
    B = on_disk(tmp_path / "Z", a, CHUNKS)
    stop_after(2, B, qr_factor, memory=MEMORY)
    with pytest.raises(NonFiniteError):
        qr_factor(B, memory=MEMORY, progress=False)
    assert names_below(tmp_path / "Z.qr") == []
    a[195, 149] = 1
    with oc.open_array(B.path, "r+") as array:
        array[195, 149] = 1
    assert_factors(a, qr_factor(B, memory=MEMORY, progress=False))


def test_numbers_so_large_that_r_overflows(tmp_path: Path) -> None:
    for column in (0, 140):
        a = tall(M, N, "f4")
        a[:, column] = 3e38
        B = on_disk(tmp_path / f"Z{column}", a, CHUNKS)
        with pytest.raises(InvalidError, match="overflow float32; scale its columns"):
            qr_factor(B, memory=MEMORY, progress=False)


@pytest.mark.parametrize("memory", ["lots", "-1 GB", 0, [], "nan"])
def test_sizes_that_are_none(tmp_path: Path, A: oc.Array, memory: Any) -> None:
    with refused(tmp_path, InvalidError):
        qr_factor(A, memory=memory)


@pytest.mark.parametrize("overwrite_a", [False, True])
def test_too_small_a_budget(tmp_path: Path, A: oc.Array, overwrite_a: bool) -> None:
    with refused(tmp_path, BudgetError, r"need \d+ bytes .* two panels .* raise memory="):
        qr_factor(A, memory="50 kB", overwrite_a=overwrite_a)


@pytest.mark.parametrize("threads", [0, 1.5, "2"])
def test_no_such_number_of_threads(tmp_path: Path, A: oc.Array, threads: Any) -> None:
    with refused(tmp_path, InvalidError, "threads must be"):
        qr_factor(A, threads=threads, overwrite_a=True)


def test_more_than_the_disk_holds(tmp_path: Path) -> None:
    """The matrix is a sparse file."""
    n, free = order_beyond(tmp_path, 200_000), shutil.disk_usage(tmp_path).free
    B = oc.create_array(tmp_path / "Z", (2 * n, n), "f8", order="F", reserve=False)
    names = names_below(tmp_path)
    with pytest.raises(DiskFullError, match=r"need \d{12,} bytes"):
        qr_factor(B, memory="8 GB", progress=False)
    assert names_below(tmp_path) == names
    assert shutil.disk_usage(tmp_path).free > free - (1 << 30)


def test_complete_factors_are_kept(tmp_path: Path, A: oc.Array) -> None:
    qr_factor(A, progress=False)
    with refused(
        tmp_path, ExistsError, r"open_factor, or pass if_exists='open', if_exists='overwrite'"
    ):
        qr_factor(A)


@pytest.mark.parametrize("state", ["incomplete", "consumed"])
def test_without_a_matrix_factors_are_not_replaced(tmp_path: Path, A: oc.Array, state: str) -> None:
    qr_factor(A, progress=False)
    A.mark(state, "for a test")
    error = IncompleteError if state == "incomplete" else ConsumedError
    with refused(tmp_path, error, "for a test"):
        qr_factor(A, if_exists="overwrite")


def test_targets_that_are_something_else(tmp_path: Path, A: oc.Array) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder" / "qr").mkdir(parents=True)
    (tmp_path / "folder" / "qr" / "mine").write_text("mine")
    oc.create_array(tmp_path / "array", (3, 3))
    with refused(tmp_path, InvalidError, "out= is the matrix itself"):
        qr_factor(A, out=tmp_path / "Z" / ".." / "Z")
    for target in ("file", "folder", "array", "."):
        with refused(tmp_path, ExistsError):
            qr_factor(A, out=tmp_path / target, if_exists="overwrite")


@pytest.mark.parametrize(
    "layout", [{"order": "C"}, {"chunks": (64, 48)}, {"chunks": (100, 100)}], ids=str
)
def test_layouts_that_cannot_be_overwritten(tmp_path: Path, layout: dict[str, Any]) -> None:
    a = tall(M, N, "f8")
    B = oc.from_array(a, tmp_path / "Z", **{"order": "F", "chunks": CHUNKS} | layout)
    with refused(tmp_path, InvalidError, "overwrite_a needs a matrix with order='F'"):
        qr_factor(B, memory="10 MB", overwrite_a=True)


def test_damaged_factors(tmp_path: Path, A: oc.Array) -> None:
    path = qr_factor(A, progress=False).path
    group, sound = path / "zarr.json", (path / "zarr.json").read_text()
    document = json.loads(sound)
    own = document["attributes"]["outcore"]
    for key in ("kind", "state", "m", "n", "tile", "places", "norm1", "info"):
        less = {name: value for name, value in own.items() if name != key}
        group.write_text(json.dumps(document | {"attributes": {"outcore": less}}))
        with pytest.raises(CorruptError, match="does not describe factors"):
            open_factor(path)
    other = {"attributes": {"outcore": own | {"n": N - 1}}}
    group.write_text(json.dumps(document | other))
    with pytest.raises(CorruptError, match="tau is not of 200 x 149 float64"):
        open_factor(path)
    group.write_text(sound)
    shard = next(file for file in (path / "qr" / "c").rglob("*") if file.is_file())
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-4096])
    with pytest.raises(TruncatedError):
        open_factor(path)
    shard.write_bytes(whole)
    assert open_factor(path).n == N


def test_as_the_command_line_sees_them(tmp_path: Path, A: oc.Array) -> None:
    """Check ``outcore info`` and ``outcore rm``: stopped, whole, and killed at the start."""
    stop_after(2, A, qr_factor, memory=MEMORY)
    text = outcore("info", tmp_path).stdout
    assert "call qr_factor with the same arguments to resume (" in text
    qr_factor(A, memory=MEMORY, progress=False)
    assert "200 x 150 float64  whole" in outcore("info", tmp_path).stdout
    assert outcore("rm", "-y", tmp_path / "Z.qr").exit_code == 0
    (tmp_path / "Z.qr" / "tau" / "c").mkdir(parents=True)
    (tmp_path / "Z.qr" / "journal").write_text("header\n")
    assert outcore("rm", "-y", tmp_path / "Z.qr").exit_code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["Z"]
