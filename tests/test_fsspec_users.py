"""Libraries that read and write by URL: pandas, NumPy, zarr, xarray, dask, pickle."""

import os
import pickle
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
from served import serve
from served_pools import embedded_url, served_url

import outcore as oc
from outcore.errors import DeniedError, InvalidError
from outcore.zarr_store import PoolStore

__all__ = ["embedded_url", "served_url"]


@pytest.fixture(params=["served_url", "embedded_url"])
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
    # As in torch.save: a pickle, with large buffers in between.
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
    # Arrays of outcore, by URL.
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


def test_threads_share_a_pool(served_url: str) -> None:
    def copy(number: int) -> bytes:
        with fsspec.open(f"{served_url}/{number}", "wb") as file:
            file.write(bytes([number]) * 70_000)
        with fsspec.open(f"{served_url}/{number}") as file:
            return bytes(file.read()[:2])

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(copy, range(32))) == [bytes([number]) * 2 for number in range(32)]


def test_a_key_is_needed(served_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = os.environ["OUTCORE_KEY"]
    monkeypatch.delenv("OUTCORE_KEY")
    with pytest.raises(PermissionError):
        fsspec.open(f"{served_url}/f")
    wrong = tmp_path / "wrong"
    wrong.touch(0o600)
    wrong.write_text(f"outcore-pool-key-1 {'0' * 64}\n")
    with pytest.raises(DeniedError):
        fsspec.open(f"{served_url}/f", key=wrong)
    with fsspec.open(f"{served_url}/f", "wb", key=key) as file:
        file.write(b"x")
    assert fsspec.url_to_fs(f"{served_url}/f", key=key)[0].cat_file("/f") == b"x"


def test_a_pool_by_its_socket(tmp_path: Path) -> None:
    with serve(tmp_path, "unix") as (address, _):
        place = f"outcore://{address.removeprefix('outcore:')}:"
        with fsspec.open(f"{place}/f", "wb") as file:
            file.write(b"x")
        with oc.connect(address) as pool:
            assert (pool / "f").read_bytes() == b"x"
            assert PoolStore(pool / "").path == PoolStore(f"{place}/").path


def test_a_pool_by_tls(tmp_path: Path) -> None:
    with serve(tmp_path, "tls") as (address, key):
        assert address.startswith("outcore+tls://")
        with fsspec.open(f"{address}/d/f", "wb", key=key) as file:
            file.write(b"x")
        fs, name = fsspec.url_to_fs(f"{address}/d/f", key=key)
        assert fs.unstrip_protocol(name) == f"{address}/d/f"
        assert fs.cat_file(f"{address}/d/f") == b"x"
        with pytest.raises(InvalidError, match="another pool"):
            fs.cat_file(f"{address.replace('+tls', '')}/d/f")
        store = PoolStore(address, key=key)
        assert str(store) == f"{address}/"
        assert store == PoolStore(store.path) == pickle.loads(pickle.dumps(store))
        group = zarr.open_group(f"{address}/z", mode="w", storage_options={"key": str(key)})
        group.attrs["k"] = 1
        assert zarr.open_group(PoolStore(f"{address}/z", key=key), mode="r").attrs["k"] == 1
