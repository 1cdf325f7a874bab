"""Zarr attributes that are not finite, as xarray writes them, through copies in and out."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray
import zarr
from command_line import outcore

import outcore as oc
from outcore.errors import InvalidError

MODEL = np.array([0.0, np.nan, 2.0, 3.0])
GIVEN = {"missing_value": math.nan, "valid_range": [-math.inf, math.inf], "deep": {"a": [math.nan]}}


@pytest.fixture(params=[2, 3])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    data = xarray.Dataset({"t": (("x",), MODEL, GIVEN)})
    data.to_zarr(tmp_path / "d.zarr", zarr_format=request.param, consolidated=False)
    return f"{tmp_path}/d.zarr/t"


def assert_same(found: Any) -> None:
    """Compare attributes with the given ones as JSON, since NaN does not equal itself."""
    assert json.dumps({name: found[name] for name in GIVEN}) == json.dumps(GIVEN)


def test_copies_in_and_out_keep_them(source: str, tmp_path: Path) -> None:
    oc.create_group(tmp_path / "g")
    with oc.from_array(source, tmp_path / "g" / "t", progress=False) as array:
        assert_same(array.attrs)
    assert_same(zarr.open_array(tmp_path / "g" / "t", mode="r").attrs.asdict())
    again = oc.open_array(tmp_path / "g" / "t")
    assert_same(again.attrs)
    oc.create_group(tmp_path / "h")
    oc.export_array(again, tmp_path / "h" / "t", format="zarr", progress=False)
    oc.from_array(again, tmp_path / "g" / "twice", progress=False).close()
    for name in ("g", "h"):
        with xarray.open_zarr(tmp_path / name, consolidated=False) as data:
            np.testing.assert_array_equal(data.t, MODEL)
            assert math.isnan(data.t.encoding["missing_value"])
            assert data.t.attrs["valid_range"] == GIVEN["valid_range"]


def test_the_command_line(source: str, tmp_path: Path) -> None:
    assert outcore("convert", source, tmp_path / "B").exit_code == 0
    found = outcore("info", tmp_path / "B", "--json")
    # Other programs read the JSON of the command line, so it has null for these numbers.
    attributes = json.loads(found.stdout)["entries"][0]["details"]["attributes"]
    assert attributes["missing_value"] is None
    assert outcore("verify", tmp_path / "B").exit_code == 0


def test_those_that_a_call_gives_are_finite(source: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match=r"attributes\['a'\] = nan"):
        oc.from_array(source, tmp_path / "A", attributes={"a": math.nan})
    with oc.from_array(source, tmp_path / "A", attributes={"a": 1}, progress=False) as array:
        assert array.attrs == {"a": 1}
