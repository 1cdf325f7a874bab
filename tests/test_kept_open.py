"""A long-running process keeps no files open, even if Python never searches for cycles."""

import gc
import os
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from block_cases import NO_ROOM, Failing, small_file
from communicators import PATIENCE_S, ThreadComm, ThreadJob
from served import serve
from served_pools import in_memory

import outcore as oc
from outcore.errors import OutcoreError
from outcore.pool.fsspec_filesystem import OutcoreFileSystem

MODEL = np.arange(100.0).reshape(10, 10) + 1000 * np.eye(10)


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def descriptors(besides: Path | None = None) -> int:
    """Return the number of open files, except those below a directory of daemons."""
    count = 0
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the listing's own one, or closed meanwhile
            name = os.readlink(f"/proc/self/fd/{number}")
            is_mine = besides is None or not name.startswith(f"{besides}/")
            # One for each thread that made a file: the source of its umask.
            count += is_mine and not name.endswith("/status")
    return count


def settled(most: int, besides: Path | None = None) -> int:
    """Wait for threads that close connections; return the number of open files."""
    until = time.monotonic() + PATIENCE_S
    while descriptors(besides) > most and time.monotonic() < until:
        time.sleep(0.01)
    return descriptors(besides)


def use_arrays(above: Any) -> None:
    array = oc.create_array(above / "A", (10, 10), order="F", if_exists="overwrite")
    array[...] = MODEL
    assert array[3, 4] == 34
    with array.blocks() as blocks:
        assert blocks[0, 0][0, 1] == 1
    assert [data.shape for _, data in array.stream([(slice(0, 5), slice(0, 9))])] == [(5, 9)]
    x, _ = oc.linalg.solve(array, MODEL @ np.ones(10), memory="4 MB")
    np.testing.assert_allclose(x, 1)
    group = oc.ArrayGroup(above / "run", {"u": oc.ArraySpec((10, 10))})
    group.timestep({"u": MODEL})


def use(pool: oc.Pool) -> None:
    use_arrays(pool)
    with pool.open("f", "w") as file:
        file.start_write_at(0, b"abc").result()
    assert OutcoreFileSystem(pool=pool).cat("/f") == b"abc"


def test_arrays_that_are_dropped(tmp_path: Path) -> None:
    use_arrays(tmp_path)
    before = descriptors()
    use_arrays(tmp_path)
    assert descriptors() == before


@pytest.mark.parametrize("way", ["embedded", "tcp", "unix"])
def test_pools_that_are_closed_or_dropped(way: str) -> None:
    with in_memory() as directory, ExitStack() as daemons:
        used = None
        if way != "embedded":
            used = directory
            url, key = daemons.enter_context(serve(directory, way))

        def opened() -> oc.Pool:
            if used is None:
                return oc.Pool.embedded([directory / "a", directory / "b"])
            return oc.connect(url, key=key)

        before = descriptors(used)
        for _ in range(2):
            with opened() as pool:
                use(pool)
            del pool
            use(opened())
            # Threads close a dropped pool; until then its directories are locked.
            assert settled(before, used) == before


def fill(above: Path) -> None:
    oc.create_array(above / "A", 9, "i4", fill=lambda box: np.full(9, 1 << 40)[box])


def beyond_the_disk(above: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        disk = Failing(patch, "_write_run", NO_ROOM)
        blocks = small_file(above / "f", buffers=2)
        disk.on = True
        blocks[0] = 1
        try:
            blocks.flush()
        finally:
            disk.on = False
            blocks.close()


def request(above: Path) -> None:
    with oc.Pool.embedded([above / "a"]) as pool:
        file = pool.open("f", "w")
        pool.close()
        file.start_read_at(0, 8).result()


def within_a_small_budget(above: Path) -> None:
    array = oc.create_array(above / "A", (2000, 50), order="F", chunks=(512, 10))
    oc.linalg.lstsq(array, np.ones(2000), memory=50_000)


def by_ranks(work: Callable[[ThreadComm], None]) -> None:
    """Let two ranks work, and raise the error of the second."""
    errors: dict[int, Exception] = {}

    def run(comm: ThreadComm) -> None:
        try:
            work(comm)
        except OutcoreError as error:
            errors[comm.rank] = error

    ThreadJob(2).run(run)
    try:
        raise errors[1]
    finally:
        errors.clear()


def step(above: Path) -> None:
    def work(comm: ThreadComm) -> None:
        group = oc.ArrayGroup(above / "run", {"u": oc.ArraySpec((10, 10))}, comm=comm)
        group.timestep({} if comm.rank else {"u": MODEL})

    by_ranks(work)


def collective(above: Path) -> None:
    with oc.Pool.embedded([above / "a"]) as pool:
        oc.create_array(pool / "A", (10, 10))

        def work(comm: ThreadComm) -> None:
            array = oc.open_array(pool / "A", mode="r+")
            array.write_all(MODEL[:, :3], "block,*", comm=comm)

        by_ranks(work)


@pytest.mark.parametrize(
    "call", [fill, beyond_the_disk, request, within_a_small_budget, step, collective]
)
def test_a_failed_call_ends_with_its_error(tmp_path: Path, call: Callable[[Path], None]) -> None:
    """Its frames, which hold arrays and connections, are in no cycle with the error."""
    kept: weakref.ref[Any] | None = None
    try:
        call(tmp_path)
    except OutcoreError as error:
        kept = weakref.ref(error)
    assert kept is not None
    assert kept() is None
