"""HDF5 files in a pool through the driver, compared with the same files in a directory."""

import _ctypes
import ctypes
import io
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hdf5_files import driven, key, name, url
from mounted import Mounted, client, mount, mounted
from served import Served, make_key
from served_pools import pool

import outcore as oc
import outcore.h5py

__all__ = ["client", "key", "mount", "name", "pool", "url"]  # fixtures


def fill(file: h5py.File) -> None:
    """Write each kind of dataset, in several steps."""
    values = np.random.default_rng(3)
    file.attrs["title"] = "waves"
    whole = file.create_dataset("whole", data=values.standard_normal((700, 500)))
    whole[3:600:7, 5:490:11] = values.standard_normal((86, 45))
    chunked = file.create_dataset(
        "group/chunked", (300, 400), "f4", chunks=(64, 50), maxshape=(None, 400)
    )
    chunked[:] = values.standard_normal((300, 400))
    chunked.resize((500, 400))
    chunked[250:, ::3] = 5
    packed = file.create_dataset("packed", (90, 90), "i8", chunks=(40, 40), compression="gzip")
    packed[10:80] = values.integers(0, 9, (70, 90))
    words = file.create_dataset("words", (50,), h5py.string_dtype())
    words[:] = [f"word {i}" * (i % 7) for i in range(50)]
    compound = np.zeros(20, [("a", "i4"), ("b", "f8", 3)])
    compound["b"] = values.standard_normal((20, 3))
    file["compound"] = compound
    file["compound"][5:9, "a"] = 4
    file.create_dataset("unwritten", (1000, 1000), "f8")
    del file["words"]
    file["link"] = h5py.SoftLink("/whole")


def content(file: h5py.File) -> dict[str, Any]:
    found: dict[str, Any] = {"title": file.attrs["title"], "link": file["link"][:].tobytes()}

    def note(name: str, each: Any) -> None:
        if isinstance(each, h5py.Dataset):
            found[name] = (each.dtype, each.shape, each[()].tobytes())

    file.visititems(note)
    return found


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    with h5py.File(io.BytesIO(), "w") as file:
        fill(file)
        return content(file)


def test_datasets_are_those_of_another_driver(url: str, expected: dict[str, Any]) -> None:
    with driven(url, "w") as file:
        fill(file)
        assert content(file) == expected
    with driven(url) as file:
        assert content(file) == expected


def test_a_copied_file_is_read_without_the_driver(
    url: str, name: str, client: oc.Pool, tmp_path: Path, expected: dict[str, Any]
) -> None:
    with driven(url, "w") as file:
        fill(file)
    oc.copy_files(client / name, tmp_path / "u.h5")
    with h5py.File(tmp_path / "u.h5") as file:
        assert content(file) == expected
    # The other way around, too.
    oc.copy_files(tmp_path / "u.h5", client / f"copy-{name}")
    with driven(f"{url.rpartition('/')[0]}/copy-{name}") as file:
        assert content(file) == expected


def test_a_file_outside_pools_is_that_of_the_default_driver(
    tmp_path: Path, expected: dict[str, Any]
) -> None:
    for place in (tmp_path / "driven.h5", tmp_path / "default.h5"):
        with h5py.File(place, "w", driver="outcore" if "driven" in place.name else None) as file:
            fill(file)
            assert content(file) == expected
    assert driven(tmp_path / "driven.h5").id.get_vfd_handle() > 2
    with pytest.raises(FileNotFoundError):
        driven(tmp_path / "none.h5")
    with pytest.raises(FileExistsError):
        driven(tmp_path / "default.h5", "x")
    with pytest.raises(IsADirectoryError):
        driven(tmp_path)


def test_files_are_truncated_and_appended_to(url: str, name: str, client: oc.Pool) -> None:
    with driven(url, "w") as file:
        file["x"] = np.ones(100_000)
    assert client.stat(name).nbytes > 800_000
    with driven(url, "a") as file:
        file["y"] = np.arange(5)
        del file["x"]
    with driven(url, "r+") as file:
        assert list(file) == ["y"]
    with driven(url, "w") as file:
        file["z"] = 1
    assert client.stat(name).nbytes < 100_000
    with driven(url) as file:
        assert list(file) == ["z"]


def test_a_removed_file_is_closed_without_an_error(url: str, name: str, client: oc.Pool) -> None:
    with driven(url, "w") as file:
        file["x"] = np.ones(1000)
        client.rm(name)
        file["y"] = np.ones(3 << 17)
        file.flush()
    with pytest.raises(FileNotFoundError):
        driven(url)
    with driven(url, "w") as file:
        file["x"] = 1
        client.rm(name)
        with driven(url, "x") as other:
            other["z"] = 2
        file["x"][()] = 3
    with driven(url) as file:
        assert list(file) == ["z"]


def test_a_user_block_is_kept(url: str, name: str, client: oc.Pool) -> None:
    with driven(url, "w", userblock_size=1024) as file:
        file["x"] = np.arange(1000)
    with client.open(name, "r+b") as raw:
        raw.write(b"own bytes")
    with driven(url) as file:
        assert file.userblock_size == 1024
        assert (file["x"][:] == np.arange(1000)).all()


def test_names_of_one_file_are_one_file(url: str) -> None:
    with driven(url, "w") as file:
        file["x"] = 1
        with driven(url, "r+") as again:
            assert again["x"][()] == 1
            assert (
                file.id.get_access_plist().get_driver() == again.id.get_access_plist().get_driver()
            )
            again["x"][()] = 2
        assert file["x"][()] == 2


# Requests


# Errors


def test_errors_are_those_of_the_system(url: str, pool: Served, client: oc.Pool) -> None:
    with pytest.raises(FileNotFoundError, match="have nothing of that name; check the path"):
        driven(url)
    driven(url, "w").close()
    with pytest.raises(FileExistsError):
        driven(url, "x")
    client.mkdir("directory")
    with pytest.raises(OSError, match="have a directory"):
        driven(f"{pool.url}/directory")
    with client.open("text", "wb") as file:
        file.write(b"no HDF5" * 1000)
    with pytest.raises(OSError, match="file signature not found"):
        driven(f"{pool.url}/text")
    with driven(url) as file, pytest.raises(ValueError, match="no write intent"):
        file.create_group("x")


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("outcore://node1/u.h5", "need outcore://HOST:PORT/NAME"),
        ("outcore://node1:7171,node2/u.h5", '"node2" is no HOST:PORT'),
        ("outcore:{}::u.h5", "serve it with 'outcore pool up'"),
    ],
)
def test_unusable_addresses_are_refused(tmp_path: Path, address: str, said: str) -> None:
    with pytest.raises(OSError, match=said):
        driven(address.format(tmp_path))


def test_keys_are_checked(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driven(url, "w").close()
    with pytest.raises(PermissionError, match="the pool"):
        driven(url, key=make_key(tmp_path / "other.key"))
    with pytest.raises(FileNotFoundError, match="key file"):
        driven(url, key=tmp_path / "none.key")
    right = os.environ["OUTCORE_KEY"]
    monkeypatch.delenv("OUTCORE_KEY")
    with pytest.raises(PermissionError, match="set OUTCORE_KEY to its file"):
        driven(url)
    driven(url, key=right).close()


def test_rights_are_checked(pool: Served, url: str, name: str, client: oc.Pool) -> None:
    driven(url, "w").close()
    assert stat.S_IMODE(client.stat(name).mode) == 0o666 & ~mask()
    client.chmod(name, 0o640)
    with pytest.raises(PermissionError):
        driven(url, key=pool.key_of("guest", 4321, 4321))


def mask() -> int:
    now = os.umask(0)
    os.umask(now)
    return now


def test_swmr_is_refused(url: str) -> None:
    with driven(url, "w", libver="latest") as file:
        file["x"] = 1
        with pytest.raises(Exception, match="open it without swmr"):
            file.swmr_mode = True
        file["y"] = 2
    with pytest.raises(OSError, match="open it without swmr"):
        driven(url, swmr=True, libver="latest")
    with driven(url) as file:
        assert list(file) == ["x", "y"]


def in_a_fork(x: h5py.Dataset, url: str) -> str:
    try:
        x[:]
        said = "no error"
    except Exception as error:
        said = str(error)
    try:
        with driven(url) as own:
            return f"{said} {own['x'][7]}"
    except Exception as error:
        return f"{said} {error!r}"


def test_a_forked_process_opens_anew(url: str) -> None:
    with driven(url, "w") as file:
        file["x"] = np.arange(1000)
    file = driven(url)
    x = file["x"]
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.write(write, in_a_fork(x, url).encode())
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    told = os.read(read, 10_000).decode()
    os.close(read)
    os.close(write)
    assert "open it again" in told
    assert told.endswith(" 7")
    assert x[8] == 8
    file.close()


# Mounts


def test_a_path_below_a_mount_is_a_file_of_the_pool(
    mount: Mounted, url: str, name: str, monkeypatch: pytest.MonkeyPatch, expected: dict[str, Any]
) -> None:
    with driven(mount.place / name, "w") as file:
        fill(file)
        with pytest.raises(RuntimeError, match="no file descriptor"):
            file.id.get_vfd_handle()
    with driven(url) as file:
        assert content(file) == expected
    monkeypatch.chdir(mount.place)
    with driven(name) as file:
        assert content(file) == expected
    # The kernel sees the same bytes.
    with h5py.File(mount.place / name) as file:
        assert content(file) == expected


def test_without_the_driver_files_are_locked_between_mounts(
    pool: Served, mount: Mounted, name: str, tmp_path: Path
) -> None:
    # HDF5 asks for the length before it takes the lock.
    with mounted(pool, tmp_path / "m", "--strict") as other:

        def is_locked() -> bool:
            try:
                with h5py.File(other.place / name) as file:
                    return file["x"][()] != 1
            except BlockingIOError:
                return True

        with h5py.File(mount.place / name, "w") as file:
            file["x"] = 1
            assert is_locked()
        # HDF5 leaves the lock to `close`, which does not wait for its end.
        while is_locked():
            os.sched_yield()


def test_a_read_only_mount_takes_no_writes(pool: Served, name: str, tmp_path: Path) -> None:
    driven(f"{pool.url}/{name}", "w").close()
    with mounted(pool, tmp_path / "m", "--read-only") as found:
        for each in (name, f"new-{name}"):
            with pytest.raises(OSError, match="mount it without --read-only"):
                driven(found.place / each, "a" if each == name else "x")
        driven(found.place / name).close()


# Rights and names


def library(name: str, *types: Any) -> Callable[..., int]:
    """Return a function of h5py's HDF5 library that returns a status."""
    function = getattr(ctypes.CDLL(h5py.h5p.__file__), name)
    function.argtypes, function.restype = types, ctypes.c_int
    return function


def delete(place: str | Path) -> bool:
    """Remove a file by HDF5's own function; return whether it could."""
    plist = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    outcore.h5py.set_fapl(plist)
    h5py._errors.silence_errors()
    remove = library("H5Fdelete", ctypes.c_char_p, ctypes.c_int64)
    return remove(os.fsencode(place), plist.id) >= 0


def test_files_are_deleted(url: str, name: str, client: oc.Pool, tmp_path: Path) -> None:
    driven(url, "w").close()
    assert delete(url)
    assert not client.exists(name)
    assert not delete(url)
    driven(tmp_path / "u.h5", "w").close()
    assert delete(tmp_path / "u.h5")
    assert not list(tmp_path.iterdir())


def test_files_below_a_read_only_mount_are_not_deleted(
    pool: Served, url: str, name: str, client: oc.Pool, tmp_path: Path
) -> None:
    driven(url, "w").close()
    with mounted(pool, tmp_path / "m", "--read-only") as found:
        assert not delete(found.place / name)
        (tmp_path / "link").symlink_to(found.place)
        assert not delete(tmp_path / "link" / name)
    assert client.exists(name)


@pytest.mark.parametrize("place", ["outside", "below the mount", "in the pool"])
def test_a_deleted_link_leaves_its_target(
    mount: Mounted, pool: Served, url: str, name: str, client: oc.Pool, tmp_path: Path, place: str
) -> None:
    driven(url, "w").close()
    link = f"link-{name}"
    if place == "outside":
        (tmp_path / link).symlink_to(mount.place / name)
        assert delete(tmp_path / link)
        assert not (tmp_path / link).is_symlink()
    else:
        client.symlink(name, link)
        assert delete(mount.place / link if place == "below the mount" else f"{pool.url}/{link}")
        assert not (client / link).is_symlink()
    assert client.exists(name)
    # A link above the file is followed.
    (tmp_path / "above").symlink_to(mount.place)
    assert delete(tmp_path / "above" / name)
    assert not client.exists(name)


@pytest.mark.parametrize("mode", ["w", "a"])
def test_a_file_of_a_directory_of_others_is_written(
    pool: Served, client: oc.Pool, tmp_path: Path, mode: str
) -> None:
    directory = f"theirs-{mode}"
    place = f"{pool.url}/{directory}/u.h5"
    guest = pool.key_of("guest", 4321, 4321)
    client.mkdir(directory)
    client.chmod(directory, 0o755)
    driven(place, "w").close()
    client.chmod(f"{directory}/u.h5", 0o666)
    with driven(place, mode, key=guest) as file:
        file["x"] = 5
    with driven(place) as file:
        assert file["x"][()] == 5
    with pytest.raises(FileExistsError, match="have something at"):
        driven(place, "x", key=guest)
    for new in (mode, "x"):
        with pytest.raises(PermissionError):
            driven(f"{pool.url}/{directory}/new.h5", new, key=guest)
    client.chmod(f"{directory}/u.h5", 0o644)
    with pytest.raises(PermissionError):
        driven(place, "w", key=guest)
    with driven(place) as file:
        assert file["x"][()] == 5


def test_a_link_to_a_new_file_is_followed(
    pool: Served, url: str, name: str, client: oc.Pool
) -> None:
    client.symlink(f"target-{name}", name)
    with pytest.raises(FileExistsError):
        driven(url, "x")
    with driven(url, "w") as file:
        file["x"] = 3
    with driven(f"{pool.url}/target-{name}") as file:
        assert file["x"][()] == 3
    assert (client / name).is_symlink()
    client.symlink("none/u.h5", f"astray-{name}")
    with pytest.raises(FileNotFoundError):
        driven(f"{pool.url}/astray-{name}", "w")


def test_an_older_library_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # This module is not linked with HDF5, as if the function were missing there.
    monkeypatch.setattr(h5py.h5p, "__file__", _ctypes.__file__)
    with pytest.raises(oc.errors.OutcoreError, match=r"from version 1\.14\.2 to 2\.2"):
        outcore.h5py._set_driver()
