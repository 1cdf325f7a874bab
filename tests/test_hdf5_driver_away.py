"""The driver of HDF5 while a server of the pool is gone, and after it is back."""

import errno
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import pytest
from served import make_key
from started_pools import directories, kill, up  # noqa: F401  # a fixture

import outcore.h5py  # noqa: F401  # it registers the driver
from outcore.pool import local_pool
from outcore.pool import state as pool_state

TIMEOUT_S = 1
"""A call that cannot reach its server fails after it. One that is up may take longer to answer."""

FAILED = (OSError, RuntimeError)
"""Errors of h5py, which chooses the class by the function of HDF5, not by the error number."""

VALUES = np.random.default_rng(11).random((512, 1024))
"""Four stripe units: both servers store some."""


class Pool:
    """A pool of two servers in processes that the tests kill."""

    def __init__(self, directories: list[Path]) -> None:  # noqa: F811
        self._directories = directories
        self._daemons = up(directories)
        url = local_pool.url_of(directories[0])
        self.file = f"{url}/u.h5" if "://" in url else f"{url}::u.h5"
        """The address of a file."""

    def kill(self, role: str) -> None:
        """Kill the manager, or the second I/O server."""
        kill(self._daemons[0 if role == "manager" else 2]["pid"])

    def restart(self) -> None:
        """Start the killed processes at the same addresses."""
        up(self._directories)


@pytest.fixture
def pool(directories: list[Path], monkeypatch: pytest.MonkeyPatch) -> Pool:  # noqa: F811
    started = Pool(directories)
    monkeypatch.setenv("OUTCORE_KEY", str(directories[0] / pool_state.STATE / "key"))
    monkeypatch.setenv("OUTCORE_TIMEOUT", str(TIMEOUT_S))
    with driven(started.file, "w") as file:
        file.create_dataset("x", data=VALUES)
    return started


def driven(place: str, mode: str = "r") -> h5py.File:
    return h5py.File(place, mode, driver="outcore")


def read(file: h5py.File) -> npt.NDArray[Any]:
    found: npt.NDArray[Any] = file["x"][()]
    return found


def test_reads_fail_until_the_server_is_back(pool: Pool) -> None:
    with driven(pool.file) as file:
        pool.kill("io")
        with pytest.raises(OSError, match="errno = 5") as found:
            read(file)
        assert "I/O server 1" in str(found.value)
        pool.restart()
        np.testing.assert_array_equal(read(file), VALUES)


def test_an_open_file_needs_no_manager(pool: Pool) -> None:
    with driven(pool.file, "r+") as file:
        pool.kill("manager")
        np.testing.assert_array_equal(read(file), VALUES)
        file["x"][:] = VALUES + 1
        with pytest.raises(OSError, match="manager") as found:
            driven(pool.file + "-2", "w")
        assert found.value.errno == errno.EIO
        pool.restart()
    with driven(pool.file) as file:
        np.testing.assert_array_equal(read(file), VALUES + 1)
    driven(pool.file + "-2", "w").close()


def test_writes_fail_until_the_server_is_back(pool: Pool) -> None:
    with driven(pool.file, "r+") as file:
        pool.kill("io")
        with pytest.raises(OSError, match="errno = 5"):
            file["x"][:] = VALUES + 1
        with pytest.raises(FAILED, match="errno = 5"):
            file.flush()
        pool.restart()
        file["x"][:] = VALUES + 2
        file.flush()
    with driven(pool.file) as file:
        np.testing.assert_array_equal(read(file), VALUES + 2)


def test_a_flush_reports_writes_that_a_kill_may_have_lost(pool: Pool) -> None:
    with driven(pool.file, "r+") as file:
        file["x"][:] = VALUES + 1
        pool.kill("io")
        pool.restart()
        with pytest.raises(FAILED, match="errno = 5") as found:
            file.flush()
        assert "repeat the writes since the last sync" in str(found.value)
        file["x"][:] = VALUES + 2
        file.flush()
    with driven(pool.file) as file:
        np.testing.assert_array_equal(read(file), VALUES + 2)


@pytest.mark.parametrize("role", ["manager", "io"])
def test_a_close_without_a_server_ends_and_the_file_opens_again(pool: Pool, role: str) -> None:
    """The metadata are flushed: without that, HDF5 may leave a file that it cannot open."""
    file = driven(pool.file, "r+")
    file.attrs["title"] = "new"
    file.flush()
    file["x"][:] = VALUES + 1
    pool.kill(role)
    if role == "io":
        with pytest.raises(FAILED, match="errno = 5"):
            file.close()
    else:
        file.close()
    pool.restart()
    with driven(pool.file, "r+") as file:
        assert file.attrs["title"] == "new"
        file["x"][:] = VALUES + 2
        file.attrs["title"] = "last"
    with driven(pool.file) as file:
        np.testing.assert_array_equal(read(file), VALUES + 2)
        assert file.attrs["title"] == "last"


def test_a_file_whose_close_failed_can_be_replaced(pool: Pool) -> None:
    file = driven(pool.file, "r+")
    file.create_dataset("y", data=VALUES)
    pool.kill("io")
    with pytest.raises(FAILED, match="errno = 5"):
        file.close()
    pool.restart()
    with driven(pool.file, "w") as file:
        file["z"] = VALUES
    with driven(pool.file) as file:
        assert list(file) == ["z"]
        np.testing.assert_array_equal(file["z"][()], VALUES)


@pytest.mark.parametrize("given", ["0", "-1", "soon", "nan"])
def test_a_timeout_that_is_none_is_refused(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTCORE_KEY", str(make_key(tmp_path / "key")))
    monkeypatch.setenv("OUTCORE_TIMEOUT", given)
    with pytest.raises(OSError, match="need OUTCORE_TIMEOUT in seconds") as found:
        driven("outcore://127.0.0.1:1/no-manager-is-asked.h5")
    assert found.value.errno == errno.EINVAL
