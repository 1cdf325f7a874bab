"""`from_array` from everything that it takes: the elements against NumPy's, within the budget."""

import collections
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
import numpy.typing as npt
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import DTYPES, ORDERS, Layout, layouts, values
from zarr.storage import LocalStore, WrapperStore

import outcore as oc
from outcore.copying import CopyReport, copy_to_array
from outcore.errors import (
    BudgetError,
    DiskError,
    IncompleteError,
    Interrupted,
    InvalidError,
    MissingPackageError,
    NotFoundError,
    TruncatedError,
)
from outcore.open_source import open_source

Values = npt.NDArray[Any]


def copied(source: Any, path: Path, **options: Any) -> tuple[Values, CopyReport]:
    """Copy, and check what is promised of every copy."""
    names = ("shape", "dtype", "source_order", "offset")
    given = {name: options.pop(name) for name in names if name in options}
    with open_source(source, **given) as opened:
        array, report = copy_to_array(opened, path, overwrite=True, progress=False, **options)
    assert report.peak_memory_bytes <= report.memory_bytes
    assert oc.open_array(path).info().state == "whole"
    with array:
        return array[...], report


def in_hdf5(model: Values, path: Path) -> str:
    with h5py.File(path / "a.h5", "w") as file:
        chunks = tuple(max(n // 3, 1) for n in model.shape)
        file.create_dataset("g/a", data=model, chunks=chunks, compression="gzip")
    return f"{path}/a.h5::g/a"


def in_contiguous_hdf5(model: Values, path: Path) -> Path:
    with h5py.File(path / "a.hdf5", "w") as file:
        file["a"] = model
    return path / "a.hdf5"


def in_zarr(**options: Any) -> Callable[[Values, Path], Path]:
    def make(model: Values, path: Path) -> Path:
        chunks = tuple(max(n // 3, 1) for n in model.shape)
        zarr.create_array(path / "a.zarr", data=model, chunks=chunks, overwrite=True, **options)
        return path / "a.zarr"

    return make


def in_sharded_zarr(model: Values, path: Path) -> Path:
    chunks = tuple(max(n // 3, 1) for n in model.shape)
    shards = tuple(2 * c for c in chunks)
    zarr.create_array(path / "a.zarr", data=model, chunks=chunks, shards=shards, overwrite=True)
    return path / "a.zarr"


def in_npy(model: Values, path: Path) -> Path:
    np.save(path / "a.npy", model)
    return path / "a.npy"


def in_outcore(model: Values, path: Path) -> Path:
    oc.from_array(model, path / "stored", chunks=5, overwrite=True) if model.ndim == 1 else (
        oc.from_array(model, path / "stored", chunks=(3,) * model.ndim, overwrite=True)
    )
    return path / "stored"


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
    # A list has no types but Python's.
    assert found.dtype == (np.asarray(source).dtype if kind == "list" else model.dtype)


@pytest.mark.parametrize("kind", SOURCES)
@settings(max_examples=6, deadline=None)
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
        # By its content, whatever its name.
        (tmp_path / "a.npy").rename(tmp_path / "a.data")
        found, _ = copied(tmp_path / "a.data", tmp_path / "A", shape=None)
        np.testing.assert_array_equal(found, model)
    np.savez(tmp_path / "b.npz", a=model)
    (tmp_path / "b.npz").rename(tmp_path / "b.npy")
    with pytest.raises(InvalidError, match="archive"):
        oc.from_array(tmp_path / "b.npy", tmp_path / "B")


# Types and shapes.


@pytest.mark.parametrize("kind", SOURCES)
def test_types_are_converted_as_numpy_does(tmp_path: Path, kind: str) -> None:
    model = values((12, 9), "f8")
    found, _ = copied(SOURCES[kind](model, tmp_path), tmp_path / "A", dtype="f4", chunks=(5, 4))
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, model.astype("f4"))
    found, _ = copied(SOURCES[kind](model, tmp_path), tmp_path / "A", dtype="c16", chunks=(5, 4))
    np.testing.assert_array_equal(found, model.astype("c16"))
    with pytest.raises(InvalidError, match=r"need elements of int32, have .*\.astype\(\)"):
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
    for name in (f"{file}::deep/two", Path(f"{file}::/deep/two")):
        found, _ = copied(name, tmp_path / "A")
        np.testing.assert_array_equal(found, two)
    (tmp_path / "b.mat").write_bytes(file.read_bytes())
    found, _ = copied(f"{tmp_path}/b.mat::only", tmp_path / "A")
    np.testing.assert_array_equal(found, one)
    for name, message in [
        (file, r"deep/two, only, .*write .*a\.h5::NAME"),
        (f"{file}::text", "number type|dimension"),
        (f"{file}::scalar", "dimension"),
    ]:
        with pytest.raises(InvalidError, match=message):
            oc.from_array(name, tmp_path / "B")
    for name, message in [
        (f"{file}::none", "no dataset none .* it has deep/two, only"),
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
    # Closed again: another may write to it.
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
        array = oc.from_array(source, tmp_path / "A", overwrite=True)
        assert (array.dims, array.attrs) == (("t", "x"), {"unit": "m"})
        array = oc.from_array(
            source, tmp_path / "A", overwrite=True, dims=("a", "b"), attributes={}
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
                oc.from_array(name, tmp_path / "Z", overwrite=True)
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "Z")[...], model)


@pytest.mark.parametrize(("package", "kind"), [("h5py", "hdf5"), ("zarr", "zarr v3")])
def test_a_package_that_is_not_installed(
    tmp_path: Path, package: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = SOURCES[kind](values((3, 4), "f8"), tmp_path)

    def missing(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(MissingPackageError, match=f"pip install {package}") as caught:
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


# Reading each chunk once.


class Counting:
    """Elements in chunks, each of which has to be decoded whole."""

    def __init__(self, model: Values, chunks: tuple[int, ...]) -> None:
        self.shape, self.dtype, self.chunks = model.shape, model.dtype, chunks
        self.decoded: collections.Counter[tuple[int, ...]] = collections.Counter()
        self.at_once = 0
        self._model = model

    def __getitem__(self, box: tuple[slice, ...]) -> Values:
        ranges = [
            range(s.start // c, -(-s.stop // c)) for s, c in zip(box, self.chunks, strict=True)
        ]
        touched = list(np.ndindex(*map(len, ranges)))
        self.decoded.update(tuple(r[i] for r, i in zip(ranges, at, strict=True)) for at in touched)
        self.at_once = max(self.at_once, len(touched))
        return self._model[box]


@settings(max_examples=20, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 300), st.integers(1, 300)),
    chunks=st.tuples(st.integers(1, 100), st.integers(1, 100)),
    target=st.tuples(st.integers(1, 100), st.integers(1, 100)),
    order=st.sampled_from(ORDERS),
)
def test_each_chunk_is_decoded_once_where_memory_allows(
    shape: tuple[int, int], chunks: tuple[int, int], target: tuple[int, int], order: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:  # fmt: skip
    model = values(shape, "f8")
    source = Counting(model, chunks)
    path = tmp_path_factory.mktemp("copy")
    found, report = copied(source, path / "A", chunks=target, order=order, memory="64 MiB")
    np.testing.assert_array_equal(found, model)
    assert set(source.decoded.values()) == {1}
    assert report.times_read == 1


@pytest.mark.parametrize("order", ORDERS)
def test_short_of_memory_what_is_decoded_again_is_said(tmp_path: Path, order: str) -> None:
    model = values((640, 640), "f8")
    source = Counting(model, (20, 640))
    found, report = copied(source, tmp_path / "A", chunks=(192, 192), order=order, memory="1.4 MB")
    np.testing.assert_array_equal(found, model)
    assert sum(source.decoded.values()) / 32 == pytest.approx(report.times_read)
    if order == "C":
        # Rows of chunks are written in parts instead.
        assert report.times_read == 1
    else:
        assert 1 < report.times_read < 8
        assert source.at_once == 1, "chunks that are cut are decoded one at a time"


def test_each_chunk_of_zarr_is_read_once(tmp_path: Path) -> None:
    seen: collections.Counter[str] = collections.Counter()

    class Reads(WrapperStore[LocalStore]):
        async def get(self, key: str, *arguments: Any, **options: Any) -> Any:
            seen[key] += 1
            return await super().get(key, *arguments, **options)

    model = values((300, 200), "f8")
    zarr.create_array(tmp_path / "Z", data=model, chunks=(30, 40))
    source = zarr.open_array(Reads(LocalStore(tmp_path / "Z")), mode="r")
    found, _ = copied(source, tmp_path / "A", chunks=(64, 64), memory="2 MiB")
    np.testing.assert_array_equal(found, model)
    chunks = {key: count for key, count in seen.items() if key.startswith("c/")}
    assert len(chunks) == 50
    assert set(chunks.values()) == {1}


def test_a_chunk_that_does_not_fit_is_refused_before_any_work(tmp_path: Path) -> None:
    source = Counting(values((640, 640), "f8"), (640, 640))
    with pytest.raises(BudgetError, match=r"need \d+ bytes .*raise memory="):
        oc.from_array(source, tmp_path / "A", chunks=(64, 64), memory="4 MiB")
    assert not source.decoded
    assert os.listdir(tmp_path) == []


# dask.


def test_dask_is_computed_by_parts(tmp_path: Path) -> None:
    computed: collections.Counter[tuple[int, ...]] = collections.Counter()
    graphs: list[int] = []

    def block(block_id: tuple[int, ...]) -> Values:
        computed[block_id] += 1
        return np.full((64, 64), block_id[0] * 10.0 + block_id[1])

    def scheduler(graph: Any, keys: Any, **options: Any) -> Any:
        before = sum(computed.values())
        result = dask.get(graph, keys, **options)
        graphs.append(sum(computed.values()) - before)
        return result

    array = dask.array.map_blocks(
        block, chunks=((64,) * 8, (64,) * 8), dtype="f8", meta=np.empty((0, 0))
    )
    with dask.config.set(scheduler=scheduler):
        found, report = copied(array, tmp_path / "A", chunks=(128, 192), memory="1 MiB")
    np.testing.assert_array_equal(found, np.kron(np.add.outer(np.arange(8) * 10.0, np.arange(8)),
                                                 np.ones((64, 64))))  # fmt: skip
    assert set(computed.values()) == {1}
    assert len(computed) == 64
    # 32 KiB each; a block and what dask takes beside it are within the budget.
    assert max(graphs) * 32 * 1024 * 2 < 1 << 20
    assert report.times_read == 1


def test_dask_arrays_of_unknown_shape_are_refused(tmp_path: Path) -> None:
    array = dask.array.arange(10, chunks=5)
    with pytest.raises(InvalidError, match="compute_chunk_sizes"):
        oc.from_array(array[array > 3], tmp_path / "A")


# Rows from an iterator.


def in_blocks(model: Values, heights: list[int]) -> Iterator[Values]:
    """Blocks of these heights, all in the same memory."""
    memory, at = np.empty_like(model), 0
    while at < len(model):
        height = heights[at % len(heights)]
        part = model[at : at + height]
        memory[: len(part)] = part
        yield memory[: len(part)]
        at += height


@settings(max_examples=60, deadline=None)
@given(layout=layouts(3, 14), heights=st.lists(st.integers(1, 9), min_size=1), data=st.data())
def test_rows_in_blocks_of_any_height(
    layout: Layout, heights: list[int], data: st.DataObject,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:  # fmt: skip
    path = tmp_path_factory.mktemp("rows")
    model = values(layout.shape, "f4")
    options = {name: getattr(layout, name) for name in ("chunks", "order", "chunk_order")}
    shape = data.draw(st.sampled_from([model.shape, len(model), model.shape[:1]]))
    blocks = in_blocks(model, heights)
    found, report = copied(blocks, path / "A", shape=shape, memory="300 KiB", **options)
    np.testing.assert_array_equal(found, model)
    assert report.times_read == 1


def test_rows_one_by_one_and_other_iterables(tmp_path: Path) -> None:
    model = values((40, 7), "c8")

    class Rows:
        def __iter__(self) -> Iterator[Values]:
            return iter(model)

    for source in (iter(model), Rows(), (row.tolist() for row in model), iter([model])):
        found, _ = copied(source, tmp_path / "A", shape=(40, 7), dtype="c8", chunks=(9, 3))
        np.testing.assert_array_equal(found, model)
    empty = iter([model[:0], model[:30], model[30:30], model[30:], model[:0]])
    found, _ = copied(empty, tmp_path / "A", shape=40)
    np.testing.assert_array_equal(found, model)


@pytest.mark.parametrize("order", ORDERS)
def test_rows_are_taken_no_further_than_the_memory_goes(tmp_path: Path, order: str) -> None:
    model = values((2000, 100), "f8")
    with open_source(iter(model), shape=model.shape) as source:
        array, report = copy_to_array(
            source, tmp_path / "A", chunks=(50, 30), order=order, memory="400 KiB", progress=False
        )
    np.testing.assert_array_equal(array[...], model)
    assert report.peak_memory_bytes <= 400 * 1024
    assert report.blocks == 20, "bands of two chunks' heights, of which four fit"


def test_without_memory_for_a_band_of_chunks_they_are_written_in_parts(tmp_path: Path) -> None:
    model = values((500, 300), "f8")
    found, _ = copied(
        iter(model), tmp_path / "A", shape=(500, 300), chunks=(250, 100), memory="300 KiB"
    )
    np.testing.assert_array_equal(found, model)
    # In Fortran order the parts would be short runs, one request each.
    with pytest.raises(BudgetError, match="smaller chunks="):
        oc.from_array(
            iter(model),
            tmp_path / "B",
            shape=(500, 300),
            chunks=(250, 100),
            order="F",
            memory="300 KiB",
        )


@pytest.mark.parametrize(
    ("blocks", "options", "message"),
    [
        ([np.ones((4, 3))], {}, "need shape="),
        ([], {"shape": 5}, "no rows"),
        ([np.ones((4, 3))], {"shape": 5}, "need 5 rows, the iterator ended after 4"),
        ([np.ones((4, 3)), np.ones((2, 3))], {"shape": 5}, "need 5 rows, the iterator has more"),
        ([np.ones((5, 3)), np.ones((1, 3))], {"shape": 5}, "the iterator has more"),
        ([np.ones((4, 3)), np.ones((1, 4))], {"shape": 5}, r"need blocks of shape \(rows, 3\)"),
        ([np.ones((4, 3)), np.ones(2)], {"shape": 5}, r"have one of \(2,\) after row 4"),
        ([np.ones((4, 3)), np.ones((1, 3, 1))], {"shape": 5}, "need blocks"),
        ([np.ones((4, 3))], {"shape": (4, 5)}, r"need blocks of shape \(rows, 5\)"),
        ([np.ones((4, 3)), np.ones((1, 3)) * 1j], {"shape": 5}, "need blocks of float64"),
        ([np.ones((4, 3))], {"shape": 4, "dtype": "i4"}, "need blocks of int32"),
        ([np.array(1.0)], {"shape": 4}, "need blocks"),
        (["text"], {"shape": 4}, "need blocks"),
    ],
)
def test_blocks_that_do_not_fit(
    tmp_path: Path, blocks: list[Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidError, match=message):
        oc.from_array(iter(blocks), tmp_path / "A", chunks=(2, 2), **options)
    # What was begun does not pass for whole.
    if (tmp_path / "A").exists():
        with pytest.raises(IncompleteError):
            oc.open_array(tmp_path / "A")


def test_an_error_in_the_users_iterator_is_passed_on(tmp_path: Path) -> None:
    def rows() -> Iterator[Values]:
        yield np.ones((10, 4))
        raise FileNotFoundError("the user's own")

    with pytest.raises(FileNotFoundError, match="the user's own"):
        oc.from_array(rows(), tmp_path / "A", shape=20)
    with pytest.raises(IncompleteError):
        oc.open_array(tmp_path / "A")


# Being stopped.


@pytest.mark.parametrize("after", [1, 3, 10])
def test_ctrl_c_leaves_an_incomplete_array(tmp_path: Path, after: int) -> None:
    def rows() -> Iterator[Values]:
        for number in range(20):
            if number == after:
                raise KeyboardInterrupt
            yield np.ones((10, 4))

    with pytest.raises(Interrupted, match="overwrite=True"):
        oc.from_array(rows(), tmp_path / "A", shape=200, chunks=(10, 4))
    with pytest.raises(IncompleteError, match="overwrite=True"):
        oc.open_array(tmp_path / "A")
    again = oc.from_array(np.ones((200, 4)), tmp_path / "A", overwrite=True)
    assert again.info().state == "whole"
