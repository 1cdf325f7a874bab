"""Atomic collectives on arrays in several shard files: all files are replaced, or none."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from communicators import ThreadComm, ThreadJob
from served_pools import some_pool

import outcore as oc
from outcore.array_files import atomic_write
from outcore.collective.call import Call
from outcore.errors import BusyError, DiskError, DiskFullError, InvalidError, OutcoreError
from outcore.pool.fsck import fsck
from outcore.storage.volumes import place

RANKS = 3


@pytest.fixture(params=["embedded", "served"])
def pool(request: pytest.FixtureRequest) -> Iterator[oc.Pool]:
    with some_pool(request.param) as found:
        yield found


@pytest.fixture
def embedded() -> Iterator[oc.Pool]:
    with some_pool("embedded") as found:
        yield found


def content(shape: tuple[int, ...]) -> Any:
    return np.arange(float(np.prod(shape))).reshape(shape)


def make(pool: oc.Pool, shape: tuple[int, ...], **arguments: Any) -> Any:
    """Make an array of `shape[0]` steps, and return its elements."""
    before = -1 - content(shape)
    with oc.create_array(pool / "u", (0, *shape[1:]), growing=True, **arguments) as u:
        if shape[0]:
            u.append(before)
    return before


def write(pool: oc.Pool, new: Any, **instead: Any) -> list[Any]:
    """Write all steps, one per rank in turn, and return the result or error of each rank."""

    def job(comm: ThreadComm) -> None:
        with oc.open_array(pool / "u", "r+") as u:
            mine = np.ascontiguousarray(new[comm.rank :: comm.size])
            rules = "cyclic" + ",*" * (new.ndim - 1)
            u.write_all(mine, rules, comm, timeout=60, atomic=True)
            assert (u[...] == new).all(), "it sees the new files"

    return ThreadJob(RANKS, patience_s=60).run(job)


def held(pool: oc.Pool) -> Any:
    """Return the elements, and check that no other files are beside or in the array."""
    assert [name for name in pool.ls() if name != "u"] == []
    assert not atomic_write.left(place(pool / "u"))
    with oc.open_array(pool / "u") as u:
        assert u.info().state == "whole"
        return u[...]


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize(
    ("shape", "arguments"),
    [
        ((4, 9, 8), {"chunks": (2, 3)}),
        # More files than a commit of the manager has operations.
        ((130, 5), {}),
        # The last file of an array of single numbers has space for more.
        ((11,), {"chunks": 3}),
        ((4, 6, 5), {"disk_schema": "block,block", "mesh": (2, 1)}),
    ],
)
def test_all_files_are_replaced(
    pool: oc.Pool, shape: tuple[int, ...], arguments: dict[str, Any]
) -> None:
    make(pool, shape, **arguments)
    with oc.open_array(pool / "u") as u:
        assert u.metadata.grid().shards > 1
        before = u.info().placement
    data_files = fsck(pool).data_files
    for turn in range(2):
        new = content(shape) + turn
        assert write(pool, new) == [None] * RANKS
        np.testing.assert_array_equal(held(pool), new)
    report = fsck(pool)
    assert (report.data_files, report.findings) == (data_files, ()), "nothing is left of the old"
    with oc.open_array(pool / "u", "r+") as u:
        after = u.info().placement
        assert (after is None) == (before is None)
        if before is not None and after is not None:
            assert sorted(after.chunk_counts) == sorted(before.chunk_counts)
        u.append(np.full(shape[1:], 7.0))
    np.testing.assert_array_equal(held(pool), [*new, np.full(shape[1:], 7.0)])


@pytest.mark.parametrize("is_atomic", [False, True])
def test_an_array_without_a_step_is_refused(embedded: oc.Pool, is_atomic: bool) -> None:
    make(embedded, (0, 5))
    nothing = oc.Schema.boxes([[]])
    refused = pytest.raises(InvalidError, match="no step yet to write; append one first")
    with oc.open_array(embedded / "u", "r+") as u, refused:
        u.write_all([], nothing, atomic=is_atomic)
    assert held(embedded).shape == (0, 5)


@pytest.mark.parametrize("step", [0, 2, 5])
def test_a_rank_that_fails_at_any_file_leaves_all_of_them(
    pool: oc.Pool, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    before = make(pool, (6, 5, 4))
    go_on = Call._run

    def run_to_failure(self: Any, work: Any, shard: int, arrays: Any) -> None:
        if arrays and shard == step and self._comm.rank == 1:
            self._failed = RuntimeError("fails midway")
        go_on(self, work, shard, arrays)

    monkeypatch.setattr(Call, "_run", run_to_failure)
    found = write(pool, content((6, 5, 4)))
    assert isinstance(found[1], RuntimeError)
    for each in (found[0], found[2]):
        assert isinstance(each, OutcoreError), found
        assert "process 1 aborted: RuntimeError: fails midway" in str(each)
    np.testing.assert_array_equal(held(pool), before)


def test_what_cannot_be_published_leaves_all_of_them(
    pool: oc.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = make(pool, (6, 5, 4))

    def fails(*_: Any) -> None:
        raise DiskError("the disk")

    monkeypatch.setattr(atomic_write, "take_place", fails)
    for each in write(pool, content((6, 5, 4))):
        assert isinstance(each, DiskError)
    np.testing.assert_array_equal(held(pool), before)


def test_what_cannot_be_made_leaves_nothing(
    embedded: oc.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = make(embedded, (6, 5))
    create = atomic_write.ArrayFile.create

    class Full:
        @staticmethod
        def create(*given: Any, **named: Any) -> None:
            create(*given, **named)
            raise DiskFullError("no room for the last of them")

    monkeypatch.setattr(atomic_write, "ArrayFile", Full)
    for each in write(embedded, content((6, 5))):
        assert isinstance(each, DiskFullError)
    np.testing.assert_array_equal(held(embedded), before)


@pytest.mark.parametrize("shape", [(4, 5), (1, 5), (4,)])
def test_a_step_that_was_appended_meanwhile_is_not_lost(
    embedded: oc.Pool, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...]
) -> None:
    before = make(embedded, shape)
    take_place = atomic_write.take_place

    def appended(*given: Any) -> None:
        with oc.open_array(embedded / "u", "r+") as u:
            u.append(np.full(shape[1:], 7.0))
        take_place(*given)

    monkeypatch.setattr(atomic_write, "take_place", appended)
    for each in write(embedded, content(shape)):
        assert isinstance(each, BusyError)
        assert "it has" in str(each)
    np.testing.assert_array_equal(held(embedded), [*before, np.full(shape[1:], 7.0)])


def test_what_cannot_be_removed_when_it_counts_is_no_failure(
    embedded: oc.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(embedded, (4, 5))
    new = content((4, 5))

    class Stuck:
        def __init__(self, fresh: Any) -> None:
            self._fresh = fresh

        def __getattr__(self, name: str) -> Any:
            return getattr(self._fresh, name)

        @property
        def volume(self) -> Any:
            raise DiskError("the server is away")

    take_place = atomic_write.take_place
    monkeypatch.setattr(
        atomic_write, "take_place", lambda fresh, *rest: take_place(Stuck(fresh), *rest)
    )
    assert write(embedded, new) == [None] * RANKS
    with oc.open_array(embedded / "u") as u:
        np.testing.assert_array_equal(u[...], new)
    assert len(atomic_write.left(place(embedded / "u"))) == 1
    monkeypatch.undo()
    assert write(embedded, new + 1) == [None] * RANKS
    np.testing.assert_array_equal(held(embedded), new + 1)
