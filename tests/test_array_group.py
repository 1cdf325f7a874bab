"""Groups of arrays: a step covers every array, and xarray opens the steps as they come."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import xarray
import zarr
from chosen_cases import examples
from communicators import ThreadComm, ThreadJob
from hypothesis import given
from hypothesis import strategies as st
from served_pools import above, in_memory, some_pool
from strategies import values

import outcore as oc
from outcore.array.array import Array
from outcore.errors import (
    BusyError,
    ClosedError,
    CorruptError,
    DiskFullError,
    InvalidError,
    NotFoundError,
)
from outcore.layout.distribution import Distribution, distribute
from outcore.storage.volumes import exclusive, place

__all__ = ["above"]  # a fixture

SPECS = {
    "u": oc.ArraySpec((4, 6), "f4", dims=("y", "x"), chunks=(3, 4), attributes={"units": "K"}),
    "v": oc.ArraySpec((6,), "i8", dims=("x",)),
}


def state(number: int) -> dict[str, npt.NDArray[Any]]:
    return {"u": values((4, 6), "f4", number), "v": values((6,), "i8", number + 100)}


def test_steps_of_all_arrays(above: Any) -> None:
    group = oc.ArrayGroup(above / "run", SPECS, attributes={"title": "test"})
    for number in range(4):
        assert group.timestep(state(number), number / 8) == number
        again = oc.ArrayGroup(above / "run")
        assert (again.steps, again.names, again.attrs) == (
            number + 1,
            ["u", "v"],
            {"title": "test"},
        )
        for name in "uv":
            found = again[name]
            assert found.shape[0] == number + 1
            for step in range(number + 1):
                np.testing.assert_array_equal(found[step], state(step)[name])
        np.testing.assert_array_equal(again["time"][:], np.arange(number + 1) / 8)


def test_xarray_and_zarr_at_each_length(tmp_path: Path) -> None:
    group = oc.ArrayGroup(
        tmp_path / "run", SPECS, time_attributes={"units": "seconds since 2000-01-01"}
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for steps in range(4):
            for consolidated in (None, True, False):
                with xarray.open_zarr(tmp_path / "run", consolidated=consolidated) as found:
                    assert dict(found.sizes) == {"time": steps, "y": 4, "x": 6}
                    assert set(found.variables) == ({"u", "v", "time"} if steps else {"u", "v"})
                    assert found["u"].attrs["units"] == "K"
                    for step in range(steps):
                        np.testing.assert_array_equal(found["u"][step], state(step)["u"])
                        np.testing.assert_array_equal(found["v"][step], state(step)["v"])
                    if steps:
                        last = found["time"].values[-1]
                        assert last == np.datetime64("2000-01-01") + np.timedelta64(steps - 1, "h")
            arrays = zarr.open_group(tmp_path / "run", mode="r")
            assert arrays["v"].shape == (steps, 6)
            group.timestep(state(steps), 3600 * steps)


def test_without_times(above: Any) -> None:
    group = oc.ArrayGroup(above / "run", {"w": oc.ArraySpec(3)}, time="t")
    group.timestep({"w": [1.0, 2.0, 3.0]})
    assert group["w"].dims == ("t", "w_0")
    with pytest.raises(InvalidError, match="has no times"):
        group.timestep({"w": [1.0, 2.0, 3.0]}, 0.5)
    assert oc.ArrayGroup(above / "run").steps == 1
    timed = oc.ArrayGroup(above / "timed", {"w": oc.ArraySpec(3)})
    timed.timestep({"w": [1.0, 2.0, 3.0]}, 0.5)
    with pytest.raises(InvalidError, match="has times"):
        timed.timestep({"w": [1.0, 2.0, 3.0]})
    assert timed.steps == 1


@pytest.mark.parametrize("time", ["noon", np.datetime64("2000-01-01"), object()])
def test_a_time_that_is_no_number_is_refused(above: Any, time: Any) -> None:
    group = oc.ArrayGroup(above / "run", {"w": oc.ArraySpec(3)})
    with pytest.raises(InvalidError, match="time must be a number"):
        group.timestep({"w": [1.0, 2.0, 3.0]}, time)
    assert group.steps == oc.ArrayGroup(above / "run").steps == 0
    group.timestep({"w": [1.0, 2.0, 3.0]}, np.array(0.5))
    assert group["time"][...] == [0.5]


def test_a_step_that_not_all_arrays_count_is_taken_back(above: Any) -> None:
    """A call was killed between two arrays, and before the group's own file."""
    group = oc.ArrayGroup(above / "run", SPECS)
    group.timestep(state(0), 0.0)
    before = (
        (above / "run" / "zarr.json").read_bytes(),
        (above / "run/v" / "zarr.json").read_bytes(),
    )
    group.timestep(state(7), 7.0)
    (above / "run" / "zarr.json").write_bytes(before[0])
    (above / "run/v" / "zarr.json").write_bytes(before[1])
    again = oc.ArrayGroup(above / "run")
    assert again.steps == 1
    assert again.timestep(state(1), 1.0) == 1
    for name in "uv":
        np.testing.assert_array_equal(again[name][...], [state(0)[name], state(1)[name]])
    np.testing.assert_array_equal(again["time"][:], [0.0, 1.0])


def test_one_writer_at_a_time(above: Any) -> None:
    group = oc.ArrayGroup(above / "run", SPECS)
    other = oc.ArrayGroup(above / "run", SPECS)
    group.timestep(state(0))
    assert other.timestep(state(1)) == 1
    with exclusive(place(above / "run").below("v/.step"), "a test"), pytest.raises(BusyError):
        group.timestep(state(2))
    assert group.timestep(state(2)) == 2


def test_two_groups_side_by_side(above: Any) -> None:
    groups = [oc.ArrayGroup(above / name, SPECS) for name in ("a", "b")]
    for number in range(3):
        groups[0].timestep(state(number))
        groups[1].timestep(state(number + 50))
    for offset, name in ((0, "a"), (50, "b")):
        found = oc.ArrayGroup(above / name)["u"][...]
        np.testing.assert_array_equal(found, [state(offset + n)["u"] for n in range(3)])


def test_a_full_disk_leaves_the_group_as_it_was(small_disk: Path) -> None:
    specs = {"a": oc.ArraySpec(1000), "b": oc.ArraySpec(2_500_000)}
    group = oc.ArrayGroup(small_disk / "run", specs)
    for number in range(2):
        group.timestep({"a": np.full(1000, number), "b": np.full(2_500_000, number)}, number)
    with pytest.raises(DiskFullError):
        group.timestep({"a": np.zeros(1000), "b": np.zeros(2_500_000)}, 2)
    with xarray.open_zarr(small_disk / "run") as found:
        assert found.sizes["time"] == 2
        np.testing.assert_array_equal(found["b"][:, -1], [0, 1])


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        ({}, "at least one array"),
        ({"time": oc.ArraySpec(3)}, "cannot be named 'time'"),
        ({"checkpoints": oc.ArraySpec(3)}, "cannot be named 'checkpoints'"),
        ({"a/b": oc.ArraySpec(3)}, "cannot be named"),
        ({".a": oc.ArraySpec(3)}, "cannot be named"),
        ({"": oc.ArraySpec(3)}, "cannot be named"),
        ({"a": oc.ArraySpec(())}, "at least one dimension"),
        ({"a": oc.ArraySpec((3, 0))}, "at least 1"),
        ({"a": oc.ArraySpec(3, dims=("x", "y"))}, "names"),
        ({"a": oc.ArraySpec(3, dims=("time",))}, "it is time"),
        ({"a": oc.ArraySpec(3, dims=("x",)), "b": oc.ArraySpec(4, dims=("x",))}, "elsewhere.* 3"),
        ({"a": (3,)}, "oc.ArraySpec"),
    ],
)
def test_arrays_that_cannot_be_in_a_group(tmp_path: Path, arrays: Any, text: str) -> None:
    with pytest.raises(InvalidError, match=text):
        oc.ArrayGroup(tmp_path / "run", arrays)
    assert not (tmp_path / "run").exists()


def test_bad_input(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with pytest.raises(NotFoundError, match="pass its arrays"):
        oc.ArrayGroup(path)
    with pytest.raises(InvalidError, match="keep"):
        oc.ArrayGroup(path, SPECS, keep=0)
    with pytest.raises(InvalidError, match="outcore's own"):
        oc.ArrayGroup(path, SPECS, attributes={"outcore": 1})
    group = oc.ArrayGroup(path, SPECS)
    for wrong, text in [
        ({"u": state(0)["u"]}, r"need the arrays \['u', 'v'\], have \['u'\]"),
        (state(0) | {"w": 1}, "have"),
        (state(0) | {"v": np.zeros(5, "i8")}, r"need 'v' of shape \(6,\), have \(5,\)"),
        (state(0) | {"v": np.zeros(6)}, "precision"),
    ]:
        with pytest.raises(InvalidError, match=text):
            group.timestep(wrong)
    assert oc.ArrayGroup(path).steps == 0
    with pytest.raises(InvalidError, match="no array 'w'"):
        group["w"]
    for other, text in [
        ({"u": SPECS["u"]}, "has the arrays"),
        (SPECS | {"v": oc.ArraySpec(6)}, "'v'"),
    ]:
        with pytest.raises(InvalidError, match=text):
            oc.ArrayGroup(path, other)
    oc.create_group(tmp_path / "plain")
    with pytest.raises(InvalidError, match=r"not made by oc\.ArrayGroup"):
        oc.ArrayGroup(tmp_path / "plain", SPECS)
    (tmp_path / "plain/zarr.json").write_text("{")
    with pytest.raises(CorruptError):
        oc.ArrayGroup(tmp_path / "plain", SPECS)
    group.close()
    group.close()
    with pytest.raises(ClosedError):
        group.timestep(state(0))


def test_a_group_is_made_where_one_was_half_made(tmp_path: Path) -> None:
    """The group's zarr.json is written last."""
    oc.ArrayGroup(tmp_path / "run", SPECS)
    (tmp_path / "run/zarr.json").unlink()
    assert oc.ArrayGroup(tmp_path / "run", SPECS).timestep(state(0)) == 0


def test_several_ranks_need_a_schema(tmp_path: Path) -> None:
    """No rank hangs, and nothing is written."""

    def work(comm: ThreadComm) -> None:
        group = oc.ArrayGroup(tmp_path / "run", {"u": oc.ArraySpec((4, 6))}, comm=comm)
        whole = np.zeros((4, 6))
        for schema, local, text in [
            (None, whole, "3 ranks need a schema="),
            (distribute((4, 6), "block,*", 2), whole[:2], "over 3 ranks, have one"),
            (distribute((6, 4), "block,*", 3), whole[:2], "of an array of shape"),
            (distribute((4, 6), "block,*", 3), whole, "need an array of shape"),
        ]:
            with pytest.raises(InvalidError, match=text):
                group.timestep({"u": local}, schema=schema)

    assert ThreadJob(3).run(work) == [None] * 3
    assert oc.ArrayGroup(tmp_path / "run").steps == 0


@examples(20)
@given(st.data(), st.booleans())
def test_several_ranks(data: st.DataObject, in_pool: bool) -> None:
    """Steps and checkpoints by some ranks, loaded by others with another schema."""
    shape = tuple(data.draw(st.lists(st.integers(1, 9), min_size=2, max_size=2)))
    model = values(shape, "f8")
    size = data.draw(st.integers(1, 4))
    written, loaded = (schema_over(data, shape, count) for count in (size, 5 - size))

    def write(comm: ThreadComm) -> None:
        group = oc.ArrayGroup(above / "run", {"u": oc.ArraySpec(shape)}, comm=comm)
        local = {"u": naive_part(model, written, comm.rank)}
        assert group.timestep(local, 0.5, schema=written) == 0
        assert group.checkpoint(local, {"step": 3}, schema={"u": written}) == 0

    def load(comm: ThreadComm) -> None:
        found = oc.ArrayGroup(above / "run", comm=comm).restart(schema=loaded)
        assert found.attributes == {"step": 3}
        np.testing.assert_array_equal(found["u"], naive_part(model, loaded, comm.rank))

    with some_pool("embedded") if in_pool else in_memory() as above:
        assert ThreadJob(size).run(write) == [None] * size
        assert ThreadJob(5 - size).run(load) == [None] * (5 - size)
        np.testing.assert_array_equal(oc.open_array(above / "run/u")[0], model)


def schema_over(data: st.DataObject, shape: tuple[int, ...], size: int) -> Distribution:
    rules = st.sampled_from(["block", "cyclic", "cyclic(2)", "*"])
    first, second = data.draw(rules), data.draw(rules)
    if first == second == "*":
        first = "block"
    cut = [n for n in range(1, size + 1) if size % n == 0]
    along = data.draw(st.sampled_from(cut))
    mesh = [along, size // along] if "*" not in (first, second) else [size]
    return distribute(shape, [first, second], mesh)


def naive_part(model: npt.NDArray[Any], schema: Distribution, rank: int) -> npt.NDArray[Any]:
    """The elements that a process owns, one by one."""
    mine = [at for at in np.ndindex(model.shape) if schema.owner(at) == rank]
    indices = [sorted({at[dim] for at in mine}) for dim in range(model.ndim)]
    if not mine:
        return np.empty(schema.local_shape(rank), model.dtype)
    return model[np.ix_(*indices)]


def test_an_error_of_one_rank_is_one_of_all(tmp_path: Path) -> None:
    def work(comm: ThreadComm) -> None:
        group = oc.ArrayGroup(tmp_path / "run", SPECS, comm=comm)
        local = state(0) if comm.rank != 1 else {}
        with pytest.raises(InvalidError, match="need the arrays"):
            group.timestep(local)

    assert ThreadJob(3).run(work) == [None] * 3
    assert oc.ArrayGroup(tmp_path / "run").steps == 0


@pytest.mark.parametrize("schema", ["traditional", "block,block", "natural"])
def test_disk_schemas(above: Any, schema: str) -> None:
    """Steps and checkpoints have the layout of a fixed array with the same schema."""
    servers = 1 if isinstance(above, Path) else 2
    mesh = {"traditional": None, "block,block": (1, servers), "natural": (2, 3)}[schema]
    layout: Any = {"disk_schema": schema, "mesh": mesh}
    alone = oc.create_array(above / "alone", (64, 96), **layout)
    group = oc.ArrayGroup(above / "run", {"u": oc.ArraySpec((64, 96), **layout)})
    model = [values((64, 96), "f8", number) for number in range(3)]
    for u in model:
        group.timestep({"u": u})
        group.checkpoint({"u": u})
    steps = oc.open_array(above / "run/u")
    np.testing.assert_array_equal(steps[...], model)
    np.testing.assert_array_equal(group.restart()["u"], model[-1])
    saved = oc.open_array(above / "run/checkpoints/00000002/u").info()
    assert (steps.chunks[1:], saved.chunks) == (alone.chunks, alone.chunks)
    assert saved.disk_schema == steps.info().disk_schema == alone.info().disk_schema
    if saved.placement is not None:
        # Each new file begins on the next server.
        for what in ("stripe_unit_bytes", "chunk_counts", "parted_chunks"):
            assert getattr(saved.placement, what) == getattr(alone.info().placement, what)
    if isinstance(above, Path):
        np.testing.assert_array_equal(zarr.open_array(above / "run/u", mode="r")[...], model)


def test_a_disk_schema_and_chunks_are_one_thing_too_many(tmp_path: Path) -> None:
    for more in ({"chunks": (2, 3)}, {"order": "F"}, {"chunk_order": "hilbert"}):
        with pytest.raises(InvalidError, match="leave these out"):
            oc.ArrayGroup(
                tmp_path / "run", {"u": oc.ArraySpec((4, 6), disk_schema="block,block", **more)}
            )
    with pytest.raises(InvalidError, match="single numbers"):
        oc.create_array(tmp_path / "t", (0,), growing=True, disk_schema="block")
    assert not (tmp_path / "run").exists()


def test_info_of_what_has_no_steps_yet(above: Any) -> None:
    array = oc.create_array(above / "u", (0, 4), growing=True)
    assert "0 of" in str(array.info())
    assert list(array.stream()) == []


@pytest.mark.parametrize("kind", ["plain", "embedded"])
def test_a_rank_that_has_something_else(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks raise; the previous step and checkpoint are unchanged."""
    collectives = []
    write_all = Array.write_all

    def counted(array: Array, *arguments: Any, **options: Any) -> Any:
        collectives.append(array.path)
        return write_all(array, *arguments, **options)

    monkeypatch.setattr(Array, "write_all", counted)
    specs = {"u": oc.ArraySpec((6, 4), disk_schema="block,*")}

    def work(comm: ThreadComm) -> None:
        group = oc.ArrayGroup(above / "run", specs, comm=comm)
        good = np.full((2, 4), float(comm.rank))
        group.timestep({"u": good}, schema="block,*")
        group.checkpoint({"u": good}, {"step": 0}, schema="block,*")
        bad = np.zeros((3, 4)) if comm.rank == 1 else good
        for call in (group.timestep, group.checkpoint):
            with pytest.raises(InvalidError, match="1"):
                call({"u": bad}, schema="block,*")
        assert group.checkpoint({"u": good + 1}, {"step": 1}, schema="block,*") == 1
        np.testing.assert_array_equal(group.restart(schema="block,*")["u"], good + 1)

    with some_pool("embedded") if kind == "embedded" else in_memory() as above:
        assert ThreadJob(3).run(work) == [None] * 3
        group = oc.ArrayGroup(above / "run")
        assert (group.steps, group.checkpoints()) == (1, [0, 1])
        np.testing.assert_array_equal(
            group["u"][0], np.repeat([[0.0], [1.0], [2.0]], 2, axis=0) * np.ones(4)
        )
    # Those of the checkpoints: a step writes its arrays together.
    assert len(collectives) == (6 if kind == "embedded" else 0)
