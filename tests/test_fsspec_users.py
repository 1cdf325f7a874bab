"""What reads and writes by URL: pandas, NumPy, zarr, xarray, dask, pickle, other processes."""

import multiprocessing
import os
import pickle
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dask
import dask.array
import fsspec
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr
from served_pools import in_memory, serving, some_pool

import outcore as oc
from outcore.errors import DeniedError, ForkedError, InvalidError
from outcore.fsspec_filesystem import OutcoreFileSystem
from outcore.zarr_store import PoolStore

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Address of a pool whose key is known by the environment."""
    with in_memory() as directory, serving(directory) as (url, key):
        monkeypatch.setenv("OUTCORE_KEY", str(key))
        yield url


@pytest.fixture
def embedded() -> Iterator[str]:
    """Address of a pool that is open in the process."""
    with some_pool("embedded") as pool:
        yield OutcoreFileSystem(pool=pool).unstrip_protocol("").rstrip("/")


@pytest.fixture(params=["served", "embedded"])
def url(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(request.param)
    return found


def test_tables_arrays_and_checkpoints(url: str) -> None:
    table = pd.DataFrame({"x": np.arange(100) / 7, "name": [f"n{n}" for n in range(100)]})
    table.to_csv(f"{url}/t/table.csv.gz", index=False)
    pd.testing.assert_frame_equal(pd.read_csv(f"{url}/t/table.csv.gz"), table)
    model = np.random.default_rng(0).normal(size=(60, 70))
    with fsspec.open(f"{url}/t/a.npy", "wb") as file:
        np.save(file, model)
    with fsspec.open(f"{url}/t/a.npy") as file:
        assert np.load(file).tobytes() == model.tobytes()
    # As torch.save does: a pickle, with large buffers in between.
    state = {"step": 7, "weights": model, "name": "ü"}
    with fsspec.open(f"{url}/t/state.pt", "wb") as file:
        pickle.dump(state, file, protocol=5)
    with fsspec.open(f"{url}/t/state.pt") as file:
        found = pickle.load(file)
    assert found["weights"].tobytes() == model.tobytes()
    assert sorted(fsspec.url_to_fs(url)[0].ls("/t", detail=False)) == [
        "/t/a.npy", "/t/state.pt", "/t/table.csv.gz",
    ]  # fmt: skip


@pytest.mark.parametrize("below", ["", "/sim"])
def test_zarr(url: str, below: str) -> None:
    model = np.random.default_rng(1).normal(size=(50, 60))
    group = zarr.open_group(f"{url}{below}", mode="a")
    group.create_array("u", shape=model.shape, dtype="f8", chunks=(20, 20))[...] = model
    group.create_group("deeper").attrs["k"] = 1
    again = zarr.open_group(f"{url}{below}", mode="r")
    assert sorted(again.keys()) == ["deeper", "u"]
    assert again["u"][...].tobytes() == model.tobytes()
    assert again["u"][3:41:5, 7].tobytes() == model[3:41:5, 7].tobytes()
    del group["deeper"]
    assert list(zarr.open_group(f"{url}{below}", mode="r").keys()) == ["u"]
    # Arrays of outcore's own, by URL.
    name = f"{below}/A".lstrip("/")
    with oc.from_array(model, PoolStore(url).path / name, chunks=(16, 16), progress=False):
        assert zarr.open_array(f"{url}/{name}", mode="r")[...].tobytes() == model.tobytes()


def test_xarray(url: str) -> None:
    data = xr.Dataset(
        {"t": (("time", "x"), np.random.default_rng(2).normal(size=(12, 30)))},
        {"time": pd.date_range("2001-01-01", periods=12)},
    )
    data.to_zarr(f"{url}/data", mode="w", consolidated=False)
    with xr.open_zarr(f"{url}/data", consolidated=False) as found:
        xr.testing.assert_identical(found.load(), data)
    data.to_zarr(PoolStore(url + "/other"), consolidated=False, append_dim=None)
    with xr.open_zarr(PoolStore(url + "/other"), consolidated=False) as found:
        assert float(found.t.sum()) == float(data.t.sum())


def test_dask(url: str) -> None:
    model = np.random.default_rng(3).normal(size=(64, 80))
    dask.array.to_zarr(dask.array.from_array(model, chunks=(16, 40)), f"{url}/d")
    found = dask.array.from_zarr(f"{url}/d")
    assert found.compute().tobytes() == model.tobytes()
    total = (found @ found.T).sum().compute(scheduler="threads")
    np.testing.assert_allclose(total, (model @ model.T).sum())


def test_threads_share_a_pool(served: str) -> None:
    def copy(number: int) -> bytes:
        with fsspec.open(f"{served}/{number}", "wb") as file:
            file.write(bytes([number]) * 70_000)
        with fsspec.open(f"{served}/{number}") as file:
            return bytes(file.read()[:2])

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(copy, range(32))) == [bytes([number]) * 2 for number in range(32)]


def read(fs: OutcoreFileSystem, store: PoolStore | None, name: str) -> tuple[int, bytes]:
    if store is not None:
        assert store.path.is_dir()
    return os.getpid(), fs.cat_file(name)


@pytest.mark.parametrize("method", ["spawn", "fork"])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_other_processes_connect_for_themselves(served: str, method: str) -> None:
    fs = fsspec.url_to_fs(served)[0]
    fs.pipe_file("/f", b"x" * 100_000)
    arguments = (fs, PoolStore(served), "/f")
    with multiprocessing.get_context(method).Pool(2) as processes:
        for process, data in processes.starmap(read, [arguments] * 4):
            assert process != os.getpid()
            assert data == b"x" * 100_000
    assert fs.cat_file("/f") == b"x" * 100_000


@pytest.mark.parametrize(("method", "kind"), [("spawn", InvalidError), ("fork", ForkedError)])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_an_embedded_pool_is_in_one_process(
    embedded: str, method: str, kind: type[Exception]
) -> None:
    fs = fsspec.url_to_fs(embedded)[0]
    fs.pipe_file("/f", b"x")
    with (
        multiprocessing.get_context(method).Pool(1) as processes,
        pytest.raises(kind, match="outcore pool up"),
    ):
        processes.apply(read_by_url, (embedded,))
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
    out, err = run_python(BY_DIRECTORIES, *places).communicate(timeout=60)
    assert (out, err) == ("kept\n", "")
    with oc.Pool.embedded(places) as pool:
        assert (pool / "d/f").read_bytes() == b"kept"
        out, err = run_python(BY_DIRECTORIES, *places).communicate(timeout=60)
        assert "BusyError" in err
        assert "outcore pool up" in err


def test_a_key_is_needed(served: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = os.environ["OUTCORE_KEY"]
    monkeypatch.delenv("OUTCORE_KEY")
    with pytest.raises(PermissionError):
        fsspec.open(f"{served}/f")
    wrong = tmp_path / "wrong"
    wrong.touch(0o600)
    wrong.write_text(f"outcore-pool-key-1 {'0' * 64}\n")
    with pytest.raises(DeniedError):
        fsspec.open(f"{served}/f", key=wrong)
    with fsspec.open(f"{served}/f", "wb", key=key) as file:
        file.write(b"x")
    assert fsspec.url_to_fs(f"{served}/f", key=key)[0].cat_file("/f") == b"x"


def test_a_pool_by_its_socket(tmp_path: Path) -> None:
    with serving(tmp_path, sockets=True) as (address, _):
        place = f"outcore://{address.removeprefix('outcore:')}:"
        with fsspec.open(f"{place}/f", "wb") as file:
            file.write(b"x")
        with oc.connect(address) as pool:
            assert (pool / "f").read_bytes() == b"x"
            assert PoolStore(pool / "").path == PoolStore(f"{place}/").path


KILLED = """
import os, sys, fsspec
with fsspec.open(sys.argv[1] + "/checkpoint", "wb", block_size=1 << 16) as file:
    file.write(bytes(1 << 20))
    print("written", flush=True)
    os.kill(os.getpid(), 9)
"""


def test_a_killed_writer_leaves_no_file(served: str, run_python: Start) -> None:
    fs = fsspec.url_to_fs(served)[0]
    fs.pipe_file("/checkpoint", b"the last one")
    writer = run_python(KILLED, served)
    out, _ = writer.communicate(timeout=60)
    assert (out, writer.returncode) == ("written\n", -9)
    assert fs.cat_file("/checkpoint") == b"the last one"
    assert fs.ls("/", detail=False) == ["/checkpoint"]
    # What it left says what it is, and goes with its directory.
    (left,) = [each.name for each in PoolStore(served).path.iterdir() if each.name[0] == "."]
    assert left.startswith(".checkpoint.")
