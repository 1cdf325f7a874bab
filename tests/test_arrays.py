"""Reading and writing boxes of arrays, against plain NumPy arrays."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chosen_cases import examples
from hypothesis import given
from hypothesis import strategies as st
from strategies import CHUNK_ORDERS, DTYPES, ORDERS, Layout, layouts, selections, values

import outcore as oc
from outcore.errors import ExistsError, InvalidError

quick = examples(150)


@st.composite
def layouts_and_keys(draw: st.DrawFn, keys: int) -> tuple[Layout, list[Any]]:
    layout = draw(layouts())
    return layout, draw(st.lists(selections(layout.shape), min_size=1, max_size=keys))


@quick
@given(layouts_and_keys(keys=4))
def test_reads_what_numpy_reads(case: tuple[Layout, list[Any]]) -> None:
    layout, keys = case
    with tempfile.TemporaryDirectory() as directory:
        array = oc.create_array(f"{directory}/A", **layout.arguments(), reserve=False)
        array[...] = model = values(layout.shape, layout.dtype)
        for key in keys:
            found, expected = array[key], model[key]
            assert np.shape(found) == np.shape(expected)
            assert np.asarray(found).dtype == model.dtype
            np.testing.assert_array_equal(found, expected)


@quick
@given(layouts_and_keys(keys=5), st.integers(0, 2**32))
def test_writes_what_numpy_writes_and_nothing_else(
    case: tuple[Layout, list[Any]], seed: int
) -> None:
    layout, keys = case
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "A"
        model = values(layout.shape, layout.dtype, seed)
        with oc.create_array(path, **layout.arguments(), reserve=False) as array:
            array[...] = model
            for number, key in enumerate(keys):
                part = values(np.shape(model[key]), layout.dtype, seed + number + 1)
                array[key] = part
                model[key] = part
        # A reader without a cache also compares the elements outside the boxes.
        np.testing.assert_array_equal(oc.open_array(path)[...], model)


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_unwritten_array_is_zeros(tmp_path: Path, dtype: str) -> None:
    array = oc.create_array(tmp_path / "A", (5, 7), dtype, chunks=(2, 3))
    assert array.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(array[...], np.zeros((5, 7), dtype))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("chunk_order", CHUNK_ORDERS)
def test_large_boxes_go_round_every_path(tmp_path: Path, order: str, chunk_order: str) -> None:
    """Pieces of megabytes: direct, through bounce buffers, cut, and with ragged ends."""
    model = values((700, 900), "f8")
    array = oc.create_array(
        tmp_path / "A", model.shape, chunks=(512, 520), order=order, chunk_order=chunk_order
    )
    array[...] = model
    for key in [
        np.s_[:],
        np.s_[3:690, 5:],
        np.s_[::-3, 1::2],
        np.s_[511:513, :],
        np.s_[:, 519:521],
        np.s_[650:, ::-1],
    ]:
        np.testing.assert_array_equal(array[key], model[key])
        array[key] = model[key] = values(model[key].shape, "f8", 1)
        np.testing.assert_array_equal(array[...], model)


@pytest.mark.parametrize("order", ORDERS)
def test_memory_of_any_layout_is_written(tmp_path: Path, order: str) -> None:
    array = oc.create_array(tmp_path / "A", (6, 10), "i4", chunks=(4, 4), order=order)
    whole = values((40, 40), "i4")
    for source in [
        whole[3:9, 5:15],
        whole.T[::-3][:6, 10:0:-1],
        np.asfortranarray(whole[:6, :10]),
        np.broadcast_to(whole[:1, :10], (6, 10)),
        whole.astype(">i4")[:6, :10],
        whole[:6, :10].tolist(),
    ]:
        array[...] = source
        np.testing.assert_array_equal(array[...], source)


def test_more_chunks_than_one_shard_file_holds(tmp_path: Path) -> None:
    model = np.arange(70_001, dtype="u4")
    array = oc.create_array(tmp_path / "A", model.shape, "u4", chunks=(1,), reserve=False)
    assert array.info().shards == 2
    assert (tmp_path / "A/c/1").is_file()
    part = np.s_[65_000:66_000]
    array[part] = model[part]
    array[-1] = 7
    model[: part.start] = model[part.stop :] = 0
    model[-1] = 7
    np.testing.assert_array_equal(array[64_900:66_100:3], model[64_900:66_100:3])
    np.testing.assert_array_equal(array[:-2000:-1], model[:-2000:-1])


def test_shard_files_along_the_second_dimension(tmp_path: Path) -> None:
    array = oc.create_array(
        tmp_path / "A", (300, 500), "f4", chunks=(1, 1), order="F", reserve=False
    )
    assert array.info().shards == 3
    model = values((20, 20), "f4")
    array[280:, 210:230] = model
    np.testing.assert_array_equal(array[280:, 210:230], model)
    assert not array[279, 200:240].any()


def test_empty_selections(tmp_path: Path) -> None:
    array = oc.create_array(tmp_path / "A", (4, 6), "f8", chunks=(2, 2))
    model = np.zeros((4, 6))
    for key in [np.s_[2:2], np.s_[:, 5:1], np.s_[1, 9:], np.s_[0:0, ::-1], np.s_[..., 6:]]:
        assert array[key].shape == model[key].shape
        array[key] = 1.0
        array[key] = np.empty(model[key].shape)
    assert not array[...].any()


def test_values_are_broadcast(tmp_path: Path) -> None:
    array = oc.create_array(tmp_path / "A", (4, 6), "f8", chunks=(3, 4))
    model = np.zeros((4, 6))
    cases: list[tuple[Any, Any]] = [
        (np.s_[...], 3),
        (np.s_[1:3], [1, 2, 3, 4, 5, 6]),
        (np.s_[:, 2:4], [[1.5], [2.5], [3.5], [4.5]]),
        (np.s_[2], np.float32(7)),
        (np.s_[3, ::-2], np.array([1.0])),
        (np.s_[0:2, 0:2], np.ones((1, 1, 2, 2))),
        (np.s_[0, 0], [5.0]),
    ]
    for key, value in cases[:-1]:
        array[key] = model[key] = value
    array[0, 0] = cases[-1][1]
    model[0, 0] = 5.0
    np.testing.assert_array_equal(array[...], model)


def test_values_of_another_shape_are_refused(tmp_path: Path) -> None:
    array = oc.create_array(tmp_path / "A", (4, 6), "f8", chunks=(3, 4))
    for key, value in [
        (np.s_[...], np.ones((6, 4))),
        (np.s_[0], np.ones(5)),
        (np.s_[0:0], np.ones(3)),
    ]:
        with pytest.raises(InvalidError, match="shape"):
            array[key] = value
    assert not array[...].any()


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("f8", 1j),
        ("f8", np.ones(3, "c16")),
        ("i4", np.ones(3)),
        ("i4", 1.5),
        ("i4", float("nan")),
        ("u1", 256),
        ("u1", -1),
        ("i1", 128),
        ("u1", np.arange(-1, 2)),
        ("bool", np.arange(3)),
        ("bool", 2),
        ("f8", "text"),
        ("f8", None),
        ("f8", np.array(["a"])),
        ("f8", object()),
    ],
)
def test_values_that_do_not_fit_the_type_are_refused(
    tmp_path: Path, dtype: str, value: Any
) -> None:
    array = oc.create_array(tmp_path / "A", 3, dtype)
    with pytest.raises(InvalidError, match=r"\.astype\(\)|need"):
        array[:] = value
    assert not array[...].any()


@pytest.mark.parametrize(
    ("dtype", "value"),
    [("f4", 1.5), ("f4", np.ones(3)), ("i1", -128), ("u1", 255), ("i4", 2.0), ("i4", True),
     ("c8", 3), ("i2", np.arange(3)), ("bool", 1), ("f2", np.float64(0.1)), ("f4", float("nan"))],
)  # fmt: skip
def test_values_that_fit_the_type_are_converted(tmp_path: Path, dtype: str, value: Any) -> None:
    array = oc.create_array(tmp_path / "A", 3, dtype)
    array[:] = value
    np.testing.assert_array_equal(array[...], np.full(3, value).astype(dtype))


def test_indices_that_are_not_basic_are_refused(tmp_path: Path) -> None:
    array = oc.create_array(tmp_path / "A", (4, 6), "f8")
    for key in [None, 1.0, "a", (0, None), True, np.True_]:
        with pytest.raises(InvalidError, match="cannot index"):
            array[key]
    for key in [4, -5, (0, 6), (0, 0, 0), (..., ...)]:
        with pytest.raises(IndexError):
            array[key]
    with pytest.raises(ValueError, match="step"):
        array[::0]


def test_steps_beyond_any_size(tmp_path: Path) -> None:
    array = oc.create_array(tmp_path / "A", 5, "i4")
    array[...] = model = np.arange(5, dtype="i4")
    for key in [np.s_[:: 2**62], np.s_[:: 2**70], np.s_[3 :: -(2**70)], np.s_[-(2**70) : 2**70]]:
        np.testing.assert_array_equal(array[key], model[key])


def test_numpy_takes_an_array(tmp_path: Path) -> None:
    array = oc.create_array(tmp_path / "A", (3, 4), "f4", order="F")
    array[...] = model = values((3, 4), "f4")
    np.testing.assert_array_equal(np.asarray(array), model)
    assert np.asarray(array, "f8").dtype == np.float64
    np.testing.assert_array_equal(np.stack(list(array)), model)
    assert (len(array), array.ndim, array.size, array.nbytes) == (3, 2, 12, 48)


def test_many_arrays_in_use_at_once(tmp_path: Path) -> None:
    """The memory of plain indexing is limited per process, and freed after each call."""
    arrays = []
    for number in range(24):
        array = oc.create_array(tmp_path / f"{number}", (1025, 513), "f8", chunks=(1025, 513))
        array[...] = number
        arrays.append(array)
    for number, array in enumerate(arrays):
        assert (array[1:, 1:] == number).all()


@pytest.mark.parametrize("dtype", ["f8", "c16", "u1"])
def test_copies_of_arrays(tmp_path: Path, dtype: str) -> None:
    model = values((300, 200), dtype)
    np.save(tmp_path / "A.npy", model)
    memmap = np.load(tmp_path / "A.npy", mmap_mode="r")
    sources = {"array": model, "F": np.asfortranarray(model), "npy": tmp_path / "A.npy",
               "memmap": memmap, "big": model.astype(np.dtype(dtype).newbyteorder(">")),
               "list": model.tolist()}  # fmt: skip
    for name, source in sources.items():
        copy = oc.from_array(source, tmp_path / name, chunks=(64, 64), memory="1 MiB")
        assert copy.order == ("F" if name == "F" else "C")
        np.testing.assert_array_equal(copy[...], model)
        assert oc.open_array(tmp_path / name).info().state == "whole"
    again = oc.from_array(oc.open_array(tmp_path / "F"), tmp_path / "again")
    assert again.order == "F"
    np.testing.assert_array_equal(again[...], model)


def test_attributes_and_dimension_names(tmp_path: Path) -> None:
    oc.create_array(
        tmp_path / "A", (3, 4), dims=("y", "x"), attributes={"unit": "m", "k": [1, 2.5, None]}
    )
    array = oc.open_array(tmp_path / "A")
    assert array.dims == ("y", "x")
    assert array.attrs == {"unit": "m", "k": [1, 2.5, None]}
    assert array.info().attributes == array.attrs
    assert "y, x" in str(array.info())


def test_copying_reports_its_progress(tmp_path: Path) -> None:
    seen: list[float] = []
    source = np.arange(40_000.0).reshape(200, 200)
    array = oc.from_array(
        source, tmp_path / "a", chunks=(10, 200), progress=lambda done, left: seen.append(done)
    )
    assert np.array_equal(array, source)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


def test_a_script_may_be_started_again(tmp_path: Path) -> None:
    def fill(rows: slice, columns: slice) -> np.ndarray[Any, Any]:
        calls.append(rows)
        return np.ones((rows.stop - rows.start, columns.stop - columns.start))

    calls: list[slice] = []
    made = oc.create_array(tmp_path / "a", (50, 60), fill=fill, if_exists="open")
    first = len(calls)
    generation = made.info().generation
    again = oc.create_array(tmp_path / "a", (50, 60), fill=fill, if_exists="open")
    assert np.array_equal(again, np.ones((50, 60)))
    assert len(calls) == first > 0
    assert again.info().generation == generation, "a stopped factorization of it must go on"
    with pytest.raises(ExistsError):
        oc.create_array(tmp_path / "a", (50, 61), if_exists="open")


def write_an_element(array: oc.Array) -> None:
    array[0] = 1.0


def write_a_block(array: oc.Array) -> None:
    with array.blocks(mode="r+") as blocks:
        blocks[0][...] = 1.0


def append_a_step(array: oc.Array) -> None:
    array.append(1.0)


@pytest.mark.parametrize("write", [write_an_element, write_a_block, append_a_step])
def test_the_first_write_of_an_opening_is_counted_before_it_is_done(
    tmp_path: Path, write: Callable[[oc.Array], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    is_growing = write is append_a_step
    with oc.create_array(tmp_path / "a", 0 if is_growing else 100, growing=is_growing) as made:
        write(made)
        assert made.info().generation == 1, "by its making"
    with oc.open_array(tmp_path / "a", "r+") as opened:
        before = opened[...]
        opened[0:0] = 5
        assert opened.info().generation == 1, "nothing was written"

        def fails(where: object) -> None:
            assert np.array_equal(oc.open_array(tmp_path / "a"), before)
            raise ZeroDivisionError

        with monkeypatch.context() as patched:
            patched.setattr("outcore.array.array.bump_generation", fails)
            with pytest.raises(ZeroDivisionError):
                write(opened)
        assert np.array_equal(oc.open_array(tmp_path / "a"), before), "what is not counted waits"
        for _ in range(3):
            write(opened)
            assert opened.info().generation == 2
    with oc.open_array(tmp_path / "a", "r+") as opened:
        write(opened)
        assert opened.info().generation == 3


def test_one_number_is_a_chunk_shape_in_one_dimension(tmp_path: Path) -> None:
    assert oc.create_array(tmp_path / "a", 100, chunks=7).chunks == (7,)
