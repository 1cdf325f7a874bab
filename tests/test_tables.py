"""Tables and columns of pandas and pyarrow in memory: no integer is rounded, no null a number."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow
import pytest

import outcore as oc
from outcore.errors import InvalidError

BIG = 2**53 + 1
MIXED: dict[str, tuple[str, Callable[[], Any]]] = {
    "frame": ("column a", lambda: pandas.DataFrame({"a": [1, BIG], "b": [0.5, 1]})),
    "signs": (
        "column b",
        lambda: pandas.DataFrame({"a": [-1, 1], "b": np.array([1, BIG], "u8")}),
    ),
    "table": ("column a", lambda: pyarrow.table({"a": [1, BIG], "b": [0.5, 1]})),
    "complex": ("column a", lambda: pandas.DataFrame({"a": [1, BIG], "b": [1j, 1]})),
    "batch": ("column a", lambda: pyarrow.record_batch({"a": [1, BIG], "b": [0.5, 1]})),
}


@pytest.mark.parametrize("kind", MIXED)
def test_promotion_rounds_no_integer(tmp_path: Path, kind: str) -> None:
    named, make = MIXED[kind]
    message = rf"{named}: need integers that float64 can hold exactly, have {BIG} at \(1, [01]\)"
    given = make()
    with pytest.raises(InvalidError, match=message):
        oc.from_array(given, tmp_path / "A", progress=False)
    with pytest.raises(InvalidError, match=message):
        oc.export_array(given, tmp_path / "a.npy", progress=False)
    with pytest.raises(InvalidError, match=message):
        oc.from_array(iter([given]), tmp_path / "A", shape=2, progress=False)
    expected = np.asarray(given)
    for options in ({"casting": "unsafe"}, {"dtype": expected.dtype}):
        for source, shape in ((given, None), (iter([given]), 2)):
            with oc.from_array(
                source, tmp_path / "B", shape=shape, if_exists="overwrite", progress=False,
                **options,
            ) as B:  # fmt: skip
                np.testing.assert_array_equal(B[...], expected)
                B[...] = given  # the type of the array is the caller's choice


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_block_of_no_rows_is_skipped(tmp_path: Path, place: int) -> None:
    frame = pandas.DataFrame({"a": [1, 2], "b": [0.5, 1.5]})
    for number, make in enumerate((lambda part: part, pyarrow.table)):
        blocks = [make(frame)] * 2
        blocks.insert(place, make(frame[frame.b > 9]))
        with oc.from_array(
            iter(blocks), tmp_path / f"A{number}", shape=4, progress=False
        ) as A:  # fmt: skip
            np.testing.assert_array_equal(A[...], [[1, 0.5], [2, 1.5]] * 2)


def test_labels_of_a_series_are_no_attributes(tmp_path: Path) -> None:
    given = pandas.Series([1.0, 2.0], index=["null_count", "x"])
    with oc.from_array(given, tmp_path / "A", progress=False) as A:
        np.testing.assert_array_equal(A[...], [1, 2])


def test_what_is_exact_is_copied(tmp_path: Path) -> None:
    for number, given in enumerate(
        (
            pandas.DataFrame({"a": [1, 2**53], "b": [0.5, 1e300]}),
            pandas.DataFrame({"a": [1, BIG], "b": [2, 3]}),
            pandas.Series([BIG, 1], dtype="Int64"),
            pandas.Series([0.5, None]),
            pyarrow.table({"a": [1, 2], "b": [0.5, 2.0**60]}),
            pyarrow.array([BIG, 1]),
            [BIG, 5],
        )
    ):
        with oc.from_array(given, tmp_path / f"A{number}", progress=False) as A:
            np.testing.assert_array_equal(A[...], np.asarray(given))


NULLS: dict[str, Callable[[], Any]] = {
    "series": lambda: pandas.Series([1, None, 3], dtype="Int64"),
    "arrow series": lambda: pandas.Series([1, None, 3], dtype="int64[pyarrow]"),
    "extension": lambda: pandas.array([1, None, 3], dtype="UInt8"),
    "index": lambda: pandas.Index([1, None, 3], dtype="Int64"),
    "frame": lambda: pandas.DataFrame({"a": pandas.array([1, None, 3], dtype="Int64")})["a"],
    "array": lambda: pyarrow.array([1, None, 3]),
    "floats": lambda: pyarrow.array([0.5, None, 1.5]),
    "chunked": lambda: pyarrow.chunked_array([[1, None], [3]]),
}


@pytest.mark.parametrize("kind", NULLS)
def test_nulls_are_refused(tmp_path: Path, kind: str) -> None:
    given, message = NULLS[kind](), "need elements without nulls, have 1 of 3 null; fill them"
    with pytest.raises(InvalidError, match=message):
        oc.from_array(given, tmp_path / "A", progress=False)
    with pytest.raises(InvalidError, match=message):
        oc.from_array(iter([given]), tmp_path / "A", shape=3, progress=False)
    with oc.create_array(tmp_path / "B", 3) as B:
        with pytest.raises(InvalidError, match=message):
            B[...] = given
        with pytest.raises(InvalidError, match=message):
            oc.linalg.matmul(np.eye(3), given, progress=False)
    with pytest.raises(InvalidError, match=message):
        oc.create_array(tmp_path / "C", 3, fill=lambda rows: given, progress=False)


def test_nulls_of_a_table_are_refused(tmp_path: Path) -> None:
    for given in (
        pyarrow.table({"a": [1, 2], "b": [0.5, None]}),
        pyarrow.record_batch({"a": [1, 2], "b": [0.5, None]}),
    ):
        with pytest.raises(InvalidError, match="have 1 of 4 null"):
            oc.from_array(given, tmp_path / "A", progress=False)
