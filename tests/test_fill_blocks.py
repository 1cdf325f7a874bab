"""The blocks that `fill` gets, and several arrays that one `fill` makes."""

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from stopping import at_line, kill_at_line

import outcore as oc
from outcore.errors import (
    ExistsError,
    FillChangedWarning,
    Interrupted,
    InvalidError,
    JournalError,
)
from outcore.layout.chunk_walk import in_disk_order, runs

SHAPE, CHUNKS = (50, 30), (8, 10)
BUDGET = 120_000
"""Enough for a chunk of each of two arrays."""


def kernels(rows: slice, cols: slice) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    i, j = np.ogrid[rows, cols]
    distance = 1.0 + abs(i - j)
    return 1 / distance, np.exp(1j * distance)


S, K = kernels(slice(0, SHAPE[0]), slice(0, SHAPE[1]))


class Recorder:
    """Both kernels; it records the blocks and can be interrupted."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.calls: list[tuple[slice, ...]] = []
        self._stop_at = stop_at

    def __call__(self, *box: slice) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        if len(self.calls) == self._stop_at:
            raise KeyboardInterrupt
        self.calls.append(box)
        return kernels(*box)


def both(where: Any, fill: Callable[..., Any], **options: Any) -> list[oc.Array]:
    arguments: dict[str, Any] = {"chunks": CHUNKS, "memory": BUDGET, "progress": False} | options
    return oc.create_arrays(
        [where / "S", where / "K"], SHAPE, ["f8", "c16"], fill=fill, **arguments
    )


def is_covered_once(calls: list[tuple[slice, ...]], shape: tuple[int, ...]) -> bool:
    asked = np.zeros(shape, int)
    for box in calls:
        asked[box] += 1
    return bool((asked == 1).all())


@pytest.mark.parametrize("order", ["row-major", "column-major"])
@pytest.mark.parametrize("blocks", [None, (2, 1, 3)])
def test_chunks_are_joined_in_their_order_to_boxes(
    order: str, blocks: tuple[int, ...] | None
) -> None:
    for counts in itertools.product((1, 2, 3), (1, 4), (2, 3)):
        walk = list(in_disk_order(counts, order, blocks))
        for first, most in itertools.product(range(len(walk)), (1, 2, 5, 100)):
            at = first
            for run in runs(counts, order, blocks, first, most):
                assert run.start == at
                assert len(run) <= most
                sides = zip(*(walk[number] for number in run), strict=True)
                assert math.prod(max(side) - min(side) + 1 for side in sides) == len(run)
                at = run.stop
            assert at == len(walk)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(
    ("memory", "boxes"), [(60_000, 21), (8 * 2 * 4096 * 3, 7), (8 * 2 * 4096 * 8, 0), (None, 1)]
)
def test_blocks_are_as_large_as_the_budget_allows(
    tmp_path: Path, order: str, memory: int | None, boxes: int
) -> None:
    fill = Recorder()
    A = oc.create_array(
        tmp_path / "A", SHAPE, chunks=CHUNKS, order=order, memory=memory, progress=False,
        fill=lambda *box: fill(*box)[0],
    )  # fmt: skip
    np.testing.assert_array_equal(A[...], S)
    assert is_covered_once(fill.calls, SHAPE)
    # 7 x 3 chunks; three make a line in row-major order, 7 one in column-major order.
    wanted = {7: 7 if order == "C" else 9, 0: 4 if order == "C" else 3}.get(boxes, boxes)
    assert len(fill.calls) == wanted
    assert isinstance(A.report, oc.Report)
    assert A.report.peak_memory_bytes <= A.report.memory_bytes


def test_blocks_have_a_bound_whatever_the_budget(tmp_path: Path) -> None:
    calls: list[int] = []

    def fill(i: slice) -> npt.NDArray[np.uint8]:
        calls.append(i.stop - i.start)
        return np.zeros(i.stop - i.start, "u1")

    oc.create_array(
        tmp_path / "A", 80 << 20, "u1", chunks=16 << 20, fill=fill, memory="8 GiB", progress=False
    ).close()
    assert calls == [64 << 20, 16 << 20]


def test_a_stopped_assembly_is_resumed_with_another_budget(tmp_path: Path) -> None:
    first, second = Recorder(stop_at=4), Recorder()

    def call(fill: Recorder, memory: int) -> oc.Array:
        return oc.create_array(
            tmp_path / "A", SHAPE, chunks=CHUNKS, memory=memory, progress=False,
            fill=lambda *box: fill(*box)[0],
        )  # fmt: skip

    with pytest.raises(Interrupted):
        call(first, 60_000)
    np.testing.assert_array_equal(call(second, 10_000_000)[...], S)
    assert is_covered_once(first.calls + second.calls, SHAPE)
    # One call up to the end of the second line of chunks, and one for all lines below it.
    assert len(second.calls) == 2


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("order", ["C", "F"])
def test_one_fill_makes_two_arrays(tmp_path: Path, order: str, threads: int) -> None:
    fill = Recorder()
    told: list[float] = []
    s, k = both(
        tmp_path, fill, order=order, threads=threads, memory=threads * BUDGET,
        progress=lambda done, left: told.append(done), dims=("i", "j"), attributes={"ka": 2.0},
    )  # fmt: skip
    assert is_covered_once(fill.calls, SHAPE)
    assert len(fill.calls) == 21
    np.testing.assert_array_equal(s[...], S)
    np.testing.assert_array_equal(k[...], K)
    assert (s.dtype, k.dtype, s.chunks) == (np.float64, np.complex128, k.chunks)
    report = s.report
    assert isinstance(report, oc.Report)
    assert report is k.report
    assert report.verb == "create_arrays"
    assert report.arrays == ["S", "K"]
    assert report.planned_bytes_written == S.nbytes + K.nbytes <= report.bytes_written
    assert report.peak_memory_bytes <= report.memory_bytes
    assert told == sorted(told)
    assert told[-1] == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["K", "S"]


def test_in_a_pool_and_beside_it(tmp_path: Path) -> None:
    with oc.Pool.embedded([tmp_path / "0", tmp_path / "1"]) as pool:
        s, k = oc.create_arrays(
            [tmp_path / "S", pool / "K"], SHAPE, "c16", fill=kernels, progress=False
        )
        np.testing.assert_array_equal(s[...], S)
        np.testing.assert_array_equal(k[...], K)


def test_both_are_resumed(tmp_path: Path) -> None:
    first, second = Recorder(stop_at=9), Recorder()
    with pytest.raises(Interrupted, match="call create_arrays again"):
        both(tmp_path, first)
    with pytest.raises(oc.errors.IncompleteError, match="call create_arrays again"):
        oc.open_array(tmp_path / "K")
    for changed in ({"fill_id": 1}, {"attributes": {"a": 1}}):
        with pytest.raises(JournalError, match=r"fill_id|attributes"):
            both(tmp_path, second, **changed)
    with pytest.raises(JournalError, match="stopped as array 1 of 2"):
        oc.create_arrays(
            [tmp_path / "X", tmp_path / "S"], SHAPE, "f8", fill=second, chunks=CHUNKS,
            progress=False,
        )  # fmt: skip
    assert not (tmp_path / "X").exists()
    s, k = both(tmp_path, second)
    np.testing.assert_array_equal(s[...], S)
    np.testing.assert_array_equal(k[...], K)
    assert is_covered_once(first.calls + second.calls, SHAPE)
    with pytest.raises(Interrupted):
        both(tmp_path / "other", Recorder(stop_at=2))
    with pytest.warns(FillChangedWarning, match="source text") as caught:
        both(tmp_path / "other", kernels)
    assert caught[0].filename == __file__


def test_killed_anywhere(tmp_path: Path) -> None:
    """Kill between the files of the two arrays, and where one is whole and the other is not."""
    pages = (
        "../array/fill.py",
        "../array/create.py",
        "../array/existing.py",
        "../array_files/blocks_done.py",
        "../array/array.py",
    )

    def make(name: str) -> list[oc.Array]:
        return both(tmp_path / name, kernels, chunks=(25, 30), reserve=False)

    with at_line(0, lambda: None, pages) as count:
        make("whole")
    last = count[0]
    found = set()
    for line in [*range(1, last - 60, last // 10), *range(last - 56, last, 8)]:
        assert kill_at_line(line, lambda line=line: make(str(line)), pages)
        places = [tmp_path / str(line) / name / "zarr.json" for name in "SK"]
        is_whole = [path.exists() and '"why"' not in path.read_text() for path in places]
        found.add(tuple(is_whole))
        if not all(is_whole):
            s, k = make(str(line))
            np.testing.assert_array_equal(s[...], S)
            np.testing.assert_array_equal(k[...], K)
    assert found >= {(False, False), (True, False)}


def test_one_that_is_whole_is_kept(tmp_path: Path) -> None:
    """As after a kill between the last steps of both arrays."""
    both(tmp_path, kernels)
    with pytest.raises(ExistsError):
        both(tmp_path, kernels)
    never = Recorder(stop_at=0)
    with pytest.warns(FillChangedWarning):
        s, k = both(tmp_path, never, if_exists="open")
    np.testing.assert_array_equal(k[...], K)
    with pytest.raises(ExistsError, match="fill_id"):
        both(tmp_path, kernels, if_exists="open", fill_id=3)
    with pytest.raises(ExistsError, match="place among the paths"):
        oc.create_arrays(
            [tmp_path / "K", tmp_path / "S"], SHAPE, ["c16", "f8"], fill=kernels, if_exists="open"
        )
    s.close()
    oc.create_array(tmp_path / "K", 3, if_exists="overwrite").close()
    with pytest.raises(ExistsError, match="shape"):
        both(tmp_path, kernels, if_exists="open")
    s, k = both(tmp_path, kernels, if_exists="overwrite")
    np.testing.assert_array_equal(k[...], K)


@pytest.mark.parametrize("is_first", [False, True])
def test_a_kill_before_the_last_is_marked_whole(tmp_path: Path, is_first: bool) -> None:
    stop, name = Recorder(stop_at=20), "S" if is_first else "K"
    both(tmp_path / "whole", kernels)
    with pytest.raises(Interrupted):
        both(tmp_path, stop)
    (tmp_path / name).rename(tmp_path / "gone")
    (tmp_path / "whole" / name).rename(tmp_path / name)
    again = Recorder()
    with pytest.warns(FillChangedWarning):
        s, k = both(tmp_path, again)
    np.testing.assert_array_equal(s[...], S)
    np.testing.assert_array_equal(k[...], K)
    assert len(again.calls) == 1


def test_nothing_is_made_where_one_cannot_be(tmp_path: Path) -> None:
    oc.create_array(tmp_path / "K", SHAPE).close()
    with pytest.raises(ExistsError, match="K exists"):
        both(tmp_path, kernels)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["K"]


def test_mistakes_are_refused(tmp_path: Path) -> None:
    for wrong, message in [
        (lambda r, c: S[r, c], r"must return a tuple of 2 arrays, have none"),
        (lambda r, c: kernels(r, c)[:1], "must return a tuple of 2 arrays, have 1"),
        (lambda r, c: (S[r, c], S[c, r]), "must return shape"),
        (lambda r, c: kernels(r, c)[::-1], "must return float64, have complex128"),
        (3, "fill must be a function"),
    ]:
        with pytest.raises(InvalidError, match=message):
            both(tmp_path, wrong, if_exists="overwrite")  # type: ignore[arg-type]
    for paths, dtype, message in [
        ([tmp_path / "A"], "f8", "at least two paths"),
        (tmp_path / "A", "f8", "at least two paths"),
        ([tmp_path / "A", tmp_path / "A"], "f8", "beside each other"),
        ([tmp_path / "A", tmp_path / "A" / "B"], "f8", "beside each other"),
        ([tmp_path / "A", tmp_path / "B"], ["f8"] * 3, "one for each, have 3"),
    ]:
        with pytest.raises(InvalidError, match=message):
            oc.create_arrays(paths, SHAPE, dtype, fill=kernels)  # type: ignore[arg-type]
    assert not (tmp_path / "A").exists()
