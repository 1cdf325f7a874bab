"""A pool by URL in several processes: each connects on its own; one process embeds a pool."""

import multiprocessing
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import fsspec
import pytest
from served_pools import embedded_url, served_url
from timeouts import HANG_S

import outcore as oc
from outcore.errors import BusyError, ForkedError
from outcore.pool.fsspec_filesystem import OutcoreFileSystem
from outcore.zarr_store import PoolStore

Start = Callable[..., subprocess.Popen[str]]

__all__ = ["embedded_url", "served_url"]


def read(fs: OutcoreFileSystem, store: PoolStore | None, name: str) -> tuple[int, bytes]:
    if store is not None:
        assert store.path.is_dir()
    return os.getpid(), fs.cat_file(name)


@pytest.mark.parametrize("method", ["spawn", "fork"])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_other_processes_connect_for_themselves(served_url: str, method: str) -> None:
    fs = fsspec.url_to_fs(served_url)[0]
    fs.pipe_file("/f", b"x" * 100_000)
    arguments = (fs, PoolStore(served_url), "/f")
    with multiprocessing.get_context(method).Pool(2) as processes:
        for process, data in processes.starmap(read, [arguments] * 4):
            assert process != os.getpid()
            assert data == b"x" * 100_000
    assert fs.cat_file("/f") == b"x" * 100_000


@pytest.mark.parametrize(("method", "kind"), [("spawn", BusyError), ("fork", ForkedError)])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_an_embedded_pool_is_in_one_process(
    embedded_url: str, method: str, kind: type[Exception]
) -> None:
    fs = fsspec.url_to_fs(embedded_url)[0]
    fs.pipe_file("/f", b"x")
    with (
        multiprocessing.get_context(method).Pool(1) as processes,
        pytest.raises(kind, match="outcore pool up"),
    ):
        processes.apply(read_by_url, (embedded_url,))
    assert fs.cat_file("/f") == b"x"


def read_by_url(url: str) -> bytes:
    found: bytes = fsspec.url_to_fs(url)[0].cat_file("/f")
    return found


BY_DIRECTORIES = """
import sys, fsspec
directories = sys.argv[1:]
with fsspec.open("outcore://d/f", "w", directories=directories) as file:
    file.write("kept")
with fsspec.open(f"outcore://{directories[0]}:/d/f", "r") as file:
    print(file.read(), flush=True)
"""


def test_an_embedded_pool_is_opened_by_its_directories(tmp_path: Path, run_python: Start) -> None:
    places = [str(tmp_path / "a"), str(tmp_path / "b")]
    out, err = run_python(BY_DIRECTORIES, *places).communicate(timeout=HANG_S)
    assert (out, err) == ("kept\n", "")
    with oc.Pool.embedded(places) as pool:
        assert (pool / "d/f").read_bytes() == b"kept"
        out, err = run_python(BY_DIRECTORIES, *places).communicate(timeout=HANG_S)
        assert "BusyError" in err
        assert "outcore pool up" in err


BY_DIRECTORY = """
import sys, fsspec
with fsspec.open(f"outcore://{sys.argv[1]}:/d/f", "r") as file:
    print(file.read(), flush=True)
"""


def test_a_pool_of_one_directory_is_opened_by_it(tmp_path: Path, run_python: Start) -> None:
    with oc.Pool.embedded([tmp_path / "a"]) as pool:
        (pool / "d/f").write_bytes(b"kept")
    out, err = run_python(BY_DIRECTORY, str(tmp_path / "a")).communicate(timeout=HANG_S)
    assert (out, err) == ("kept\n", "")
    _, err = run_python(BY_DIRECTORY, str(tmp_path)).communicate(timeout=HANG_S)
    assert "there is no pool in" in err


KILLED = """
import os, sys, fsspec
with fsspec.open(sys.argv[1] + "/checkpoint", "wb", block_size=1 << 16) as file:
    file.write(bytes(1 << 20))
    print("written", flush=True)
    os.kill(os.getpid(), 9)
"""


def test_a_killed_writer_leaves_no_file(served_url: str, run_python: Start) -> None:
    fs = fsspec.url_to_fs(served_url)[0]
    fs.pipe_file("/checkpoint", b"the last one")
    writer = run_python(KILLED, served_url)
    out, _ = writer.communicate(timeout=HANG_S)
    assert (out, writer.returncode) == ("written\n", -9)
    assert fs.cat_file("/checkpoint") == b"the last one"
    assert fs.ls("/", detail=False) == ["/checkpoint"]
    # The left-over has a telling name, and disappears with its directory.
    (left,) = [each.name for each in PoolStore(served_url).path.iterdir() if each.name[0] == "."]
    assert left.startswith(".checkpoint.")
