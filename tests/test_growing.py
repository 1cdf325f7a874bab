"""Arrays that grow by whole steps, which any Zarr reader sees as they come."""

import json
import os
import resource
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorstore
import xarray
import zarr
from chosen_cases import examples
from hypothesis import given
from hypothesis import strategies as st
from served_pools import above, in_memory
from strategies import Layout, layouts, selections, values

import outcore as oc
from outcore.errors import BusyError, DiskFullError, InvalidError, NotFoundError, ReadOnlyError
from outcore.storage.volumes import exclusive, place

__all__ = ["above"]  # a fixture


def steps_of(shape: tuple[int, ...], dtype: str, count: int) -> npt.NDArray[Any]:
    return np.stack([values(shape, dtype, seed) for seed in range(count)])


def test_it_grows(above: Any) -> None:
    model = steps_of((5, 7), "f4", 4)
    array = oc.create_array(above / "u", (0, 5, 7), "f4", chunks=(2, 3), growing=True)
    assert (array.shape, array.chunks, array.nbytes) == ((0, 5, 7), (1, 2, 3), 0)
    for count in range(5):
        for reader in (array, oc.open_array(above / "u")):
            assert reader.shape == (count, 5, 7)
            np.testing.assert_array_equal(reader[...], model[:count])
            np.testing.assert_array_equal(reader[::-1, 1::2], model[:count, 1::2][::-1])
        if count < 4:
            array.append(model[count])
    found = np.zeros_like(model)
    for index, data in oc.open_array(above / "u").stream():
        found[index] += data
    np.testing.assert_array_equal(found, model)


def test_single_numbers(above: Any) -> None:
    times = oc.create_array(above / "t", (0,), "f8", chunks=3, dims=("time",), growing=True)
    for count in range(8):
        times.append(count / 4)
        assert times[-1] == count / 4
        np.testing.assert_array_equal(oc.open_array(above / "t")[:], np.arange(count + 1) / 4)
    assert times.info().shards == 3
    times.append([2.0, 2.25])
    np.testing.assert_array_equal(times[:], np.arange(10) / 4)


def test_several_steps_at_once(above: Any) -> None:
    model = steps_of((3,), "i8", 5)
    array = oc.create_array(above / "u", (0, 3), "i8", growing=True)
    array.append(model[:3])
    array.append(model[3:])
    np.testing.assert_array_equal(array[...], model)


def test_old_steps_are_read_while_it_grows(above: Any) -> None:
    model = steps_of((4, 6), "f8", 6)
    array = oc.create_array(above / "u", (0, 4, 6), growing=True)
    array.append(model[:2])
    reader = oc.open_array(above / "u")
    for count in range(2, 6):
        array.append(model[count])
        assert reader.shape[0] == count
        np.testing.assert_array_equal(reader[...], model[:count])
        assert reader.refresh() is reader
        np.testing.assert_array_equal(reader[...], model[: count + 1])


@examples(40)
@given(st.data())
def test_any_layout(data: st.DataObject) -> None:
    layout = data.draw(layouts(max_dims=3, max_extent=9))
    model = steps_of(layout.shape, layout.dtype, 3)
    with in_memory() as directory:
        array = created(directory / "u", layout)
        alone = oc.create_array(directory / "alone", **layout.arguments())
        for step in model:
            array.append(step)
            alone[...] = step
        key = data.draw(selections(model.shape))
        np.testing.assert_array_equal(array[key], model[key])
        np.testing.assert_array_equal(read_with_zarr(directory / "u"), model)
        np.testing.assert_array_equal(read_with_tensorstore(directory / "u"), model)
        # The files of a step equal those of an array of one step.
        files = [path for path in (directory / "alone/c").rglob("*") if path.is_file()]
        for file in files:
            inside = file.relative_to(directory / "alone/c")
            assert (directory / "u/c/2" / inside).read_bytes() == file.read_bytes()


def created(path: Path, layout: Layout) -> oc.Array:
    arguments = layout.arguments() | {"shape": (0, *layout.shape)}
    return oc.create_array(path, growing=True, **arguments)


def read_with_zarr(path: Path) -> npt.NDArray[Any]:
    return np.asarray(zarr.open_array(path, mode="r")[...])


def read_with_tensorstore(path: Path) -> npt.NDArray[Any]:
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{path}/"}}
    return np.asarray(tensorstore.open(spec, read=True).result().read().result())


def test_readers_of_others_at_each_length(tmp_path: Path) -> None:
    group = oc.create_group(tmp_path / "run")
    model = steps_of((4, 6), "f4", 4)
    fields = oc.create_array(
        group / "p", (0, 4, 6), "f4", chunks=(3, 6), dims=("time", "y", "x"), growing=True
    )
    times = oc.create_array(group / "time", (0,), dims=("time",), growing=True)
    for count in range(5):
        np.testing.assert_array_equal(read_with_zarr(tmp_path / "run/p"), model[:count])
        np.testing.assert_array_equal(read_with_tensorstore(tmp_path / "run/p"), model[:count])
        with xarray.open_zarr(group, consolidated=False) as found:
            assert dict(found.sizes) == {"time": count, "y": 4, "x": 6}
            np.testing.assert_array_equal(found["p"].values, model[:count])
            if count:
                last = found["p"].sel(time=(count - 1) / 8)
                np.testing.assert_array_equal(last.values, model[count - 1])
        if count < 4:
            fields.append(model[count])
            times.append(count / 8)


def test_more_steps_than_files_can_be_open(tmp_path: Path) -> None:
    """A process may have 1024 files open by default; here it has far fewer."""
    with in_memory() as directory:
        array = oc.create_array(directory / "u", (0, 2), "i4", growing=True)
        model = np.arange(600, dtype="i4").reshape(300, 2)
        array.append(model)
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        # Other tests may have left descriptors that are not collected yet.
        there = len(os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (there + 200, before[1]))
        try:
            np.testing.assert_array_equal(array[...], model)
            np.testing.assert_array_equal(array[::-7], model[::-7])
            array[...] = model[::-1]
            for index, data in oc.open_array(directory / "u").stream():
                np.testing.assert_array_equal(data, model[::-1][index])
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        np.testing.assert_array_equal(read_with_zarr(directory / "u"), model[::-1])


def test_a_step_that_was_never_counted_is_replaced(above: Any) -> None:
    """A writer was killed after the step's files and before zarr.json."""
    array = oc.create_array(above / "u", (0, 3), "i4", growing=True)
    array.append([1, 2, 3])
    before = (above / "u" / "zarr.json").read_bytes()
    array.append([7, 7, 7])
    path = above / "u" / "zarr.json"
    path.write_bytes(before)
    again = oc.open_array(above / "u", "r+")
    np.testing.assert_array_equal(again[...], [[1, 2, 3]])
    again.append([4, 5, 6])
    np.testing.assert_array_equal(oc.open_array(above / "u")[...], [[1, 2, 3], [4, 5, 6]])


def test_two_writers_take_turns(above: Any) -> None:
    """Each append reads the current length; a call during another append is refused."""
    one = oc.create_array(above / "u", (0, 2), "i4", growing=True)
    other = oc.open_array(above / "u", "r+")
    one.append([1, 1])
    other.append([2, 2])
    one.append([3, 3])
    np.testing.assert_array_equal(one[...], [[1, 1], [2, 2], [3, 3]])
    held = place(above / "u").below(".step")
    with exclusive(held, "a test"), pytest.raises(BusyError, match="appending a step"):
        one.append([4, 4])
    assert oc.open_array(above / "u").shape == (3, 2)


def test_a_full_disk_leaves_the_array_as_it_was(small_disk: Path) -> None:
    array = oc.create_array(small_disk / "u", (0, 2_500_000), growing=True)
    for step in range(2):
        array.append(np.full(2_500_000, float(step)))
    with pytest.raises(DiskFullError, match="need"):
        array.append(np.full(2_500_000, 2.0))
    assert oc.open_array(small_disk / "u").shape == (2, 2_500_000)
    np.testing.assert_array_equal(array[:, -1], [0, 1])
    assert sorted(path.name for path in (small_disk / "u/c").iterdir()) == ["0", "1"]
    assert not (small_disk / "u/.step").exists()


def test_a_missing_step_is_named(above: Any) -> None:
    array = oc.create_array(above / "u", (0, 2), "i4", growing=True)
    array.append([[1, 2], [3, 4], [5, 6]])
    where = place(above / "u")
    where.volume.remove(where.inside("c/1"))
    again = oc.open_array(above / "u")
    np.testing.assert_array_equal(again[0], [1, 2])
    with pytest.raises(NotFoundError, match="c/1/0 is missing"):
        again[...]
    np.testing.assert_array_equal(again[2], [5, 6])


def test_bad_input(tmp_path: Path) -> None:
    path = tmp_path / "u"
    for arguments, text in [
        ({"shape": (3, 4)}, r"such as \(0, 3, 4\)"),
        ({"shape": (0, 0)}, "at least 1"),
        ({"shape": (0, 4), "chunks": (2, 4)}, r"give \(1, 4\)"),
        ({"shape": (0, 4), "fill": lambda *box: 0}, "append"),
        ({"shape": (0, 4), "dims": ("x",)}, "2 names"),
    ]:
        with pytest.raises(InvalidError, match=text):
            oc.create_array(path, growing=True, **arguments)
    with pytest.raises(InvalidError, match="at least 1"):
        oc.create_array(path, (0, 4))
    oc.create_array(path, (0, 4), "i4", growing=True).append([1, 2, 3, 4])
    array = oc.open_array(path, "r+")
    for wrong, text in [([1, 2], "shape"), (np.ones(4), "precision")]:
        with pytest.raises(InvalidError, match=text):
            array.append(wrong)
    with pytest.raises(ReadOnlyError):
        oc.open_array(path).append([1, 2, 3, 4])
    with pytest.raises(InvalidError, match="growing=True"):
        oc.create_array(tmp_path / "fixed", 4).append(1.0)
    assert oc.open_array(path).shape == (1, 4)


def test_it_can_be_made_again_and_verified(tmp_path: Path) -> None:
    arguments: Any = {"shape": (0, 4), "dtype": "i4", "growing": True}
    oc.create_array(tmp_path / "u", **arguments).append([1, 2, 3, 4])
    found = oc.create_array(tmp_path / "u", if_exists="open", **arguments)
    assert (found.mode, found.shape) == ("r+", (1, 4))
    array = oc.open_array(tmp_path / "u", "r+")
    assert oc.verify(tmp_path / "u", record=True, progress=False).checksums == "recorded"
    assert oc.verify(tmp_path / "u", progress=False).checksums == "matched"
    array.append([5, 6, 7, 8])
    assert oc.verify(tmp_path / "u", progress=False).checksums == "stale"
    assert json.loads((tmp_path / "u/zarr.json").read_text())["attributes"]["outcore"]["growing"]
    assert "2 of" in str(array.info())
    again = oc.create_array(tmp_path / "u", if_exists="overwrite", **arguments)
    assert again.shape == (0, 4)
    assert "0 of" in str(again.info())
    assert oc.verify(tmp_path / "u", progress=False).bytes == 0
