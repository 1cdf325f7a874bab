"""The block interface of an array: it behaves like the array in memory; wrong use is refused."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from block_cases import CHUNKS, SHAPE, Case, box, cuts, make, small_file
from chosen_cases import examples
from hypothesis import given
from hypothesis import strategies as st
from stopping import in_a_fork
from strategies import Layout, layouts, values

import outcore as oc
from outcore.errors import (
    ClosedError,
    ForkedError,
    InvalidError,
    ReadOnlyError,
)
from outcore.layout.block_grid import BlockGrid


@examples(80)
@given(data=st.data(), layout=layouts(max_dims=3))
def test_an_array_behaves_as_in_memory(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, layout: Layout
) -> None:
    path = tmp_path_factory.mktemp("blocks") / "A"
    array = oc.create_array(path, **layout.arguments(), reserve=False)
    model = values(layout.shape, layout.dtype, seed=99)
    array[...] = model
    block = data.draw(st.none() | st.tuples(*[st.integers(1, n + 2) for n in layout.shape]))
    cut = data.draw(cuts(layout.shape))
    with array.blocks(block, **cut) as blocks:
        Case(model, data.draw, may_pin=cut["buffers"] > 1).play(blocks)
    np.testing.assert_array_equal(array[...], model)
    array.close()
    np.testing.assert_array_equal(oc.open_array(path)[...], model)


def test_a_read_block_is_a_copy(tmp_path: Path) -> None:
    model = make(tmp_path / "A")
    with oc.open_array(tmp_path / "A", "r+").blocks() as B:
        B[0, 0][...] = 7
        np.testing.assert_array_equal(B[0, 0], model[:16, :10])


def test_wrong_coordinates(tmp_path: Path) -> None:
    make(tmp_path / "A")
    with oc.open_array(tmp_path / "A", "r+").blocks() as B:
        for at in [(5, 0), (0, 9), (-6, 0), (0, -10), (0, 0, 0)]:
            with pytest.raises(IndexError):
                B.read(*at)
            with pytest.raises(IndexError):
                B[at] = 0.0
        for key in [0, (0,), (slice(0, 2), 0), ..., (0, 1.5), (0, "1"), (0, None), (True, 0)]:
            with pytest.raises(InvalidError):
                B[key]
            with pytest.raises(InvalidError):
                B.write(key, 0.0)
        assert B.stats.reads == B.stats.misses == 0


def test_wrong_data(tmp_path: Path) -> None:
    make(tmp_path / "A")
    with oc.open_array(tmp_path / "A", "r+").blocks() as B:
        for data in [np.ones((16, 9)), np.ones((16, 10, 1)), np.ones((16, 10)) * 1j]:
            with pytest.raises(InvalidError):
                B[0, 0] = data
        with pytest.raises(InvalidError):
            B[4, 0] = np.ones((16, 10))  # there are 6 rows left
        B[4, 0] = np.ones((6, 10))
        for out in [np.empty((16, 9)), np.empty((16, 10), "f4")]:
            with pytest.raises(InvalidError, match="need out of shape"):
                B.read(0, 0, out=out)
        fixed = np.empty((16, 10))
        fixed.flags.writeable = False
        odds: list[Any] = [fixed, [[0.0]], 3]
        for odd, have in zip(odds, ["read-only", "have list", "have int"], strict=True):
            with pytest.raises(InvalidError, match=f"need out of shape.*{have}"):
                B.read(0, 0, out=odd)


@pytest.mark.parametrize(
    "arguments",
    [
        {"block": 0}, {"block": (3,)}, {"block": (3, 3, 3)}, {"block": (2.0, 2)},
        {"superblock": (0, 1)}, {"superblock": (1,)}, {"superblock": "ab"},
        {"superblock": True}, {"block": (True, 2)},
        {"buffers": 0}, {"buffers": 1.5}, {"buffers": True},
        {"mode": "w"}, {"memory": "x"}, {"memory": 0},
    ],
    ids=str,
)  # fmt: skip
def test_wrong_arguments(tmp_path: Path, arguments: dict[str, Any]) -> None:
    make(tmp_path / "A")
    with pytest.raises(InvalidError):
        oc.open_array(tmp_path / "A", "r+").blocks(**arguments)


def test_open_for_reading(tmp_path: Path) -> None:
    make(tmp_path / "A")
    with oc.open_array(tmp_path / "A") as array:
        with pytest.raises(ReadOnlyError, match='mode="r\\+"'):
            array.blocks(mode="r+")
        with array.blocks() as B, pytest.raises(ReadOnlyError, match='mode="r\\+"'):
            B[0, 0] = 1.0
    with (
        oc.open_array(tmp_path / "A", "r+").blocks(mode="r") as B,
        pytest.raises(ReadOnlyError),
    ):
        B.write((0, 0), 1.0)
    with small_file(tmp_path / "f", mode="r") as B, pytest.raises(ReadOnlyError):
        B[0] = 1
    B = small_file(tmp_path / "f", mode="r")
    B.flush()
    B.close()


def test_closed(tmp_path: Path) -> None:
    make(tmp_path / "A")
    array = oc.open_array(tmp_path / "A", "r+")
    B = array.blocks()
    B.close()
    F = small_file(tmp_path / "f")
    F.close()
    calls: list[Callable[[oc.Blocks], Any]] = [
        lambda b: b.read(*[0] * len(b.counts)), lambda b: b.view(*[0] * len(b.counts)),
        lambda b: b.write((0,) * len(b.counts), 1), lambda b: b.pin(0), lambda b: b.unpin(),
        lambda b: b.flush(),
    ]  # fmt: skip
    for blocks in (B, F):
        for call in calls:
            with pytest.raises(ClosedError, match="open them again"):
                call(blocks)
        blocks.close()
        assert blocks.stats.reads == 0
    array.close()
    with pytest.raises(ClosedError):
        array.blocks()


def test_a_forked_process_is_told(tmp_path: Path) -> None:
    model = make(tmp_path / "A")
    array = oc.open_array(tmp_path / "A")
    B, F = array.blocks(), small_file(tmp_path / "f")
    B.read(0, 0)
    F.read(0)

    def child() -> None:
        for act in (lambda: B.read(0, 0), lambda: F.read(0), F.flush, F.close):
            with pytest.raises(ForkedError, match="spawn"):
                act()
        with oc.open_array(array.path).blocks() as anew:
            np.testing.assert_array_equal(anew[0, 0], model[:16, :10])

    assert in_a_fork(child) == 0
    F.close()


def test_several_threads_use_one_interface(tmp_path: Path) -> None:
    model = make(tmp_path / "A")
    wrong = []
    with oc.open_array(tmp_path / "A", "r+").blocks(superblock=(2, 2), buffers=3) as B:

        def work(seed: int) -> None:
            draw = np.random.default_rng(seed)
            for _ in range(200):
                at = (int(draw.integers(5)), int(draw.integers(9)))
                if draw.integers(2):
                    B[at] = model[box(B, at)]
                elif not np.array_equal(B[at], model[box(B, at)]):
                    wrong.append(at)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []
    np.testing.assert_array_equal(oc.open_array(tmp_path / "A")[...], model)


def test_what_it_says_of_itself(tmp_path: Path) -> None:
    make(tmp_path / "A")
    with oc.open_array(tmp_path / "A").blocks(superblock=(1, 100)) as B:
        assert (B.shape, B.block, B.counts) == (SHAPE, CHUNKS, (5, 9))
        assert (B.superblock, B.superblocks) == ((1, 9), (5, 1))
        assert "(5, 9) blocks of (16, 10) float64" in repr(B)
    assert BlockGrid.of((5,), 9).block == (5,)
