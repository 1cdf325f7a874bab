"""Chunks that do not divide among the servers: each server moves the planned bytes."""

import itertools
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from communicators import ThreadComm, ThreadJob
from pool_files import data_files
from served_pools import in_memory
from test_collective import RATES, whole

import outcore as oc

MARK = 0xA5A5A5A5
"""The value of all elements; other data on disk is unlikely to have it."""

CASES: list[tuple[int, tuple[int, ...], dict[str, Any], oc.Schema, int]] = [
    (3, (10, 7, 5), {"chunks": (3, 4, 5)}, oc.Schema("block,*,cyclic(2)", mesh=(2, 2)), 4),
    (4, (1300,), {"chunks": (500,)}, oc.Schema("cyclic(7)"), 3),
    (5, (30, 20), {"chunks": (30, 20)}, oc.Schema("block,block", mesh=(2, 2)), 5),
    (2, (31, 29), {"chunks": (10, 29), "chunk_order": "z-order"}, oc.Schema("*,block"), 3),
    (3, (61, 50), {"disk_schema": "natural", "mesh": (2, 2)}, oc.Schema("block,*"), 2),
    (3, (700, 11), {"disk_schema": "traditional"}, oc.Schema("*,cyclic"), 4),
    (4, (64, 64, 3), {"disk_schema": "block,block,*", "mesh": (3, 2)}, oc.Schema("*,*,*"), 1),
    (
        3,
        (50, 40),
        {"chunks": (7, 40)},
        oc.Schema.boxes([[(slice(0, 9), slice(0, 40))], [], [(slice(20, 33), slice(3, 8))]]),
        3,
    ),
]


def moved(pool: oc.Pool) -> dict[int, npt.NDArray[np.int64]]:
    """Bytes that each server has read, and written."""
    return {one.id: np.array([one.bytes_read, one.bytes_written]) for one in pool.servers()}


def between(first: dict[int, Any], then: dict[int, Any]) -> dict[int, list[int]]:
    """Return the bytes moved between two counts."""
    return {server: (then[server] - first[server]).tolist() for server in first}


@pytest.mark.parametrize(("servers", "shape", "layout", "schema", "ranks"), CASES)
def test_each_server_moves_what_is_planned(
    servers: int, shape: tuple[int, ...], layout: dict[str, Any], schema: oc.Schema, ranks: int
) -> None:
    """By the servers' counters, and by the bytes in their files."""
    with in_memory() as directory:
        places = [directory / str(number) for number in range(servers)]
        with oc.Pool.embedded(places) as pool:
            oc.create_array(pool / "u", shape, "u4", **layout).close()
            plan = oc.plan(
                "write_all", array=pool / "u", schema=schema, processes=ranks, rates=RATES
            )

            opened = [oc.open_array(pool / "u", "r+") for _ in range(ranks)]

            def write(comm: ThreadComm, *, skip_disk: bool) -> None:
                parts = schema.local_shapes(shape, ranks, comm.rank)
                mine = [np.full(part, MARK, "u4") for part in parts]
                u = opened[comm.rank]
                u.write_all(mine, schema, comm, timeout=60, skip_disk=skip_disk)

            whole(ThreadJob(ranks).run(lambda comm: write(comm, skip_disk=False)))
            # From here on the pool moves no other bytes, such as metadata.
            counts = [moved(pool)]
            whole(ThreadJob(ranks).run(lambda comm: write(comm, skip_disk=True)))
            counts.append(moved(pool))
            whole(
                ThreadJob(ranks).run(
                    lambda comm: opened[comm.rank].read_all(None, schema, comm, timeout=60)
                )
            )
            counts.append(moved(pool))
        (written, read) = (between(*pair) for pair in itertools.pairwise(counts))
        planned = dict.fromkeys(range(servers), 0) | plan.server_bytes
        assert written == {server: [0, count] for server, count in planned.items()}
        assert read == {server: [count, 0] for server, count in planned.items()}
        assert {number: marks(place) for number, place in enumerate(places)} == planned
        used = [written[server][1] for server in plan.server_bytes]
        assert max(used) / statistics.mean(used) == plan.imbalance


def marks(place: Path) -> int:
    """Bytes of the array in a server's files."""
    words = (
        np.frombuffer(file.read_bytes()[: file.stat().st_size // 4 * 4], "<u4")
        for file in data_files(place)
    )
    return sum(4 * int(np.count_nonzero(each == MARK)) for each in words)


def test_the_cases_are_uneven() -> None:
    """More servers than chunks, and chunks that do not divide among them."""
    even = 0
    for servers, shape, layout, schema, ranks in CASES:
        with in_memory() as directory:
            places = [directory / str(number) for number in range(servers)]
            with oc.Pool.embedded(places) as pool:
                u = oc.create_array(pool / "u", shape, "u4", **layout)
                plan = oc.plan("write_all", array=u, schema=schema, processes=ranks, rates=RATES)
                even += plan.imbalance == 1
                u.close()
    assert even <= 2
