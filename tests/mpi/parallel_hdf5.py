"""Datasets of parallel HDF5 that all processes of a job write and read: ``parallel_hdf5.py FILE``.

It knows nothing of pools, and needs h5py with MPI. Each process prints "well".
"""

import sys
from typing import Any

import h5py
import numpy as np
from mpi4py import MPI

COMM = MPI.COMM_WORLD
N = 24
GUARD = 2


def numbers(shape: tuple[int, ...], dtype: str) -> Any:
    """Return the numbers of a dataset."""
    return np.arange(np.prod(shape)).reshape(shape).astype(dtype)


def share(n: int, rank: int, size: int = COMM.size) -> slice:
    """Return the part of n rows that one of `size` processes has."""
    return slice(n * rank // size, n * (rank + 1) // size) if rank < size else slice(0, 0)


def write_guarded(dataset: Any, data: Any) -> None:
    """Write all rows from memory with guard cells on each side; the last process has no rows."""
    rows = share(N, COMM.rank, max(COMM.size - 1, 1))
    padded = np.pad(data[rows], GUARD, constant_values=-1)
    inside = h5py.h5s.create_simple(padded.shape)
    inside.select_hyperslab((GUARD,) * padded.ndim, data[rows].shape)
    place = dataset.id.get_space()
    place.select_hyperslab((rows.start, 0, 0), data[rows].shape)
    if data[rows].size == 0:
        inside.select_none()
        place.select_none()
    together = h5py.h5p.create(h5py.h5p.DATASET_XFER)
    together.set_dxpl_mpio(h5py.h5fd.MPIO_COLLECTIVE)
    dataset.id.write(inside, place, padded, dxpl=together)


def write(file: Any) -> None:
    """Write all datasets."""
    rows = share(N, COMM.rank)
    shape = (N, 7, 5)
    data = numbers(shape, "f8")
    file.attrs["title"] = "written by all processes"

    alone = file.create_dataset("independent", shape, ">i4")
    alone[rows] = numbers(shape, ">i4")[rows]

    write_guarded(file.create_dataset("guarded", shape, "f8"), data)

    # Columns 0, 3, 6, ... of one process, and so on.
    every = file.create_dataset("strided", (N, 3 * N), "f4")
    with every.collective:
        for shift in range(3):
            columns = slice(shift, None, 3)
            every[rows, columns] = numbers((N, 3 * N), "f4")[rows, columns]

    # Chunks that several processes share.
    for name, more in (
        ("chunked", {}),
        ("filtered", {"compression": "gzip", "shuffle": True, "fletcher32": True}),
    ):
        dataset = file.create_dataset(name, shape, "f8", chunks=(5, 4, 5), **more)
        with dataset.collective:
            dataset[rows] = data[rows]

    grown = file.create_dataset("grown", (0, 5), "i2", chunks=(2, 5), maxshape=(None, 5))
    for end in range(COMM.size, 6 * COMM.size + 1, COMM.size):
        grown.resize((end, 5))
        row = end - 1 - COMM.rank
        with grown.collective:
            grown[row] = numbers((end, 5), "i2")[row]


def expect(what: str, found: Any, expected: Any) -> None:
    """Compare numbers; a process that left by an exception would keep the others waiting."""
    if not np.array_equal(found, expected):
        print(f"process {COMM.rank} finds other numbers in {what}")


def read(file: Any) -> None:
    """Compare all datasets, by other parts than those of the writers."""
    columns = slice(COMM.rank, None, COMM.size)
    for name, dataset in file.items():
        expected = numbers(dataset.shape, dataset.dtype)[:, columns]
        expect(name, dataset[:, columns], expected)
        with dataset.collective:
            expect(name, dataset[:, columns], expected)


with h5py.File(sys.argv[1], "w", driver="mpio", comm=COMM) as opened:
    write(opened)
with h5py.File(sys.argv[1], "a", driver="mpio", comm=COMM) as opened:
    read(opened)
    # Without it, a slow process would read the numbers that another one writes next.
    COMM.Barrier()
    opened.atomic = True
    opened["strided"][COMM.rank] = -1 - COMM.rank
with h5py.File(sys.argv[1], "r", driver="mpio", comm=COMM) as opened:
    expect("atomic mode", opened["strided"][COMM.size - 1], np.full(3 * N, -COMM.size))
print("well")
