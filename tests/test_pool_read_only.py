"""A disk of a pool mounted read-only: its server starts, serves reads, and refuses changes."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from command_line import outcore
from own_daemons import OwnDaemons

import outcore as oc
from outcore.errors import ReadOnlyError
from outcore.pool.fsck import fsck
from outcore.pool.scrub import scrub

DATA = np.random.default_rng(1).bytes(300_000)
REFUSED = (
    r"server 1: need a disk that takes writes, have one that is only read .*; copy its data "
    r"elsewhere, or make the disk writable and restart the server$"
)


@contextmanager
def read_only(path: Path) -> Iterator[None]:
    """Refuse all writes below a directory; for root by a mount, since modes do not bind root."""
    if os.geteuid() != 0:
        modes = {each: each.stat().st_mode for each in (path, *path.rglob("*"))}
        for each, mode in modes.items():
            each.chmod(mode & ~0o222)
        yield
        for each, mode in modes.items():
            each.chmod(mode)
        return
    try:
        subprocess.run(["mount", "--bind", path, path], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"cannot mount here: {error}")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", path], check=True)
        yield
    finally:
        subprocess.run(["umount", "-l", path], check=True)


@pytest.fixture
def places(tmp_path: Path) -> Iterator[list[Path]]:
    """Yield the directories of a closed pool of two servers, the second on a read-only disk."""
    found = [tmp_path / "a", tmp_path / "b"]
    daemons = OwnDaemons(tmp_path, found)
    try:
        with daemons.connect() as pool:
            for name, hints in (
                ("both", {"stripe_unit_bytes": 64 << 10}),
                ("there", {"stripe_count": 1, "base": 1}),
            ):
                with pool.open(name, "w", hints) as file:
                    file.write(DATA)
    finally:
        daemons.stop()
    with read_only(found[1]):
        yield found


def check(pool: oc.Pool) -> None:
    """Read and check the whole pool, and fail to change files on the read-only disk."""
    assert [one.is_writable for one in pool.servers()] == [True, False]
    for name in ("both", "there"):
        assert pool.open(name).read() == DATA
    with pool.open("there", "r+") as file, pytest.raises(ReadOnlyError, match=REFUSED):
        file.write_at(0, b"x" * 100_000)
    report = fsck(pool, patience_s=0)
    assert report.is_well, str(report)
    compared = scrub(pool, progress=False)
    assert compared.is_well, str(compared)
    assert compared.files == 3


def test_its_files_are_copied_elsewhere_from_a_server_that_was_restarted(
    places: list[Path], tmp_path: Path
) -> None:
    daemons = OwnDaemons(tmp_path, places)
    try:
        assert [each.is_writable for each in daemons.daemons] == [True, True, False]
        with daemons.connect() as pool:
            check(pool)
            with pool.open("here", "w", {"stripe_count": 1, "base": 0}) as file:
                file.write(pool.open("there").read())
            assert pool.open("here").read() == DATA
            with pytest.raises(ReadOnlyError, match=REFUSED):
                pool.rm("there")
            result = outcore("df", f"{daemons.url}::", "--key", daemons.key)
            assert "servers that take no writes: 1" in result.stdout
    finally:
        daemons.stop()


def test_a_pool_in_this_process_opens_too(places: list[Path]) -> None:
    with oc.Pool.embedded(places) as pool:
        check(pool)
