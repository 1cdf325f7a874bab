"""Calls refuse, open or replace an existing array."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import outcore as oc
from outcore.errors import ConsumedError, ExistsError, IncompleteError, InvalidError

rng = np.random.default_rng(5)
MODEL = rng.normal(size=(40, 40))


@pytest.mark.parametrize("wrong", [True, False, None, "Open", "replace", 1])
def test_other_words_are_refused(tmp_path: Path, wrong: Any) -> None:
    A = oc.from_array(MODEL, tmp_path / "A", progress=False)
    for call in (
        lambda: oc.create_array(tmp_path / "x", 3, if_exists=wrong),
        lambda: oc.create_group(tmp_path / "x", if_exists=wrong),
        lambda: oc.from_array(MODEL, tmp_path / "x", if_exists=wrong),
        lambda: oc.export_array(A, tmp_path / "x.npy", if_exists=wrong),
    ):
        with pytest.raises(InvalidError, match="if_exists must be"):
            call()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"shape": (40, 41)}, "shape"),
        ({"dtype": "f4"}, "dtype"),
        ({"order": "F"}, "order"),
        ({"chunks": (8, 40)}, "chunks"),
        ({"chunk_order": "hilbert"}, "chunk_order"),
        ({"dims": ("y", "x")}, "dims"),
        ({"attributes": {"k": 2}}, "attributes"),
    ],
)
def test_open_names_the_first_difference(
    tmp_path: Path, change: dict[str, Any], named: str
) -> None:
    arguments: dict[str, Any] = {"shape": (40, 40), "dtype": "f8", "attributes": {"k": 1}}
    with oc.create_array(tmp_path / "A", **arguments) as A:
        A[...] = MODEL
    A = oc.create_array(tmp_path / "A", if_exists="open", **arguments)
    np.testing.assert_array_equal(A, MODEL)
    assert A.mode == "r+"
    A = oc.create_array(tmp_path / "A", (40, 40), if_exists="open")
    np.testing.assert_array_equal(A, MODEL)
    with pytest.raises(ExistsError, match=f"has {named} .*, this call makes") as refused:
        oc.create_array(tmp_path / "A", if_exists="open", **(arguments | change))
    assert "if_exists='overwrite'" in str(refused.value).rpartition(";")[2]


def test_the_error_names_both_ways_out(tmp_path: Path) -> None:
    oc.create_array(tmp_path / "A", 3)
    with pytest.raises(ExistsError, match="pass if_exists='open' or 'overwrite'"):
        oc.create_array(tmp_path / "A", 3)
    oc.create_group(tmp_path / "G", attributes={"a": 1})
    with pytest.raises(ExistsError, match="pass if_exists='open' or 'overwrite'"):
        oc.create_group(tmp_path / "G")
    assert oc.create_group(tmp_path / "G", attributes={"a": 1}, if_exists="open").is_dir()
    with pytest.raises(ExistsError, match="attributes"):
        oc.create_group(tmp_path / "G", attributes={"a": 2}, if_exists="open")


def test_open_refuses_other_things(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "directory").mkdir()
    (tmp_path / "directory/note").write_text("mine")
    oc.create_group(tmp_path / "group")
    for name in ("file", "directory", "group"):
        with pytest.raises(ExistsError):
            oc.create_array(tmp_path / name, 3, if_exists="open")
    A = oc.from_array(MODEL + 40 * np.eye(40), tmp_path / "A", order="F", progress=False)
    oc.linalg.lu_factor(A, overwrite_a=True, progress=False)
    with pytest.raises(ConsumedError, match="open_factor"):
        oc.create_array(tmp_path / "A", (40, 40), order="F", if_exists="open")


@pytest.mark.parametrize("kind", ["npy", "array"])
def test_a_copy_is_opened_if_its_source_is_the_same(tmp_path: Path, kind: str) -> None:
    source = tmp_path / "source.npy"
    if kind == "npy":
        np.save(source, MODEL)
    else:
        oc.from_array(MODEL, source, progress=False).close()

    def copied(**options: Any) -> oc.Array:
        return oc.from_array(source, tmp_path / "A", if_exists="open", progress=False, **options)

    for _ in range(2):
        np.testing.assert_array_equal(copied(), MODEL)
    with pytest.raises(ExistsError, match="dtype"):
        copied(dtype="f4")
    if kind == "npy":
        np.save(source, MODEL + 1)
    else:
        oc.from_array(MODEL + 1, source, if_exists="overwrite", progress=False).close()
    with pytest.raises(ExistsError, match="source"):
        copied()


def test_an_unfinished_array_of_another_call_is_not_opened(tmp_path: Path) -> None:
    def fill(rows: slice, columns: slice) -> Any:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        oc.create_array(tmp_path / "A", (40, 40), fill=fill, progress=False)
    with pytest.raises(ExistsError, match="not whole"):
        oc.create_array(tmp_path / "A", (40, 40), if_exists="open")
    with pytest.raises(IncompleteError):
        oc.open_array(tmp_path / "A")


@pytest.mark.parametrize(
    ("had", "given"), [(1, True), (True, 1), (1, 1.0), ([1], [True]), ({"a": 0}, {"a": False})]
)
def test_attributes_differ_by_type_too(tmp_path: Path, had: Any, given: Any) -> None:
    """In Python, `True` equals 1; in JSON it does not."""
    oc.create_array(tmp_path / "A", 3, attributes={"k": had}).close()
    oc.create_group(tmp_path / "G", attributes={"k": had})
    with pytest.raises(ExistsError, match="attributes"):
        oc.create_array(tmp_path / "A", 3, attributes={"k": given}, if_exists="open")
    with pytest.raises(ExistsError, match="attributes"):
        oc.create_group(tmp_path / "G", attributes={"k": given}, if_exists="open")
    oc.create_array(tmp_path / "A", 3, attributes={"k": had}, if_exists="open").close()
    oc.create_group(tmp_path / "G", attributes={"k": had}, if_exists="open")
