"""Pools for tests: in memory, and served by daemons in this process."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from served import Served, serve

import outcore as oc
from outcore.pool.fsspec_filesystem import OutcoreFileSystem


@contextmanager
def in_memory() -> Iterator[Path]:
    """Yield a directory in which syncs cost nothing, if the system has such a file system."""
    memory = Path("/dev/shm")
    directory = Path(tempfile.mkdtemp(prefix="outcore-", dir=memory if memory.is_dir() else None))
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


@pytest.fixture(scope="module")
def pool() -> Iterator[Served]:
    """Serve one pool to the tests of a file."""
    with in_memory() as directory, serve(directory) as served:
        yield served


@contextmanager
def some_pool(kind: str) -> Iterator[oc.Pool]:
    """A pool of two servers in memory: ``"embedded"``, ``"served"`` by TCP, or ``"unix"``."""
    with in_memory() as directory:
        if kind == "embedded":
            with oc.Pool.embedded([directory / "a", directory / "b"]) as pool:
                yield pool
        else:
            way = "unix" if kind == "unix" else "tcp"
            with serve(directory, way) as (url, key), oc.connect(url, key=key) as pool:
                yield pool


@pytest.fixture
def served_url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Address of a pool whose key is in the environment."""
    with in_memory() as directory, serve(directory) as (url, key):
        monkeypatch.setenv("OUTCORE_KEY", str(key))
        yield url


@pytest.fixture
def embedded_url() -> Iterator[str]:
    """Address of a pool that is open in the process."""
    with some_pool("embedded") as pool:
        yield OutcoreFileSystem(pool=pool).unstrip_protocol("").rstrip("/")


@pytest.fixture(params=["plain", "embedded", "served"])
def above(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Yield a parent for new files: a directory in memory, or a pool."""
    if request.param == "plain":
        with in_memory() as directory:
            yield directory
    else:
        with some_pool(request.param) as pool:
            yield pool
