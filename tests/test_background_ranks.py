"""Communicators and memory of checkpoints in the background by several ranks."""

import sys
import types
from typing import Any

import numpy as np
import pytest
from communicators import DupComm, ThreadComm, ThreadJob
from served_pools import above, in_memory
from test_collective import whole

import outcore as oc
from outcore._util.communicator import Communicator
from outcore.array.array import Array
from outcore.collective.call import LEAST_MEMORY_BYTES, MEMORY_BYTES
from outcore.errors import BudgetError, DiskError, InvalidError

__all__ = ["above"]  # a fixture

ROWS = 1 << 17
SPECS = {"u": oc.ArraySpec((ROWS,), "f8", chunks=1 << 15)}
SCHEMA = oc.Schema("block")


def mine(comm: ThreadComm) -> dict[str, Any]:
    return {"u": np.full(ROWS // comm.size, comm.rank, "f8")}


def test_a_communicator_is_duplicated_once_and_given_back(above: Any) -> None:
    """MPI has only a few thousand communicators."""

    def work(comm: ThreadComm) -> None:
        assert isinstance(comm, DupComm)
        other = comm.Dup()
        with oc.ArrayGroup(above / "run", SPECS, comm=comm) as group:
            for given in [None, comm, other, None, other]:
                group.checkpoint(mine(comm), schema=SCHEMA, background=True, comm=given).wait()
            assert comm.duplicates[0] is other
            fresh = [*comm.duplicates[1:], *other.duplicates]
            assert len(fresh) == 2, "one of each"
            assert not any(one.is_freed for one in fresh)
        assert all(one.is_freed for one in fresh)
        assert [comm.is_freed, other.is_freed] == [False, False], "they are the caller's"

    whole(ThreadJob(2).run(work, can_duplicate=True))


def test_what_moves_the_copies_is_in_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    given = []
    write_all = Array.write_all

    def noting(self: Array, *arguments: Any, **options: Any) -> Any:
        given.append(options["memory"])
        return write_all(self, *arguments, **options)

    monkeypatch.setattr(Array, "write_all", noting)
    copy = ROWS // 2 * 8

    def work(comm: ThreadComm, group: oc.ArrayGroup, memory: int) -> None:
        options = {"schema": SCHEMA, "background": True, "memory": memory}
        group.checkpoint(mine(comm), **options).wait()

    def several(comm: ThreadComm) -> None:
        with oc.ArrayGroup(pool / "run", SPECS, comm=comm) as group:
            for beside in (LEAST_MEMORY_BYTES, 3 << 20, 1 << 30):
                work(comm, group, copy + beside)
            with pytest.raises(BudgetError, match=f"need {copy + LEAST_MEMORY_BYTES} bytes"):
                work(comm, group, copy + LEAST_MEMORY_BYTES - 1)

    with in_memory() as home, oc.Pool.embedded([home / "a", home / "b"]) as pool:
        whole(ThreadJob(2).run(several, can_duplicate=True))
    assert sorted(given) == sorted(2 * [LEAST_MEMORY_BYTES, 3 << 20, MEMORY_BYTES])


class Waiting:
    """A communicator whose other rank never joins its duplication."""

    rank, size = 0, 2

    def bcast(self, value: Any, root: int = 0) -> Any:
        raise AssertionError

    barrier = Dup = bcast

    def Idup(self) -> tuple[Any, Any]:  # noqa: N802 - as MPI has it
        return object(), types.SimpleNamespace(Test=lambda: False)


def test_a_rank_that_does_not_come_to_be_duplicated_is_waited_for_a_while() -> None:
    with pytest.raises(DiskError, match=r"waited 0.05 s for the others without an answer"):
        Communicator(Waiting(), 0.05).duplicate()


def test_mpi_must_allow_several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    mpi = types.SimpleNamespace(
        Comm=Waiting, COMM_NULL=None, THREAD_MULTIPLE=3, Query_thread=lambda: 2
    )
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", mpi)
    with pytest.raises(InvalidError, match="MPI_THREAD_MULTIPLE"):
        Communicator(Waiting()).check_duplicable()
    mpi.Query_thread = lambda: 3
    Communicator(Waiting()).check_duplicable()
