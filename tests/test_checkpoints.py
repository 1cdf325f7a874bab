"""Checkpoints: a restart checks them as it loads, and uses the newest complete one."""

import json
import shutil
import threading
import tracemalloc
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import xarray
from chosen_cases import examples
from communicators import ThreadComm, ThreadJob
from hypothesis import given
from hypothesis import strategies as st
from served_pools import above, in_memory
from strategies import DTYPES, values
from timeouts import HANG_S

import outcore as oc
from outcore.array.array import Array
from outcore.errors import (
    BudgetError,
    BusyError,
    ClosedError,
    CorruptError,
    DamagedCheckpointWarning,
    DiskError,
    DiskFullError,
    InvalidError,
    NotFoundError,
)
from outcore.files.catalog import find, recognise, remove
from outcore.series import checkpoints, group_transfer
from outcore.series.group_transfer import Ranks
from outcore.storage.volumes import exclusive, place

__all__ = ["above"]  # a fixture

SPECS = {
    "u": oc.ArraySpec((40, 60), "f4", dims=("y", "x"), chunks=(30, 40)),
    "v": oc.ArraySpec((60,), "c16", dims=("x",), chunks=25),
}


def state(number: int) -> dict[str, npt.NDArray[Any]]:
    return {"u": values((40, 60), "f4", number), "v": values((60,), "c16", number + 100)}


def assert_is(found: checkpoints.Restart, number: int) -> None:
    for name, expected in state(number).items():
        assert found[name].dtype == expected.dtype
        np.testing.assert_array_equal(found[name], expected)


def test_the_newest_is_loaded_and_some_are_kept(above: Any) -> None:
    group = oc.ArrayGroup(above / "run", SPECS, keep=3)
    with pytest.raises(NotFoundError, match="no checkpoint"):
        group.restart()
    for number in range(6):
        assert group.checkpoint(state(number), {"step": 10 * number}) == number
        assert group.checkpoints() == list(range(max(0, number - 2), number + 1))
        found = oc.ArrayGroup(above / "run").restart()
        assert (found.number, found.attributes, found.damaged) == (
            number,
            {"step": 10 * number},
            {},
        )
        assert_is(found, number)
    assert {path.name for path in (above / "run/checkpoints").iterdir()} == {
        "zarr.json", "00000003", "00000004", "00000005",
    }  # fmt: skip


def test_it_is_a_group_like_any_other(tmp_path: Path) -> None:
    group = oc.ArrayGroup(tmp_path / "run", SPECS)
    group.timestep(state(1))
    group.checkpoint(state(7), {"step": 7})
    with xarray.open_zarr(tmp_path / "run/checkpoints/00000000") as found:
        assert found["u"].dims == ("y", "x")
        assert found.attrs["step"] == 7
        np.testing.assert_array_equal(found["u"], state(7)["u"])
    with xarray.open_zarr(tmp_path / "run", consolidated=False) as found:
        assert dict(found.sizes) == {"time": 1, "y": 40, "x": 60}
    for name in "uv":
        path = tmp_path / "run/checkpoints/00000000" / name
        assert oc.verify(path, progress=False).checksums == "matched"


def data_files(above: Path, number: int) -> list[Path]:
    found = (above / f"run/checkpoints/{number:08}").rglob("*")
    return sorted(path for path in found if path.is_file())


@examples(30)
@given(st.data())
def test_whatever_is_damaged_the_one_before_is_used(data: st.DataObject) -> None:
    """Change a byte, truncate or remove a file: a restart never loads wrong data.

    Damage to bytes without content is harmless: padding, and the count of openings.
    """
    with in_memory() as above:
        group = oc.ArrayGroup(above / "run", SPECS)
        group.checkpoint(state(0))
        group.checkpoint(state(1), {"step": 1})
        file = data.draw(st.sampled_from(data_files(above, 1)))
        how = data.draw(st.sampled_from(["byte", "end", "gone"]))
        content = bytearray(file.read_bytes())
        at = data.draw(st.integers(0, len(content) - 1))
        if how == "byte":
            content[at] ^= data.draw(st.integers(1, 255))
            file.write_bytes(content)
        elif how == "end":
            file.write_bytes(content[:at])
        else:
            file.unlink()
        found = load_quietly(group)
        assert_is(found, found.number)
        assert found.number == 1 or (found.number == 0 and set(found.damaged) == {1})
        if how != "byte" and file.name not in ("outcore.generation",):
            assert found.number == 0


@pytest.mark.parametrize(
    ("name", "was", "becomes"),
    [
        ("u/zarr.json", '"bytes"', '"bytez"'),
        ("zarr.json", '"step": 1', '"step": 2'),
        ("zarr.json", '"crc32c": ', '"crc32c": 1'),
    ],
)
def test_metadata_that_turned_into_other_metadata_is_damage(
    tmp_path: Path, name: str, was: str, becomes: str
) -> None:
    group = oc.ArrayGroup(tmp_path / "run", SPECS)
    group.checkpoint(state(0))
    group.checkpoint(state(1), {"step": 1})
    file = tmp_path / "run/checkpoints/00000001" / name
    text = file.read_text()
    assert was in text
    file.write_text(text.replace(was, becomes))
    found = load_quietly(group)
    assert_is(found, 0)
    assert set(found.damaged) == {1}


def load_quietly(group: oc.ArrayGroup) -> checkpoints.Restart:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DamagedCheckpointWarning)
        return group.restart()


def test_a_damaged_one_is_told_and_goes_first(tmp_path: Path) -> None:
    group = oc.ArrayGroup(tmp_path / "run", SPECS)
    for number in range(2):
        group.checkpoint(state(number))
    file = tmp_path / "run/checkpoints/00000001/u/c/0/0"
    with file.open("r+b") as opened:
        opened.seek(100)
        opened.write(b"\xff\xfe\xfd")
    with pytest.warns(DamagedCheckpointWarning, match=r"checkpoint 1 of .*CRC-32C"):
        found = group.restart()
    assert_is(found, 0)
    assert "CRC-32C" in found.damaged[1]
    assert group.checkpoint(state(2)) == 2
    assert group.checkpoints() == [0, 2], "the damaged one does not count among the kept"
    for number in (0, 2):
        (tmp_path / f"run/checkpoints/{number:08}/v/c/0").unlink()
    with pytest.warns(DamagedCheckpointWarning), pytest.raises(CorruptError, match="all 2"):
        group.restart()


def test_what_was_written_to_is_not_trusted(tmp_path: Path) -> None:
    group = oc.ArrayGroup(tmp_path / "run", SPECS)
    group.checkpoint(state(0))
    group.checkpoint(state(1))
    oc.open_array(tmp_path / "run/checkpoints/00000001/u", "r+")[0, 0] = 7
    with pytest.warns(DamagedCheckpointWarning, match="written to since"):
        assert_is(group.restart(), 0)


def test_what_failed_leaves_the_ones_before(above: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    group = oc.ArrayGroup(above / "run", SPECS)
    group.checkpoint(state(0))
    writes = []

    def fail(array: Array, *others: Any) -> None:
        writes.append(array)
        if len(writes) % 2 == 0:
            raise DiskError("the disk failed")
        array[...] = 0

    with monkeypatch.context() as patch:
        patch.setattr(group_transfer, "write", fail)
        for _ in range(3):
            with pytest.raises(DiskError, match="the disk failed"):
                group.checkpoint(state(1))
    assert {path.name for path in (above / "run/checkpoints").iterdir()} == {
        "zarr.json",
        "00000000",
    }
    assert_is(group.restart(), 0)
    assert group.checkpoint(state(1)) == 1


def test_left_overs_go_after_the_next(above: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    group = oc.ArrayGroup(above / "run", SPECS)
    group.checkpoint(state(0))

    def stop(*_: Any) -> None:
        raise DiskError("stopped")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "_discard", lambda begun: None)
        patch.setattr(checkpoints, "_publish", stop)
        with pytest.raises(DiskError):
            group.checkpoint(state(1))
    hidden = [p.name for p in (above / "run/checkpoints").iterdir() if p.name.endswith(".part")]
    assert len(hidden) == 1
    assert_is(group.restart(), 0)
    assert group.checkpoint(state(1)) == 1
    assert {path.name for path in (above / "run/checkpoints").iterdir()} == {
        "zarr.json", "00000000", "00000001",
    }  # fmt: skip


def test_a_full_disk(small_disk: Path) -> None:
    group = oc.ArrayGroup(small_disk / "run", {"u": oc.ArraySpec(1_800_000)}, keep=4)
    for number in range(3):
        group.checkpoint({"u": np.full(1_800_000, number)}, {"step": number})
    with pytest.raises(DiskFullError, match="need"):
        group.checkpoint({"u": np.full(1_800_000, 3)}, {"step": 3})
    assert group.checkpoints() == [0, 1, 2]
    assert group.restart().attributes == {"step": 2}
    handle = group.checkpoint({"u": np.full(1_800_000, 3)}, background=True)
    with pytest.raises(DiskFullError, match="need"):
        handle.wait()
    few = oc.ArrayGroup(small_disk / "run", keep=1)
    with pytest.raises(DiskFullError, match="need"):
        few.checkpoint({"u": np.full(1_800_000, 3)})
    assert few.checkpoints() == [0, 1, 2], "nothing goes before there is a newer one"


def test_two_writers_and_two_groups(above: Any) -> None:
    one, other = (oc.ArrayGroup(above / "run", SPECS) for _ in range(2))
    one.checkpoint(state(0))
    assert other.checkpoint(state(1)) == 1
    lock = place(above / "run").below("checkpoints/.writing")
    with exclusive(lock, "a test"), pytest.raises(BusyError, match="a checkpoint"):
        one.checkpoint(state(2))
    groups = [oc.ArrayGroup(above / name, SPECS) for name in ("a", "b")]
    handles = [group.checkpoint(state(n), background=True) for n, group in enumerate(groups)]
    assert [handle.wait() for handle in handles] == [0, 0]
    for number, group in enumerate(groups):
        assert_is(group.restart(), number)


@examples(25)
@given(st.data())
def test_any_arrays(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from("abcd"), min_size=1, unique=True))
    specs, local = {}, {}
    for seed, name in enumerate(names):
        shape = tuple(data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)))
        order = data.draw(st.sampled_from("CF"))
        specs[name] = oc.ArraySpec(shape, data.draw(st.sampled_from(DTYPES)), order=order)
        local[name] = values(shape, specs[name].dtype, seed)
        if data.draw(st.booleans()):
            local[name] = np.asfortranarray(local[name])
    with in_memory() as above, oc.ArrayGroup(above / "run", specs) as group:
        if data.draw(st.booleans()):
            group.checkpoint(local)
        else:
            group.checkpoint(local, background=True).wait()
        group.timestep(local)
        found = oc.ArrayGroup(above / "run").restart()
        for name in names:
            np.testing.assert_array_equal(found[name], local[name])
            np.testing.assert_array_equal(group[name][0], local[name])


class Gate:
    """Delays the writing of arrays until it is opened."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.is_open = threading.Event()
        self.begun = threading.Event()
        self._write = group_transfer.write
        patch.setattr(group_transfer, "write", self)

    def __call__(self, *arguments: Any) -> None:
        self.begun.set()
        assert self.is_open.wait(HANG_S)
        self._write(*arguments)


def test_in_the_background_a_copy_is_written(monkeypatch: pytest.MonkeyPatch, above: Any) -> None:
    """The program may change its arrays at once."""
    gate = Gate(monkeypatch)
    with oc.ArrayGroup(above / "run", SPECS) as group:
        local = state(3)
        handle = group.checkpoint(local, {"step": 3}, background=True)
        assert gate.begun.wait(HANG_S)
        for array in local.values():
            array[...] = 0
        assert not handle.done()
        with pytest.raises(TimeoutError):
            handle.wait(0.01)
        assert group.checkpoints() == []
        gate.is_open.set()
        assert handle.wait() == 0
        assert handle.done()
        assert handle.wait() == 0
        assert_is(group.restart(), 3)


def test_one_at_a_time_and_closing_waits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gate = Gate(monkeypatch)
    group = oc.ArrayGroup(tmp_path / "run", SPECS)
    first = group.checkpoint(state(0), background=True)
    assert gate.begun.wait(HANG_S)
    timer = threading.Timer(0.05, gate.is_open.set)
    timer.start()
    second = group.checkpoint(state(1), background=True)
    assert first.done(), "the next waits for it"
    group.close()
    assert second.done()
    assert second.wait() == 1
    with pytest.raises(ClosedError):
        group.checkpoint(state(2))
    timer.join()


@pytest.mark.parametrize("call", ["checkpoint", "timestep", "restart", "close", "wait"])
def test_errors_in_the_background_are_told_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, call: str
) -> None:
    group = oc.ArrayGroup(tmp_path / "run", SPECS)
    group.checkpoint(state(0))

    def fail(*_: Any) -> None:
        raise DiskError("the disk failed")

    with monkeypatch.context() as patch:
        patch.setattr(group_transfer, "write", fail)
        handle = group.checkpoint(state(1), background=True)
        while not handle.done():
            pass
    calls: dict[str, Any] = {
        "checkpoint": lambda: group.checkpoint(state(2)),
        "timestep": lambda: group.timestep(state(2)),
        "restart": group.restart,
        "close": group.close,
        "wait": handle.wait,
    }
    with pytest.raises(DiskError, match="the disk failed"):
        calls[call]()
    if call != "close":
        assert group.checkpoint(state(2)) == 1
        assert_is(group.restart(), 2)
    group.close()


def test_a_copy_larger_than_the_budget_is_refused(tmp_path: Path) -> None:
    group = oc.ArrayGroup(tmp_path / "run", SPECS)
    need = 40 * 60 * 4 + 60 * 16 + (1 << 20)
    with pytest.raises(
        BudgetError, match=f"need {need} bytes.*have {need - 1}; give memory={need}"
    ):
        group.checkpoint(state(0), background=True, memory=need - 1)
    assert group.checkpoints() == []
    assert group.checkpoint(state(0), background=True, memory=need).wait() == 0


def test_bad_input(tmp_path: Path) -> None:
    group = oc.ArrayGroup(tmp_path / "run", SPECS)
    for attributes, text in [({"outcore": 1}, "own"), ({"x": object()}, "JSON")]:
        with pytest.raises(InvalidError, match=text):
            group.checkpoint(state(0), attributes)
    with pytest.raises(InvalidError, match="need the arrays"):
        group.checkpoint({"u": state(0)["u"]})
    assert not (tmp_path / "run/checkpoints").exists()


def test_several_ranks_fail_together(tmp_path: Path) -> None:
    def work(comm: ThreadComm) -> None:
        group = oc.ArrayGroup(tmp_path / "run", SPECS, comm=comm)
        with pytest.raises(InvalidError, match="need a schema="):
            group.checkpoint(state(0))
        with pytest.raises(InvalidError, match="communicator with Dup"):
            group.checkpoint(state(0), background=True)
        with pytest.raises(NotFoundError, match="no checkpoint"):
            group.restart()

    assert ThreadJob(3).run(work) == [None] * 3
    assert oc.ArrayGroup(tmp_path / "run").checkpoints() == []


def test_ranks_agree() -> None:
    def work(comm: ThreadComm) -> Any:
        ranks = Ranks(comm)
        assert ranks.first(lambda: comm.rank + 5) == 5
        assert ranks.each(lambda: comm.rank) == comm.rank
        with pytest.raises(DiskError, match="only here"):
            ranks.first(lambda: (_ for _ in ()).throw(DiskError("only here")))
        with pytest.raises(DiskError, match="of 2"):
            ranks.each(lambda: fail_on(comm, 2))
        with pytest.raises((InvalidError, KeyboardInterrupt)):
            ranks.each(lambda: interrupt_on(comm, 1))

    def fail_on(comm: ThreadComm, rank: int) -> None:
        if comm.rank == rank:
            raise DiskError(f"of {rank}")

    def interrupt_on(comm: ThreadComm, rank: int) -> None:
        if comm.rank == rank:
            raise KeyboardInterrupt

    assert ThreadJob(3).run(work) == [None] * 3


def test_names_beside_the_checkpoints_do_not_count(tmp_path: Path) -> None:
    group = oc.ArrayGroup(tmp_path / "run", SPECS)
    group.checkpoint(state(0))
    beside = tmp_path / "run/checkpoints"
    (beside / "notes").mkdir()
    (beside / "123").write_text("not a checkpoint")
    assert group.checkpoints() == [0]
    (beside / "00000005").mkdir()
    with pytest.warns(DamagedCheckpointWarning, match="checkpoint 5"):
        assert_is(group.restart(), 0)
    assert group.checkpoint(state(1)) == 6
    assert sorted(p.name for p in beside.iterdir()) == [
        "00000000", "00000006", "123", "notes", "zarr.json",
    ]  # fmt: skip
    assert json.loads((beside / "zarr.json").read_text())["node_type"] == "group"


def test_what_a_killed_writer_leaves_is_known(tmp_path: Path) -> None:
    group = oc.ArrayGroup(tmp_path / "run", SPECS)
    group.checkpoint(state(0))
    beside = tmp_path / "run/checkpoints"
    shutil.copytree(beside / "00000000", beside / ".00000001.0123abcd.part")
    (beside / ".00000001.0123abcd.part/zarr.json").unlink()
    (beside / ".writing").mkdir()
    (beside / ".writing/lock").touch()
    found, is_all = find(tmp_path)
    assert is_all
    left = {Path(entry.path).name for entry in found if entry.kind == "left-over"}
    assert left == {".00000001.0123abcd.part", ".writing"}
    with exclusive(place(beside).below(".writing"), "a test"):
        for name in left:
            entry = recognise(beside / name)
            assert entry is not None
            assert entry.state == "in use"
    group.checkpoint(state(1))
    assert [entry for entry in find(tmp_path)[0] if entry.kind == "left-over"] == []
    (entry,) = [one for one in found if one.path == str(tmp_path / "run")]
    remove(entry)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_a_copy_takes_no_more_than_its_budget(tmp_path: Path, dtype: str) -> None:
    """There is one copy, with or without a conversion to the array's type."""
    group = oc.ArrayGroup(tmp_path / "run", {"u": oc.ArraySpec(1_000_000, "f4")})
    u = np.arange(1_000_000, dtype=dtype)
    need = 4_000_000 + 2 * (4 << 20)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        with pytest.raises(BudgetError):
            group.checkpoint({"u": u}, background=True, memory="2 MiB")
        assert tracemalloc.get_traced_memory()[1] - before < 1_000_000
        handle = group.checkpoint({"u": u}, background=True, memory=need)
        assert tracemalloc.get_traced_memory()[1] - before < 4_000_000 + 1_000_000
        u[...] = 0
        handle.wait()
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(group.restart()["u"], np.arange(1_000_000, dtype="f4"))


def test_ctrl_c_leaves_the_ones_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = oc.ArrayGroup(tmp_path / "run", SPECS)
    group.checkpoint(state(0))
    group.timestep(state(0))

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(group_transfer, "write", stop)
        with pytest.raises(KeyboardInterrupt):
            group.checkpoint(state(1))
        with pytest.raises(KeyboardInterrupt):
            group.timestep(state(1))
    assert {path.name for path in (tmp_path / "run/checkpoints").iterdir()} == {
        "zarr.json", "00000000",
    }  # fmt: skip
    assert not (tmp_path / "run/u/.step").exists()
    assert group.timestep(state(1)) == 1
    assert group.checkpoint(state(1)) == 1
    assert_is(group.restart(), 1)
