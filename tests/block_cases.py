"""Arrays, files and failing disks for the tests of the block interface."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from strategies import values

import outcore as oc
from outcore.blocks.file import FileStore

SHAPE, CHUNKS = (70, 90), (16, 10)
"""5 by 9 blocks; the last row of them has 6 rows of elements."""


def make(path: Path, order: str = "C") -> np.ndarray[Any, Any]:
    model = values(SHAPE, "f8")
    with oc.create_array(path, SHAPE, chunks=CHUNKS, order=order, reserve=False) as array:
        array[...] = model
    return model


def box(blocks: oc.Blocks, at: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple(
        slice(i * b, min((i + 1) * b, n))
        for i, b, n in zip(at, blocks.block, blocks.shape, strict=True)
    )


def every(blocks: oc.Blocks) -> list[tuple[int, ...]]:
    return list(np.ndindex(*blocks.counts))


VERBS = ["read", "view", "into", "write", "walk", "walk", "flush", "pin"]


class Case:
    """Random accesses to both the interface and an array in memory."""

    def __init__(
        self, model: np.ndarray[Any, Any], draw: Callable[..., Any], *, may_pin: bool
    ) -> None:
        self.model, self.draw, self.may_pin = model, draw, may_pin

    def play(self, blocks: oc.Blocks) -> None:
        coordinates = st.tuples(*[st.integers(-n, n - 1) for n in blocks.counts])
        for number in range(self.draw(st.integers(0, 30))):
            verb = self.draw(st.sampled_from(VERBS))
            at = self.draw(coordinates)
            number_at = tuple(i % n for i, n in zip(at, blocks.counts, strict=True))
            here = box(blocks, number_at)
            want = self.model[here]
            if verb == "walk":
                self.walk(blocks, number_at)
            elif verb == "read":
                np.testing.assert_array_equal(blocks[at], want)
            elif verb == "view":
                np.testing.assert_array_equal(blocks.view(*at), want)
            elif verb == "into":
                out = np.empty_like(want)
                assert blocks.read(*at, out=out) is out
                np.testing.assert_array_equal(out, want)
            elif verb == "write":
                data = values(want.shape, self.model.dtype, seed=number)
                blocks[at] = data
                self.model[here] = data
            elif verb == "flush":
                blocks.flush()
            else:
                superblock = blocks.superblocks
                some = self.draw(st.tuples(*[st.integers(0, n - 1) for n in superblock]))
                blocks.unpin()
                if self.may_pin:
                    blocks.pin(some)

    def walk(self, blocks: oc.Blocks, at: tuple[int, ...]) -> None:
        """Update blocks one after another in one direction, for read-ahead to find it."""
        dim = self.draw(st.integers(0, len(at) - 1))
        step = self.draw(st.sampled_from([-1, 1]))
        while 0 <= at[dim] < blocks.counts[dim]:
            here = box(blocks, at)
            np.testing.assert_array_equal(blocks[at], self.model[here])
            if self.draw(st.booleans()):
                data = values(self.model[here].shape, self.model.dtype, seed=at[dim])
                blocks[at] = self.model[here] = data
            at = tuple(i + step * (d == dim) for d, i in enumerate(at))


def cuts(shape: tuple[int, ...]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "superblock": st.tuples(*[st.integers(1, 3) for _ in shape]),
            "buffers": st.integers(1, 5),
            "read_ahead": st.booleans(),
        }
    )


class Failing:
    """Makes writes, or reads, of a file fail as a full or broken disk does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, verb: str, error: Exception) -> None:
        self.on = False
        whole = getattr(FileStore, verb)

        def run(store: FileStore, offset: int, run: memoryview) -> None:
            if self.on:
                raise error
            whole(store, offset, run)

        monkeypatch.setattr(FileStore, verb, run)


NO_ROOM = OSError(28, os.strerror(28))
BROKEN = OSError(5, os.strerror(5))


def small_file(path: Path, **arguments: Any) -> oc.BlockInterface:
    """Return 12 superblocks of 4 bytes each, of 2 blocks."""
    if not path.exists():
        np.arange(48, dtype=np.uint8).tofile(path)
    given = {"block": 2, "blocks": 24, "superblock": 2, "dtype": "u1", "mode": "r+"} | arguments
    return oc.BlockInterface(path, **given)
