"""A pool on a full disk: its daemons start and serve reads; freed space allows writes again."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from own_daemons import OwnDaemons

import outcore as oc
from outcore.errors import DiskFullError
from outcore.pool import local_pool

_PAGE = 4096


def fill(directory: Path) -> None:
    """Fill the disk to the last block."""
    with (directory / "ballast").open("ab", buffering=0) as file:
        for nbytes in (1 << 20, _PAGE, 1024, 1):
            try:
                while True:
                    file.write(bytes(nbytes))
            except OSError:
                pass


@pytest.mark.parametrize("has_reserve", [True, False])
def test_daemons_start_on_a_full_disk(small_disk: Path, tmp_path: Path, has_reserve: bool) -> None:
    directory = small_disk / "pool"
    daemons = OwnDaemons(tmp_path, [directory])
    with daemons.connect() as pool, pool.open("f", "w") as file:
        file.write(b"x" * 300_000)
        file.sync()
    daemons.stop()
    if not has_reserve:
        # As if the disk was full when the server started, or never overwrites in place.
        for name in ("log.0", "log.1"):
            os.truncate(directory / name, 0)
        # The manager has no reserve to release either.
        (directory / "manager" / "reserve").unlink()
    fill(small_disk)
    daemons = OwnDaemons(tmp_path, [directory])
    try:
        with daemons.connect() as pool:
            with pool.open("f") as file:
                assert file.read() == b"x" * 300_000
            with pool.open("f", "r+") as file:
                file.seek(1 << 20)
                with pytest.raises(DiskFullError):
                    file.write(b"y" * (1 << 20))
            with pool.open("f") as file:
                assert file.read()[:300_000] == b"x" * 300_000
            # Without a reserve, even the log has no space.
            assert [server.is_writable for server in pool.servers()] == [has_reserve]
            (small_disk / "ballast").unlink()
            with pool.open("g", "w") as file:
                file.write(b"z" * 100_000)
                file.sync()
            assert [server.is_writable for server in pool.servers()] == [True]
    finally:
        daemons.stop()
    daemons = OwnDaemons(tmp_path, [directory])
    try:
        with daemons.connect() as pool, pool.open("g") as file:
            assert file.read() == b"z" * 100_000
    finally:
        daemons.stop()


def test_files_are_removed_and_daemons_stop_and_start_on_a_full_disk(small_disk: Path) -> None:
    directories = [small_disk / "a", small_disk / "b"]
    list(local_pool.start(directories, "127.0.0.1:0"))
    key = directories[0] / "pool" / "key"
    try:
        with oc.connect(local_pool.url_of(directories[0]), key=key) as pool:
            for name in ("f", "g"):
                (pool / name).write_bytes(bytes(range(256)) * (8 << 12))
            fill(small_disk)
            with pytest.raises(DiskFullError, match="remove files"):
                pool.open("h", "w")
            with pytest.raises(DiskFullError):
                pool.mkdir("d")
            pool.rm("f")
            pool.rm("g")
            assert pool.ls() == []
            (pool / "h").write_bytes(b"h" * 100_000)
            fill(small_disk)
            assert (pool / "h").read_bytes() == b"h" * 100_000
        assert len(local_pool.stop(directories[0])) == 3
        assert local_pool.running(directories[0]) == []
        list(local_pool.start(directories, "127.0.0.1:0"))
        with oc.connect(local_pool.url_of(directories[0]), key=key) as pool:
            pool.rm("h")
            assert pool.ls() == []
    finally:
        local_pool.stop(directories[0])


def test_the_room_of_what_was_removed_is_there_for_what_comes_next(small_disk: Path) -> None:
    """The server frees space in the background; each array takes most of the disk."""
    shape = (30, 1 << 17)
    with oc.Pool.embedded([small_disk / "pool"]) as pool:
        for number in range(6):
            reserve = number % 2 == 0
            options: Any = {"chunks": (1, 1 << 17), "reserve": reserve, "if_exists": "overwrite"}
            with oc.create_array(pool / "a", shape, **options) as array:
                array[...] = number
                array.flush()
                assert (array[...] == np.full(shape, number)).all()
