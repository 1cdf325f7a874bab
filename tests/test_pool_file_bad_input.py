"""Mistakes in calls of a pool and its files: each raises an error and changes nothing."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from served_pools import some_pool

import outcore as oc
from outcore import PoolFile
from outcore.errors import InvalidError

BYTES = bytes(range(100))


@pytest.fixture
def pool() -> Iterator[oc.Pool]:
    with some_pool("embedded") as pool:
        with pool.open("f", "w") as f:
            f.write(BYTES)
        yield pool


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda f: f.view(0, 1, 2**62).read_at(20, 4), r"below 2\^63"),
        (lambda f: f.view(0, "a", 4), "group 'a'"),
        (lambda f: f.view(0, 1.5, 4), "group 1.5"),
        (lambda f: f.view(0, 2, 4).read_at("a", 4), "integers of at least 0, have 'a'"),
        (
            lambda f: f.read_at(0, out=bytearray(10)),
            "out= is a NumPy array or a list of them, have bytearray",
        ),
        (
            lambda f: f.read_at(0, 10, out=bytearray(10)),
            "out= is a NumPy array or a list of them, have bytearray",
        ),
        (lambda f: f.read_list([[1, 2], [3]], 4), "one list of integers"),
        (lambda f: f.read_at(1.0, 5), "integers"),
        (lambda f: f.read_at(0, "5"), "integers"),
        (lambda f: f.read_strided(0, None, 1, 1, 1, 1), "integers"),
    ],
)
def test_requests(pool: oc.Pool, call: Callable[[PoolFile], object], told: str) -> None:
    with pool.open("f", "r+") as f:
        with pytest.raises(InvalidError, match=told):
            call(f)
        assert f.read() == BYTES


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda pool: pool.open("g", "w", hints=[1]), "hints= is a dictionary"),
        (lambda pool: pool.open("g", "w", hints={"base": 2**80}), "the hint base"),
        (lambda pool: pool.open("g", None), "mode must be"),
        (lambda pool: pool.chmod("f", -1), "at least 0"),
        (lambda pool: pool.chown("f", 2**40), "that fit"),
        (lambda pool: pool.utime("f", ns=(1, 1.5)), "integers"),
    ],
)
def test_calls(pool: oc.Pool, call: Callable[[oc.Pool], object], told: str) -> None:
    before = pool.stat("f")
    with pytest.raises(InvalidError, match=told):
        call(pool)
    after = pool.stat("f")
    for what in ("mode", "owner", "group", "nbytes"):
        assert getattr(after, what) == getattr(before, what)
    assert pool.ls() == ["f"]


def test_owners_that_stay(pool: oc.Pool) -> None:
    """An owner of -1 stays, as in `os.chown`."""
    before = pool.stat("f")
    pool.chown("f", -1, -1)
    pool.chown("f")
    assert (pool.stat("f").owner, pool.stat("f").group) == (before.owner, before.group)


def test_numbers_of_numpy(pool: oc.Pool) -> None:
    with pool.open("f") as f:
        part = f.view(np.int64(4), np.int8(2), np.uint16(10)).read_at(np.int32(1), np.int64(3))
        assert bytes(part) == BYTES[5:6] + BYTES[14:16]
