"""Parallel HDF5 and PnetCDF over the library for MPI-IO, against the same on plain files."""

from pathlib import Path

import h5py
import netCDF4
import numpy as np
import pytest
from command_line import outcore
from compiled_c import run
from mounted import Mounted, mount
from mpi_jobs import OPEN_MPI, all_say, mpi_program, skip_without
from served import Served
from served_pools import pool
from test_mpi_io import preloaded

__all__ = ["mount", "pool"]  # fixtures

JOBS = Path(__file__).parent / "mpi"
SIZE = 3

# Debian has both for Open MPI only. Its h5py is a module of its own Python.
PYTHON = Path("/usr/bin/python3")
H5PY = Path("/usr/lib/python3/dist-packages/h5py/_debian_h5py_mpi")
PNETCDF = Path("/usr/include/pnetcdf.h")


def skip_without_package(file: Path, package: str) -> None:
    skip_without(OPEN_MPI)
    if not file.exists():
        pytest.skip(f"need {file.name} of Debian's package {package}")


def run_job(*command: str | Path, **more: str) -> None:
    """Run a program, each process of which says that all is well."""
    done = mpi_program(SIZE, *map(str, command), mpi=OPEN_MPI, **more)
    all_say("well", SIZE, done)


def copied(pool: Served, name: str, folder: Path) -> Path:
    """Copy a file out of the pool."""
    done = outcore("cp", "--key", pool.key, f"{pool.url}/{name}", folder / name)
    assert done.exit_code == 0, done.output
    return folder / name


def test_parallel_hdf5(pool: Served, mount: Mounted, tmp_path: Path) -> None:
    skip_without_package(H5PY, "python3-h5py-mpi")
    variables = preloaded(pool, OPEN_MPI)
    job = (PYTHON, JOBS / "parallel_hdf5.py")
    plain = tmp_path / "plain.h5"
    run_job(*job, plain)
    run_job(*job, f"{pool.url}/address.h5", **variables)
    run_job(*job, mount.place / "path.h5", **variables)
    for name in ("address.h5", "path.h5"):
        assert copied(pool, name, tmp_path).read_bytes() == plain.read_bytes()
    with h5py.File(tmp_path / "path.h5") as file:
        for name in ("independent", "guarded", "chunked", "filtered", "grown"):
            found = file[name][()]
            assert np.array_equal(found.ravel(), np.arange(found.size)), name


def test_pnetcdf(pool: Served, mount: Mounted, tmp_path: Path) -> None:
    skip_without_package(PNETCDF, "libpnetcdf-dev")
    variables = preloaded(pool, OPEN_MPI)
    program, plain = tmp_path / "variables", tmp_path / "plain.nc"
    flags = ["-Wall", "-Wextra", "-Werror", "-lpnetcdf"]
    run(OPEN_MPI.mpicc, JOBS / "pnetcdf_variables.c", *flags, "-o", program)
    run_job(program, "write", plain)
    # PnetCDF looks at a file that it opens by calls of the system, which know no addresses.
    run_job(program, "write", f"{pool.url}/address.nc", **variables)
    run_job(program, "write", mount.place / "path.nc", **variables)
    for name in ("address.nc", "path.nc"):
        assert copied(pool, name, tmp_path).read_bytes() == plain.read_bytes()
        run_job(program, "read", mount.place / name, **variables)
    with netCDF4.Dataset(tmp_path / "path.nc") as file:
        time, x, y = np.ogrid[:3, : 4 * SIZE, :6]
        assert np.array_equal(file["pressure"][:], ((time * 100 + x) * 100 + y) * 10 + 2)
        assert np.array_equal(file["late"][:].mask[:, 0], np.arange(4 * SIZE) >= 4 * (SIZE - 1))
