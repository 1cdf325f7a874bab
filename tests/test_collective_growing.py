"""Collectives of growing arrays: no step that is appended concurrently is lost."""

import multiprocessing
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from communicators import ThreadComm, ThreadJob
from served import serve
from served_pools import in_memory, some_pool

import outcore as oc
from outcore.array.array import Array
from outcore.array_files import growing
from outcore.collective.call import Call
from outcore.errors import BusyError, DiskError, IncompleteError
from outcore.storage.volumes import place

RANKS = 2


@pytest.fixture(params=["embedded", "served"])
def pool(request: pytest.FixtureRequest) -> Iterator[oc.Pool]:
    with some_pool(request.param) as found:
        yield found


def make(pool: oc.Pool, shape: tuple[int, ...]) -> Any:
    before = np.arange(float(np.prod(shape))).reshape(shape)
    with oc.create_array(pool / "u", (0, *shape[1:]), growing=True) as u:
        u.append(before)
    return before


def held(pool: oc.Pool) -> Any:
    with oc.open_array(pool / "u") as u:
        return u[...]


def write(u: Array, comm: Any = None, value: float = -1.0) -> None:
    """Write all steps that `u` had when it was opened, one row per rank in turn."""
    ranks, rank = (1, 0) if comm is None else (comm.size, comm.rank)
    mine = np.full((len(range(rank, len(u), ranks)), *u.shape[1:]), value)
    u.write_all(mine, "cyclic" + ",*" * (u.ndim - 1), comm, timeout=60)


def append_in_another(url: str, key: str) -> None:
    with oc.connect(url, key=key) as pool, oc.open_array(pool / "u", "r+") as u:
        u.append(np.full(u.shape[1:], 7.0))


def test_a_step_of_another_process_stays() -> None:
    with (
        in_memory() as directory,
        serve(directory) as served,
        oc.connect(served.url, key=served.key) as pool,
    ):
        make(pool, (3, 5))
        u = oc.open_array(pool / "u", "r+")
        spawn = multiprocessing.get_context("spawn")
        child = spawn.Process(target=append_in_another, args=(served.url, str(served.key)))
        child.start()
        child.join()
        assert child.exitcode == 0
        write(u)
        np.testing.assert_array_equal(held(pool), [*np.full((3, 5), -1.0), np.full(5, 7.0)])


def leave_half_written(u: Array, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise DiskError("the disk")

    with monkeypatch.context() as patched:
        patched.setattr(Call, "_publish", fails)
        with pytest.raises(DiskError):
            write(u)


def test_a_step_that_was_appended_since_is_counted(pool: oc.Pool) -> None:
    shape = (3, 5)
    make(pool, shape)
    seventh = np.full(shape[1:], 7.0)

    def job(comm: ThreadComm) -> None:
        with oc.open_array(pool / "u", "r+") as u:
            comm.barrier()
            if comm.rank == 0:
                with oc.open_array(pool / "u", "r+") as other:
                    other.append(seventh)
            comm.barrier()
            write(u, comm)
            assert u.shape == shape, "what it was opened with"
            assert len(u.refresh()) == shape[0] + 1

    assert ThreadJob(RANKS, patience_s=60).run(job) == [None] * RANKS
    expected = [*np.full(shape, -1.0), seventh]
    np.testing.assert_array_equal(held(pool), expected)
    with oc.open_array(pool / "u", "r+") as u:
        u.append(seventh + 1)
    np.testing.assert_array_equal(held(pool), [*expected, seventh + 1])


@pytest.mark.parametrize("steps", [4, 6])
def test_numbers_that_were_appended_since_stay(pool: oc.Pool, steps: int) -> None:
    """Refuse the write if new numbers share a file with old ones; else write the old ones only."""
    with oc.create_array(pool / "u", 0, chunks=3, growing=True) as u:
        u.append(np.arange(float(steps)))
    with oc.open_array(pool / "u", "r+") as u:
        with oc.open_array(pool / "u", "r+") as other:
            other.append([7.0, 8.0])
        if steps == 4:
            with pytest.raises(BusyError, match="opened with 4 numbers and has 6"):
                write(u)
            np.testing.assert_array_equal(held(pool), [0, 1, 2, 3, 7, 8])
            write(u.refresh())
            assert (held(pool) == -1).all()
        else:
            write(u)
            np.testing.assert_array_equal(held(pool), [-1] * 6 + [7, 8])


def test_who_appends_meanwhile_is_refused(pool: oc.Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    make(pool, (3, 5))
    run, refused = Call._run, []

    def append(self: Any, *given: Any) -> None:
        if given[2]:
            with oc.open_array(pool / "u", "r+", allow_incomplete=True) as other:
                with pytest.raises(BusyError):
                    other.append(np.ones(5))
                refused.append(other.shape)
        run(self, *given)

    monkeypatch.setattr(Call, "_run", append)
    with oc.open_array(pool / "u", "r+") as u:
        write(u)
        assert len(refused) == 3
        u.append(np.ones(5))
    np.testing.assert_array_equal(held(pool), [*np.full((3, 5), -1.0), np.ones(5)])


def test_beside_an_append_it_is_refused(pool: oc.Pool) -> None:
    before = make(pool, (3, 5))

    def job(comm: ThreadComm) -> None:
        with oc.open_array(pool / "u", "r+") as u:
            write(u, comm)

    with growing.appending(place(pool / "u")):
        for each in ThreadJob(RANKS, patience_s=60).run(job):
            assert isinstance(each, BusyError)
    np.testing.assert_array_equal(held(pool), before)
    assert ThreadJob(RANKS, patience_s=60).run(job) == [None] * RANKS
    assert (held(pool) == -1).all()


def test_after_a_failure_others_append(pool: oc.Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    make(pool, (3, 5))
    u = oc.open_array(pool / "u", "r+")
    leave_half_written(u, monkeypatch)
    u.append(np.ones(5))
    with pytest.raises(IncompleteError):
        oc.open_array(pool / "u")
    # A write of all elements, with the new step, completes the half-written array.
    with oc.open_array(pool / "u", "r+", allow_incomplete=True) as found:
        write(found, value=2.0)
    assert (held(pool) == np.full((4, 5), 2.0)).all()


def test_what_another_left_half_written_is_not_whole_by_a_part(
    pool: oc.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(pool, (3, 5))
    opened_before = oc.open_array(pool / "u", "r+")
    leave_half_written(oc.open_array(pool / "u", "r+"), monkeypatch)
    part = oc.Schema.boxes([[(slice(0, 1), slice(0, 5))]])
    opened_before.write_all([np.ones((1, 5))], part)
    with pytest.raises(IncompleteError):
        oc.open_array(pool / "u")


def test_a_mark_counts_what_was_appended_since(pool: oc.Pool) -> None:
    before = make(pool, (3, 5))
    u = oc.open_array(pool / "u", "r+")
    with oc.open_array(pool / "u", "r+") as other:
        other.append(np.ones(5))
    u.mark("incomplete", "for a test")
    u.mark(None)
    np.testing.assert_array_equal(held(pool), [*before, np.ones(5)])


def test_a_fixed_array_that_another_left_half_written_is_no_other(
    pool: oc.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    oc.create_array(pool / "u", (4, 5)).close()
    opened_before = oc.open_array(pool / "u", "r+")
    leave_half_written(oc.open_array(pool / "u", "r+"), monkeypatch)
    part = oc.Schema.boxes([[(slice(0, 1), slice(0, 5))]])
    opened_before.write_all([np.ones((1, 5))], part)
    with pytest.raises(IncompleteError):
        oc.open_array(pool / "u")
    write(opened_before)
    assert (held(pool) == -1).all()
