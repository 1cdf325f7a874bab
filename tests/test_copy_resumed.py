"""Stopped copies into arrays: their left-overs, and the resumed call."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import zarr
from command_line import outcore
from source_cases import in_npy
from stopped_copies import CHUNKS, KINDS, MEMORY, MODEL, Fetched, copy, noted, stopped
from stopping import killed_until_whole

import outcore as oc
from outcore.array import existing
from outcore.convert import copy_plan, targets
from outcore.errors import (
    BudgetError,
    ExistsError,
    IncompleteError,
    Interrupted,
    InvalidError,
    JournalError,
    LostError,
)
from outcore.files.catalog import recognise, remove


@pytest.mark.parametrize("kind", KINDS)
def test_a_stopped_copy_of_what_is_in_files_goes_on(
    tmp_path: Path, kind: str, fetched: Fetched
) -> None:
    source = KINDS[kind](tmp_path)
    stopped(source, tmp_path / "A", fetched)
    first = fetched.anew()
    with pytest.raises(IncompleteError, match="again with the same arguments"):
        oc.open_array(tmp_path / "A")
    done = noted(tmp_path / "A")
    assert 1 <= done <= len(first)
    with copy(source, tmp_path / "A") as array:
        np.testing.assert_array_equal(array[...], MODEL)
        again = fetched.anew()
        assert len(again) == array.report.blocks - done, "blocks done are not read again"
        assert not set(first[:done]) & set(again)
        assert array.report.blocks_before == done
        assert f"resumed at block {done} of" in str(array.report)
    assert sorted(p.name for p in (tmp_path / "A").iterdir()) == [
        "c", "outcore.generation", "zarr.json",
    ]  # fmt: skip
    assert oc.open_array(tmp_path / "A").info().state == "whole"
    with pytest.raises(ExistsError):
        copy(source, tmp_path / "A")


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("memory", [96 << 10, MEMORY, 64 << 20])
def test_it_goes_on_in_the_same_blocks_with_another_budget(
    tmp_path: Path, memory: int, order: str, fetched: Fetched
) -> None:
    source = in_npy(MODEL.astype("f4"), tmp_path)
    stopped(source, tmp_path / "A", fetched, order=order, dtype="f8")
    done = noted(tmp_path / "A")
    fetched.anew()
    with copy(source, tmp_path / "A", memory=memory, order=order, dtype="f8") as array:
        np.testing.assert_array_equal(array[...], MODEL)
        assert len(fetched.boxes) == array.report.blocks - done


@pytest.mark.parametrize(("first", "second"), [("unsafe", "same_kind"), ("same_kind", "unsafe")])
def test_blocks_that_may_have_wrapped_are_no_part_of_a_safe_copy(
    tmp_path: Path, first: Any, second: Any, fetched: Fetched
) -> None:
    model = MODEL.astype("i8")
    model[0, 0] += 2**40 if first == "unsafe" else 0
    source = in_npy(model, tmp_path)
    stopped(source, tmp_path / "A", fetched, dtype="i4", casting=first)
    fetched.anew()
    if first == "unsafe":
        with pytest.raises(InvalidError, match=r"have 1099511627776 at \(0, 0\)"):
            copy(source, tmp_path / "A", dtype="i4", casting=second)
        assert oc.open_array(tmp_path / "A", allow_incomplete=True).info().state == "incomplete"
    else:
        done = noted(tmp_path / "A")
        with copy(source, tmp_path / "A", dtype="i4", casting=second) as array:
            np.testing.assert_array_equal(array[...], MODEL)
            assert len(fetched.boxes) == array.report.blocks - done


def test_a_budget_for_smaller_blocks_only_is_refused(tmp_path: Path, fetched: Fetched) -> None:
    model = np.arange(1 << 19, dtype=float).reshape(1024, 512)
    source, chunks = in_npy(model, tmp_path), (64, 64)
    fetched.block_bytes = 1 << 20
    stopped(source, tmp_path / "A", fetched, at=2, memory="4 MiB", chunks=chunks)
    with pytest.raises(
        BudgetError, match=r"need \d+ bytes .* in which it was begun, .* if_exists='overwrite'"
    ):
        copy(source, tmp_path / "A", memory="512 KiB", chunks=chunks)
    with copy(source, tmp_path / "A", memory="4 MiB", chunks=chunks) as array:
        np.testing.assert_array_equal(array[...], model)
        assert array.report.blocks_before > 0
    fetched.block_bytes = 128 << 10
    with copy(source, tmp_path / "B", memory="512 KiB", chunks=chunks) as array:
        np.testing.assert_array_equal(array[...], model)


def test_a_target_that_was_written_to_is_refused(tmp_path: Path, fetched: Fetched) -> None:
    source = in_npy(MODEL, tmp_path)
    for _ in range(2):  # resuming does not count as writing
        stopped(source, tmp_path / "A", fetched)
    with oc.open_array(tmp_path / "A", "r+", allow_incomplete=True) as array:
        array[0, :] = -7.0
    with pytest.raises(JournalError, match=r"A was written to since .* if_exists='overwrite'"):
        copy(source, tmp_path / "A")


def test_what_another_call_left_incomplete_is_no_stopped_copy(tmp_path: Path) -> None:
    source = in_npy(MODEL, tmp_path)
    with copy(source, tmp_path / "A") as array:
        array.mark("incomplete", "another call was stopped")
    (tmp_path / "A" / "outcore.copy").write_text('{"blocks_done": 1}\n')
    with pytest.raises(ExistsError):
        copy(source, tmp_path / "A")


def test_the_attributes_are_those_of_the_last_call(tmp_path: Path, fetched: Fetched) -> None:
    source = in_npy(MODEL, tmp_path)
    stopped(source, tmp_path / "A", fetched)
    copy(source, tmp_path / "A", attributes={"units": "m"}).close()
    assert oc.open_array(tmp_path / "A").attrs == {"units": "m"}


def test_an_array_that_was_half_removed_is_not_gone_on_with(
    tmp_path: Path, fetched: Fetched
) -> None:
    """As if the process had died while it removed the old files, after any of them."""
    source = in_npy(MODEL, tmp_path)
    stopped(source, tmp_path / "A", fetched)
    for name in ("outcore.copy", "c"):
        subprocess.run(["rm", "-r", tmp_path / "A" / name], check=True)
        shutil.copytree(tmp_path / "A", tmp_path / f"A-{name}")
        with copy(source, tmp_path / f"A-{name}") as array:
            np.testing.assert_array_equal(array[...], MODEL)


@pytest.mark.parametrize("record", ["outcore.copy", "outcore.fill"])
def test_the_record_is_removed_first_and_the_metadata_last(record: str) -> None:
    names = ["c", record, "outcore.generation", "zarr.json"]
    removed: list[str] = []
    volume = SimpleNamespace(
        list=lambda name: [(n, False, 0) for n in names], remove=removed.append
    )
    where: Any = SimpleNamespace(path=Path("A"), name="A", volume=volume, inside=lambda name: name)
    existing.remove_array(where)
    assert removed == [record, "c", "outcore.generation", "A"]


def test_a_failure_that_a_note_learns_of_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fetched: Fetched
) -> None:
    """The system reports the error once: the sync at the end succeeds."""
    real, syncs = targets.ArrayTarget.sync, 0

    class Late:
        def done(self) -> bool:
            return False

        def wait(self) -> None:
            raise LostError("a server was started again")

    def sync(target: Any) -> Any:
        nonlocal syncs
        syncs += 1
        return Late() if syncs == 1 else real(target)

    monkeypatch.setattr(targets.ArrayTarget, "sync", sync)
    with pytest.raises(LostError, match="started again"):
        copy(in_npy(MODEL, tmp_path), tmp_path / "A")
    with pytest.raises(IncompleteError):
        oc.open_array(tmp_path / "A")


@pytest.mark.parametrize("kind", ["group", "foreign", "broken"])
def test_what_is_no_array_of_ours_is_there_already(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "A"
    if kind == "group":
        oc.create_group(path)
    elif kind == "foreign":
        zarr.create_array(path, data=MODEL)
    else:
        copy(MODEL, path).close()
        (path / "zarr.json").write_text("{")
    with pytest.raises(ExistsError):
        copy(in_npy(MODEL, tmp_path), path)


def test_the_budget_that_is_named_suffices(tmp_path: Path) -> None:
    side = copy_plan.Side((copy_plan.Cuts(4096, 8), copy_plan.Cuts(4096, 8)), bounces=True)
    steps = [1024, 1024]
    have = 1 << 20
    with pytest.raises(BudgetError, match="in which it was begun") as refused:
        copy_plan.plan_copy(side, side, 8, have, steps)
    need = int(str(refused.value).split()[1])
    assert copy_plan.plan_copy(side, side, 8, need, steps).steps == steps
    for more in range(0, 1 << 20, 4096):
        assert copy_plan.plan_copy(side, side, 8, need + more, steps).depth >= 1


@pytest.mark.parametrize("change", [{"dtype": "f4"}, {"chunks": (10, 8)}, {"order": "F"}])
def test_another_layout_is_refused(
    tmp_path: Path, change: dict[str, Any], fetched: Fetched
) -> None:
    source = in_npy(MODEL, tmp_path)
    stopped(source, tmp_path / "A", fetched)
    with pytest.raises(
        JournalError, match="another shape, type or layout; pass if_exists='overwrite'"
    ):
        copy(source, tmp_path / "A", **change)


def test_without_resume_what_is_there_is_refused(tmp_path: Path, fetched: Fetched) -> None:
    source = in_npy(MODEL, tmp_path)
    stopped(source, tmp_path / "A", fetched)
    with pytest.raises(ExistsError):
        copy(source, tmp_path / "A", resume=False)


def test_what_a_user_made_is_no_stopped_copy(tmp_path: Path) -> None:
    with oc.create_array(tmp_path / "A", MODEL.shape, "f8", chunks=CHUNKS):
        pass
    with pytest.raises(ExistsError):
        copy(in_npy(MODEL, tmp_path), tmp_path / "A")


def test_the_record_of_a_whole_array_counts_no_more(tmp_path: Path) -> None:
    """A process killed between the last two steps left the record; the user has written since."""
    source = in_npy(MODEL, tmp_path)
    copy(source, tmp_path / "A").close()
    (tmp_path / "A" / "outcore.copy").write_text('{"blocks_done": 1}\n')
    with oc.open_array(tmp_path / "A", "r+") as array:
        array[...] = 1.0
    with pytest.raises(ExistsError):
        copy(source, tmp_path / "A")


@pytest.mark.parametrize("text", ["", "{", "[]\n", "{}\n", '{"source": 1}\n', "\x00\n"])
def test_a_damaged_record_is_refused(tmp_path: Path, text: str, fetched: Fetched) -> None:
    source = in_npy(MODEL, tmp_path)
    stopped(source, tmp_path / "A", fetched)
    (tmp_path / "A/outcore.copy").write_text(text)
    with pytest.raises(JournalError, match=r"record of the stopped copy .* if_exists='overwrite'"):
        copy(source, tmp_path / "A")


def test_ctrl_c_stops_and_says_how_to_go_on(tmp_path: Path, fetched: Fetched) -> None:
    source = in_npy(MODEL, tmp_path)
    fetched.anew(5)
    fetched.error = KeyboardInterrupt()
    with pytest.raises(Interrupted, match="again with the same arguments"):
        copy(source, tmp_path / "A")
    first = fetched.anew()
    assert noted(tmp_path / "A") == len(first), "all that was read is durable"
    with copy(source, tmp_path / "A") as array:
        np.testing.assert_array_equal(array[...], MODEL)


def test_what_could_not_be_made_durable_is_not_noted_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fetched: Fetched
) -> None:
    """The third sync fails, once: earlier writes may be lost."""
    real, syncs, good = targets.ArrayTarget.sync, 0, 0

    class Failed:
        def done(self) -> bool:
            return True

        def wait(self) -> None:
            raise LostError("a server was started again")

    def sync(target: Any) -> Any:
        nonlocal syncs, good
        syncs += 1
        if syncs == 3:
            good = noted(tmp_path / "A")
            return Failed()
        ticket = real(target)
        ticket.wait()
        return ticket

    source = in_npy(MODEL, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(targets.ArrayTarget, "sync", sync)
        with pytest.raises(LostError, match="started again"):
            copy(source, tmp_path / "A")
    before, done = fetched.anew(), noted(tmp_path / "A")
    assert 0 < good == done < len(before)
    with copy(source, tmp_path / "A") as array:
        np.testing.assert_array_equal(array[...], MODEL)
        assert len(fetched.boxes) == array.report.blocks - done


def test_in_a_pool(tmp_path: Path, fetched: Fetched) -> None:
    (tmp_path / "d0").mkdir()
    source = in_npy(MODEL, tmp_path)
    with oc.Pool.embedded([tmp_path / "d0"]) as pool:
        fetched.anew(5)
        with pytest.raises(ZeroDivisionError):
            oc.from_array(source, pool / "A", memory="4 MiB", chunks=CHUNKS, progress=False)
        fetched.anew()
        with oc.from_array(
            source, pool / "A", memory="4 MiB", chunks=CHUNKS, progress=False
        ) as array:
            np.testing.assert_array_equal(array[...], MODEL)
            assert array.report.blocks_before > 0
            assert len(fetched.boxes) == array.report.blocks - array.report.blocks_before


def test_it_is_listed_and_removed(tmp_path: Path, fetched: Fetched) -> None:
    stopped(in_npy(MODEL, tmp_path), tmp_path / "A", fetched)
    entry = recognise(tmp_path / "A")
    assert entry is not None
    assert (entry.kind, entry.state) == ("array", "incomplete")
    assert "again with the same arguments" in entry.text
    remove(entry)
    assert not (tmp_path / "A").exists()


SCRIPT = """
import os, sys, time
import outcore as oc
from outcore.array_files import blocks_done
from outcore.convert import rechunk_plan, sources
blocks_done.NOTE_S = 0.0
fetch = sources.Flat.fetch
rechunk_plan._Chain._room = lambda chain, *_: 128

def slow(source, box, out):
    print(*(s.start for s in box), flush=True)
    # However late a kill comes, it finds the last block missing.
    while all(s.stop == n for s, n in zip(box, source.shape)) and not os.path.exists("signalled"):
        time.sleep(0.002)
    time.sleep(0.02)
    return fetch(source, box, out)

sources.Flat.fetch = slow
print("ready", flush=True)
oc.from_array(sys.argv[1], sys.argv[2], memory=256 << 10, chunks=(8, 8), progress=False)
"""


def test_killed_again_and_again(tmp_path: Path, run_python: Callable[..., Any]) -> None:
    """kill -9 at any moment loses no recorded block."""
    source, path = in_npy(MODEL, tmp_path), tmp_path / "A"
    delays_s = [0.0, 0.001, 0.003, 0.01, 0.02, 0.05, 0.1, 0.1]

    def start(is_killed: bool) -> Any:
        if not is_killed:
            (tmp_path / "signalled").touch()
        return run_python(SCRIPT, str(source), str(path))

    killed, read = killed_until_whole(start, path, delays_s)
    assert killed == len(delays_s)
    with oc.open_array(path) as array:
        np.testing.assert_array_equal(array[...], MODEL)
    # Blocks of 8 x 16. Each kill loses at most the blocks in flight and those without a note.
    assert read <= 8 * 3 + 8 * killed


def test_the_command_line_goes_on(tmp_path: Path, fetched: Fetched) -> None:
    source = in_npy(MODEL, tmp_path)
    stopped(source, tmp_path / "A", fetched)
    done = noted(tmp_path / "A")
    again = ("convert", source, tmp_path / "A", "--memory", "262144", "--chunks", "10,13")
    assert f"resumed at block {done}" in outcore(*again).output
