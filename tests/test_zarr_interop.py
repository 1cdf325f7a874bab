"""zarr-python, TensorStore and xarray read outcore's arrays; their own arrays are refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorstore
import xarray
import zarr
from strategies import CHUNK_ORDERS, DTYPES, ORDERS, values

import outcore as oc
from outcore.errors import CorruptError, InvalidError, NotFoundError


def read_with_zarr(path: Path) -> npt.NDArray[Any]:
    return np.asarray(zarr.open_array(path, mode="r")[...])


def read_with_tensorstore(path: Path) -> npt.NDArray[Any]:
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{path}/"}}
    return np.asarray(tensorstore.open(spec, read=True).result().read().result())


READERS = {"zarr": read_with_zarr, "tensorstore": read_with_tensorstore}
readers = pytest.mark.parametrize("reader", READERS)


@readers
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("order", ORDERS)
def test_every_type(tmp_path: Path, reader: str, dtype: str, order: str) -> None:
    model = values((7, 5), dtype)
    array = oc.create_array(tmp_path / "A", model.shape, dtype, chunks=(3, 2), order=order)
    array[...] = model
    found = READERS[reader](tmp_path / "A")
    assert found.dtype == model.dtype
    np.testing.assert_array_equal(found, model)


@readers
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("chunk_order", CHUNK_ORDERS)
@pytest.mark.parametrize(
    ("shape", "chunks"),
    [((11,), (4,)), ((9, 10), (4, 3)), ((5, 6, 7), (2, 4, 3)), ((3, 4, 3, 5), (2, 2, 2, 2)),
     ((4, 6), (4, 6)), ((4, 6), (5, 9))],
)  # fmt: skip
def test_every_order(
    tmp_path: Path, reader: str, order: str, chunk_order: str, shape: tuple[int, ...],
    chunks: tuple[int, ...],
) -> None:  # fmt: skip
    model = values(shape, "i4")
    array = oc.create_array(
        tmp_path / "A", shape, "i4", chunks=chunks, order=order, chunk_order=chunk_order
    )
    array[...] = model
    np.testing.assert_array_equal(READERS[reader](tmp_path / "A"), model)


@readers
@pytest.mark.parametrize("reserve", [True, False])
def test_chunks_never_written_are_zeros(tmp_path: Path, reader: str, reserve: bool) -> None:
    array = oc.create_array(
        tmp_path / "A", (9, 9), "c16", chunks=(4, 4), order="F", reserve=reserve
    )
    model = np.zeros((9, 9), "c16")
    array[5, 5] = model[5, 5] = 1 + 2j
    np.testing.assert_array_equal(READERS[reader](tmp_path / "A"), model)


@readers
def test_several_shard_files(tmp_path: Path, reader: str) -> None:
    array = oc.create_array(tmp_path / "A", (66_000, 2), "u1", chunks=(1, 2), reserve=False)
    assert array.info().shards == 2
    array[65_530:65_540] = 3
    spec: Any = {"zarr": lambda p: zarr.open_array(p, mode="r")[65_520:65_550]}
    if reader == "zarr":
        found = spec["zarr"](tmp_path / "A")
    else:
        store = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{tmp_path}/A/"}}
        found = tensorstore.open(store, read=True).result()[65_520:65_550].read().result()
    np.testing.assert_array_equal(found[:, 0], [0] * 10 + [3] * 10 + [0] * 10)


@readers
def test_matrices_with_the_default_chunks(tmp_path: Path, reader: str) -> None:
    model = values((700, 611), "f8")
    array = oc.create_array(tmp_path / "A", model.shape, order="F")
    array[...] = model
    np.testing.assert_array_equal(READERS[reader](tmp_path / "A"), model)


def test_zarr_sees_names_and_attributes(tmp_path: Path) -> None:
    oc.create_array(tmp_path / "A", (3, 4), "f4", dims=("t", "x"), attributes={"unit": "m"})
    array = zarr.open_array(tmp_path / "A", mode="r")
    assert array.attrs["unit"] == "m"
    assert array.metadata.dimension_names == ("t", "x")
    assert array.fill_value == 0


def test_xarray_opens_a_group(tmp_path: Path) -> None:
    group = oc.create_group(tmp_path / "run", attributes={"title": "test"})
    field = values((4, 5, 6), "f4")
    pressure = oc.create_array(
        group / "p", field.shape, "f4", chunks=(1, 3, 6), dims=("t", "y", "x"),
        attributes={"unit": "Pa"},
    )  # fmt: skip
    pressure[...] = field
    oc.create_array(group / "x", 6, "f8", dims=("x",))[...] = np.arange(6) / 2
    with xarray.open_zarr(group, consolidated=False) as data:
        assert data.attrs["title"] == "test"
        assert data["p"].dims == ("t", "y", "x")
        assert data["p"].attrs["unit"] == "Pa"
        np.testing.assert_array_equal(data["p"].sel(x=1.5).values, field[:, :, 3])
    # By default xarray looks for consolidated metadata first, and warns that there are none. A
    # group that gains arrays later has none, because such a list would go out of date.
    with pytest.warns(RuntimeWarning, match="consolidated metadata"):
        data = xarray.open_zarr(group)
    with data:
        assert sorted(data.variables) == ["p", "x"]
        np.testing.assert_array_equal(data["p"].sel(x=1.5).values, field[:, :, 3])


def test_zarr_lists_a_group(tmp_path: Path) -> None:
    group = oc.create_group(tmp_path / "run")
    for name in ("a", "b"):
        oc.create_array(group / name, 3)
    assert sorted(zarr.open_group(group, mode="r").array_keys()) == ["a", "b"]


def test_foreign_arrays_are_refused_and_can_be_copied(tmp_path: Path) -> None:
    model = values((6, 7), "f8")
    foreign = zarr.create_array(tmp_path / "Z", data=model, chunks=(3, 3))
    with pytest.raises(InvalidError, match="from_array"):
        oc.open_array(tmp_path / "Z")
    np.testing.assert_array_equal(oc.from_array(foreign, tmp_path / "A")[...], model)
    with pytest.raises(InvalidError, match="from_array"):
        oc.open_array(tmp_path / "Z", "r+")


def test_a_foreign_array_with_our_attributes_is_still_foreign(tmp_path: Path) -> None:
    """Programs often copy attributes from one array to another."""
    ours = oc.create_array(tmp_path / "A", (6, 7), chunks=(3, 3))
    document = json.loads((tmp_path / "A/zarr.json").read_text())
    attributes = document["attributes"]
    assert "outcore" in attributes
    for name, options in {"plain": {}, "sharded": {"shards": (6, 9)}}.items():
        zarr.create_array(
            tmp_path / name, data=ours[...], chunks=(3, 3), attributes=attributes, **options
        )
        with pytest.raises(InvalidError, match="from_array"):
            oc.open_array(tmp_path / name)


def test_groups_and_other_versions_are_refused(tmp_path: Path) -> None:
    oc.create_group(tmp_path / "G")
    with pytest.raises(InvalidError, match="is a group, need an array"):
        oc.open_array(tmp_path / "G")
    zarr.create_array(tmp_path / "v2", shape=(3,), dtype="f8", zarr_format=2)
    with pytest.raises(NotFoundError):
        oc.open_array(tmp_path / "v2")
    (tmp_path / "G/zarr.json").write_text('{"zarr_format": 4}')
    with pytest.raises(InvalidError):
        oc.open_array(tmp_path / "G")


def test_a_later_format_is_refused(tmp_path: Path) -> None:
    oc.create_array(tmp_path / "A", 3)
    file = tmp_path / "A/zarr.json"
    document = json.loads(file.read_text())
    document["attributes"]["outcore"]["format"] = 99
    file.write_text(json.dumps(document))
    with pytest.raises(CorruptError, match="update outcore"):
        oc.open_array(tmp_path / "A")
