"""Assembly by `fill`: in parallel, within a budget, and resumed after any stop."""

import json
import math
import mmap
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from stopping import killed_until_whole
from timeouts import HANG_S

import outcore as oc
from outcore.array import existing
from outcore.array import fill as fill_module
from outcore.array_files import blocks_done
from outcore.errors import (
    BudgetError,
    BusyError,
    ExistsError,
    FillChangedWarning,
    IncompleteError,
    Interrupted,
    InvalidError,
    JournalError,
    LostError,
)

SHAPE, CHUNKS = (50, 30), (8, 10)
BLOCKS = math.ceil(SHAPE[0] / CHUNKS[0]) * math.ceil(SHAPE[1] / CHUNKS[1])


def element(rows: slice, cols: slice) -> npt.NDArray[np.float64]:
    i, j = np.ogrid[rows, cols]
    return np.asarray(np.sin(i * 0.1) + j, dtype=float)


CHUNK_MEMORY = 60_000
"""A budget for a thread that assembles one chunk of a page at a time."""

WHOLE = element(slice(0, SHAPE[0]), slice(0, SHAPE[1]))


class Recorder:
    """A `fill` that records its calls and can fail at one of them."""

    def __init__(self, fail_at: int = -1, error: BaseException | None = None) -> None:
        self.calls: list[tuple[int, int]] = []
        self._fail_at, self._error = fail_at, error

    def __call__(self, rows: slice, cols: slice) -> npt.NDArray[np.float64]:
        if len(self.calls) == self._fail_at and self._error is not None:
            raise self._error
        self.calls.append((rows.start, cols.start))
        return element(rows, cols)


def assemble(path: Path, fill: Callable[..., Any], **options: Any) -> oc.Array:
    arguments: dict[str, Any] = {"chunks": CHUNKS, "progress": False, "reserve": False} | options
    # So little memory that each block is one chunk.
    arguments.setdefault("memory", arguments.get("threads", 1) * CHUNK_MEMORY)
    return oc.create_array(path, SHAPE, arguments.pop("dtype", "f8"), fill=fill, **arguments)


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("order", ["C", "F"])
def test_every_block_is_asked_for_once(tmp_path: Path, threads: int, order: str) -> None:
    fill = Recorder()
    array = assemble(tmp_path / "A", fill, threads=threads, order=order)
    np.testing.assert_array_equal(array[...], WHOLE)
    assert len(fill.calls) == len(set(fill.calls)) == BLOCKS
    assert array.info().state == "whole"
    assert array.mode == "r+"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["A"]
    assert sorted(p.name for p in (tmp_path / "A").iterdir()) == [
        "c", "outcore.generation", "zarr.json",
    ]  # fmt: skip


def test_threads_call_at_the_same_time(tmp_path: Path) -> None:
    together = threading.Barrier(3, timeout=HANG_S)

    def fill(rows: slice, cols: slice) -> npt.NDArray[np.float64]:
        together.wait()
        return element(rows, cols)

    assert BLOCKS % 3 == 0
    np.testing.assert_array_equal(assemble(tmp_path / "A", fill, threads=3)[...], WHOLE)


def test_a_fill_may_return_the_same_memory_each_time(tmp_path: Path) -> None:
    # Whole pages, which the disk takes without a copy.
    work = np.frombuffer(mmap.mmap(-1, 512 * 512 * 8)).reshape(512, 512)

    def fill(rows: slice, cols: slice) -> npt.NDArray[np.float64]:
        work[...] = rows.start + cols.start
        return work

    array = oc.create_array(
        tmp_path / "A", (2048, 2048), chunks=(512, 512), fill=fill, memory="8 MiB"
    )
    corners = np.arange(0, 2048, 512)
    for block in (array[::512, ::512], array[511::512, 511::512]):
        np.testing.assert_array_equal(block, corners[:, None] + corners)


def test_any_dimensions_and_types(tmp_path: Path) -> None:
    model = np.arange(3 * 4 * 5, dtype="u2").reshape(3, 4, 5)
    array = oc.create_array(
        tmp_path / "A", model.shape, "u2", chunks=(2, 3, 5), fill=lambda *box: model[box]
    )
    np.testing.assert_array_equal(array[...], model)
    line = oc.create_array(tmp_path / "B", 9, "c8", chunks=(4,), fill=lambda i: np.arange(9.0)[i])
    np.testing.assert_array_equal(line[...], np.arange(9))


@pytest.mark.parametrize("threads", [1, 3])
def test_after_an_error_in_fill_it_goes_on(tmp_path: Path, threads: int) -> None:
    first = Recorder(fail_at=10, error=ZeroDivisionError("user's own"))
    with pytest.raises(ZeroDivisionError, match="user's own"):
        assemble(tmp_path / "A", first, threads=threads)
    with pytest.raises(IncompleteError, match="create_array again"):
        oc.open_array(tmp_path / "A")
    with pytest.raises(IncompleteError):
        oc.open_array(tmp_path / "A", "r+")
    second = Recorder()
    array = assemble(tmp_path / "A", second, threads=threads)
    np.testing.assert_array_equal(array[...], WHOLE)
    assert len(second.calls) <= BLOCKS - 10 + threads, "blocks done are not asked for again"
    if threads == 1:
        assert not set(first.calls) & set(second.calls)
    assert oc.open_array(tmp_path / "A").info().state == "whole"


def test_ctrl_c_stops_and_says_how_to_go_on(tmp_path: Path) -> None:
    calls = Recorder()

    def fill(rows: slice, cols: slice) -> npt.NDArray[np.float64]:
        if len(calls.calls) == 6:
            signal.raise_signal(signal.SIGINT)
            time.sleep(0.2)
        return calls(rows, cols)

    with pytest.raises(Interrupted, match="create_array again"):
        assemble(tmp_path / "A", fill)
    again = Recorder()
    with pytest.warns(FillChangedWarning):
        array = assemble(tmp_path / "A", again)
    np.testing.assert_array_equal(array[...], WHOLE)
    assert len(again.calls) < BLOCKS
    assert not set(again.calls) & set(calls.calls[:6])


SCRIPT = """
import os, sys, time
import numpy as np
import outcore as oc
import outcore.array_files.blocks_done
outcore.array_files.blocks_done.NOTE_S = 0.0
calls = []

def fill(rows, cols):
    calls.append(rows)
    print(rows.start, cols.start, flush=True)
    while {held} and not os.path.exists("signalled"):
        time.sleep(0.002)
    time.sleep({pause})
    i, j = np.ogrid[rows, cols]
    return np.sin(i * 0.1) + j

print("ready", flush=True)
oc.create_array(sys.argv[1], {shape}, chunks={chunks}, fill=fill, reserve=False, memory=60_000)
"""
RunPython = Callable[..., "subprocess.Popen[str]"]


def test_sigterm_is_like_ctrl_c(tmp_path: Path, run_python: RunPython) -> None:
    script = SCRIPT.format(pause=0.05, held="len(calls) == 5", shape=SHAPE, chunks=CHUNKS)
    run = run_python(script, str(tmp_path / "A"))
    assert run.stdout is not None
    first = [run.stdout.readline() for _ in range(6)][1:]
    run.terminate()
    (tmp_path / "signalled").touch()
    rest, errors = run.communicate(timeout=HANG_S)
    assert "Interrupted" in errors
    assert "create_array again" in errors
    done = [*first, *rest.splitlines(keepends=True)]
    again = Recorder()
    with pytest.warns(FillChangedWarning):
        array = assemble(tmp_path / "A", again)
    np.testing.assert_array_equal(array[...], WHOLE)
    assert BLOCKS - len(done) <= len(again.calls) <= BLOCKS - 4


def test_killed_again_and_again(tmp_path: Path, run_python: RunPython) -> None:
    """kill -9 at any moment, from the creation of the files on, loses no noted block."""
    path, delays_s = tmp_path / "A", [0.0, 0.001, 0.003, 0.01, 0.02, 0.03, 0.05, 0.1]
    # However late a kill comes, it finds the last block missing.
    held = "(rows.stop, cols.stop) == " + str(SHAPE)
    script = SCRIPT.format(pause=0.02, held=held, shape=SHAPE, chunks=CHUNKS)

    def start(is_killed: bool) -> "subprocess.Popen[str]":
        if not is_killed:
            (tmp_path / "signalled").touch()
        return run_python(script, str(path))

    killed, asked = killed_until_whole(start, path, delays_s)
    assert killed == len(delays_s)
    # Each kill loses at most the requested blocks without a note.
    assert asked <= BLOCKS + 4 * killed
    np.testing.assert_array_equal(oc.open_array(path)[...], WHOLE)
    assert sorted(p.name for p in path.iterdir()) == ["c", "outcore.generation", "zarr.json"]


@pytest.mark.parametrize("made", range(5))
def test_killed_while_the_files_are_made(tmp_path: Path, made: int) -> None:
    """As if a kill hit after this many of the files, in the middle of another."""
    path = tmp_path / "A"
    with pytest.raises(ZeroDivisionError):
        assemble(path, Recorder(fail_at=0, error=ZeroDivisionError()))
    for later in ["outcore.generation", "c", "zarr.json", "outcore.fill"][made:]:
        subprocess.run(["rm", "-r", path / later], check=True)
    (path / "zarr.json.123.new").write_text("{")
    np.testing.assert_array_equal(assemble(path, Recorder())[...], WHOLE)
    assert sorted(p.name for p in path.iterdir()) == ["c", "outcore.generation", "zarr.json"]


def test_no_more_than_the_last_moments_are_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks_done, "NOTE_S", 0.0)
    fill = Recorder()
    seen = []

    def watched(rows: slice, cols: slice) -> npt.NDArray[np.float64]:
        seen.append(
            json.loads((tmp_path / "A/outcore.fill").read_text().splitlines()[-1])["blocks_done"]
        )
        return fill(rows, cols)

    assemble(tmp_path / "A", watched)
    assert seen[-1] >= BLOCKS - 4
    assert seen == sorted(seen)


def test_what_could_not_be_made_durable_is_not_noted_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Forgetful:
        """A file whose third sync fails, once: earlier writes may be lost."""

        def __init__(self, file: Any) -> None:
            self._file, self._syncs = file, 0

        def submit_write(self, *arguments: Any) -> Any:
            return self._file.submit_write(*arguments)

        def submit_sync(self) -> Any:
            self._syncs += 1
            return self if self._syncs == 3 else self._file.submit_sync()

        def done(self) -> bool:
            return True

        def wait(self) -> None:
            raise LostError("a server was started again")

    monkeypatch.setattr(blocks_done, "NOTE_S", 0.0)
    writer = fill_module.Writer
    monkeypatch.setattr(fill_module, "Writer", lambda file, *rest: writer(Forgetful(file), *rest))
    first, second = Recorder(), Recorder()
    with pytest.raises(LostError, match="started again"):
        assemble(tmp_path / "A", first, threads=1)
    noted = json.loads((tmp_path / "A/outcore.fill").read_text().splitlines()[-1])["blocks_done"]
    assert 0 < noted < len(first.calls)
    monkeypatch.undo()
    array = assemble(tmp_path / "A", second, threads=1)
    assert len(second.calls) == BLOCKS - noted
    np.testing.assert_array_equal(array[...], WHOLE)


@pytest.mark.parametrize(
    ("fill", "message"),
    [
        (lambda rows, cols: np.ones(3), "must return shape"),
        (lambda rows, cols: element(rows, cols).T, "must return shape"),
        (lambda rows, cols: element(rows, cols) * 1j, "must return float64"),
        (lambda rows, cols: element(rows, cols).astype(str), "must return float64"),
        (lambda rows, cols: None, "must return"),
    ],
)
def test_a_wrong_fill_is_refused(tmp_path: Path, fill: Callable[..., Any], message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        assemble(tmp_path / "A", fill)
    # After the fix, the same call resumes.
    np.testing.assert_array_equal(assemble(tmp_path / "A", Recorder())[...], WHOLE)


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "f4"},
        {"chunks": (10, 10)},
        {"order": "F"},
        {"chunk_order": "column-major"},
        {"dims": ("i", "j")},
    ],
)
def test_another_array_is_not_gone_on_with(tmp_path: Path, change: dict[str, Any]) -> None:
    with pytest.raises(ZeroDivisionError):
        assemble(tmp_path / "A", Recorder(fail_at=5, error=ZeroDivisionError()))
    with pytest.raises(JournalError, match="if_exists='overwrite'"):
        assemble(tmp_path / "A", Recorder(), **change)
    anew = Recorder()
    array = assemble(tmp_path / "A", anew, if_exists="overwrite", **change)
    np.testing.assert_array_equal(array[...], WHOLE.astype(array.dtype))
    assert len(set(anew.calls)) == len(anew.calls) == len(list(array.chunk_boxes()))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"blocks_done": -1}', '{"blocks_done": 1000}',
                                  '{"blocks_done": null}', "\x00"])  # fmt: skip
def test_a_damaged_record_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ZeroDivisionError):
        assemble(tmp_path / "A", Recorder(fail_at=5, error=ZeroDivisionError()))
    (tmp_path / "A/outcore.fill").write_text(text)
    with pytest.raises(JournalError, match="if_exists='overwrite'"):
        assemble(tmp_path / "A", Recorder())


def test_a_torn_line_of_the_record_is_passed_over(tmp_path: Path) -> None:
    first = Recorder(fail_at=5, error=ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        assemble(tmp_path / "A", first)
    with (tmp_path / "A/outcore.fill").open("ab") as file:
        file.write(b'{"blocks_done": 1')
    again = Recorder()
    np.testing.assert_array_equal(assemble(tmp_path / "A", again)[...], WHOLE)
    assert not set(first.calls) & set(again.calls)


def test_without_resume_what_is_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        assemble(tmp_path / "A", Recorder(fail_at=5, error=ZeroDivisionError()))
    with pytest.raises(ExistsError):
        assemble(tmp_path / "A", Recorder(), resume=False)


def test_a_filled_array_is_not_filled_again(tmp_path: Path) -> None:
    assemble(tmp_path / "A", Recorder())
    with pytest.raises(ExistsError):
        assemble(tmp_path / "A", Recorder())


def test_two_assemblies_of_one_array(tmp_path: Path) -> None:
    inside: list[BaseException] = []

    def fill(rows: slice, cols: slice) -> npt.NDArray[np.float64]:
        if not inside:
            with pytest.raises(BusyError, match="in use") as caught:
                assemble(tmp_path / "A", Recorder(), if_exists="overwrite")
            inside.append(caught.value)
        return element(rows, cols)

    np.testing.assert_array_equal(assemble(tmp_path / "A", fill)[...], WHOLE)
    assert len(inside) == 1


def test_unusable_arguments(tmp_path: Path) -> None:
    for options in [{"fill": 3}, {"threads": 0}, {"memory": "big"}, {"memory": -1}]:
        with pytest.raises(InvalidError):
            assemble(tmp_path / "A", **({"fill": element} | options))
    with pytest.raises(BudgetError, match="need"):
        assemble(tmp_path / "A", element, threads=4, memory=2000)
    assert os.listdir(tmp_path) == []


def test_blocks_stay_in_the_budget(tmp_path: Path) -> None:
    array = assemble(tmp_path / "A", element, threads=2, memory="64 KiB", chunks=(32, 16))
    np.testing.assert_array_equal(array[...], WHOLE)


def test_progress_reaches_the_end(tmp_path: Path) -> None:
    told: list[float] = []
    assemble(tmp_path / "A", element, progress=lambda done, left: told.append(done))
    assert told[-1] == 1.0


def test_nothing_takes_the_place_of_what_is_being_assembled(tmp_path: Path) -> None:
    busy = threading.Event()
    over = threading.Event()

    def slow(rows: slice) -> Any:
        busy.set()
        assert over.wait(HANG_S)
        return np.ones(rows.stop - rows.start)

    def assemble() -> None:
        oc.create_array(tmp_path / "A", 8, chunks=4, fill=slow, progress=False).close()

    thread = threading.Thread(target=assemble)
    thread.start()
    try:
        assert busy.wait(HANG_S)
        for replace in (
            lambda: oc.create_array(tmp_path / "A", 3, if_exists="overwrite"),
            lambda: oc.create_group(tmp_path / "A", if_exists="overwrite"),
            lambda: oc.from_array(
                np.ones(3), tmp_path / "A", if_exists="overwrite", progress=False
            ),
        ):
            with pytest.raises(BusyError, match="is being made by another"):
                replace()
    finally:
        over.set()
        thread.join()
    assert (oc.open_array(tmp_path / "A")[...] == 1).all()


@pytest.mark.parametrize("copy", [False, True])
def test_an_interrupt_while_files_are_made_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copy: bool
) -> None:
    def stop(*arguments: object) -> None:
        raise KeyboardInterrupt

    def make() -> oc.Array:
        if copy:
            return oc.from_array(np.ones(8), tmp_path / "A", if_exists="overwrite", progress=False)
        return oc.create_array(tmp_path / "A", 8, fill=lambda rows: np.ones(8), progress=False)

    with monkeypatch.context() as patched:
        patched.setattr(existing, "write_first_generation", stop)
        with pytest.raises(Interrupted, match="again with"):
            make()
    assert (make()[...] == 1).all()


def test_what_it_took_is_reported(tmp_path: Path) -> None:
    """Report the whole assembly, or the part that a resumed call did."""
    array = assemble(tmp_path / "A", Recorder(), threads=1)
    report = array.report
    assert isinstance(report, oc.Report)
    assert report.verb == "create_array"
    assert report.bytes_written >= report.planned_bytes_written == WHOLE.nbytes
    assert 0 < report.peak_memory_bytes <= report.memory_bytes
    assert report.seconds >= report.io_seconds > 0
    assert report.notes == []
    assert "GFLOP" not in str(report)
    with pytest.raises(ZeroDivisionError):
        assemble(tmp_path / "B", Recorder(BLOCKS - 2, ZeroDivisionError()), threads=1)
    rest = assemble(tmp_path / "B", Recorder(), threads=1).report
    assert isinstance(rest, oc.Report)
    assert rest.notes[0].startswith("resumed at block ")
    assert rest.planned_bytes_written is not None
    assert 0 < rest.planned_bytes_written < WHOLE.nbytes
