"""One process of a job: random datatypes and views.

Run it as ``random_types.py FILE RESULTS FIRST COUNT``: the beginnings of the names of files, and of
a file for each process, named for its rank; and the seeds. It gets the bounds of the datatypes;
then statuses, and sums of memory and of the file, which are the same for plain files and for files
in a pool if the bounds are.
"""

import contextlib
import hashlib
import json
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD


def array_type(rng: np.random.Generator, base: MPI.Datatype) -> MPI.Datatype:
    """Return a subarray, or a process's share of a distributed array."""
    dims = int(rng.integers(1, 4))
    sizes = rng.integers(2, 6, dims).tolist()
    order = [MPI.ORDER_C, MPI.ORDER_FORTRAN][rng.integers(2)]
    if rng.integers(2):
        counts = [int(rng.integers(1, size + 1)) for size in sizes]
        starts = [int(rng.integers(0, size - n + 1)) for size, n in zip(sizes, counts, strict=True)]
        return base.Create_subarray(sizes, counts, starts, order)
    mesh = rng.integers(1, 3, dims).tolist()
    ways, blocks = [], []
    for i in range(dims):
        way = [MPI.DISTRIBUTE_BLOCK, MPI.DISTRIBUTE_CYCLIC, MPI.DISTRIBUTE_NONE][rng.integers(3)]
        mesh[i] = 1 if way == MPI.DISTRIBUTE_NONE else mesh[i]
        ways.append(way)
        is_cyclic = way == MPI.DISTRIBUTE_CYCLIC and rng.integers(2)
        blocks.append(int(rng.integers(1, 4)) if is_cyclic else MPI.DISTRIBUTE_DFLT_DARG)
    size = int(np.prod(mesh))
    rank = int(rng.integers(size))
    return base.Create_darray(size, rank, sizes, ways, blocks, mesh, order)


def blocks_type(rng: np.random.Generator, base: MPI.Datatype) -> MPI.Datatype:
    """Return blocks of a datatype at increasing places."""
    count = int(rng.integers(1, 5))
    lengths = rng.integers(0, 3, count)
    places = np.cumsum(rng.integers(0, 3, count) + np.r_[0, lengths[:-1]])
    apart = np.cumsum(rng.integers(2, 5, count)) - 2
    extent = base.Get_extent()[1]
    match rng.integers(5):
        case 0:
            return base.Create_indexed(lengths.tolist(), places.tolist())
        case 1:
            return base.Create_hindexed(lengths.tolist(), (places * extent).tolist())
        case 2:
            return base.Create_indexed_block(2, apart.tolist())
        case 3:
            return base.Create_hindexed_block(1, (apart * extent).tolist())
    kinds = [base, MPI.INT][: int(rng.integers(1, 3))] * count
    kinds = [kinds[i] for i in range(count)]
    starts = np.cumsum([0, *(max(extent, 4) * n + 4 for n in lengths[:-1])])
    return MPI.Datatype.Create_struct(lengths.tolist(), starts.tolist(), kinds)


def random_type(rng: np.random.Generator, depth: int, unit: int) -> MPI.Datatype:
    """Return a datatype with increasing displacements, of whole units of bytes."""
    base = MPI.Datatype(MPI.INT) if unit == 4 else MPI.Datatype(MPI.BYTE)
    for _ in range(depth):
        extent = base.Get_extent()[1]
        match rng.integers(6):
            case 0:
                base = base.Create_contiguous(int(rng.integers(1, 4)))
            case 1:
                length = int(rng.integers(1, 3))
                base = base.Create_vector(
                    int(rng.integers(1, 4)), length, length + int(rng.integers(3))
                )
            case 2:
                base = base.Create_hvector(
                    int(rng.integers(1, 4)), 1, extent + unit * int(rng.integers(3))
                )
            case 3:
                base = base.Create_resized(0, extent + unit * int(rng.integers(4)))
            case 4:
                # Open MPI 4.1 refuses some distributed arrays.
                with contextlib.suppress(MPI.Exception):
                    base = array_type(rng, base)
            case 5:
                base = blocks_type(rng, base)
    return base.Commit()


def sum_of(data: np.ndarray) -> str:
    return hashlib.sha256(data).hexdigest()


def status_of(status: MPI.Status) -> tuple[int, bool]:
    return status.Get_elements(MPI.BYTE), status.Is_cancelled()


def access(path: str, seed: int) -> list[Any]:
    """Write and read a file by random types; return all that a program sees."""
    rng = np.random.default_rng([seed, comm.rank])
    found: list[Any] = []
    bounds: list[Any] = []
    unit = [1, 4][np.random.default_rng(seed).integers(2)]
    etype = MPI.INT if unit == 4 else MPI.BYTE
    file = MPI.File.Open(comm, path, MPI.MODE_RDWR | MPI.MODE_CREATE)
    # Each process has a part of its own; the last part is filled, so that no read ends early.
    part, room = 400_000, 400_000
    if comm.rank == 0:
        file.Write_at(0, np.random.default_rng(seed).integers(0, 255, part * comm.size, "u1"))
    comm.Barrier()
    for _ in range(4):
        filetype = random_type(rng, int(rng.integers(0, 4)), unit)
        memory = random_type(rng, int(rng.integers(0, 4)), unit)
        bounds.append([filetype.Get_extent(), memory.Get_extent()])
        overlaps = filetype.Get_extent()[1] < filetype.Get_true_extent()[1]
        if filetype.Get_size() == 0 or filetype.Get_extent()[1] > 20_000 or overlaps:
            filetype = MPI.Datatype(etype)
        file.Set_view(part * comm.rank + int(rng.integers(5)), etype, filetype)
        tile, extent = filetype.Get_size(), max(filetype.Get_extent()[1], 1)
        most = part // 4 // extent * tile // max(memory.Get_size(), 1)
        fits = room // max(memory.Get_extent()[1] + memory.Get_true_extent()[1], 1) - 1
        count = int(rng.integers(0, max(min(40, most, fits), 1)))
        offset = int(rng.integers(0, 3 * tile // unit + 1))
        found.append(file.Get_byte_offset(offset))
        data = rng.integers(0, 255, room, "u1")
        status = MPI.Status()
        calls = rng.integers(3)
        buffer = [data, count, memory]
        if calls == 0:
            file.Write_at(offset, buffer, status)
        elif calls == 1:
            file.Seek(offset)
            file.Write(buffer, status)
        else:
            file.Iwrite_at(offset, buffer).Wait(status)
        found.append(status_of(status))
        found.append(file.Get_position())
        into = np.zeros(room, "u1")
        file.Read_at(offset, [into, count, memory], status)
        found += [status_of(status), sum_of(into)]
        into = np.zeros(room, "u1")
        file.Seek(offset)
        file.Read_all([into, count, memory], status)
        found += [status_of(status), sum_of(into), file.Get_position()]
        file.Write_at_all(offset, buffer, status)
        found.append(status_of(status))
    file.Sync()
    comm.Barrier()
    file.Set_view(0, MPI.BYTE, MPI.BYTE)
    whole = np.zeros(file.Get_size(), "u1")
    file.Read_at(0, whole)
    found.append(sum_of(whole))
    file.Close()
    return [bounds, *found]


try:
    first, count = map(int, sys.argv[3:])
    found = {seed: access(f"{sys.argv[1]}.{seed}", seed) for seed in range(first, first + count)}
    Path(f"{sys.argv[2]}.{comm.rank}").write_text(json.dumps(found))
except BaseException:
    # The other processes would wait for this one.
    traceback.print_exc()
    comm.Abort(1)
sys.stdout.write("well\n")
