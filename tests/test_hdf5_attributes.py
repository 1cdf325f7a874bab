"""Attributes and dimension names that copies take from HDF5, against the writing libraries."""

import json
import math
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import outcore as oc
from outcore.errors import LeftOutWarning

MODEL = np.arange(12.0).reshape(3, 4)
GIVEN: dict[str, Any] = {
    "units": "m/s", "title": np.bytes_("näme".encode()), "scale": 0.5, "level": np.int16(-3),
    "valid": True, "range": np.array([[1, 2], [3, 4]], "u1"), "missing": np.float32("nan"),
    "words": ["a", "ü"], "nothing": h5py.Empty("f8"), "one": [7],
}  # fmt: skip
CARRIED = {
    "units": "m/s", "title": "näme", "scale": 0.5, "level": -3, "valid": True,
    "range": [[1, 2], [3, 4]], "missing": math.nan, "words": ["a", "ü"], "nothing": None,
    "one": [7],
}  # fmt: skip


def same(found: dict[str, Any], expected: dict[str, Any]) -> bool:
    """Compare as JSON, where NaN equals itself."""
    return json.dumps(found, sort_keys=True) == json.dumps(expected, sort_keys=True)


def test_attributes_come_from_a_name_and_from_a_dataset(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        dataset = file.create_dataset("run/u", data=MODEL)
        dataset.attrs.update(GIVEN)
    with h5py.File(tmp_path / "a.h5") as file:
        for source in (f"{tmp_path}/a.h5::run/u", file["run/u"]):
            with oc.from_array(source, tmp_path / "A", if_exists="overwrite", progress=False) as A:
                assert same(A.attrs, CARRIED)
                assert A.dims is None
    with oc.from_array(
        tmp_path / "a.h5", tmp_path / "B", attributes={"a": 1}, progress=False
    ) as given:
        assert given.attrs == {"a": 1}


def test_what_json_cannot_hold_is_left_out_with_a_warning(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        dataset = file.create_dataset("u", data=MODEL)
        dataset.attrs.update(
            {"kept": 1, "z": 1j, "link": dataset.ref, "raw": np.bytes_(b"\xff"),
             "pair": np.zeros(2, "i4,f8")}
        )  # fmt: skip
    message = "leaves out attributes that JSON cannot hold: .*link, .*pair"
    with pytest.warns(LeftOutWarning, match=message) as warned:
        oc.from_array(tmp_path / "a.h5", tmp_path / "A", progress=False).close()
    assert warned[0].filename == __file__
    assert oc.open_array(tmp_path / "A").attrs == {"kept": 1}
    with pytest.warns(LeftOutWarning, match="raw, z") as warned:
        oc.export_array(tmp_path / "a.h5", tmp_path / "a.npy", progress=False)
    assert warned[0].filename == __file__


def test_dimensions_are_named_by_labels_and_scales(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name in ("both", "half", "scales"):
            file[name] = MODEL
        file["axes/time"], file["axes/place"] = np.arange(3.0), np.arange(4.0)
        for axis, name in enumerate(("time", "place")):
            file[f"axes/{name}"].make_scale()
            file["both"].dims[axis].label = f"label{axis}"
            for each in ("both", "scales"):
                file[each].dims[axis].attach_scale(file[f"axes/{name}"])
        file["half"].dims[0].label = "y"
    for name, expected in [
        ("both", ("label0", "label1")),
        ("scales", ("time", "place")),
        ("half", None),
        ("axes/time", ("time",)),
    ]:
        with oc.from_array(
            f"{tmp_path}/a.h5::{name}", tmp_path / "A", if_exists="overwrite", progress=False
        ) as A:
            assert A.dims == expected
            assert A.attrs == {}


def test_a_netcdf_file(tmp_path: Path) -> None:
    """As written by the netCDF library: numbers are arrays of one, dimensions are scales."""
    with h5py.File(tmp_path / "a.nc", "w") as file:
        file.attrs["_NCProperties"] = "version=2,netcdf=4.9.2,hdf5=1.14.3"
        file["t"] = MODEL
        file["t"].attrs.update({"_FillValue": [math.nan], "levels": [1, 2], "_Netcdf4Dimid": 0})
        for axis, name in enumerate(("y", "x")):
            file[name] = np.zeros(MODEL.shape[axis], ">f4")
            file[name].make_scale("This is a netCDF dimension but not a netCDF variable.")
            file["t"].dims[axis].attach_scale(file[name])
    with oc.from_array(f"{tmp_path}/a.nc::t", tmp_path / "A", progress=False) as A:
        assert A.dims == ("y", "x")
        assert same(A.attrs, {"_FillValue": math.nan, "levels": [1, 2]})


def test_they_go_out_and_come_back(tmp_path: Path) -> None:
    attributes = CARRIED | {"empty": [], "big": 2**63, "mixed": [1, 2.5], "no": [[True, False]]}
    del attributes["missing"]  # a call refuses NaN in its arguments
    oc.from_array(
        MODEL, tmp_path / "A", dims=("y", "x"), attributes=attributes, progress=False
    ).close()  # fmt: skip
    oc.export_array(tmp_path / "A", tmp_path / "a.h5", progress=False)
    with h5py.File(tmp_path / "a.h5") as file:
        assert [each.label for each in file["data"].dims] == ["y", "x"]
        assert file["data"].attrs["units"] == "m/s"
        np.testing.assert_array_equal(file["data"].attrs["range"], [[1, 2], [3, 4]])
    with oc.from_array(tmp_path / "a.h5", tmp_path / "B", progress=False) as again:
        assert (again.dims, again.attrs) == (("y", "x"), attributes)


def test_what_hdf5_cannot_hold_is_left_out_with_a_warning(tmp_path: Path) -> None:
    others = {"deep": {"a": 1}, "several": ["a", 1], "ragged": [[1], [2, 3]], "huge": 2**70}
    with oc.from_array(
        MODEL, tmp_path / "A", attributes={"kept": 1, **others}, progress=False
    ) as A:
        message = "attributes that HDF5 cannot hold: deep, several, ragged, huge"
        with pytest.warns(LeftOutWarning, match=message) as warned:
            oc.export_array(A, tmp_path / "a.h5", progress=False)
    assert warned[0].filename == __file__
    with h5py.File(tmp_path / "a.h5") as file:
        assert dict(file["data"].attrs) == {"kept": 1}


RESERVED = ["DIMENSION_LABELS", "DIMENSION_LIST", "REFERENCE_LIST", "_Netcdf4Dimid", "_nc3_strict"]


@pytest.mark.parametrize("dims", [None, ("y", "x")])
@pytest.mark.parametrize("value", [["a", "b"], "text", 5, [1, 2], None])
def test_names_that_hdf5_reserves_are_left_out_with_a_warning(
    tmp_path: Path, dims: Any, value: Any
) -> None:
    """HDF5 would take their values for addresses."""
    given = dict.fromkeys(RESERVED, value) | {"CLASS": "DIMENSION_SCALE", "kept": 1}
    oc.from_array(MODEL, tmp_path / "A", dims=dims, attributes=given, progress=False).close()
    names = ", ".join([*RESERVED, "CLASS"])
    with pytest.warns(LeftOutWarning, match=f"attributes that HDF5 cannot hold: {names}$"):
        oc.export_array(tmp_path / "A", tmp_path / "a.h5", progress=False)
    with oc.from_array(tmp_path / "a.h5", tmp_path / "B", progress=False) as B:
        assert (B.attrs, B.dims) == ({"kept": 1}, dims)


@pytest.mark.parametrize("name", ["DIMENSION_LIST", "DIMENSION_LABELS", "REFERENCE_LIST"])
@pytest.mark.parametrize("value", [["a", "b", "c"], "text", 5, [1, 2], h5py.Empty("f8"), ["a"]])
def test_reserved_names_without_their_structure_are_attributes(
    tmp_path: Path, name: str, value: Any
) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["u"] = MODEL
        file["u"].attrs[name] = value
    with oc.from_array(tmp_path / "a.h5", tmp_path / "A", progress=False) as A:
        assert A.dims is None
        assert A.attrs == {name: None if isinstance(value, h5py.Empty) else value}


def test_labels_of_a_fixed_length(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["u"] = MODEL
        file["u"].attrs["DIMENSION_LABELS"] = np.array([b"row", b"column"])
        file["u"].attrs["outcore"] = "text of a user"
    with pytest.warns(LeftOutWarning, match="attributes that JSON cannot hold: outcore"):
        A = oc.from_array(tmp_path / "a.h5", tmp_path / "A", progress=False)
    assert (A.dims, A.attrs) == (("row", "column"), {})


CHANGED: dict[str, Any] = {
    "truth": [True, 1], "number": [1, True], "float": [1.0, True], "deep": [[True], [0]],
    "rows": [[1, 2], [True, False]], "large": [2**63, -1], "none": [None, 1], "text": ["1", 1],
}  # fmt: skip
KEPT: dict[str, Any] = {
    "truth": [True, False], "deep": [[True], [False]], "ones": [1, 1], "large": [2**63, 1],
    "floats": [1.0, -0.0], "empty": [], "rows": [[]], "text": ["1", "True"], "one": True,
    "zero": 0, "words": [["a"], [""]],
}  # fmt: skip


def test_lists_keep_truth_values_and_large_integers(tmp_path: Path) -> None:
    oc.from_array(MODEL, tmp_path / "A", attributes=CHANGED, progress=False).close()
    with pytest.warns(LeftOutWarning, match=f"cannot hold: {', '.join(CHANGED)}$"):
        oc.export_array(tmp_path / "A", tmp_path / "a.h5", progress=False)
    with oc.from_array(MODEL, tmp_path / "B", attributes=KEPT, progress=False) as B:
        oc.export_array(B, tmp_path / "b.h5", progress=False)
    with h5py.File(tmp_path / "b.h5") as file:
        assert file["data"].attrs["large"].dtype == "u8"
    with oc.from_array(tmp_path / "b.h5", tmp_path / "C", progress=False) as C:
        assert same(C.attrs, KEPT)
    # Zarr and arrays of outcore hold JSON, which has all of them.
    pool = oc.Pool.embedded([tmp_path / "disk"])
    for version in (2, 3):
        for number, given in enumerate((CHANGED, KEPT)):
            path = tmp_path / f"{version}{number}.zarr"
            source = tmp_path / "AB"[number]
            oc.export_array(source, path, zarr_format=version, progress=False)
            with oc.from_array(path, pool / path.name, progress=False) as D:
                assert same(D.attrs, given)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_a_complex_matrix_of_matlab(tmp_path: Path, dtype: str) -> None:
    """A 3 x 2 matrix of MATLAB, in column-major order, is a dataset of shape (2, 3)."""
    matrix = np.array([[1 + 2j, 3], [4, 5 - 1j], [6j, 7]])
    with h5py.File(tmp_path / "m.mat", "w", userblock_size=512) as file:
        pairs = np.empty((2, 3), [("real", dtype), ("imag", dtype)])
        pairs["real"], pairs["imag"] = matrix.T.real, matrix.T.imag
        file["z"] = pairs
        file["z"].attrs["MATLAB_class"] = np.bytes_("double")
        file["x"] = np.arange(3.0)
    with oc.from_array(f"{tmp_path}/m.mat::z", tmp_path / "Z", progress=False) as Z:
        assert (Z.shape, Z.dtype) == ((2, 3), np.result_type(dtype, "c8"))
        np.testing.assert_array_equal(Z.T[...], matrix)
        assert Z.attrs == {"MATLAB_class": "double"}
        oc.from_array(Z.T, tmp_path / "M", progress=False).close()
    np.testing.assert_array_equal(oc.open_array(tmp_path / "M")[...], matrix)


def test_names_of_scale_attributes_are_carried_from_other_datasets(tmp_path: Path) -> None:
    """The HDF5 Image specification marks images by ``CLASS``; a scale's ``CLASS`` is structure."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["u"] = MODEL
        file["u"].attrs.update({"CLASS": "IMAGE", "NAME": "run 7"})
        file["x"] = np.arange(4.0)
        file["x"].make_scale("x")
        file["x"].attrs["units"] = "m"
    for name, expected in [("u", {"CLASS": "IMAGE", "NAME": "run 7"}), ("x", {"units": "m"})]:
        with oc.from_array(f"{tmp_path}/a.h5::{name}", tmp_path / name, progress=False) as A:
            assert dict(A.attrs) == expected
