"""`from_array`: which bytes it reads, how often, in how much memory; rows from an iterator."""

import collections
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import dask.array
import numpy as np
import pytest
import zarr
from chosen_cases import examples
from hypothesis import given
from hypothesis import strategies as st
from source_cases import Values, copied
from strategies import ORDERS, Layout, layouts, values
from zarr.storage import LocalStore, WrapperStore

import outcore as oc
from outcore.array_files import blocks_done
from outcore.convert.copying import copy_to_array
from outcore.convert.open_source import open_source
from outcore.errors import BudgetError, IncompleteError, InvalidError

# Each chunk is read once.


class Counting:
    """An array whose chunks must each be decoded whole."""

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


@examples(20)
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
        # The call writes rows of chunks in parts instead.
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
    # Each has 32 KiB; a block and dask's own memory stay within the budget.
    assert max(graphs) * 32 * 1024 * 2 < 1 << 20
    assert report.times_read == 1


def test_dask_arrays_of_unknown_shape_are_refused(tmp_path: Path) -> None:
    array = dask.array.arange(10, chunks=5)
    with pytest.raises(InvalidError, match="compute_chunk_sizes"):
        oc.from_array(array[array > 3], tmp_path / "A")
    with pytest.raises(InvalidError, match="compute_chunk_sizes"):
        oc.linalg.gram(array[array > 3], progress=False)


# Rows from an iterator.


def in_blocks(model: Values, heights: list[int]) -> Iterator[Values]:
    """Yield blocks of these heights, all in the same memory."""
    memory, at = np.empty_like(model), 0
    while at < len(model):
        height = heights[at % len(heights)]
        part = model[at : at + height]
        memory[: len(part)] = part
        yield memory[: len(part)]
        at += height


@examples(60)
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


@pytest.mark.parametrize("order", ORDERS)
def test_without_memory_for_a_band_of_chunks_they_are_written_in_parts(
    tmp_path: Path, order: str
) -> None:
    model = values((500, 300), "f8")
    options: dict[str, Any] = {"chunks": (250, 100), "order": order, "memory": "300 KiB"}
    found, report = copied(iter(model), tmp_path / "A", shape=(500, 300), **options)
    np.testing.assert_array_equal(found, model)
    # In Fortran order parts of whole rows are short runs, so an array lies between two passes.
    assert bool(report.between) == (order == "F")
    assert report.times_read == 1
    with pytest.raises(InvalidError, match="the iterator ended after 499"):
        copied(iter(model[:-1]), tmp_path / "A", shape=(500, 300), **options)
    assert not {path.name for path in (tmp_path / "A").iterdir()} & set(blocks_done.BETWEEN)


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
    # An unfinished array is not reported as whole.
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
