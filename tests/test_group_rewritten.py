"""xarray and zarr-python write to groups: steps and checkpoints stay valid."""

import json
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray
import zarr

import outcore as oc
from outcore.errors import CorruptError, InvalidError, NotFoundError

SPECS = {"u": oc.ArraySpec(6, dims=("x",)), "v": oc.ArraySpec((2, 6), "i4", dims=("y", "x"))}


def state(number: int) -> dict[str, Any]:
    return {"u": np.arange(6.0) + number, "v": np.full((2, 6), number, "i4")}


def add_variable(path: Path, **options: Any) -> None:
    """Add a variable along the steps; xarray also rewrites their coordinate."""
    with xarray.open_zarr(path) as data:
        data.assign(w=data.u * 2)[["w"]].to_zarr(path, mode="a", **options)


def add_other_variable(path: Path, **options: Any) -> None:
    data = xarray.Dataset({"mask": (("x",), np.arange(6) % 2)}, attrs={"title": "mine"})
    data.to_zarr(path, mode="a", **options)


def add_title(path: Path) -> None:
    with xarray.open_zarr(path) as data:
        data.assign_attrs(title="mine")[[]].to_zarr(path, mode="a")


def add_attribute(path: Path) -> None:
    zarr.open_group(path, mode="r+", use_consolidated=False).attrs["level"] = float("nan")


def add_group(path: Path) -> None:
    below = zarr.open_group(path, mode="r+").create_group("more")
    below.create_array("w", shape=(3,), dtype="f8")


WRITERS: dict[str, Callable[[Path], Any]] = {
    "consolidated": zarr.consolidate_metadata,
    "variable": add_other_variable,
    "variable, not consolidated": lambda path: add_other_variable(path, consolidated=False),
    "title": add_title,
    "attribute": add_attribute,
    "subgroup": add_group,
    "zarr.json gone": lambda path: (path / "zarr.json").unlink(),
}


@pytest.fixture(autouse=True)
def _of_zarr_alone() -> Iterator[None]:
    """Ignore warnings about consolidated metadata, which the specification does not cover yet."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="zarr|xarray")
        warnings.filterwarnings("ignore", "Consolidated metadata")
        yield


def made(path: Path, times: bool = True) -> oc.ArrayGroup:
    group = oc.ArrayGroup(path, SPECS, attributes={"code": "test"})
    for number in range(1, 3):
        group.timestep(state(number), number / 2 if times else None)
    group.checkpoint(state(7), {"step": 7})
    return group


def assert_steps(path: Path, numbers: list[int]) -> None:
    group = oc.ArrayGroup(path)
    assert (group.names, group.steps) == (["u", "v"], len(numbers))
    for name in "uv":
        np.testing.assert_array_equal(group[name][...], [state(n)[name] for n in numbers])


def assert_restarts(path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = oc.ArrayGroup(path).restart()
    assert (found.attributes, found.damaged, set(found.arrays)) == ({"step": 7}, {}, {"u", "v"})
    np.testing.assert_array_equal(found["v"], state(7)["v"])


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("times", [True, False])
def test_steps_go_on_and_checkpoints_stay(tmp_path: Path, writer: str, times: bool) -> None:
    path = tmp_path / "run"
    open_before = made(path, times)
    WRITERS[writer](path)
    assert_steps(path, [1, 2])
    assert_restarts(path)
    for step, group in ((3, oc.ArrayGroup(path, SPECS)), (4, open_before)):
        assert group.timestep(state(step), step / 2 if times else None) == step - 1
    assert_steps(path, [1, 2, 3, 4])
    assert_restarts(path)
    for consolidated in (True, False):
        with xarray.open_zarr(path, consolidated=consolidated) as data:
            assert dict(data.sizes) == {"time": 4, "x": 6, "y": 2}
            np.testing.assert_array_equal(data.u, [state(n)["u"] for n in range(1, 5)])
            assert ("time" in data.coords) == times
            hidden = consolidated and writer.endswith("not consolidated")
            assert ("mask" in data) == (writer.startswith("variable") and not hidden)
            if "mask" in data:
                np.testing.assert_array_equal(data.mask, np.arange(6) % 2)
            assert ("title" in data.attrs) == (writer.startswith(("variable", "title")))
    assert oc.ArrayGroup(path).checkpoint(state(8)) == 1


@pytest.mark.parametrize("consolidated", [True, False])
def test_times_that_xarray_wrote_again_go_on(tmp_path: Path, consolidated: bool) -> None:
    made(tmp_path / "run")
    add_variable(tmp_path / "run", consolidated=consolidated)
    group = oc.ArrayGroup(tmp_path / "run")
    group.timestep(state(3), 1.5)
    assert_steps(tmp_path / "run", [1, 2, 3])
    np.testing.assert_array_equal(group["time"][...], [0.5, 1.0, 1.5])


def replace_times(path: Path) -> None:
    """Write times without outcore's attributes."""
    zarr.open_array(path / "time", mode="r+").attrs.put({"units": "s"})


def drop_zeros(path: Path) -> None:
    """Rewrite times of 0: zarr-python removes the file of such a chunk."""
    add_variable(path)
    assert not (path / "time/c/0").exists()


@pytest.mark.parametrize("write", [replace_times, drop_zeros])
def test_times_that_outcore_cannot_append_to_are_refused(tmp_path: Path, write: Any) -> None:
    """Existing steps stay readable; an append is refused before any write."""
    group = oc.ArrayGroup(tmp_path / "run", SPECS)
    group.timestep(state(1), 0.0)
    group.checkpoint(state(7), {"step": 7})
    write(tmp_path / "run")
    assert_steps(tmp_path / "run", [1])
    assert_restarts(tmp_path / "run")
    for each in (group, oc.ArrayGroup(tmp_path / "run")):
        with pytest.raises(CorruptError, match=r"times at .*/run/time .*other software"):
            each.timestep(state(2), 1.0)
    assert_steps(tmp_path / "run", [1])
    assert group.checkpoint(state(8)) == 1


def test_entries_along_the_steps_leave_the_consolidated_metadata(tmp_path: Path) -> None:
    """Arrays of others keep their length; xarray refuses arrays with different numbers of steps."""
    made(tmp_path / "run", times=False)
    add_variable(tmp_path / "run")
    oc.ArrayGroup(tmp_path / "run").timestep(state(3))
    with xarray.open_zarr(tmp_path / "run") as data:
        assert (set(data.variables), data.sizes["time"]) == ({"u", "v"}, 3)
    assert oc.ArrayGroup(tmp_path / "run").names == ["u", "v"]


def test_a_step_that_not_all_count_is_not_counted_by_others(tmp_path: Path) -> None:
    """A killed call left a step in one array; then another program consolidated the metadata."""
    path = tmp_path / "run"
    group = made(path)
    before = {name: (path / name / "zarr.json").read_bytes() for name in ("v", "time")}
    group.timestep(state(9), 4.5)
    for name, text in before.items():
        (path / name / "zarr.json").write_bytes(text)
    zarr.consolidate_metadata(path)
    assert oc.ArrayGroup(path).steps == 2
    assert oc.ArrayGroup(path).timestep(state(3), 1.5) == 2
    assert_steps(path, [1, 2, 3])
    np.testing.assert_array_equal(oc.ArrayGroup(path)["time"][...], [0.5, 1.0, 1.5])


def test_a_step_that_all_arrays_count_is_there(tmp_path: Path) -> None:
    """The call was killed just before the group's own file."""
    path = tmp_path / "run"
    group = made(path)
    before = (path / "zarr.json").read_bytes()
    group.timestep(state(3), 1.5)
    (path / "zarr.json").write_bytes(before)
    assert_steps(path, [1, 2, 3])


def test_an_array_that_lost_steps_is_not_followed_by_the_others(tmp_path: Path) -> None:
    path = tmp_path / "run"
    group = made(path)
    before = (path / "v/zarr.json").read_bytes()
    group.timestep(state(3), 1.5)
    (path / "v/zarr.json").write_bytes(before)
    with pytest.raises(CorruptError, match=r"need 3 steps in .*/v, have 2"):
        group.timestep(state(4), 2.0)
    assert oc.open_array(path / "u").shape[0] == 3


def overwrite_array(path: Path) -> None:
    shutil.rmtree(path / "v")
    zarr.create_array(path / "v", shape=(2, 6), chunks=(2, 6), dtype="i4")


def garble(path: Path) -> None:
    (path / "zarr.json").write_text("{")


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (garble, "cannot be read"),
        (overwrite_array, r"/v, other software may have rewritten it"),
        (lambda path: shutil.rmtree(path / "u"), r"/u, .*no array"),
    ],
)
def test_restart_needs_the_checkpoints_alone(tmp_path: Path, damage: Any, text: str) -> None:
    path = tmp_path / "run"
    made(path)
    damage(path)
    assert_restarts(path)
    for group in (oc.ArrayGroup(path), oc.ArrayGroup(path, SPECS)):
        assert group.restart(schema={"u": None}).number == 0
        assert (group.checkpoints(), "unreadable" in repr(group)) == ([0], True)
        for call in (lambda g=group: g.timestep(state(3), 1.5), lambda g=group: g.steps):
            with pytest.raises(CorruptError, match=text):
                call()


def test_checkpoints_moved_by_themselves(tmp_path: Path) -> None:
    made(tmp_path / "run")
    (tmp_path / "other").mkdir()
    shutil.move(tmp_path / "run/checkpoints", tmp_path / "other/checkpoints")
    assert_restarts(tmp_path / "other")
    with pytest.raises(NotFoundError, match="no group"):
        oc.ArrayGroup(tmp_path / "other").timestep(state(3))
    assert oc.ArrayGroup(tmp_path / "other", SPECS).checkpoint(state(8)) == 1
    with pytest.raises(NotFoundError, match="no checkpoint"):
        oc.ArrayGroup(tmp_path / "run").restart()


@pytest.mark.parametrize("writer", ["consolidated", "variable", "title", "attribute", "subgroup"])
def test_a_checkpoint_to_which_others_added_something(tmp_path: Path, writer: str) -> None:
    """Attributes that replace its own are damage; additional ones are not."""
    made(tmp_path / "run").checkpoint(state(8), {"step": 8, "t": (1,)})
    path = tmp_path / "run/checkpoints/00000001"
    WRITERS[writer](path)
    group = oc.ArrayGroup(tmp_path / "run")
    if writer == "variable":
        with pytest.warns(oc.errors.DamagedCheckpointWarning, match="checkpoint 1"):
            assert group.restart().number == 0
        return
    found = group.restart()
    assert (found.number, found.attributes) == (1, {"step": 8, "t": (1,)})
    np.testing.assert_array_equal(found["u"], state(8)["u"])


def test_groups_and_checkpoints_of_earlier_versions(tmp_path: Path) -> None:
    """Groups named their arrays in the consolidated metadata; checkpoints had no tags."""
    path = tmp_path / "run"
    made(path)
    for name in "uv":
        (path / name / "outcore.group").unlink()
    file = path / "zarr.json"
    document = json.loads(file.read_text())
    del document["attributes"]["outcore"]["arrays"]
    file.write_text(json.dumps(document))
    file = path / "checkpoints/00000000/zarr.json"
    document = json.loads(file.read_text())
    own = document["attributes"]["outcore"]
    del own["arrays"], own["attributes"]
    own["format"] = 1
    file.write_text(json.dumps(document))
    assert_steps(path, [1, 2])
    assert_restarts(path)


def test_a_foreign_group_is_refused(tmp_path: Path) -> None:
    oc.create_group(tmp_path / "plain")
    oc.create_array(tmp_path / "plain/u", (0, 6), dims=("time", "x"), growing=True)
    with pytest.raises(InvalidError, match=r"not made by oc\.ArrayGroup"):
        oc.ArrayGroup(tmp_path / "plain")
