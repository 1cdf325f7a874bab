"""Zarr version 2 from `export_array`, read by zarr-python and xarray."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray
import zarr
from command_line import outcore
from strategies import values

import outcore as oc
from outcore.errors import InvalidError


@pytest.mark.parametrize(
    ("dtype", "order", "codec"),
    [("f8", "C", None), ("c16", "F", "gzip"), ("u1", "F", "none"), ("bool", "C", "blosc")],
)
def test_zarr_python_reads_what_was_written(
    tmp_path: Path, dtype: str, order: Any, codec: str | None
) -> None:
    model = values((30, 17, 4), dtype)
    model[:20] = 0
    array = oc.from_array(
        model, tmp_path / "A", chunks=(8, 8, 3), dims=("z", "y", "x"), progress=False,
        attributes={"units": "m", "deep": {"a": [1, None]}},
    )  # fmt: skip
    path = tmp_path / "g" / "v"
    zarr.create_group(tmp_path / "g", zarr_format=2)
    oc.export_array(
        array, path, format="zarr", zarr_format=2, chunks=(10, 9, 4), order=order, codec=codec,
        progress=False,
    )  # fmt: skip
    found = zarr.open_array(path, mode="r")
    assert (found.metadata.zarr_format, found.chunks, found.dtype) == (2, (10, 9, 4), model.dtype)
    assert found.order == order
    np.testing.assert_array_equal(found[...], model)
    # With a fill value, xarray would treat elements equal to it as missing.
    assert json.loads((path / ".zarray").read_text())["fill_value"] is None
    assert len(list(path.glob("[0-9]*"))) == 3 * 2
    dims = {"_ARRAY_DIMENSIONS": ["z", "y", "x"]}
    assert json.loads((path / ".zattrs").read_text()) == array.attrs | dims
    with xarray.open_zarr(tmp_path / "g", consolidated=False) as data:
        assert data.v.dims == ("z", "y", "x")
        assert data.v.dtype == model.dtype
        np.testing.assert_array_equal(data.v, model)
    with oc.from_array(path, tmp_path / "B", progress=False) as again:
        assert (again.dims, again.attrs, again.order) == (array.dims, array.attrs, order)
        np.testing.assert_array_equal(again[...], model)


def test_it_replaces_and_is_replaced(tmp_path: Path) -> None:
    model = np.array([0.0, math.nan, 2.0])
    for version in ("3", "2", "2", "3"):
        np.save(tmp_path / "a.npy", model)
        done = outcore(
            "convert", tmp_path / "a.npy", tmp_path / "a.zarr", "--zarr-format", version,
            "--overwrite",
        )  # fmt: skip
        assert done.exit_code == 0, done.output
        assert (tmp_path / "a.zarr" / ".zarray").exists() == (version == "2")
        np.testing.assert_array_equal(zarr.open_array(tmp_path / "a.zarr", mode="r")[:], model)


def test_other_formats_have_no_version(tmp_path: Path) -> None:
    for name, version in [("a.npy", 2), ("a.zarr", 1), ("a.zarr", "2")]:
        with pytest.raises(InvalidError, match="leave out zarr_format="):
            oc.export_array(np.zeros(3), tmp_path / name, zarr_format=version)  # type: ignore[arg-type]
    np.save(tmp_path / "a.npy", np.zeros(3))
    done = outcore("convert", tmp_path / "a.npy", tmp_path / "A", "--zarr-format", "2")
    assert done.exit_code != 0
    assert "name DST with the suffix .zarr" in done.output


@pytest.mark.parametrize("value", ["no", ["y"], 3, [1, 2]])
def test_an_attribute_that_names_no_dimensions_is_carried(tmp_path: Path, value: Any) -> None:
    array = zarr.create_array(tmp_path / "a.zarr", shape=(2, 2), dtype="f8", zarr_format=2)
    array[...] = 1
    array.attrs["_ARRAY_DIMENSIONS"] = value
    copy = oc.from_array(tmp_path / "a.zarr", tmp_path / "A", progress=False)
    assert copy.dims is None
    assert dict(copy.attrs) == {"_ARRAY_DIMENSIONS": value}


@pytest.mark.parametrize("value", [["a", "b"], ["y"], "text", 3])
def test_an_attribute_in_the_place_of_the_dimensions_is_not_overwritten(
    tmp_path: Path, value: Any
) -> None:
    given = {"_ARRAY_DIMENSIONS": value}
    array = oc.from_array(
        np.ones((2, 2)), tmp_path / "A", dims=("y", "x"), attributes=given, progress=False
    )
    with pytest.raises(InvalidError, match=r"the attribute _ARRAY_DIMENSIONS .* zarr_format=3"):
        oc.export_array(array, tmp_path / "a.zarr", zarr_format=2, progress=False)
    assert not (tmp_path / "a.zarr").exists()
    # Version 3 has its own place for the names.
    oc.export_array(array, tmp_path / "a.zarr", progress=False)
    with oc.from_array(tmp_path / "a.zarr", tmp_path / "B", progress=False) as again:
        assert (again.dims, again.attrs) == (("y", "x"), given)


def test_the_attribute_may_name_the_same_dimensions(tmp_path: Path) -> None:
    given = {"_ARRAY_DIMENSIONS": ["y", "x"]}
    array = oc.from_array(
        np.ones((2, 2)), tmp_path / "A", dims=("y", "x"), attributes=given, progress=False
    )
    oc.export_array(array, tmp_path / "a.zarr", zarr_format=2, progress=False)
    with oc.from_array(tmp_path / "a.zarr", tmp_path / "B", progress=False) as again:
        assert (again.dims, again.attrs) == (("y", "x"), {})


def test_version_3_has_dimensions_elsewhere(tmp_path: Path) -> None:
    given = {"_ARRAY_DIMENSIONS": ["a", "b"]}
    for dims in (None, ("y", "x")):
        zarr.create_array(
            tmp_path / "a.zarr", data=np.ones((2, 2)), attributes=given, dimension_names=dims,
            overwrite=True,
        )  # fmt: skip
        with oc.from_array(
            tmp_path / "a.zarr", tmp_path / "A", if_exists="overwrite", progress=False
        ) as copy:
            assert (copy.dims, copy.attrs) == (dims, given)
