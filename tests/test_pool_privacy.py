"""Other users of the machine cannot read a pool's disks, whatever the umask is."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from own_daemons import OwnDaemons
from started_pools import connect, directories, up

import outcore as oc
from outcore._util.communicator import Alone
from outcore.pool import local_pool
from outcore.pool import state as pool_state

__all__ = ["directories"]


@pytest.fixture(params=[0o000, 0o022])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    """Set masks that leave other users all rights, or all except writing."""
    before = os.umask(request.param)
    yield
    os.umask(before)


def open_to_others(*roots: Path) -> list[Path]:
    """List the paths, from these directories down, that other users may access."""
    every = [each for root in roots for each in (root, *root.rglob("*"))]
    return [each for each in every if each.lstat().st_mode & 0o077]


def use(pool: oc.Pool) -> None:
    with pool.open("secret", "w", permissions=0o600) as file:
        file.write(b"payroll" * 100_000)
        file.sync()
    pool.mkdir("shared", mode=0o777)
    pool.setxattr("secret", "note", b"x")


@pytest.mark.usefixtures("umask")
def test_embedded_pools(directories: list[Path]) -> None:
    with oc.Pool.embedded(directories) as pool:
        use(pool)
        assert any((directories[0] / "manager").glob("*-wal"))
        assert open_to_others(*directories) == []
    assert open_to_others(*directories) == []


@pytest.mark.usefixtures("umask")
def test_daemons_in_directories_of_the_user(tmp_path: Path, directories: list[Path]) -> None:
    for place in directories:
        place.mkdir(0o755)
        place.chmod(0o755)
    daemons = OwnDaemons(tmp_path, directories)
    with daemons.connect() as pool:
        use(pool)
    below = [each for place in directories for each in place.iterdir()]
    assert len(below) >= 9
    assert open_to_others(*below) == []
    assert all(stat.S_IMODE(place.stat().st_mode) == 0o755 for place in directories)
    # Any user with search permission for its directory may connect to a socket.
    socket = Path(daemons.daemons[0].addresses[0].removeprefix("unix:"))
    assert stat.S_IMODE(socket.stat().st_mode) == 0o666
    daemons.stop()


@pytest.mark.usefixtures("umask")
def test_daemons_that_are_processes(directories: list[Path]) -> None:
    up(directories)
    with connect(directories) as pool:
        use(pool)
    sockets = [each for each in open_to_others(*directories) if not each.is_socket()]
    assert sockets == []
    local_pool.stop(directories[0])
    assert open_to_others(*directories) == []


def test_a_start_mends_what_older_ones_made(tmp_path: Path, directories: list[Path]) -> None:
    with oc.Pool.embedded(directories) as pool:
        use(pool)
        copy = {
            file: file.read_bytes()
            for file in (directories[0] / "manager").glob("metadata.sqlite*")
        }
    # Restore the files as after a power loss, with SQLite's log.
    for file, content in copy.items():
        file.write_bytes(content)
    every = [each for place in directories for each in (place, *place.rglob("*"))]
    for each in every:
        each.chmod(0o755 if each.is_dir() else 0o644)
    below = [each for each in every if each not in directories]

    with oc.Pool.embedded(directories) as pool:
        assert open_to_others(*below) == []
        assert pool.open("secret").read(7) == b"payroll"

    state = directories[0] / pool_state.STATE
    state.mkdir()
    (state / "io0.log").write_text("said\n")
    below = [each for place in directories for each in place.rglob("*")]
    for each in below:
        each.chmod(0o755 if each.is_dir() else 0o644)
    up(directories)
    assert all(each.is_socket() for each in open_to_others(*below))


def test_a_pool_of_a_parallel_job(tmp_path: Path) -> None:
    with oc.Pool.from_comm(Alone(), tmp_path / "job") as pool:
        use(pool)
        assert open_to_others(tmp_path / "job") == []
