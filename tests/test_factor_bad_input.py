"""Input that each factorization refuses: one clear error each, and the disk unchanged."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from definite import definite
from linpack import Matrix, names_below, on_disk, one_thread
from resumed_kinds import CHOLESKY, KINDS, LU, QR, Kind
from stopping import stop_after
from tall import tall
from test_lu_bad_input import refused

import outcore as oc
from outcore.errors import (
    BudgetError,
    ConsumedError,
    CorruptError,
    ExistsError,
    IncompleteError,
    InvalidError,
    NonFiniteError,
    NotFoundError,
    TruncatedError,
)
from outcore.linalg import open_factor

__all__ = ["one_thread"]  # a fixture for every test here


@pytest.fixture(params=[CHOLESKY, QR], ids=str)
def kind(request: pytest.FixtureRequest) -> Kind:
    """Return a kind; `test_lu_bad_input.py` has more of the same for LU."""
    found: Kind = request.param
    return found


@pytest.fixture(name="A")
def matrix(tmp_path: Path, kind: Kind) -> oc.Array:
    return on_disk(tmp_path / "Z", kind.matrix, kind.chunks)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [*itertools.product(KINDS, ["i4", "bool", "f2"]), (LU, "i8"), (LU, "u1")],
    ids=str,
)
def test_types_without_factors(tmp_path: Path, kind: Kind, dtype: str) -> None:
    """Widen types that cannot be factored; refuse a type that would round them."""
    identity = np.eye(8, 7 if kind is QR else 8).astype(dtype)
    B = oc.from_array(identity, tmp_path / "Z", progress=False)
    if dtype in ("i4", "i8"):
        with refused(tmp_path, InvalidError, "in a type that holds its elements, have .*float32"):
            kind.function(B, dtype="f4")
    factors = kind.function(B, progress=False)
    assert factors.dtype == ("f4" if dtype == "f2" else "f8")


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_nothing_there_and_factors_themselves(tmp_path: Path, kind: Kind, A: oc.Array) -> None:
    with refused(tmp_path, NotFoundError, "there is no array at"):
        kind.function(tmp_path / "nothing")
    path = kind.function(A, progress=False).path
    with refused(tmp_path, InvalidError):
        kind.function(path)


FINITE = {CHOLESKY: lambda dtype: definite(200, dtype), QR: lambda dtype: tall(200, 150, dtype)}
PLACES = {
    CHOLESKY: [(0, 0), (199, 0), (101, 3), (101, 100), (150, 150), (199, 199)],
    QR: [(0, 0), (199, 0), (3, 101), (101, 100), (150, 149), (0, 149)],
}


@pytest.mark.parametrize("dtype", ["f4", "c16"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    ("kind", "index"), [(kind, index) for kind in PLACES for index in PLACES[kind]], ids=str
)
def test_a_number_that_is_none(
    tmp_path: Path, kind: Kind, dtype: str, value: float, index: tuple[int, int]
) -> None:
    a = kind.stored(FINITE[kind](dtype))
    a[index] = value if dtype == "f4" else complex(1, value)
    a[-1, -1] = value  # the error names the first one, not this later one
    B = on_disk(tmp_path / "Z", a, kind.chunks)
    with refused(tmp_path, NonFiniteError, rf"A\[{index[0]}, {index[1]}\] is") as caught:
        kind.function(B, memory=400_000 if kind is QR else kind.memory, progress=False)
    assert caught.value.index == index


@pytest.mark.parametrize(
    ("kind", "index"), [(LU, (5, 190)), (CHOLESKY, (195, 190)), (QR, (195, 149))], ids=str
)
def test_a_nan_that_is_found_after_a_stop(
    tmp_path: Path, kind: Kind, index: tuple[int, int]
) -> None:
    a: Matrix = kind.matrix.copy()
    a[index] = np.nan
    B = on_disk(tmp_path / "Z", a, kind.chunks)
    stop_after(2, B, kind.function, memory=kind.memory)
    with pytest.raises(NonFiniteError):
        kind.function(B, memory=kind.memory, progress=False)
    assert names_below(tmp_path / f"Z{kind.suffix}") == []
    with oc.open_array(B.path, "r+") as array:
        array[index] = kind.matrix[index]
    kind.check(kind.matrix, kind.function(B, memory=kind.memory, progress=False))


@pytest.mark.parametrize("memory", ["lots", "-1 GB", 0, [], "nan"])
def test_sizes_that_are_none(tmp_path: Path, kind: Kind, A: oc.Array, memory: Any) -> None:
    with refused(tmp_path, InvalidError):
        kind.function(A, memory=memory)


@pytest.mark.parametrize("overwrite_a", [False, True])
def test_too_small_a_budget(tmp_path: Path, kind: Kind, A: oc.Array, overwrite_a: bool) -> None:
    what = "two panels .*" if kind is QR else ""
    with refused(tmp_path, BudgetError, rf"need \d+ bytes .* {what}raise memory="):
        kind.function(A, memory="50 kB", overwrite_a=overwrite_a)


@pytest.mark.parametrize("threads", [0, 1.5, "2"])
def test_no_such_number_of_threads(tmp_path: Path, kind: Kind, A: oc.Array, threads: Any) -> None:
    with refused(tmp_path, InvalidError, "threads must be"):
        kind.function(A, threads=threads, overwrite_a=True)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_complete_factors_are_kept(tmp_path: Path, kind: Kind, A: oc.Array) -> None:
    kind.function(A, progress=False)
    with refused(
        tmp_path, ExistsError, r"open_factor, or pass if_exists='open', if_exists='overwrite'"
    ):
        kind.function(A)


@pytest.mark.parametrize("state", ["incomplete", "consumed"])
def test_without_a_matrix_factors_are_not_replaced(
    tmp_path: Path, kind: Kind, A: oc.Array, state: str
) -> None:
    kind.function(A, progress=False)
    A.mark(state, "for a test")
    error = IncompleteError if state == "incomplete" else ConsumedError
    with refused(tmp_path, error, "for a test"):
        kind.function(A, if_exists="overwrite")


def test_targets_that_are_something_else(tmp_path: Path, kind: Kind, A: oc.Array) -> None:
    name = kind.names[0]
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder" / name).mkdir(parents=True)
    (tmp_path / "folder" / name / "mine").write_text("mine")
    oc.create_array(tmp_path / "array", (3, 3))
    with refused(tmp_path, InvalidError, "out= is the matrix itself"):
        kind.function(A, out=tmp_path / "Z" / ".." / "Z")
    for target in ("file", "folder", "array", "."):
        with refused(tmp_path, ExistsError):
            kind.function(A, out=tmp_path / target, if_exists="overwrite")


@pytest.mark.parametrize(
    "layout", [{"order": "C"}, {"chunks": (64, 48)}, {"chunks": (100, 100)}], ids=str
)
def test_layouts_that_cannot_be_overwritten(
    tmp_path: Path, kind: Kind, layout: dict[str, Any]
) -> None:
    options = {"order": "F", "chunks": kind.chunks} | layout
    B = oc.from_array(kind.matrix, tmp_path / "Z", **options)
    with refused(tmp_path, InvalidError, "overwrite_a needs a matrix with order='F'"):
        kind.function(B, memory="10 MB", overwrite_a=True)


def test_damaged_factors(tmp_path: Path, kind: Kind, A: oc.Array) -> None:
    path = kind.function(A, progress=False).path
    group, sound = path / "zarr.json", (path / "zarr.json").read_text()
    document = json.loads(sound)
    own = document["attributes"]["outcore"]
    more = ("m", "info") if kind is QR else ()
    for key in ("kind", "state", "n", "tile", "places", "norm1", *more):
        less = {name: value for name, value in own.items() if name != key}
        group.write_text(json.dumps(document | {"attributes": {"outcore": less}}))
        with pytest.raises(CorruptError, match="does not describe factors"):
            open_factor(path)
    if kind is QR:
        group.write_text(json.dumps(document | {"attributes": {"outcore": own | {"n": 149}}}))
        with pytest.raises(CorruptError, match="tau is not of 200 x 149 float64"):
            open_factor(path)
    group.write_text(sound)
    shard = next(file for file in (path / kind.names[0] / "c").rglob("*") if file.is_file())
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-4096])
    with pytest.raises(TruncatedError):
        open_factor(path)
    shard.write_bytes(whole)
    assert open_factor(path).n == kind.matrix.shape[1]
