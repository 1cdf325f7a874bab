"""The buffers of the block interface: requests are counted, and writes are not lost."""

import gc
import itertools
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from block_cases import (
    BROKEN,
    NO_ROOM,
    Failing,
    box,
    every,
    make,
    small_file,
)
from strategies import values

import outcore as oc
from outcore._core import ArrayFile
from outcore.blocks.array import ArrayStore
from outcore.blocks.cache import Travel
from outcore.errors import (
    BudgetError,
    DiskError,
    DiskFullError,
    InvalidError,
)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("superblock", [(1, 1), (1, 9), (5, 1), (2, 4), (5, 9)])
def test_one_request_a_superblock(tmp_path: Path, order: str, superblock: tuple[int, int]) -> None:
    model = make(tmp_path / "A", order)
    array = oc.open_array(tmp_path / "A")
    with array.blocks(superblock=superblock, buffers=45, read_ahead=False) as B:
        for at in every(B):
            block = B[at]
            np.testing.assert_array_equal(block, model[box(B, at)])
            assert block.flags[f"{order}_CONTIGUOUS"]
        stats = B.stats
    assert stats.reads == stats.misses == math.prod(B.superblocks)
    assert stats.hits == 45 - stats.misses
    assert stats.bytes_read == model.nbytes
    assert (stats.writes, stats.read_ahead) == (0, 0)


def test_chunks_are_read_once_however_blocks_cut_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A superblock costs no more transfers than its chunks, even if blocks are smaller."""
    model = make(tmp_path / "A")
    files = watch_files(monkeypatch)
    for block, superblock, transfers in [
        (None, (1, 9), 45),
        ((8, 5), (2, 18), 45),
        ((32, 30), (1, 3), 45),
        ((16, 90), 1, 45),
    ]:
        with oc.open_array(tmp_path / "A").blocks(block, superblock) as B:
            for at in every(B):
                np.testing.assert_array_equal(B[at], model[box(B, at)])
            assert files[-1].counters()[2] == transfers


def watch_files(monkeypatch: pytest.MonkeyPatch) -> list[ArrayFile]:
    """Record the files opened for block interfaces, so that a test can read their counters."""
    files: list[ArrayFile] = []
    begin = ArrayStore.__init__

    def note(self: ArrayStore, file: ArrayFile, *rest: Any) -> None:
        files.append(file)
        begin(self, file, *rest)

    monkeypatch.setattr(ArrayStore, "__init__", note)
    return files


def test_the_least_recently_used_goes_first(tmp_path: Path) -> None:
    make(tmp_path / "A")
    with oc.open_array(tmp_path / "A").blocks(superblock=(1, 9), buffers=3) as B:
        for i, misses in [(0, 1), (2, 2), (3, 3), (0, 3), (4, 4), (0, 4), (3, 4), (2, 5)]:
            B.read(i, 0)
            assert B.stats.misses == misses, i
        assert B.stats.read_ahead == 0


def walks() -> dict[str, list[tuple[int, int]]]:
    """Paths over a grid of 4 by 5 superblocks, each of which visits all of them."""
    rows = list(np.ndindex(4, 5))
    columns = [(i, j) for j in range(5) for i in range(4)]
    return {"rows": rows, "columns": columns, "up": columns[::-1], "back": rows[::-1]}


@pytest.mark.parametrize("walk", walks())
@pytest.mark.parametrize("buffers", [2, 3])
def test_every_direction_is_read_ahead(tmp_path: Path, walk: str, buffers: int) -> None:
    """Two steps show the direction; then nothing is read on demand, or twice."""
    oc.create_array(tmp_path / "A", (16, 20), chunks=(2, 2))[...] = model = values((16, 20), "f8")
    with oc.open_array(tmp_path / "A").blocks(superblock=(2, 2), buffers=buffers) as B:
        assert B.superblocks == (4, 5)
        for i, j in walks()[walk]:
            for at in itertools.product((2 * i, 2 * i + 1), (2 * j, 2 * j + 1)):
                np.testing.assert_array_equal(B[at], model[box(B, at)])
        stats = B.stats
    # The last steps lead off the edge, so there is no read-ahead.
    assert (stats.reads, stats.misses) == (20, 3)
    assert stats.read_ahead == stats.read_ahead_hits == 17


@pytest.mark.parametrize("step", [-1, 1])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_each_dimension_is_read_ahead(tmp_path: Path, dim: int, step: int) -> None:
    shape = (8, 8, 8)
    oc.create_array(tmp_path / "A", shape, chunks=(1, 1, 1))
    with oc.open_array(tmp_path / "A").blocks(buffers=4) as B:
        for i in range(8)[::step]:
            B.read(*[i if d == dim else 3 for d in range(3)])
        assert (B.stats.misses, B.stats.read_ahead_hits) == (3, 5)


def test_what_is_expected() -> None:
    def last(counts: tuple[int, ...], *visits: tuple[int, ...]) -> tuple[int, ...] | None:
        travel = Travel(counts)
        return [travel.visit(at) for at in visits][-1]

    assert last((9, 9), (0, 0)) is None
    assert last((9, 9), (0, 0), (0, 1)) is None, "one step is no direction"
    assert last((9, 9), (0, 0), (0, 1), (0, 2)) == (0, 3)
    assert last((9, 9), (0, 6), (0, 7), (0, 8)) == (1, 0), "the next line"
    assert last((9, 9), (6, 0), (7, 0), (8, 0)) == (0, 1), "the next column"
    assert last((9, 2), (3, 0), (3, 1), (4, 0)) == (4, 1), "short lines"
    assert last((9, 9), (0, 0), (2, 1), (4, 2)) == (6, 3), "any stride"
    assert last((9, 9), (0, 0), (4, 0), (8, 0)) is None, "beyond the edge"
    assert last((9, 9), (8, 7), (8, 8), (0, 0)) is None
    assert last((9, 9), (0, 2), (0, 1), (0, 0)) is None, "the beginning"
    assert last((9, 9), (1, 1), (5, 5), (1, 1)) is None, "to and fro"


def test_a_wrong_guess_costs_one_read_and_pushes_out_nothing_used(tmp_path: Path) -> None:
    make(tmp_path / "A")
    with oc.open_array(tmp_path / "A").blocks(superblock=(1, 9), buffers=4) as B:
        for i in (0, 1, 2, 0):
            B.read(i, 0)
        assert (B.stats.reads, B.stats.read_ahead, B.stats.read_ahead_hits) == (4, 1, 0)
        B.read(4, 0)  # takes the buffer of 3, which was read ahead unused
        assert B.stats.reads == 5
        for i in (0, 1, 2):
            B.read(i, 0)
        assert (B.stats.misses, B.stats.read_ahead_hits) == (4, 0)


def test_writing_alone_reads_nothing_ahead(tmp_path: Path) -> None:
    model = make(tmp_path / "A")
    with oc.open_array(tmp_path / "A", "r+") as array:
        with array.blocks(superblock=(1, 3)) as B:
            for at in every(B):
                B[at] = -model[box(B, at)]
            assert B.stats.reads == 0
        np.testing.assert_array_equal(array[...], -model)
        assert (B.stats.writes, B.stats.bytes_written) == (15, model.nbytes)


@pytest.mark.parametrize("buffers", [1, 2, 3, 4])
def test_an_update_in_place_reads_and_writes_all_once(tmp_path: Path, buffers: int) -> None:
    model = make(tmp_path / "A")
    with oc.open_array(tmp_path / "A", "r+") as array:
        with array.blocks(superblock=(1, 9), buffers=buffers) as B:
            for at in every(B):
                B[at] = 2 * B[at]
            B.flush()
            stats = B.stats
        np.testing.assert_array_equal(array[...], 2 * model)
    assert (stats.reads, stats.writes) == (5, 5)
    assert stats.bytes_read == stats.bytes_written == model.nbytes
    # The amount of read-ahead depends on the completion of earlier writes.
    assert stats.misses + stats.read_ahead_hits == 5
    assert stats.read_ahead_hits <= (2 if buffers > 1 else 0)


def test_what_is_written_waits_in_the_buffer(tmp_path: Path) -> None:
    model = make(tmp_path / "A")
    with oc.open_array(tmp_path / "A", "r+") as array:
        B = array.blocks(superblock=(1, 9))
        B.write((0, 0), 5.0)
        assert (B[0, 0] == 5).all()
        np.testing.assert_array_equal(array[...], model)
        assert (B.stats.writes, B.stats.reads) == (0, 0)
        B.flush()
        model[:16, :10] = 5
        np.testing.assert_array_equal(array[...], model)
        assert B.stats.bytes_written == 16 * 10 * 8, "no more than was written"
        B.flush()
        assert B.stats.writes == 1, "nothing new"
        B[1, 0] = 6.0
        B.read(2, 0)
        B.read(4, 0)  # needs the buffer
        model[16:32, :10] = 6
        np.testing.assert_array_equal(array[...], model)
        B.close()


def test_blocks_beside_a_written_one_are_read_when_asked_for(tmp_path: Path) -> None:
    model = make(tmp_path / "A")
    with (
        oc.open_array(tmp_path / "A", "r+") as array,
        array.blocks(superblock=(2, 3), buffers=1) as B,
    ):
        B[0, 1] = model[:16, 10:20] = 1.5
        view = B.view(0, 1)
        assert B.stats.reads == 0
        np.testing.assert_array_equal(B[1, 2], model[16:32, 20:30])
        assert (B.stats.writes, B.stats.reads) == (1, 1)
        np.testing.assert_array_equal(B[0, 1], model[:16, 10:20])
        np.testing.assert_array_equal(view, model[:16, 10:20])
        np.testing.assert_array_equal(B[0, 0], model[:16, :10])
        assert (B.stats.reads, B.stats.misses, B.stats.hits) == (1, 2, 3)


def test_a_write_that_fails_is_told_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Failing(monkeypatch, "_write_run", NO_ROOM)
    B = small_file(tmp_path / "f", buffers=2)
    disk.on = True
    B[0], B[2] = 100, 102
    with pytest.raises(DiskFullError, match=r"cannot write .*f: No space.*free some room"):
        B.read(8)  # needs a buffer
    with pytest.raises(DiskFullError):
        B.flush()
    with pytest.raises(DiskFullError):
        B.close()
    assert (B[0] == 100).all()
    assert (B[2] == 102).all()
    disk.on = False
    B.close()
    B.close()
    found = np.fromfile(tmp_path / "f", np.uint8)
    assert found[:8].tolist() == [100, 100, 2, 3, 102, 102, 6, 7]
    assert found[8:].tolist() == list(range(8, 48))


def test_an_error_behind_is_raised_at_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read-ahead needs a buffer whose superblock must be written first, and the write fails."""
    disk = Failing(monkeypatch, "_write_run", BROKEN)
    B = small_file(tmp_path / "f")
    B.read(0)
    B[2] = 77
    B.read(2)
    disk.on = True
    B.read(4)  # now the read-ahead of 6 evicts 2
    for claim in [slot.writing for slot in B._cache._slots.values() if slot.writing]:
        with pytest.raises(DiskError):
            claim.wait()
    with pytest.raises(DiskError, match="cannot write"):
        B.read(5)
    for _ in range(20):
        assert B.read(5).tolist() == [10, 11], "it is told once"
    disk.on = False
    B.close()
    assert np.fromfile(tmp_path / "f", np.uint8)[4:8].tolist() == [77, 77, 6, 7]


def test_a_read_that_fails_can_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Failing(monkeypatch, "_read_run", BROKEN)
    B = small_file(tmp_path / "f", buffers=3)
    disk.on = True
    with pytest.raises(DiskError, match="cannot read"):
        B.read(7)
    disk.on = False
    assert B.read(7).tolist() == [14, 15]
    B.read(8)
    disk.on = True
    with pytest.raises(DiskError):
        B.read(10)
    disk.on = False
    with pytest.raises(DiskError):
        B.read(12)  # its read-ahead failed
    for i in range(10, 24):
        assert B.read(i).tolist() == [2 * i, 2 * i + 1]
    B.close()


def test_an_error_inside_with_is_the_one_that_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Failing(monkeypatch, "_write_run", NO_ROOM)

    def fail(by: type[Exception] | None) -> None:
        with small_file(tmp_path / "f") as B:
            disk.on = True
            B[0] = 1
            interfaces.append(B)
            if by:
                raise by

    interfaces: list[oc.Blocks] = []
    with pytest.raises(ZeroDivisionError):
        fail(ZeroDivisionError)
    with pytest.raises(DiskFullError):
        fail(None)
    disk.on = False
    for B in interfaces:
        B.close()


def test_a_full_disk(small_disk: Path) -> None:
    array = oc.create_array(small_disk / "A", (4096, 4096), chunks=(512, 512), reserve=False)
    ballast = small_disk / "ballast"
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 50 << 20)
    B = array.blocks(superblock=(1, 8))

    def write_all() -> None:
        for at in every(B):
            B[at] = float(1 + at[0])

    with pytest.raises(DiskFullError, match="free some room"):
        write_all()
    ballast.unlink()
    B.flush()
    B.close()
    assert (array[0:1024:512, ::512] == [[1.0], [2.0]]).all()


def test_a_pinned_superblock_is_read_once(tmp_path: Path) -> None:
    model = make(tmp_path / "A")
    with oc.open_array(tmp_path / "A").blocks(
        superblock=(1, 9), buffers=4, pin=[0, 3], read_ahead=False
    ) as B:
        assert B.pinned == {(0, 0), (3, 0)}
        for _ in range(4):
            for at in every(B):
                np.testing.assert_array_equal(B[at], model[box(B, at)])
        # 0 and 3 once; 1, 2 and 4, for which there are two buffers, in every round.
        assert B.stats.reads == 2 + 4 * 3
        B.unpin()
        assert B.pinned == set()
        for i in (1, 0):
            B.read(i, 0)
        assert B.stats.reads == 2 + 4 * 3 + 2, "what is unpinned goes"


def test_ways_to_pin(tmp_path: Path) -> None:
    make(tmp_path / "A")
    with oc.open_array(tmp_path / "A").blocks(superblock=(2, 3), buffers=9) as B:
        assert B.superblocks == (3, 3)
        for given_, found in [
            ((0, 1), {(0, 1)}),
            ({(0, 1), (-1, -1)}, {(0, 1), (2, 2)}),
            (slice(0, 1), {(0, 0), (0, 1), (0, 2)}),
            (np.s_[1:, 0], {(1, 0), (2, 0)}),
            (np.s_[::2, ::-2], {(0, 0), (0, 2), (2, 0), (2, 2)}),
            ([2, (0, 0)], {(2, 0), (2, 1), (2, 2), (0, 0)}),
            (..., set(np.ndindex(3, 3))),
        ]:
            B.pin(given_)
            assert B.pinned == found
            B.unpin(given_)
            assert B.pinned == set()
        B.pin(0)
        B.unpin([(0, 0), (1, 1)])
        assert B.pinned == {(0, 1), (0, 2)}
        for wrong, error in [((3, 0), IndexError), ((0, 0, 0), IndexError), ("x", InvalidError)]:
            with pytest.raises(error):
                B.pin(wrong)


def test_more_pins_than_buffers(tmp_path: Path) -> None:
    make(tmp_path / "A")
    array = oc.open_array(tmp_path / "A")
    with pytest.raises(BudgetError, match=r"need 5 buffers .* have 3; raise buffers="):
        array.blocks(superblock=(1, 9), buffers=3, pin=slice(None))
    with array.blocks(superblock=(1, 9), buffers=3, pin=slice(0, 2)) as B:
        with pytest.raises(BudgetError):
            B.pin([3, 4])
        assert B.pinned == {(0, 0), (1, 0)}
        B.pin(2)
        for i in range(3):
            B.read(i, 0)
        with pytest.raises(BudgetError, match=r"superblock \(4, 0\); all 3 are pinned .* unpin"):
            B.read(4, 0)
        B.unpin(1)
        B.read(4, 0)
        B.read(2, 0)
        assert B.stats.reads == 4


def test_a_view_is_not_overwritten(tmp_path: Path) -> None:
    model = make(tmp_path / "A")
    with oc.open_array(tmp_path / "A").blocks(superblock=(1, 9), buffers=2) as B:
        view = B.view(0, 2)[3:]
        assert not view.flags.writeable
        assert not view.flags.owndata
        for _ in range(2):
            for i in range(1, 5):
                np.testing.assert_array_equal(B[i, 0], model[16 * i : 16 * i + 16, :10])
                np.testing.assert_array_equal(view, model[3:16, 20:30])
        other = B.view(1, 0)
        with pytest.raises(BudgetError, match=r"still viewed.*let go of views"):
            B.read(2, 0)
        del other
        B.read(2, 0)
        kept = B.view(2, 1)
    gc.collect()
    np.testing.assert_array_equal(view, model[3:16, 20:30])
    np.testing.assert_array_equal(kept, model[32:48, 10:20])


def test_views_share_memory_and_see_writes(tmp_path: Path) -> None:
    make(tmp_path / "A")
    with oc.open_array(tmp_path / "A", "r+").blocks() as B:
        one, two = B.view(0, 0), B.view((0, 0))
        assert np.shares_memory(one, two)
        B[0, 0] = 3.0
        assert (one == 3).all()


def test_views_in_turn_are_read_ahead(tmp_path: Path) -> None:
    model = make(tmp_path / "A")
    with oc.open_array(tmp_path / "A").blocks(superblock=(1, 3), buffers=2) as B:
        for at in every(B):
            view = B.view(*at)
            np.testing.assert_array_equal(view, model[box(B, at)])
        assert (B.stats.reads, B.stats.misses) == (15, 3)


def test_the_budget(tmp_path: Path) -> None:
    make(tmp_path / "A")
    array = oc.open_array(tmp_path / "A")
    superblock = 9 * 4096  # blocks of 1280 bytes lie on pages
    for memory in (2 * superblock + (16 << 10), 1 << 20):
        with array.blocks(superblock=(1, 9), memory=memory) as B:
            for at in every(B):
                B.read(*at)
            assert superblock * 2 <= B._arena.peak_bytes <= memory == B.memory_bytes
    with pytest.raises(
        BudgetError, match=r"for 9 buffers of 8192 bytes.* have 49151; give buffers=3, or raise"
    ):
        array.blocks((8, 90), 1, buffers=9, memory=16384 + 4 * 8192 - 1)
    with pytest.raises(BudgetError, match="choose smaller superblocks"):
        array.blocks(superblock=(1, 9), memory=superblock)
    with array.blocks(superblock=(5, 9), buffers=1000) as B:
        assert B.memory_bytes < 1 << 20, "no more buffers than superblocks"
