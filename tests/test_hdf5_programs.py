"""Programs that use HDF5 by the variables of ``outcore env``: netCDF4, xarray, h5py's own tests."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import outcore
from mounted import Mounted, mount
from served import Served
from served_pools import pool

__all__ = ["mount", "pool"]  # fixtures

PLUGINS = Path(__file__).parent.parent / "python/outcore/_plugins"


def run(script: str, pool: Served, *arguments: object) -> str:
    """Run a script with the variables of ``outcore env``; return its output."""
    variables = json.loads(outcore("env", "--json").output)
    command = [sys.executable, "-c", script, *map(str, arguments)]
    env = os.environ | variables | {"OUTCORE_KEY": str(pool.key)}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_env_prints_the_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HDF5_PLUGIN_PATH", raising=False)
    found = outcore("env")
    path = f"{PLUGINS}:/usr/local/hdf5/lib/plugin"
    assert found.output == f"export HDF5_DRIVER=outcore\nexport HDF5_PLUGIN_PATH={path}\n"
    monkeypatch.setenv("HDF5_PLUGIN_PATH", "")
    assert outcore("env").output.endswith(f"HDF5_PLUGIN_PATH={PLUGINS}\n")
    monkeypatch.setenv("HDF5_PLUGIN_PATH", f"/my filters:{PLUGINS}:/b")
    script = 'eval "$1"; echo "$HDF5_DRIVER $HDF5_PLUGIN_PATH"'
    done = subprocess.run(
        ["sh", "-c", script, "sh", outcore("env").output], capture_output=True, text=True
    )
    assert done.stdout == f"outcore {PLUGINS}:/my filters:/b\n"
    assert json.loads(outcore("env", "--json").output) == {
        "HDF5_DRIVER": "outcore",
        "HDF5_PLUGIN_PATH": f"{PLUGINS}:/my filters:/b",
    }


NETCDF = """
import sys
import h5py
import netCDF4
import numpy as np

mount, plain = sys.argv[1:]
values = np.random.default_rng(1).standard_normal((30, 40, 50))
for place in (mount, plain):
    with netCDF4.Dataset(f"{place}/u.nc", "w") as file:
        file.title = "waves"
        for dimension, size in (("t", None), ("y", 40), ("x", 50)):
            file.createDimension(dimension, size)
        u = file.createVariable("u", "f8", ("t", "y", "x"), chunksizes=(5, 40, 50))
        u.units = "m"
        u[:20] = values[:20]
    with netCDF4.Dataset(f"{place}/u.nc", "a") as file:
        file["u"][20:] = values[20:]
        file.createVariable("n", "i4", ("y",), zlib=True)[:] = np.arange(40)
    with netCDF4.Dataset(f"{place}/u.nc") as file:
        assert file.title == "waves"
        assert (file["u"][:] == values).all()
        assert (file["u"][::3, 5:9, ::7] == values[::3, 5:9, ::7]).all()
        assert (file["n"][:] == np.arange(40)).all()
    # Two HDF5 libraries are in this process now.
    with h5py.File(f"{place}/u.nc") as file:
        assert (file["u"][:] == values).all()
"""


def test_netcdf_files_are_read_as_they_were_written(
    pool: Served, mount: Mounted, tmp_path: Path
) -> None:
    run(NETCDF, pool, mount.place, tmp_path)
    # Without the driver, the kernel reads the bytes of the pool.
    assert (mount.place / "u.nc").read_bytes()[:8] == b"\x89HDF\r\n\x1a\n"
    assert outcore("cp", "--key", pool.key, f"{pool.url}/u.nc", tmp_path / "v.nc").exit_code == 0
    script = "import sys, h5py; print(h5py.File(sys.argv[1])['u'].shape)"
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path / "v.nc"], capture_output=True, text=True
    )
    assert done.stdout == "(30, 40, 50)\n"


XARRAY = """
import sys
import numpy as np
import xarray as xr

mount, engine = sys.argv[1:]
written = xr.Dataset(
    {"u": (("t", "x"), np.random.default_rng(2).standard_normal((20, 300)))},
    {"t": np.arange(20), "name": ("x", [f"node {i}" for i in range(300)])},
    {"title": "waves"},
)
written.to_netcdf(f"{mount}/{engine}.nc", engine=engine)
with xr.open_dataset(f"{mount}/{engine}.nc", engine=engine) as found:
    xr.testing.assert_identical(found.load(), written)
"""


@pytest.mark.parametrize("engine", ["h5netcdf", "netcdf4"])
def test_xarray_reads_what_it_wrote(pool: Served, mount: Mounted, engine: str) -> None:
    run(XARRAY, pool, mount.place, engine)


def failed_tests_of_h5py(directory: Path, **env: str) -> set[str]:
    """Run h5py's own tests; return the names of those that fail."""
    directory.mkdir()
    command = [sys.executable, "-m", "pytest", "-q", "-W", "ignore", "--pyargs", "h5py"]
    # Some of its tests run pytest themselves, which must not read the settings of outcore's tests.
    env |= {"PYTEST_ADDOPTS": "-c /dev/null -p no:cacheprovider"}
    done = subprocess.run(
        command, cwd=directory, env=os.environ | env, capture_output=True, text=True
    )
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed, done.stdout
    assert int(passed[1]) > 500, done.stdout
    return set(re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE))


@pytest.mark.exhaustive(keep=0)
def test_h5py_passes_its_own_tests(pool: Served, mount: Mounted, tmp_path: Path) -> None:
    variables = json.loads(outcore("env", "--json").output) | {"OUTCORE_KEY": str(pool.key)}
    default = failed_tests_of_h5py(tmp_path / "default")
    plain = failed_tests_of_h5py(tmp_path / "plain", **variables)
    assert plain - default == set()
    in_pool = failed_tests_of_h5py(tmp_path / "pool", **variables, TMPDIR=str(mount.place))
    # The driver refuses SWMR in pools.
    assert {name for name in in_pool - default if "swmr" not in name.lower()} == set()
