"""Streams: every schedule, in bounded memory, and concurrent writes by the caller."""

import gc
import itertools
import os
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from served_pools import in_memory
from strategies import CHUNK_ORDERS, ORDERS, values
from timeouts import HANG_S

import outcore as oc
from outcore._core import Arena, ArrayFile
from outcore._util.streams import BlockStream, Box, WriteBehind
from outcore.errors import BudgetError, InvalidError, TruncatedError

SHAPE, CHUNKS = (70, 90), (32, 16)


def strips(extent: int, width: int) -> Iterable[slice]:
    return (slice(a, min(a + width, extent)) for a in range(0, extent, width))


SCHEDULES: dict[str, list[Box]] = {
    "rows": [(rows, slice(0, SHAPE[1])) for rows in strips(SHAPE[0], 7)],
    "columns": [(slice(0, SHAPE[0]), columns) for columns in strips(SHAPE[1], 11)],
    "tiles": list(itertools.product(strips(SHAPE[0], 32), strips(SHAPE[1], 16))),
    "pairs of tiles": list(itertools.product(strips(SHAPE[0], 64), strips(SHAPE[1], 32))),
    "overlapping": [(slice(a, a + 40), slice(a, a + 50)) for a in range(0, 31, 3)],
    "again and again": [(slice(5, 9), slice(0, 90))] * 20,
    "single elements": [(slice(i, i + 1), slice(i, i + 1)) for i in range(70)],
    "backwards": [(slice(a, a + 10), slice(0, 90)) for a in range(60, -1, -10)],
}


def make(
    path: Path, order: str = "C", chunk_order: str = "row-major"
) -> np.ndarray[tuple[int, int]]:
    model = values(SHAPE, "f8")
    array = oc.create_array(
        path, SHAPE, chunks=CHUNKS, order=order, chunk_order=chunk_order, reserve=False
    )
    array[...] = model
    return model


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule(tmp_path: Path, order: str, schedule: str) -> None:
    model = make(tmp_path / "A", order)
    array, boxes = oc.open_array(tmp_path / "A"), SCHEDULES[schedule]
    stream = array.stream(boxes)
    assert len(stream) == len(boxes)
    seen = []
    for index, data in stream:
        seen.append(index)
        assert data.dtype == model.dtype
        np.testing.assert_array_equal(data, model[index])
    assert seen == boxes
    assert len(stream) == 0


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("chunk_order", CHUNK_ORDERS)
def test_by_default_every_chunk_once(tmp_path: Path, order: str, chunk_order: str) -> None:
    model = make(tmp_path / "A", order, chunk_order)
    found = np.zeros(SHAPE)
    for index, data in oc.open_array(tmp_path / "A").stream():
        assert not found[index].any()
        found[index] = data
    np.testing.assert_array_equal(found, model)


def test_tight_memory_is_slower_not_wrong(tmp_path: Path) -> None:
    model = make(tmp_path / "A")
    for memory in ["24 KiB", "40 KiB", "100 KiB"]:
        for index, data in oc.open_array(tmp_path / "A").stream(SCHEDULES["tiles"], memory=memory):
            np.testing.assert_array_equal(data, model[index])
            del data


def test_memory_stays_in_the_arena(tmp_path: Path) -> None:
    make(tmp_path / "A", "F")
    array = oc.open_array(tmp_path / "A")
    arena = Arena(200_000)
    stream = BlockStream(array.open_file(arena, 50_000), array.dtype, arena, 140_000)
    stream.extend(SCHEDULES["rows"] + SCHEDULES["overlapping"] + SCHEDULES["tiles"])
    for _, data in stream:
        assert arena.used_bytes <= arena.budget_bytes
        del data
    assert 40_000 < arena.peak_bytes <= arena.budget_bytes
    del stream
    gc.collect()
    assert arena.used_bytes == 0


def test_the_memory_of_blocks_is_used_again(tmp_path: Path) -> None:
    make(tmp_path / "A")
    places = set()
    for _, data in oc.open_array(tmp_path / "A").stream(SCHEDULES["tiles"] * 20, memory="40 KiB"):
        places.add(data.ctypes.data)
        del data
    assert len(places) < 12


def test_a_kept_block_is_not_overwritten(tmp_path: Path) -> None:
    model = make(tmp_path / "A")
    stream = oc.open_array(tmp_path / "A").stream(SCHEDULES["tiles"] * 5, memory="60 KiB")
    index, kept = stream.take()
    corner = kept[:2, :2]
    del kept
    for _, data in stream:
        del data
    np.testing.assert_array_equal(corner, model[index][:2, :2])


def test_keeping_every_block_is_an_error_not_a_hang(tmp_path: Path) -> None:
    model = make(tmp_path / "A")
    stream = oc.open_array(tmp_path / "A").stream(memory="60 KiB")
    kept = []
    with pytest.raises(BudgetError, match=r"need 4096 .* held .* copy") as caught:
        kept.extend(stream)
    assert caught.value.kind == "budget"
    # The error loses no block: once memory is free, the stream continues with the next block.
    left = len(stream)
    for index, data in kept:
        np.testing.assert_array_equal(data, model[index])
    count = len(kept)
    del index, data
    kept.clear()
    for index, data in stream:
        np.testing.assert_array_equal(data, model[index])
        del data
        count += 1
    assert count == len(SCHEDULES["tiles"])
    assert left > 0


def test_a_block_larger_than_the_memory_is_refused(tmp_path: Path) -> None:
    make(tmp_path / "A")
    stream = oc.open_array(tmp_path / "A").stream([(slice(0, 70), slice(0, 90))], memory="40 KiB")
    with pytest.raises(BudgetError, match="need 50400"):
        stream.take()
    with pytest.raises(InvalidError, match="size"):
        oc.open_array(tmp_path / "A").stream(memory="none")


def test_the_schedule_grows_while_it_is_read(tmp_path: Path) -> None:
    model = make(tmp_path / "A")
    stream = oc.open_array(tmp_path / "A").stream([(slice(0, 1), slice(0, 90))])
    row = 0
    for index, data in stream:
        assert index == (slice(row, row + 1), slice(0, 90))
        np.testing.assert_array_equal(data, model[index])
        row += 1
        if row < SHAPE[0]:
            stream.extend([(slice(row, row + 1), slice(0, 90))])
    assert row == SHAPE[0]


@pytest.mark.parametrize(
    "box",
    [
        (slice(0, 10, 2), slice(0, 10)),
        (slice(9, 0, -1), slice(0, 10)),
        (slice(None, None, -1), slice(0, 10)),
        (slice(5, 5), slice(0, 10)),
        (slice(80, 90), slice(0, 10)),
        (slice(0, 1),) * 3,
        (None, None),
    ],
)
def test_boxes_that_are_no_blocks_are_refused(tmp_path: Path, box: Box) -> None:
    make(tmp_path / "A")
    with pytest.raises((InvalidError, IndexError)):
        oc.open_array(tmp_path / "A").stream([box])


def read_all(stream: BlockStream, boxes: list[Box]) -> None:
    stream.extend(boxes)
    for _, data in stream:
        del data


def test_extending_by_boxes_outside_is_refused(tmp_path: Path) -> None:
    make(tmp_path / "A")
    for box in [(slice(60, 80), slice(0, 90)), (slice(0, 2),), (slice(3, 3), slice(0, 9))]:
        stream = oc.open_array(tmp_path / "A").stream([])
        with pytest.raises(InvalidError):
            read_all(stream, [box])


def test_a_file_cut_short_meanwhile_is_an_error(tmp_path: Path) -> None:
    make(tmp_path / "A")
    stream = oc.open_array(tmp_path / "A").stream([])
    os.truncate(tmp_path / "A/c/0/0", 3 * 4096)
    with pytest.raises(TruncatedError, match="the file ends there"):
        read_all(stream, SCHEDULES["tiles"])


def test_a_stream_left_early_gives_its_memory_back(tmp_path: Path) -> None:
    make(tmp_path / "A")
    array, arena = oc.open_array(tmp_path / "A"), Arena(1 << 20)
    stream = BlockStream(array.open_file(arena, 50_000), array.dtype, arena, 500_000)
    stream.extend(SCHEDULES["rows"] * 10)
    _, data = stream.take()
    del stream
    gc.collect()
    assert data.size
    del data
    # Reads in flight hold their memory until they complete.
    deadline = time.monotonic() + HANG_S
    while arena.used_bytes and time.monotonic() < deadline:
        time.sleep(0.01)
    assert arena.used_bytes == 0


def test_writing_behind(tmp_path: Path) -> None:
    model = values(SHAPE, "f8")
    array = oc.create_array(tmp_path / "A", SHAPE, chunks=CHUNKS)
    with WriteBehind(array.open_file(Arena(1 << 20), 1 << 18, writable=True), most=3) as writer:
        for box in SCHEDULES["rows"]:
            writer.write(box, model[box])
    np.testing.assert_array_equal(array[...], model)


@pytest.mark.parametrize("order", ORDERS)
def test_a_read_after_a_write_of_the_same_chunk_sees_it(tmp_path: Path, order: str) -> None:
    """Requests run in the order of submission, although no caller waits between them."""
    array = oc.create_array(tmp_path / "A", (256, 256), chunks=(128, 128), order=order)
    file = array.open_file(Arena(8 << 20), 4 << 20, writable=True)
    tickets = []
    for turn in range(1, 30):
        low = turn % 7
        part = np.full((250, 200), float(turn))
        tickets.append(file.submit_write([low, low], [1, 1], part))
        target = np.empty((250, 200))
        tickets.append(file.submit_read([low, low], [1, 1], target))
        tickets[-1].wait()
        np.testing.assert_array_equal(target, part)
    for ticket in tickets:
        ticket.wait()


def test_the_last_of_overlapping_writes_stays(tmp_path: Path) -> None:
    array = oc.create_array(tmp_path / "A", (256, 256), chunks=(128, 128), order="F")
    file = array.open_file(Arena(8 << 20), 4 << 20, writable=True)
    tickets = [
        file.submit_write([1, 1], [1, 1], np.full((250, 251), float(turn))) for turn in range(40)
    ]
    file.submit_sync().wait()
    assert all(ticket.done() for ticket in tickets), "a sync waits for the writes before it"
    assert (array[1:251, 1:252] == 39).all()
    assert not array[0].any()


def test_an_error_behind_is_raised_at_the_next_call(tmp_path: Path) -> None:
    array = oc.create_array(tmp_path / "A", SHAPE, chunks=CHUNKS)
    reader = array.open_file(Arena(1 << 20), 1 << 18)
    row = (slice(0, 1), slice(0, 90))
    writer = WriteBehind(reader, most=1)
    writer.write(row, np.ones((1, 90)))
    with pytest.raises(oc.OutcoreError, match="open for reading"):
        writer.write(row, np.ones((1, 90)))
    writer = WriteBehind(reader)
    writer.write(row, np.ones((1, 90)))
    with pytest.raises(oc.OutcoreError, match="open for reading"):
        writer.flush(sync=True)
    writer.flush()


def write_and_fail(file: ArrayFile) -> None:
    with WriteBehind(file) as writer:
        writer.write((slice(1, 60), slice(1, 80)), np.ones((59, 79)))
        raise ZeroDivisionError


def test_leaving_with_an_error_keeps_the_first_one(tmp_path: Path) -> None:
    """A write that fails while the file closes does not hide the first error."""
    array = oc.create_array(tmp_path / "A", SHAPE, chunks=CHUNKS)
    for file in [
        array.open_file(Arena(1 << 20), 1 << 18),
        array.open_file(Arena(1), 1, writable=True),
    ]:
        with pytest.raises(ZeroDivisionError):
            write_and_fail(file)


@pytest.mark.parametrize("order", ORDERS)
def test_rows_by_a_list(tmp_path: Path, order: str) -> None:
    model = make(tmp_path / "A", order)
    file = oc.open_array(tmp_path / "A").open_file(Arena(1 << 20), 1 << 16)
    draw = np.random.default_rng(0)
    lists = [draw.permutation(70), draw.integers(0, 70, 200), np.arange(70), np.arange(69, -1, -1)]
    for rows in [*lists, np.array([3]), np.array([], int)]:
        for first, width in ((0, 90), (17, 40)):
            target = np.full((len(rows), 100), -1.0)
            file.submit_read_rows(rows.astype(np.int64), first, target[:, 5 : 5 + width]).wait()
            np.testing.assert_array_equal(
                target[:, 5 : 5 + width], model[rows, first : first + width]
            )
            assert (target[:, :5] == -1).all()
            assert (target[:, 5 + width :] == -1).all()
            across = np.zeros((len(rows), width), order="F")
            file.submit_read_rows(rows.astype(np.int64), first, across).wait()
            np.testing.assert_array_equal(across, model[rows, first : first + width])


def test_rows_that_follow_each_other_are_one_request(tmp_path: Path) -> None:
    model = values((600, 512), "f8")
    array = oc.create_array(tmp_path / "A", model.shape, chunks=(300, 512), reserve=False)
    array[...] = model
    file = array.open_file(Arena(1 << 20), 1 << 16)
    before = file.counters()
    rows = np.array([*range(10, 200), 7, *range(250, 350)])
    # Aligned memory, which the disk uses without a bounce buffer.
    memory = Arena(2 << 20).allocate(len(rows) * 4096)
    target = np.ndarray((len(rows), 512), "f8", memoryview(memory))
    file.submit_read_rows(rows, 0, target).wait()
    bytes_read, _, reads, _ = np.subtract(file.counters(), before)
    assert (bytes_read, reads) == (target.nbytes, 4)
    np.testing.assert_array_equal(target, model[rows])


@pytest.mark.parametrize(
    ("rows", "first", "shape", "message"),
    [
        ([0, 70], 0, (2, 90), "leaves the array"),
        ([0, -1], 0, (2, 90), "no row -1"),
        ([0, 1], 1, (2, 90), "leaves the array"),
        ([0, 1, 2], 0, (2, 90), "need 2 row numbers, have 3"),
        ([0], 0, (90,), "two dimensions, have 1"),
    ],
)
def test_rows_outside_are_refused(
    tmp_path: Path, rows: list[int], first: int, shape: tuple[int, ...], message: str
) -> None:
    make(tmp_path / "A")
    file = oc.open_array(tmp_path / "A").open_file(Arena(1 << 20), 1 << 16)
    target = np.full(shape, -1.0)
    with pytest.raises(InvalidError, match=message):
        file.submit_read_rows(np.array(rows), first, target)
    assert (target == -1).all()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("memory", [None, "32 KiB", "21 KiB"])
def test_boxes_at_the_edge_of_small_chunks(tmp_path: Path, order: str, memory: str | None) -> None:
    """Stream boxes that need a buffer beside their memory, in a budget of a few pages."""
    model = np.arange(40.0).reshape(5, 8)
    # A file system in memory has large sectors.
    with (
        in_memory() as directory,
        oc.create_array(directory / "A", (5, 8), order=order, chunks=(3, 3)) as A,
    ):
        A[...] = model
        for box, block in A.stream(memory=memory):
            np.testing.assert_array_equal(block, model[box])
            del block
