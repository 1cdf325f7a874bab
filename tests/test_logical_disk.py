"""Logical disks: files on one server, one owner at a time."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from linpack import on_disk, one_thread, packed, random_matrix
from timeouts import HANG_S

import outcore as oc
from outcore.errors import BusyError, ClosedError, ExistsError, InvalidError

__all__ = ["one_thread"]


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[oc.Pool]:
    with oc.Pool.embedded([tmp_path / name for name in "abc"]) as opened:
        yield opened


def used(pool: oc.Pool) -> list[int]:
    """Return the bytes written by each server."""
    return [server.bytes_written for server in pool.servers()]


def test_everything_on_a_disk_is_on_one_server(pool: oc.Pool) -> None:
    for rank in (0, 1, 2, 4):
        with pool.logical_disk(rank) as disk:
            before = used(pool)
            with disk.open("f", "w", hints={"stripe_unit_bytes": 4096}) as file:
                file.write(bytes(100_000))
            a = np.random.default_rng(rank).random((300, 400))
            with oc.from_array(a, disk / "d" / "A", chunks=(50, 50), progress=False) as A:
                A.flush()
                assert (A[::2, ::-3] == a[::2, ::-3]).all()
            written = np.subtract(used(pool), before)
            # The disk's files lie on its server only.
            assert [count > 0 for count in written] == [rank % 3 == server for server in range(3)]
            assert pool.stat(disk / "f").servers == (rank % 3,)
            assert disk.ls() == ["d", "f"]
            assert disk.ls("d") == ["A"]
            assert str(disk / "f") == f"{pool.url}.disks/{rank}/f"
    # Other files keep their stripes, and a hint overrides the disk.
    pool.open("f", "w").close()
    assert len(pool.stat("f").servers) == 3
    with pool.logical_disk(0) as disk:
        disk.open("wide", "w", hints={"stripe_count": 2}).close()
        assert pool.stat(disk / "wide").servers == (0, 1)


def test_a_factorization_on_a_disk_is_that_of_a_plain_path(pool: oc.Pool, tmp_path: Path) -> None:
    a, found = random_matrix(200, "f8"), []
    with pool.logical_disk(1) as disk:
        for where in (tmp_path / "plain", disk):
            on_disk(where / "A", a, (32, 16)).close()
            lu = oc.linalg.lu_factor(where / "A", memory=300_000, threads=1, progress=False)
            found.append(packed(lu))
        assert pool.stat(disk / "A.lu" / "lu" / "c" / "0" / "0").servers == (1,)
    assert (found[0] == found[1]).all()


def test_a_disk_has_one_owner(pool: oc.Pool) -> None:
    disk = pool.logical_disk(3)
    with pytest.raises(BusyError, match="logical disk 3 belongs to another"):
        pool.logical_disk(3)
    other = pool.logical_disk(3, within="job")
    assert str(other.path) == f"{pool.url}job/.disks/3"
    (disk / "f").write_bytes(b"abc")
    disk.close()
    disk.close()
    for call in (lambda: disk / "f", lambda: disk.open("f"), disk.ls):
        with pytest.raises(ClosedError, match="logical disk 3"):
            call()
    with pool.logical_disk(3) as again:
        assert (again / "f").read_bytes() == b"abc"
    with pytest.raises(InvalidError, match="at least 0"):
        pool.logical_disk(-1)
    (pool / ".disks" / "7").write_bytes(b"a file")
    with pytest.raises(InvalidError, match="directory"):
        pool.logical_disk(7)
    with pytest.raises(InvalidError, match="directory"):  # no one owns the disk now
        pool.logical_disk(7)


OWNER = """
import sys
import time
import outcore as oc
with oc.connect(sys.argv[1], key=sys.argv[2]) as pool:
    try:
        with pool.logical_disk(1) as disk:
            print(disk.ls(), flush=True)
            time.sleep(100)
    except oc.errors.BusyError as error:
        print("busy", error)
"""


def test_of_two_processes_one_has_the_disk(
    served: tuple[str, Path], run_python: Callable[..., subprocess.Popen[str]]
) -> None:
    url, key = served
    with oc.connect(url, key=key) as pool:
        disk = pool.logical_disk(1)
        (disk / "lock").write_bytes(b"any name will do")
        out, err = run_python(OWNER, url, str(key)).communicate(timeout=HANG_S)
        assert out.startswith("busy logical disk 1 belongs"), err
        disk.close()
        assert pool.ls(".disks") == ["1"]
        owner = run_python(OWNER, url, str(key))
        assert owner.stdout is not None
        assert owner.stdout.readline() == "['lock']\n"
        with pytest.raises(BusyError):
            pool.logical_disk(1)
        owner.kill()
        owner.communicate()
        # Its owner was killed. Closing the pool also releases its disks.
        disk = pool.logical_disk(1)
    with oc.connect(url, key=key) as pool, pool.logical_disk(1) as disk:
        assert (disk / "lock").read_bytes() == b"any name will do"


def test_directories_have_default_layouts(pool: oc.Pool) -> None:
    pool.mkdir("d/e", hints={"striping_factor": 2, "start_iodevice": 2, "striping_unit": "64 KiB"})
    pool.open("d/e/g/f", "w").close()
    found = pool.stat("d/e/g/f")
    assert (found.servers, found.stripe_unit_bytes) == ((2, 0), 65_536)
    pool.mkdir("d/e", exist_ok=True, hints={"stripe_count": 1})
    pool.open("d/e/f", "w").close()
    assert len(pool.stat("d/e/f").servers) == 1
    with pytest.raises(ExistsError):
        pool.mkdir("d/e", hints={"stripe_count": 1})
    for hints in ({"base": 3}, {"stripe_count": 0}):
        with pytest.raises(InvalidError):
            pool.mkdir("new", hints=hints)
