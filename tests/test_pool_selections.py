"""Selections of arrays in a pool: few messages for each, and the same elements as NumPy."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chosen_cases import examples
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from strategies import Layout, layouts, selections, values

import outcore as oc

SERVERS = 3
EACH = examples(40, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[oc.Pool]:
    home = tmp_path_factory.mktemp("pool")
    with oc.Pool.embedded([home / name for name in "abc"]) as opened:
        yield opened


class Messages:
    """Count the messages that the pool sends within a block."""

    def __init__(self, pool: oc.Pool) -> None:
        self._pool = pool
        self.count = -1

    def __enter__(self) -> "Messages":
        self._before = self._pool.messages
        return self

    def __exit__(self, *_: object) -> None:
        self.count = self._pool.messages - self._before


GAPS = [
    np.s_[::-3, 1::2],
    np.s_[::2],
    np.s_[:, 5],
    np.s_[:, ::-7],
    np.s_[1:450:5, 3:20],
    np.s_[-1, ::2],
    np.s_[13:490, 11:690:13],
]


def test_an_array_is_made_and_opened_by_few_messages(pool: oc.Pool) -> None:
    # A new small file takes a write and a sync; one that replaces another also removes that one.
    new, replaced, opened = 2, 3, 3 + 1  # Lengths on three servers, and the index.
    free, shard = 3, 3 + 1 + 3  # Lengths, the index, syncs.
    making = free + new + shard + new + opened
    with Messages(pool) as made:
        array = oc.create_array(pool / "made", (64, 64))
    assert made.count == making
    assert array.info().generation == 1, "its making counts"
    # The length and the bytes of `zarr.json`.
    with Messages(pool) as found:
        again = oc.open_array(pool / "made", "r+")
    assert found.count == 2 + opened
    assert again.metadata == array.metadata
    # The first write also reads and replaces the generation.
    for expected in (2 + replaced + 1, 1):
        with Messages(pool) as written:
            again[0, 0] = 1
        assert written.count == expected
    again.close()
    array.close()
    # The removal of data files on three servers, and of two small files.
    with Messages(pool) as remade:
        oc.create_array(pool / "made", (64, 64), if_exists="overwrite").close()
    assert remade.count == 3 + 2 + making


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("chunks", [(500, 700), (128, 200), (50, 30)])
def test_a_selection_with_gaps_is_one_message_to_each_server(
    pool: oc.Pool, order: str, chunks: tuple[int, int]
) -> None:
    data = values((500, 700), "f8", seed=1)
    with oc.from_array(data, pool / "A", order=order, chunks=chunks, progress=False) as A:
        assert A.metadata.grid().shards == 1
        for seed, key in enumerate(GAPS):
            with Messages(pool) as reading:
                found = A[key]
            assert (found == data[key]).all()
            data[key] = values(data[key].shape, "f8", seed=seed + 2)
            with Messages(pool) as writing:
                A[key] = data[key]
            assert min(reading.count, writing.count) >= 1, key
            assert max(reading.count, writing.count) <= SERVERS, key
        assert (A[...] == data).all()
    pool.rm("A", recursive=True)


def test_each_shard_file_is_a_request_of_its_own(pool: oc.Pool) -> None:
    """Each shard file takes a request of its own."""
    model = np.zeros(70_000, "c16")
    with oc.create_array(pool / "S", model.shape, "c16", chunks=1, reserve=False) as A:
        assert A.metadata.grid().shards == 2
        for seed, key in enumerate([np.s_[::-5000], np.s_[60_000::1000], np.s_[65_535:65_538]]):
            model[key] = values(model[key].shape, "c16", seed=seed)
            with Messages(pool) as writing:
                A[key] = model[key]
            with Messages(pool) as reading:
                assert (A[key] == model[key]).all()
            assert max(reading.count, writing.count) <= 2 * SERVERS
        assert (A[::100] == model[::100]).all()
    pool.rm("S", recursive=True)


def test_large_selections_are_cut_by_bytes_not_by_runs(pool: oc.Pool) -> None:
    """Cut 20 MB of 8-byte pieces into requests of up to 4 MiB."""
    data = np.arange(2 * 2_500_000, dtype="f8").reshape(2000, 2500)
    with oc.create_array(pool / "L", data.shape, "f8", chunks=(2000, 2500)) as A:
        A[...] = data
        with Messages(pool) as reading:
            assert (A[:, ::5] == data[:, ::5]).all()
        assert reading.count <= SERVERS * math.ceil(2000 * 500 * 8 / (2 << 20))
        with Messages(pool) as writing:
            A[::2, ::-1] = data[::2]
        assert writing.count <= SERVERS * math.ceil(1000 * 2500 * 8 / (2 << 20))
        data[::2, ::-1] = data[::2].copy()
        assert (A[...] == data).all()
    pool.rm("L", recursive=True)


@st.composite
def written(draw: st.DrawFn) -> tuple[Layout, list[Any]]:
    layout = draw(layouts(max_dims=3, max_extent=20))
    return layout, draw(st.lists(selections(layout.shape), min_size=1, max_size=4))


@given(written())
@EACH
def test_what_is_written_and_read_is_as_in_numpy(
    pool: oc.Pool, case: tuple[Layout, list[Any]]
) -> None:
    layout, keys = case
    model = values(layout.shape, layout.dtype)
    with oc.create_array(pool / "H", **layout.arguments(), if_exists="overwrite") as A:
        shards = A.metadata.grid().shards
        A[...] = model
        for seed, key in enumerate(keys):
            new = values(model[key].shape, layout.dtype, seed=seed)
            model[key] = new
            with Messages(pool) as writing:
                A[key] = new
            with Messages(pool) as reading:
                found = A[key]
            assert found.dtype == model.dtype
            assert np.array_equal(found, model[key])
            assert max(reading.count, writing.count) <= SERVERS * shards
        assert np.array_equal(A[...], model)


def test_two_writers_of_every_other_element_lose_nothing(pool: oc.Pool, tmp_path: Path) -> None:
    """A partial write never changes other bytes of a chunk, even while others write them."""
    data = values((300, 400), "f8", seed=3)
    for place in (pool / "W", tmp_path / "W"):
        with oc.create_array(place, data.shape, "f8", chunks=(64, 100)):
            pass
        with oc.open_array(place, "r+") as even, oc.open_array(place, "r+") as odd:
            for _ in range(3):
                parts = [(even, np.s_[:, ::2]), (odd, np.s_[:, 1::2])]
                tickets = [
                    array._open().submit_write(
                        [0, key[1].start or 0], [1, 2], np.ascontiguousarray(data[key])
                    )
                    for array, key in parts
                ]
                for ticket in tickets:
                    ticket.wait()
                assert (even[...] == data).all()
                data = data[::-1].copy()
