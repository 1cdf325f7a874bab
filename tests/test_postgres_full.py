"""A database whose disk is really full: of its tables, and of its write-ahead log."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from postgres_server import PostgresServer
from test_postgres import connected, serve

import outcore as oc
from outcore.errors import DiskError, DiskFullError, OutcoreError

LOG_FILE_BYTES = 16 << 20
"""Size of each file of PostgreSQL's write-ahead log, which it reserves as a whole."""


@pytest.fixture
def small_memory() -> Iterator[Path]:
    """Mount 160 MiB of memory, where every user may write; for root only."""
    if os.geteuid() != 0:
        pytest.skip("mounting a file system needs root")
    with tempfile.TemporaryDirectory(prefix="outcore-full-", dir="/dev/shm") as found:
        mount = ["mount", "-t", "tmpfs", "-o", "size=160m,mode=777", "tmpfs", found]
        Path(found).chmod(0o755)
        if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
            pytest.skip("cannot mount a file system here")
        try:
            yield Path(found)
        finally:
            subprocess.run(["umount", "-l", found], check=True)


def test_full_tables_lose_nothing_that_was_acknowledged(small_memory: Path, tmp_path: Path) -> None:
    fill_disk(small_memory, tmp_path, "tables")


@pytest.mark.exhaustive(keep=0)
def test_a_full_log_loses_nothing_that_was_acknowledged(small_memory: Path, tmp_path: Path) -> None:
    fill_disk(small_memory, tmp_path, "log")


def fill_disk(small_memory: Path, tmp_path: Path, what: str) -> None:
    server = PostgresServer(small_memory)
    try:
        manager = serve(tmp_path, server.database())
        try:
            with connected(tmp_path) as pool:
                filler = small_memory / "filler"
                # The log fits into its first file for long; the next one does not fit.
                free = {"tables": 3 << 20, "log": LOG_FILE_BYTES - (2 << 20)}[what]
                disk = os.statvfs(small_memory)
                with filler.open("wb") as file:
                    os.posix_fallocate(file.fileno(), 0, disk.f_bavail * disk.f_frsize - free)
                made: list[str] = []
                with pytest.raises((DiskError, DiskFullError), match="No space left") as failed:
                    work_until_it_fails(pool, made, what)
                assert "make room on its disk" in str(failed.value)
                if what == "tables":
                    assert failed.type is DiskFullError
                    assert pool.ls() == made
                else:
                    with pytest.raises(OutcoreError, match="database"):
                        pool.mkdir("refused")
                filler.unlink()
                if what == "log":
                    assert server.tell("start") == "done"
                pool.mkdir("later")
                found = pool.ls()
                assert set(made) <= set(found)
                # Only the change that failed may have been made.
                assert len(found) <= len(made) + 3
        finally:
            manager.stop()
    finally:
        server.close()


def work_until_it_fails(pool: oc.Pool, made: list[str], what: str) -> None:
    """Make directories; for a full log, also change what leaves no more in the tables."""
    for number in range(10_000):
        name = f"d{number:05}"
        pool.mkdir(name)
        made.append(name)
        if what == "log":
            for _ in range(3):
                pool.setxattr(name, "run", os.urandom(30_000))
            pool.removexattr(name, "run")
        else:
            pool.setxattr(name, "run", os.urandom(600).hex().encode())
