"""Requests for many regions of a pool's file, with many regions of memory."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import outcore as oc
from outcore.errors import InvalidError

SHAPE = (9, 11, 13)
ITEM = 8


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[oc.Pool]:
    with oc.Pool.embedded([tmp_path / "a", tmp_path / "b"]) as opened:
        yield opened


@pytest.fixture
def cube(pool: oc.Pool) -> Iterator[tuple[oc.PoolFile, np.ndarray]]:
    """A file in stripe units of 1000 bytes, and its contents."""
    data = np.random.default_rng(1).normal(size=SHAPE)
    with pool.open("cube", "w", hints={"striping_unit": 1000}) as file:
        file.write(data)
        yield file, data


def messages(pool: oc.Pool, call: Callable[[], object]) -> int:
    before = pool.messages
    call()
    return pool.messages - before


def block(first: tuple[int, int, int]) -> int:
    """Return the first byte of a block of the cube."""
    return int(np.ravel_multi_index(first, SHAPE)) * ITEM


def test_the_papers_block_is_a_nested_request(pool: oc.Pool) -> None:
    """Cettei, Ligon and Ross (1997), figure 3: 1000 bytes of each of three rows of 6000 bytes."""
    data = np.random.default_rng(1).integers(0, 256, (9, 6000), np.uint8)
    with pool.open("f", "w", hints={"striping_unit": 1000}) as file:
        file.write(data)
        found = file.read_nested(3 * 6000 + 2000, 1000, [(3, 6000)])
        assert (found.reshape(3, 1000) == data[3:6, 2000:3000]).all()
        assert (file.read_nested(5, 7, []) == data.ravel()[5:12]).all()
        assert file.read_nested(5, 7, [(3, 10), (0, 1)]).size == 0


def test_a_block_of_three_dimensions_is_one_request(
    pool: oc.Pool, cube: tuple[oc.PoolFile, np.ndarray]
) -> None:
    file, data = cube
    planes, rows = SHAPE[1] * SHAPE[2] * ITEM, SHAPE[2] * ITEM
    # [2:8:2, 1:10:3, 4:9]
    where = (block((2, 1, 4)), 5 * ITEM, [(3, 2 * planes), (3, 3 * rows)])
    out = np.empty((3, 3, 5))
    assert messages(pool, lambda: file.read_nested(*where, out=out)) == 2
    assert (out == data[2:8:2, 1:10:3, 4:9]).all()
    assert messages(pool, lambda: file.write_nested(*where, data=-out)) == 2
    data[2:8:2, 1:10:3, 4:9] *= -1
    assert (file.read_at(0, data.nbytes).view("f8").reshape(SHAPE) == data).all()
    assert file.start_read_nested(*where, out=out).result() is out
    file.start_write_nested(*where, data=out).result()
    assert (file.read_at(0, data.nbytes).view("f8").reshape(SHAPE) == data).all()


def test_lists_of_regions_are_read_to_lists_of_arrays(
    pool: oc.Pool, cube: tuple[oc.PoolFile, np.ndarray]
) -> None:
    file, data = cube
    offsets, lengths = [block((8, 0, 0)), block((0, 1, 0)), 3], [400, 800, 5]
    expected = np.concatenate(
        [data.view(np.uint8).ravel()[at : at + n] for at, n in zip(offsets, lengths, strict=True)]
    )
    # The memory regions end at other places than those of the file: gaps, reversed, empty.
    matrix = np.zeros((30, 20))
    out = [np.zeros(35), matrix[5:25:2, 3:13], np.empty(0), np.zeros(125, np.uint8)[::-1]]
    told: list[object] = []
    assert messages(pool, lambda: told.append(file.read_list(offsets, lengths, out=out))) == 2
    assert told == [out]
    assert b"".join(array.tobytes() for array in out) == expected.tobytes()
    assert not matrix[6:25:2].any()
    assert not matrix[:, :3].any()
    assert not matrix[:, 13:].any()

    pieces = [b"a" * 100, np.full((10, 10), 2.0).T, bytearray(305)]
    assert messages(pool, lambda: file.write_list(offsets, lengths, data=pieces)) == 2
    now = np.frombuffer(b"".join(map(bytes, pieces)), np.uint8)
    for at, n, end in zip(offsets, lengths, np.cumsum(lengths), strict=True):
        data.view(np.uint8).reshape(-1)[at : at + n] = now[end - n : end]
    assert (file.read_at(0, data.nbytes) == data.view(np.uint8).ravel()).all()


def test_other_requests_take_lists_of_arrays_too(cube: tuple[oc.PoolFile, np.ndarray]) -> None:
    file, data = cube
    halves = (np.zeros(40), np.zeros(60))
    assert file.read_at(80, out=halves) is halves
    assert (np.concatenate(halves) == data.ravel()[10:110]).all()
    view = file.view(0, 16, 32)
    view.write_at(8, [np.ones(1), np.full(2, 3.0)])
    data.ravel()[[1, 4, 5]] = [1, 3, 3]
    pair = [np.zeros(5), np.zeros(3)]
    assert view.start_read_at(0, out=pair).result() is pair
    assert (np.concatenate(pair) == data.ravel()[[0, 1, 4, 5, 8, 9, 12, 13]]).all()
    file.write_strided(0, 0, 8, 2, 16, data=[b"\0" * 3, b"\0" * 13])
    data.ravel()[[0, 2]] = 0
    assert (file.read_at(0, data.nbytes).view("f8") == data.ravel()).all()


def test_a_thousand_arrays_are_one_message_to_each_server(pool: oc.Pool) -> None:
    data = np.random.default_rng(2).integers(0, 256, 1 << 20, np.uint8)
    with pool.open("f", "w", hints={"stripe_unit_bytes": "4 KiB"}) as file:
        pieces = np.split(data, np.arange(1000, 1 << 20, 1000))
        assert messages(pool, lambda: file.write_at(0, pieces[::-1])) == 2
        out = [np.empty_like(piece) for piece in pieces[::-1]]
        assert messages(pool, lambda: file.read_at(0, out=out)) == 2
        assert (np.concatenate(out[::-1]) == data).all()


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda f: f.read_nested(0, 1, 5), "a list of \\(count, stride\\)"),
        (lambda f: f.read_nested(0, 1, [(1, 2, 3)]), "a list of \\(count, stride\\)"),
        (lambda f: f.read_nested(0, 1, [(1.5, 2)]), "a list of \\(count, stride\\)"),
        (lambda f: f.read_nested(0, 1, [(-1, 2)]), "at least 0"),
        (lambda f: f.read_nested(0, 1, [(2, 2**62), (2, 2**62)]), "2\\^63"),
        (lambda f: f.read_nested(0, 1, [(1, 1)] * 17), "at most 16 strides"),
        (lambda f: f.read_list([0], 8, out=[np.zeros(1), bytearray(8)]), "have bytearray"),
        (lambda f: f.read_list([0], 8, out=[np.zeros(1), np.zeros(1)]), "8 bytes .* have 16"),
        (lambda f: f.read_list([0], 8, out=[]), "8 bytes .* have 0"),
        (lambda f: f.write_list([0], 8, data=[np.array([None])]), "plain bytes"),
        (lambda f: f.write_list([0], 8, data=[b"1234"]), "8 bytes .* have 4"),
    ],
)
def test_mistakes(
    cube: tuple[oc.PoolFile, np.ndarray], call: Callable[[oc.PoolFile], object], told: str
) -> None:
    file, data = cube
    with pytest.raises(InvalidError, match=told):
        call(file)
    assert (file.read_at(0, data.nbytes).view("f8") == data.ravel()).all()
