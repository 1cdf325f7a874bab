"""Programs that know the addresses of two managers: in C, by HDF5, by MPI-IO, and below a mount."""

import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import pytest
from command_line import outcore
from compiled_c import ROOT, SANITIZED, Compile, run
from hdf5_files import driven, key
from mounted import mounted
from mpi_jobs import MPICH, all_say, mpiexec
from postgres_server import PostgresServer, postgres
from served import Served
from served_pools import pool
from test_mpi_io import CREATE, JOBS, preloaded
from test_pool_up import free_port
from test_postgres_standby import two_managers
from timeouts import HANG_S

import outcore as oc
from outcore._util import mpi_io

__all__ = ["key", "pool", "postgres"]  # fixtures


@pytest.fixture
def two(pool: Served) -> Served:
    """Return the pool at two addresses: nobody listens at the first one."""
    place = pool.url.removeprefix("outcore://")
    return Served(f"outcore://127.0.0.1:{free_port()},{place}", pool.key)


def test_c_finds_the_second_manager(two: Served, compiled: Compile) -> None:
    program = compiled(ROOT / "examples/c/columns.c", *SANITIZED)
    said = run(program, two.url, OUTCORE_KEY=str(two.key))
    assert said == "2400000 bytes, sum of column 7: 7000\n"


def test_hdf5_finds_the_second_manager(pool: Served, two: Served) -> None:
    with driven(f"{two.url}/u.h5", "w") as file:
        file["u"] = [1, 2, 3]
    with driven(f"{pool.url}/u.h5") as file:
        assert file["u"][:].tolist() == [1, 2, 3]


def test_mpi_io_finds_the_second_manager(two: Served) -> None:
    done = mpiexec(2, JOBS / "failures.py", f"{two.url}/f", CREATE, **preloaded(two))
    all_say("opened", 2, done)


def test_names_below_a_mount_have_both_addresses(two: Served, tmp_path: Path) -> None:
    with mounted(two, tmp_path / "m") as mount:
        (mount.place / "text").write_text("by the mount")
        found = os.getxattr(mount.place / "text", "user.outcore.address").decode()
        assert found == f"{two.url}/text"
        with oc.connect(two.url, key=two.key) as client:
            assert (client / "text").read_bytes() == b"by the mount"
        with driven(mount.place / "v.h5", "w") as file:
            file["v"] = [4]
        with driven(f"{two.url}/v.h5") as file:
            assert file["v"][:].tolist() == [4]


def test_fsspec_and_commands_find_the_second_manager(two: Served) -> None:
    url = f"{two.url}/by-fsspec"
    with fsspec.open(url, "wb") as file:
        file.write(b"content")
    with fsspec.open(url) as file:
        assert file.read() == b"content"
    assert outcore("ls", "-d", url).output.strip() == url


def test_c_and_hdf5_continue_after_a_takeover(
    postgres: PostgresServer, compiled: Compile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = compiled(ROOT / "tests/c_library/calls.c", *SANITIZED)
    with two_managers(tmp_path, postgres.database()) as (managers, url):
        monkeypatch.setenv("OUTCORE_KEY", str(tmp_path / "key"))
        with (
            driven(f"{url}/open.h5", "w") as file,
            subprocess.Popen(
                [program, "taken_over", url], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, text=True,
            ) as running,
        ):  # fmt: skip
            assert running.stdout is not None
            assert running.stdout.readline() == "begun\n"
            file["before"] = [1]
            file.flush()
            managers[0].end()
            managers[1].wait_until_active()
            _, errors = running.communicate("\n", timeout=HANG_S)
            assert running.returncode == 0, errors
            file["after"] = [2]
            file.flush()
            with driven(f"{url}/new.h5", "w") as new:
                new["x"] = [3]
        with oc.connect(url, key=tmp_path / "key") as client:
            assert sorted(client.ls()) == ["before", "made", "new.h5", "open.h5"]
            assert (client / "made/after").read_bytes() == b"second"
        with driven(f"{url}/open.h5") as file:
            assert [file[name][0] for name in ("before", "after")] == [1, 2]


def test_mpi_io_continues_after_a_takeover(postgres: PostgresServer, tmp_path: Path) -> None:
    events = tmp_path / "events"
    events.mkdir()
    key = tmp_path / "key"
    variables = {"LD_PRELOAD": str(mpi_io.library(str(MPICH.mpicc))), "OUTCORE_KEY": str(key)}
    with two_managers(tmp_path, postgres.database()) as (managers, url):
        with ThreadPoolExecutor(1) as others:
            job = others.submit(mpiexec, 2, JOBS / "taken_over.py", url, str(events), **variables)
            while not (events / "begun").exists():
                assert not job.done(), job.result().stdout + job.result().stderr
                time.sleep(0.01)
            managers[0].end()
            (events / "go").touch()
            managers[1].wait_until_active()
            done = job.result()
        all_say("well", 2, done)
        with oc.connect(url, key=key) as client:
            assert sorted(client.ls()) == ["ordered", "shared"]
            # The ranks write in their order, each time.
            assert (
                list((client / "ordered").read_bytes()) == [0] * 3 + [1] * 3 + [10] * 3 + [11] * 3
            )
            expected = bytes([1]) * (2 << 16) + bytes([2]) * (2 << 16) + bytes(5)
            assert (client / "shared").read_bytes() == expected
