"""Collectives that a process aborts at any point: the others report it and the reason."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from communicators import ThreadComm, ThreadJob
from served import serve
from served_pools import in_memory, some_pool

import outcore as oc
from outcore.collective.call import Call
from outcore.errors import DeniedError, DiskError, Interrupted, OutcoreError

STEPS, ROWS, COLUMNS, RANKS = 3, 6, 4, 3
"""An array with a shard file for each step; each rank has some rows of each."""

TIMEOUT_S = 60
"""No rank waits this long after another one aborts."""


def make(pool: oc.Pool) -> None:
    with oc.create_array(pool / "u", (0, ROWS, COLUMNS), growing=True, if_exists="overwrite") as u:
        u.append(np.zeros((STEPS, ROWS, COLUMNS)))
        assert u.metadata.grid().shards == STEPS
    oc.create_array(pool / "v", (STEPS, ROWS, COLUMNS), if_exists="overwrite").close()


@pytest.fixture(params=["embedded", "served", "unix"])
def pool(request: pytest.FixtureRequest) -> Iterator[oc.Pool]:
    with some_pool(request.param) as found:
        make(found)
        yield found


def write(array: oc.Array, comm: ThreadComm) -> Any:
    mine = np.full((STEPS, ROWS // RANKS, COLUMNS), comm.rank + 1.0)
    return array.write_all(mine, "*,block,*", comm, timeout=TIMEOUT_S, progress=False)


def replace(array: oc.Array, comm: ThreadComm) -> Any:
    mine = np.full((STEPS, ROWS // RANKS, COLUMNS), comm.rank + 1.0)
    return array.write_all(mine, "*,block,*", comm, timeout=TIMEOUT_S, atomic=True, progress=False)


def read(array: oc.Array, comm: ThreadComm) -> Any:
    return array.read_all(None, "*,*,block", comm, timeout=TIMEOUT_S, progress=False)


CALLS: dict[str, tuple[str, Callable[[oc.Array, ThreadComm], Any]]] = {
    "write": ("u", write),
    "replace": ("v", replace),
    "read": ("u", read),
}


def check_whole_after(pool: oc.Pool, name: str) -> None:
    """The next call succeeds, whatever the previous one left."""

    def job(comm: ThreadComm) -> None:
        with oc.open_array(pool / name, "r+", allow_incomplete=True) as array:
            write(array, comm)

    assert ThreadJob(RANKS).run(job) == [None] * RANKS
    with oc.open_array(pool / name) as array:
        rows = np.repeat(np.arange(RANKS) + 1.0, ROWS // RANKS)
        assert (array[...] == rows[:, None]).all()


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("who", [0, 2])
@pytest.mark.parametrize("call", CALLS)
def test_who_cannot_open_the_files_tells_the_others(
    call: str, who: int, pool: oc.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = Call._open
    for error, kind in [
        (DiskError("too many open files"), DiskError),
        (MemoryError("no memory"), MemoryError),
        (KeyboardInterrupt(), Interrupted),
    ]:

        def fail(self: Any, core: Any, error: BaseException = error) -> None:
            if self._comm.rank == who:
                raise error
            go_on(self, core)

        def job(comm: ThreadComm) -> Any:
            name, collective = CALLS[call]
            with oc.open_array(pool / name, "r+") as array:
                collective(array, comm)

        with monkeypatch.context() as patch:
            patch.setattr(Call, "_open", fail)
            found = ThreadJob(RANKS).run(job)
        assert type(found[who]) is kind
        why = "it was stopped" if isinstance(error, KeyboardInterrupt) else str(error)
        for rank in {0, 1, 2} - {who}:
            assert isinstance(found[rank], OutcoreError), found
            # Process 0 may have removed a file before others open it.
            is_late = "process 0 had aborted it" in str(found[rank])
            assert f"process {who} aborted: " in str(found[rank]) or is_late, found
            assert why in str(found[rank]) or is_late, found
            assert not is_late or call == "replace"
    check_whole_after(pool, "u")


def test_who_may_not_write_tells_the_others() -> None:
    """A process of another user can neither open the files, nor join."""
    with in_memory() as home, serve(home) as served:
        ada = served.key_of("ada", 1001, 100)
        with (
            oc.connect(served.url, key=served.key) as root,
            oc.connect(served.url, key=ada) as hers,
        ):
            make(root)
            shards = [root / f"u/c/{step}/0/0" for step in range(STEPS)]
            for path in shards:
                root.chmod(path, 0o666)

            def job(comm: ThreadComm) -> None:
                with oc.open_array((hers if comm.rank == 1 else root) / "u", "r+") as array:
                    comm.barrier()
                    if comm.rank == 0:
                        for path in shards:
                            root.chmod(path, 0o644)
                    comm.barrier()
                    write(array, comm)

            found = ThreadJob(RANKS).run(job)
            assert isinstance(found[1], DeniedError), found
            for rank in (0, 2):
                assert "process 1 aborted: " in str(found[rank]), found
                assert str(found[1]) in str(found[rank])
            check_whole_after(root, "u")


class Stop:
    """Ctrl-C at some line of outcore's, after the agreement of the processes."""

    def __init__(self, at: int) -> None:
        self.left = at
        self.is_on = False

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code is Call.exchange.__code__:
            self.is_on = True
        is_ours = Path(frame.f_code.co_filename).parent.name == "collective"
        return self._line if is_ours else None

    def _line(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "line" and self.is_on:
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self._line


@pytest.mark.exhaustive
@pytest.mark.parametrize("who", [0, 1])
@pytest.mark.parametrize("call", CALLS)
def test_who_is_stopped_at_any_line_tells_the_others(call: str, who: int, all_lines: bool) -> None:
    """Either all other ranks raise, or none: then the collective was complete."""
    name, collective = CALLS[call]

    def job(comm: ThreadComm, stop: Stop) -> None:
        with oc.open_array(pool / name, "r+", allow_incomplete=True) as array:
            if comm.rank == who:
                sys.settrace(stop)
            try:
                collective(array, comm)
            finally:
                sys.settrace(None)

    with some_pool("embedded") as pool:
        make(pool)
        at, outcomes = 0, set()
        while True:
            at += 1 if all_lines else 7
            stop = Stop(at)
            found = ThreadJob(RANKS).run(lambda comm, stop=stop: job(comm, stop))
            if stop.left > 0:
                break
            assert isinstance(found[who], KeyboardInterrupt), found
            others = [found[rank] for rank in range(RANKS) if rank != who]
            outcomes.add(others == [None, None])
            if others == [None, None]:
                continue
            for each in others:
                assert isinstance(each, OutcoreError), (at, found)
                is_told = f"process {who} aborted: it was stopped" in str(each)
                is_late = "process 0 had aborted it" in str(each)
                assert is_told or (is_late and call == "replace"), (at, found)
        assert found == [None] * RANKS
        assert at > 100
        assert outcomes == {True, False}
        check_whole_after(pool, name)
