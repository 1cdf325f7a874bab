"""`from_array` from every kind of source: elements against NumPy's, within the budget."""

import contextlib
import importlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import dask.array
import h5py
import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from served_pools import some_pool
from source_cases import (
    Column,
    Values,
    copied,
    in_contiguous_hdf5,
    in_hdf5,
    in_npy,
    in_outcore,
    in_sharded_zarr,
    in_zarr,
)
from strategies import DTYPES, ORDERS, Layout, layouts, values

import outcore as oc
from outcore.convert.copying import copy_to_array
from outcore.convert.open_source import open_source
from outcore.errors import (
    BusyError,
    CorruptError,
    DiskError,
    IncompleteError,
    Interrupted,
    InvalidError,
    MissingPackageError,
    NotFoundError,
    TruncatedError,
)

NAMED: dict[str, Callable[[Values, Path], Any]] = {
    "hdf5": in_hdf5,
    "contiguous hdf5": in_contiguous_hdf5,
    "zarr v3": in_zarr(),
    "zarr v3 uncompressed": in_zarr(compressors=None),
    "zarr v2": in_zarr(zarr_format=2),
    "zarr sharded": in_sharded_zarr,
    "npy": in_npy,
    "outcore": in_outcore,
}


PASSED: dict[str, Callable[[Values, Path], Any]] = {
    "array": lambda model, path: model,
    "big-endian": lambda model, path: model.astype(model.dtype.newbyteorder(">")),
    "strided": lambda model, path: np.repeat(model, 2, axis=0)[::2],
    "memmap": lambda model, path: np.load(in_npy(model, path), mmap_mode="r"),
    "list": lambda model, path: model.tolist(),
    "zarr": lambda model, path: zarr.open_array(in_zarr()(model, path), mode="r"),
    "array of outcore's": lambda model, path: oc.open_array(in_outcore(model, path)),
    "dask": lambda model, path: dask.array.from_array(model, chunks=4),
    "uneven dask": lambda model, path: dask.array.from_array(
        model, chunks=tuple((1, n - 1) if n > 1 else (n,) for n in model.shape)
    ),
}


SOURCES = NAMED | PASSED


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_source_and_type(tmp_path: Path, kind: str, dtype: str) -> None:
    model = values((11, 7), dtype)
    source = SOURCES[kind](model, tmp_path)
    found, _ = copied(source, tmp_path / "A", chunks=(4, 3), memory="1 MiB")
    np.testing.assert_array_equal(found, model)
    # A list has Python types only.
    assert found.dtype == (np.asarray(source).dtype if kind == "list" else model.dtype)


@pytest.mark.parametrize("kind", SOURCES)
@settings(max_examples=6)
@given(layout=layouts(3, 9), data=st.data())
def test_every_source_and_layout(
    kind: str, layout: Layout, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("copy")
    model = np.asarray(values(layout.shape, "i4"), order=data.draw(st.sampled_from(ORDERS)))
    source = SOURCES[kind](model, path)
    options = {name: getattr(layout, name) for name in ("chunks", "order", "chunk_order")}
    found, _ = copied(
        source, path / "A", memory=data.draw(st.integers(200_000, 1 << 20)), **options
    )
    np.testing.assert_array_equal(found, model)


@pytest.mark.parametrize("order", ORDERS)
def test_the_order_is_the_sources(tmp_path: Path, order: Any) -> None:
    model = np.asarray(values((30, 20), "f8"), order=order)
    for kind in ("array", "memmap", "npy"):
        array = oc.from_array(SOURCES[kind](model, tmp_path), tmp_path / kind)
        assert array.order == order
        np.testing.assert_array_equal(array[...], model)


def test_what_was_assigned_to_a_private_mapping_is_copied(tmp_path: Path) -> None:
    model = values((60, 20), "f8")
    np.save(tmp_path / "a.npy", model)
    for mode in ("c", "r+"):
        memmap = np.load(tmp_path / "a.npy", mmap_mode=mode)
        memmap[3, 4] = model[3, 4] = 77.0
        memmap[59, 19] = model[59, 19] = 78.0
        found, _ = copied(memmap, tmp_path / "A", chunks=(7, 20), memory="150 KiB")
        np.testing.assert_array_equal(found, model)
        np.testing.assert_array_equal(memmap, model)


# Raw files.


@pytest.mark.parametrize("dtype", [*DTYPES, ">f8", ">i2", ">c8"])
@pytest.mark.parametrize("order", ORDERS)
def test_raw_files(tmp_path: Path, dtype: str, order: Any) -> None:
    model = values((23, 17, 3), np.dtype(dtype).newbyteorder("<")).astype(dtype)
    (tmp_path / "a.bin").write_bytes(b"header!" + model.tobytes(order) + b"more")
    found, _ = copied(
        tmp_path / "a.bin", tmp_path / "A", shape=model.shape, dtype=dtype, source_order=order,
        offset=7, chunks=(5, 4, 2), memory="180 KiB",
    )  # fmt: skip
    np.testing.assert_array_equal(found, model)


def test_raw_files_that_cannot_be(tmp_path: Path) -> None:
    file = tmp_path / "a.bin"
    file.write_bytes(bytes(80))
    for options, message in [
        ({}, "give shape= and dtype="),
        ({"shape": 10}, "give shape= and dtype="),
        ({"shape": 10, "dtype": "f8", "source_order": "A"}, "'C' or 'F'"),
        ({"shape": 10, "dtype": "f8", "offset": -1}, "offset"),
        ({"shape": 10, "dtype": "f8", "offset": "x"}, "offset"),
        ({"shape": 10, "dtype": "f8", "offset": 1.5}, "offset"),
        ({"shape": 10, "dtype": "nonsense"}, "'nonsense' is not a NumPy type"),
        ({"shape": 10, "dtype": "O"}, "number type"),
        ({"shape": (0, 3), "dtype": "f8"}, "at least 1"),
    ]:
        with pytest.raises(InvalidError, match=message):
            oc.from_array(file, tmp_path / "A", **options)
    with pytest.raises(TruncatedError, match=r"need 88 bytes.* have 80"):
        oc.from_array(file, tmp_path / "A", shape=10, dtype="f8", offset=8)
    with pytest.raises(NotFoundError):
        oc.from_array(tmp_path / "none.bin", tmp_path / "A", shape=10, dtype="f8")
    assert os.listdir(tmp_path) == ["a.bin"]


@pytest.mark.parametrize("options", [{"offset": 8}, {"source_order": "F"}])
def test_order_and_offset_are_of_raw_files_only(tmp_path: Path, options: dict[str, Any]) -> None:
    model = values((6, 5), "f8")
    for name, source in [
        ("npy", in_npy(model, tmp_path)),
        ("hdf5", in_hdf5(model, tmp_path)),
        ("zarr", in_zarr()(model, tmp_path)),
        ("outcore", in_outcore(model, tmp_path)),
        ("array", model),
        ("rows", iter([model])),
    ]:
        with pytest.raises(InvalidError, match="need a raw file for source_order= or offset="):
            oc.from_array(source, tmp_path / "A", shape=(6, 5), **options)
        assert not (tmp_path / "A").exists(), name
    with pytest.raises(InvalidError, match="'C' or 'F'"):
        oc.from_array(model, tmp_path / "A", source_order="Q")  # type: ignore[call-overload]


def test_a_file_that_becomes_shorter(tmp_path: Path) -> None:
    file = tmp_path / "a.bin"
    file.write_bytes(bytes(80))
    with open_source(file, shape=10, dtype="f8") as source:
        os.truncate(file, 40)
        with pytest.raises(TruncatedError, match="became shorter"):
            copy_to_array(source, tmp_path / "A")
    with pytest.raises(IncompleteError):
        oc.open_array(tmp_path / "A")


def test_npy_files_of_all_versions(tmp_path: Path) -> None:
    model = np.asfortranarray(values((9, 8), "c16"))
    for version in [(1, 0), (2, 0), (3, 0)]:
        with (tmp_path / "a.npy").open("wb") as file:
            np.lib.format.write_array(file, model, version)
        # The content decides the format, not the file name.
        (tmp_path / "a.npy").rename(tmp_path / "a.data")
        found, _ = copied(tmp_path / "a.data", tmp_path / "A", shape=None)
        np.testing.assert_array_equal(found, model)
    np.savez(tmp_path / "b.npz", a=model)
    (tmp_path / "b.npz").rename(tmp_path / "b.npy")
    with pytest.raises(InvalidError, match="archive"):
        oc.from_array(tmp_path / "b.npy", tmp_path / "B")


@pytest.mark.parametrize(
    "header",
    [
        b"{'descr': (  \n",
        b"{'descr': '<f8', 'fortran_order': False, 'shape': (3, }\n",
        b"{'descr': 'nonsense', 'fortran_order': False, 'shape': (3,)}\n",
        b"{'descr': '|O', 'fortran_order': False, 'shape': (3,)}\n",
        b"[1, 2]\n",
        b"\xff\x00\n",
    ],
)
def test_damaged_npy_headers(tmp_path: Path, header: bytes) -> None:
    file = tmp_path / "a.npy"
    file.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(80))
    with pytest.raises(InvalidError, match=r"cannot be read as a \.npy file"):
        oc.from_array(file, tmp_path / "A")
    assert os.listdir(tmp_path) == ["a.npy"]


def test_truncated_npy_files(tmp_path: Path) -> None:
    file = in_npy(np.ones((10, 10)), tmp_path)
    assert file.stat().st_size == 928
    os.truncate(file, 927)
    with pytest.raises(TruncatedError, match=r"need 928 bytes in .*, have 927"):
        oc.from_array(file, tmp_path / "A")
    os.truncate(file, 20)
    with pytest.raises(InvalidError, match=r"cannot be read as a \.npy file"):
        oc.from_array(file, tmp_path / "A")
    assert os.listdir(tmp_path) == ["a.npy"]


# Types and shapes.


@pytest.mark.parametrize("kind", SOURCES)
def test_types_are_converted_as_numpy_does(tmp_path: Path, kind: str) -> None:
    model = values((12, 9), "f8")
    found, _ = copied(SOURCES[kind](model, tmp_path), tmp_path / "A", dtype="f4", chunks=(5, 4))
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, model.astype("f4"))
    found, _ = copied(SOURCES[kind](model, tmp_path), tmp_path / "A", dtype="c16", chunks=(5, 4))
    np.testing.assert_array_equal(found, model.astype("c16"))
    with pytest.raises(InvalidError, match=r"need elements of int32, have [<>]?f.*unsafe"):
        oc.from_array(SOURCES[kind](model, tmp_path), tmp_path / "B", dtype="i4")
    assert not (tmp_path / "B").exists()


def test_infinities_and_nans_are_elements_like_others(tmp_path: Path) -> None:
    model = values((6, 5), "f8")
    model[2, 3], model[5, 0] = np.nan, np.inf
    for kind in SOURCES:
        found, _ = copied(SOURCES[kind](model, tmp_path), tmp_path / "A")
        np.testing.assert_array_equal(found, model)


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        (np.ones((3, 4)), {"shape": (4, 3)}, "need shape"),
        (np.array(3.0), {}, "dimension"),
        (np.ones((3, 0)), {}, "at least 1"),
        (np.array(["text"]), {}, "number type"),
        (np.array([None]), {}, "number type"),
        ([[1, 2], [3]], {}, "iterator and shape="),
        (object(), {}, "number type|dimension"),
        (np.ones(3), {"dtype": "nonsense"}, "not a NumPy type"),
        (np.ones(3), {"memory": "lots"}, "size"),
        (np.ones((3, 3)), {"order": "K"}, "order"),
    ],
)
def test_what_cannot_be_copied(
    tmp_path: Path, source: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidError, match=message):
        oc.from_array(source, tmp_path / "A", **options)
    assert os.listdir(tmp_path) == []


def test_slicing_that_lies(tmp_path: Path) -> None:
    class Lying:
        shape, dtype = (6, 6), np.dtype("f8")

        def __getitem__(self, box: Any) -> Values:
            return np.ones((2, 2))

    with pytest.raises(InvalidError, match="slicing must agree"):
        oc.from_array(Lying(), tmp_path / "A")


# Names.


def test_hdf5_by_name(tmp_path: Path) -> None:
    one, two = values((5, 4), "f8"), values((6, 3), "i2")
    file = tmp_path / "a.h5"
    with h5py.File(file, "w") as made:
        made["only"] = one
    np.testing.assert_array_equal(oc.from_array(file, tmp_path / "A")[...], one)
    with h5py.File(file, "a") as made:
        made["deep/two"] = two
        made["text"] = "text"
        made["scalar"] = 3.0
        made["empty"] = h5py.Empty("f8")
    for name in (f"{file}::deep/two", Path(f"{file}::/deep/two")):
        found, _ = copied(name, tmp_path / "A")
        np.testing.assert_array_equal(found, two)
    (tmp_path / "b.mat").write_bytes(file.read_bytes())
    found, _ = copied(f"{tmp_path}/b.mat::only", tmp_path / "A")
    np.testing.assert_array_equal(found, one)
    for name, message in [
        (file, r"deep/two, empty, only, .*write .*a\.h5::NAME"),
        (f"{file}::text", "number type|dimension"),
        (f"{file}::scalar", "dimension"),
        (f"{file}::empty", "need a shape .* empty dataset"),
    ]:
        with pytest.raises(InvalidError, match=message):
            oc.from_array(name, tmp_path / "B")
    for name, message in [
        (f"{file}::none", "no dataset none .* it has deep/two, empty, only"),
        (f"{file}::deep", "no dataset deep"),
        (f"{tmp_path}/none.h5::a", "no file"),
        (tmp_path / "none.h5", "no file"),
        (f"{tmp_path}::a", "no file"),
    ]:
        with pytest.raises(NotFoundError, match=message):
            oc.from_array(name, tmp_path / "B")
    (tmp_path / "bad.h5").write_text("text" * 100)
    with pytest.raises(InvalidError, match="as HDF5"):
        oc.from_array(tmp_path / "bad.h5", tmp_path / "B")
    # The call closed the file: another program can write to it.
    h5py.File(file, "a").close()


def test_zarr_by_name(tmp_path: Path) -> None:
    for version in (2, 3):
        group = zarr.open_group(tmp_path / f"g{version}", mode="w", zarr_format=version)
        group.create_array("u", shape=(3,), dtype="f8")
        group.create_array("v", shape=(3,), dtype="f8")
        with pytest.raises(InvalidError, match="group; name one of its arrays: u, v"):
            oc.from_array(tmp_path / f"g{version}", tmp_path / "A")
        assert oc.from_array(tmp_path / f"g{version}/u", tmp_path / f"u{version}").shape == (3,)
    (tmp_path / "plain").mkdir()
    with pytest.raises(InvalidError, match="no Zarr array"):
        oc.from_array(tmp_path / "plain", tmp_path / "A")
    for name, text in [("zarr.json", "{"), (".zarray", "{"), ("zarr.json", '{"zarr_format": 4}')]:
        (tmp_path / "plain" / name).write_text(text)
        with pytest.raises((InvalidError, oc.errors.CorruptError)):
            oc.from_array(tmp_path / "plain", tmp_path / "A")
        (tmp_path / "plain" / name).unlink()


def test_a_damaged_chunk_is_said_and_leaves_an_incomplete_array(tmp_path: Path) -> None:
    in_hdf5(values((300, 200), "f8"), tmp_path)
    size = (tmp_path / "a.h5").stat().st_size
    with (tmp_path / "a.h5").open("r+b") as file:
        file.seek(size // 2)
        file.write(bytes(size // 4))
    with pytest.raises(DiskError, match=r"cannot read .*a\.h5"):
        oc.from_array(tmp_path / "a.h5", tmp_path / "A")
    with pytest.raises(IncompleteError):
        oc.open_array(tmp_path / "A")


def test_a_damaged_chunk_of_zarr_is_corrupt(tmp_path: Path) -> None:
    in_zarr()(values((300, 200), "f8"), tmp_path)
    chunk = tmp_path / "a.zarr/c/0/0"
    chunk.write_bytes(chunk.read_bytes()[:4] + b"nonsense" * 20)
    for read in (
        lambda: oc.from_array(tmp_path / "a.zarr", tmp_path / "A"),
        lambda: oc.linalg.gram(zarr.open_array(tmp_path / "a.zarr", mode="r"), progress=False),
    ):
        with pytest.raises(CorruptError, match=r"cannot decode .*; restore it from a copy"):
            read()


def test_a_column_of_a_table_is_an_array(tmp_path: Path) -> None:
    for named in (False, True):
        model = values(20, "f8")
        column = Column(model, named=named)
        np.testing.assert_array_equal(oc.from_array(column, tmp_path / f"A{named}")[...], model)


def test_names_of_dimensions_and_attributes_come_along(tmp_path: Path) -> None:
    ours = oc.create_array(tmp_path / "ours", (4, 5), dims=("t", "x"), attributes={"unit": "m"})
    v3 = zarr.create_array(
        tmp_path / "v3", shape=(4, 5), dtype="f8", dimension_names=("t", "x"),
        attributes=json.loads((tmp_path / "ours/zarr.json").read_text())["attributes"],
    )  # fmt: skip
    v2 = zarr.create_array(
        tmp_path / "v2", shape=(4, 5), dtype="f8", zarr_format=2,
        attributes={"unit": "m", "_ARRAY_DIMENSIONS": ["t", "x"]},
    )  # fmt: skip
    for source in (ours, v3, v2, tmp_path / "v2"):
        array = oc.from_array(source, tmp_path / "A", if_exists="overwrite")
        assert (array.dims, array.attrs) == (("t", "x"), {"unit": "m"})
        array = oc.from_array(
            source, tmp_path / "A", if_exists="overwrite", dims=("a", "b"), attributes={}
        )
        assert (array.dims, array.attrs) == (("a", "b"), {})


def test_a_source_is_not_overwritten_by_its_copy(tmp_path: Path) -> None:
    model = values((6, 5), "f8")
    foreign = zarr.create_array(tmp_path / "Z", data=model)
    (tmp_path / "link").symlink_to(tmp_path / "Z")
    np.save(tmp_path / "Z/a.npy", model)
    in_hdf5(model, tmp_path / "Z")
    with h5py.File(tmp_path / "Z/a.h5") as file:
        memmap = np.load(tmp_path / "Z/a.npy", mmap_mode="r")
        sources = [foreign, "Z", "link", "Z/a.npy", "Z/a.h5", file["g/a"], memmap]
        for source in sources:
            name = tmp_path / source if isinstance(source, str) else source
            with pytest.raises(InvalidError, match="itself"):
                oc.from_array(name, tmp_path / "Z", if_exists="overwrite")
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "Z")[...], model)


@pytest.mark.parametrize(("package", "kind"), [("h5py", "hdf5"), ("zarr", "zarr v3")])
def test_a_package_that_is_not_installed(
    tmp_path: Path, package: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = SOURCES[kind](values((3, 4), "f8"), tmp_path)

    def missing(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(MissingPackageError, match=f"pip install '{package}>=3") as caught:
        oc.from_array(source, tmp_path / "A")
    assert isinstance(caught.value, ImportError)
    assert not (tmp_path / "A").exists()


def test_no_optional_package_is_imported_until_it_is_needed(
    run_python: Callable[..., Any],
) -> None:
    script = """
import sys
import numpy as np
import outcore as oc
np.save("a.npy", np.ones((3, 4)))
oc.from_array("a.npy", "A")
oc.export_array("A", "b.npy")
assert not {"h5py", "zarr", "dask"} & set(sys.modules)
"""
    process = run_python(script)
    said = process.communicate()[1]
    assert process.returncode == 0, said


# Stopped calls.


@pytest.mark.parametrize("after", [1, 3, 10])
def test_ctrl_c_leaves_an_incomplete_array(tmp_path: Path, after: int) -> None:
    def rows() -> Iterator[Values]:
        for number in range(20):
            if number == after:
                raise KeyboardInterrupt
            yield np.ones((10, 4))

    with pytest.raises(Interrupted, match="again with the same arguments to restart"):
        oc.from_array(rows(), tmp_path / "A", shape=200, chunks=(10, 4))
    with pytest.raises(IncompleteError, match="again with the same arguments"):
        oc.open_array(tmp_path / "A")
    again = oc.from_array(np.ones((200, 4)), tmp_path / "A", if_exists="overwrite")
    assert again.info().state == "whole"


@pytest.mark.parametrize("name", ["f", "f.npy", "f.h5", "f.h5::x"])
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name.partition("::")[0])
    for more in ({}, {"shape": (2,), "dtype": "u1"}):
        with pytest.raises(InvalidError, match="is a pipe"):
            oc.from_array(tmp_path / name, tmp_path / "A", **more, progress=False)
    assert not (tmp_path / "A").exists()


@pytest.mark.parametrize("kind", ["plain", "served"])
def test_a_target_is_for_one_copy_at_a_time(tmp_path: Path, kind: str) -> None:
    with some_pool(kind) if kind != "plain" else contextlib.nullcontext() as pool:
        target = tmp_path / "A" if pool is None else pool / "A"

        def rows() -> Iterator[Any]:
            yield np.zeros((1, 3))
            busy = r"A is being made .* choose another name"
            with pytest.raises(BusyError, match=busy):
                oc.from_array(np.ones((2, 3)), target, if_exists="overwrite", progress=False)
            with pytest.raises(BusyError, match=busy):
                oc.create_array(target, (2, 3), "f8", if_exists="overwrite")
            yield np.ones((1, 3))

        oc.from_array(rows(), target, shape=(2, 3), dtype="f8", progress=False).close()
        with oc.open_array(target) as A:
            np.testing.assert_array_equal(A[...], [[0] * 3, [1] * 3])
        if pool is None:
            assert os.listdir(tmp_path) == ["A"]
        oc.from_array(np.ones((2, 3)), target, if_exists="overwrite", progress=False).close()
