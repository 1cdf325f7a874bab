"""One process of a job: all calls of MPI-IO on files.

Run it as ``calls.py FILE RESULTS``: the beginnings of the names of files, and of a file for each
process, named for its rank. It gets results, statuses, error classes and bytes, which are the same
for plain files and for files in a pool.
"""

import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
found: list[tuple[str, Any]] = []
CREATE = MPI.MODE_CREATE | MPI.MODE_RDWR
# Each MPI has values of its own.
MODES = {name: getattr(MPI, f"MODE_{name}") for name in ("CREATE", "EXCL", "RDWR", "RDONLY")}
CLASSES = {getattr(MPI, name): name for name in sorted(dir(MPI)) if name.startswith("ERR_")}


def note(what: str, call: Callable[..., Any], *arguments: Any) -> Any:
    """Record the result of a call, or its error class."""
    try:
        result = call(*arguments)
    except MPI.Exception as error:
        result = f"error class {CLASSES[error.Get_error_class()]}"
        text = error.Get_error_string()
        assert len(text) > 5, text
    found.append((what, result if isinstance(result, (int, str, bool, tuple)) else None))
    return result


def status_of(status: MPI.Status, kind: MPI.Datatype) -> tuple[int, int, bool]:
    return status.Get_count(kind), status.Get_elements(kind), status.Is_cancelled()


def opening(path: str) -> None:
    note("missing", MPI.File.Open, comm, path + ".missing", MPI.MODE_RDONLY)
    note("delete missing", MPI.File.Delete, path + ".missing")
    note("two ways", MPI.File.Open, comm, path, MPI.MODE_RDONLY | MPI.MODE_RDWR)
    note("no way", MPI.File.Open, comm, path, MPI.MODE_CREATE)
    note("create to read", MPI.File.Open, comm, path, MPI.MODE_RDONLY | MPI.MODE_CREATE)
    note("sequential", MPI.File.Open, comm, path, MPI.MODE_RDWR | MPI.MODE_SEQUENTIAL)
    if size > 1:
        mode = CREATE if rank else MPI.MODE_WRONLY | MPI.MODE_CREATE
        note("modes differ", MPI.File.Open, comm, path, mode)
    file = note("new", MPI.File.Open, comm, path, CREATE | MPI.MODE_EXCL)
    amode = file.Get_amode()
    note("amode", lambda: tuple(name for name, bit in MODES.items() if amode & bit))
    note("group", lambda: MPI.Group.Compare(file.Get_group(), comm.Get_group()) == MPI.IDENT)
    note("size", file.Get_size)
    comm.Barrier()
    if rank == 0:
        file.Write_at(0, b"0123456789")
    note("close", file.Close)
    note("exists", MPI.File.Open, comm, path, CREATE | MPI.MODE_EXCL)
    if rank > 0:
        # MPICH has an unknown class on them for plain files.
        assert found.pop()[1] == "error class ERR_FILE_EXISTS" or not path.startswith("outcore:")
    file = MPI.File.Open(comm, path, MPI.MODE_RDWR | MPI.MODE_APPEND)
    note("append", file.Get_position)
    note("append shared", file.Get_position_shared)
    file.Close()
    file = MPI.File.Open(comm, path, MPI.MODE_RDONLY)
    note("write to read-only", file.Write_at, 0, b"x")
    note("write all to read-only", file.Write_at_all, 0, b"x")
    file.Close()
    file = MPI.File.Open(comm, path, MPI.MODE_WRONLY)
    note("read of write-only", file.Read_at, 0, bytearray(1))
    file.Close()
    file = MPI.File.Open(comm, path, MPI.MODE_RDWR | MPI.MODE_DELETE_ON_CLOSE)
    file.Close()
    note("deleted on close", MPI.File.Open, comm, path, MPI.MODE_RDONLY)
    own = MPI.File.Open(MPI.COMM_SELF, f"{path}.{rank}", CREATE)
    note("self", own.Get_size)
    own.Close()
    note("delete", MPI.File.Delete, f"{path}.{rank}")
    note("deleted", MPI.File.Open, MPI.COMM_SELF, f"{path}.{rank}", MPI.MODE_RDONLY)


def sizes(path: str) -> None:
    file = MPI.File.Open(comm, path, CREATE)
    for size_ in (100, 50, 0, 70):
        note("set size", file.Set_size, size_)
        note("size", file.Get_size)
    note("preallocate", file.Preallocate, 40)
    note("size", file.Get_size)
    note("preallocate", file.Preallocate, 90)
    note("size", file.Get_size)
    note("negative size", file.Set_size, -1)
    note("sync", file.Sync)
    note("atomicity", file.Get_atomicity)
    note("set atomicity", file.Set_atomicity, True)
    note("atomicity", file.Get_atomicity)
    if rank == 0:
        file.Write_at(0, b"atomic")
    comm.Barrier()
    into = bytearray(6)
    note("read", file.Read_at, 0, into)
    note("bytes", lambda: into.decode())
    file.Set_atomicity(False)
    note("extent", file.Get_type_extent, MPI.DOUBLE)
    note("handler", lambda: file.Get_errhandler() == MPI.ERRORS_RETURN)
    file.Close()


def views(path: str) -> None:
    file = MPI.File.Open(comm, path, CREATE)
    vector = MPI.INT.Create_vector(2, 1, size).Create_resized(0, 8 * size).Commit()
    note("view", file.Set_view, 4 * rank, MPI.INT, vector, "native")
    note(
        "get view", lambda: (file.Get_view()[0], file.Get_view()[1] == MPI.INT, file.Get_view()[3])
    )
    data = np.arange(20, dtype="i4") + 100 * rank
    status = MPI.Status()
    note("write", file.Write, data, status)
    note("status", lambda: status_of(status, MPI.INT))
    note("position", file.Get_position)
    file.Sync()
    comm.Barrier()
    note("seek to the end", file.Seek, 0, MPI.SEEK_END)
    note("position", file.Get_position)
    note("seek back", file.Seek, -7, MPI.SEEK_CUR)
    note("position", file.Get_position)
    note("seek before", file.Seek, -70, MPI.SEEK_CUR)
    note("seek astray", file.Seek, 0, 77)
    for offset in (0, 1, 2, 3, 7):
        note("byte offset", file.Get_byte_offset, offset)
    into = np.zeros(20, "i4")
    note("read at", file.Read_at, 3, into[:5], status)
    note("status", lambda: status_of(status, MPI.INT))
    note("content", lambda: tuple(into.tolist()))
    note("part of an etype", file.Read_at, 0, [into, 3, MPI.BYTE])
    note("negative offset", file.Read_at, -1, into)
    own = MPI.File.Open(MPI.COMM_SELF, f"{path}.{rank}", CREATE)
    for places in ([2, 0], [-1, 3], [0, 0]):
        unusable = MPI.INT.Create_indexed([1, 1], places).Commit()
        note(f"places {places}", own.Set_view, 0, MPI.INT, unusable)
    own.Close()
    note("datarep", file.Set_view, 0, MPI.INT, MPI.INT, "astray")
    note("no etype", file.Set_view, 0, MPI.DATATYPE_NULL, MPI.INT)
    note("filetype", file.Set_view, 0, MPI.INT, MPI.BYTE)
    note("internal", file.Set_view, 0, MPI.INT, MPI.INT, "internal")
    pair = MPI.INT.Create_contiguous(2)
    for etype in (MPI.INT, pair):
        note("uncommitted view", file.Set_view, 0, etype, pair)
    for call in (file.Read_at, file.Iread_at, file.Iread_shared, file.Read_at_all):
        note("uncommitted", call, *([0] if "at" in call.__name__ else []), [into, 1, pair])
    note("committed", file.Read_at_all, 0, [into, 1, pair.Commit()])
    note("committed view", file.Set_view, 0, pair, pair)
    note("position", file.Get_position_shared)
    file.Set_view(0, MPI.INT, MPI.INT, "internal")
    empty = MPI.INT.Create_contiguous(0).Commit()
    comm.Barrier()
    file.Set_view(0, MPI.BYTE, MPI.BYTE)
    # Ends of a contiguous file.
    end = file.Get_size()
    into = np.zeros(30, "u1")
    note("short read", file.Read_at, end - 10, into, status)
    note("status", lambda: status_of(status, MPI.BYTE))
    note("status of doubles", lambda: status_of(status, MPI.DOUBLE))
    note("read after the end", file.Read_at, end + 10, into, status)
    note("status", lambda: status_of(status, MPI.BYTE))
    note("nothing", file.Read_at, 0, [into, 0, MPI.BYTE], status)
    note("status", lambda: status_of(status, MPI.BYTE))
    note("empty type", file.Write_at, 0, [into, 5, empty], status)
    note("status", lambda: status_of(status, MPI.BYTE))
    whole = np.zeros(end, "u1")
    file.Read_at_all(0, whole)
    note("whole", lambda: whole.tobytes().hex())
    file.Close()


def pointers(path: str) -> None:
    file = MPI.File.Open(comm, path, CREATE)
    file.Set_view(0, MPI.INT, MPI.INT)
    status = MPI.Status()
    data = np.full(rank + 1, rank, "i4")
    note("ordered", file.Write_ordered, data, status)
    note("status", lambda: status_of(status, MPI.INT))
    comm.Barrier()
    total = size * (size + 1) // 2
    note("shared", file.Get_position_shared)
    comm.Barrier()
    file.Write_shared(np.full(2, 7, "i4"), status)
    note("status", lambda: status_of(status, MPI.INT))
    comm.Barrier()
    note("shared", file.Get_position_shared)
    comm.Barrier()
    note("seek shared", file.Seek_shared, 0, MPI.SEEK_SET)
    into = np.zeros(rank + 1, "i4")
    note("read ordered", file.Read_ordered, into, status)
    note("content", lambda: tuple(into.tolist()))
    file.Seek_shared(-2 * size, MPI.SEEK_END)
    note("shared", file.Get_position_shared)
    comm.Barrier()
    into = np.zeros(2, "i4")
    file.Iread_shared(into).Wait(status)
    note("content", lambda: tuple(into.tolist()))
    comm.Barrier()
    file.Seek_shared(0)
    file.Write_ordered_begin(data)
    file.Write_ordered_end(data, status)
    note("status", lambda: status_of(status, MPI.INT))
    file.Set_view(0, MPI.INT, MPI.INT)
    note("shared after a view", file.Get_position_shared)
    comm.Barrier()
    more = np.full(3, 50 + rank, "i4")
    file.Write_at_all_begin(total + 3 * rank, more)
    note("second begin", file.Write_at_all_begin, 0, more)
    file.Write_at_all_end(more, status)
    note("status", lambda: status_of(status, MPI.INT))
    comm.Barrier()
    back = np.zeros(3, "i4")
    file.Seek(total + 3 * rank)
    file.Read_all_begin(back)
    file.Read_all_end(back, status)
    note("content", lambda: tuple(back.tolist()))
    # They may run at the same time, and the number at 0 does not change.
    requests = [file.Iwrite_at_all(total + 3 * rank, more + 1), file.Iread_at(0, back[:1])]
    MPI.Request.Waitall(requests)
    note("content", lambda: tuple(back.tolist()))
    file.Seek(total + 3 * rank)
    file.Iread_all(back).Wait(status)
    note("content", lambda: tuple(back.tolist()))
    note("position", file.Get_position)
    file.Close()


PAIRS = (
    MPI.FLOAT_INT, MPI.DOUBLE_INT, MPI.LONG_INT, MPI.TWOINT, MPI.SHORT_INT, MPI.LONG_DOUBLE_INT,
)  # fmt: skip


def kinds(path: str) -> None:
    file = MPI.File.Open(comm, path, CREATE)
    status = MPI.Status()
    data = np.random.default_rng(rank).integers(0, 255, 200, "u1")
    # MPICH may write any bytes between pairs behind the end.
    file.Write_at_all(1000 * rank, np.zeros(1000, "u1"))
    for number, pair in enumerate(PAIRS):
        buffer = [data, 5, pair]
        file.Set_view(1000 * rank, MPI.BYTE, MPI.BYTE)
        note(f"write {number}", file.Write_at, 0, buffer, status)
        note("status", lambda: status_of(status, MPI.BYTE))
        into = np.zeros(200, "u1")
        note("read", file.Read_at, 0, [into, 5, pair], status)
        note("content", into.tobytes().hex)
        note("pairs in the file", file.Set_view, 1000 * rank, pair, pair)
        note("write pairs", file.Write_at_all, 2, [data, 4, pair], status)
        note("status", lambda: status_of(status, MPI.BYTE))
        note("extent", file.Get_type_extent, pair)
        note("byte offset", file.Get_byte_offset, 3)
    comm.Barrier()
    # A view beyond the end, and one of nothing.
    file.Set_view(100_000, MPI.BYTE, MPI.BYTE)
    into = np.ones(50, "u1")
    note("read beyond", file.Read_at_all, 10 * rank, into, status)
    note("status", lambda: status_of(status, MPI.BYTE))
    note("content", lambda: into.tobytes().hex())
    comm.Barrier()
    note("write beyond", file.Write_at_all, 10 * rank, into[:10], status)
    comm.Barrier()
    note("size", file.Get_size)
    empty = MPI.INT.Create_contiguous(0).Commit()
    if rank > 0:
        note("no view", file.Set_view, 0, MPI.INT, empty)
        for call in (file.Write_at, file.Read_at):
            note("into no view", call, 0, into[:8])
        note("position", file.Get_position)
    else:
        file.Set_view(0, MPI.INT, MPI.INT)
    note("some without a view", file.Write_at_all, 0, into[: 0 if rank else 8])
    # An offset beyond 32 bits.
    file.Set_view(0, MPI.BYTE, MPI.BYTE)
    comm.Barrier()
    note("far", file.Write_at, (1 << 40) + rank, into[:1])
    comm.Barrier()
    note("size", file.Get_size)
    note("no type", file.Write_at, 0, [into, 1, MPI.DATATYPE_NULL])
    file.Close()


def large_counts(path: str) -> None:
    file = MPI.File.Open(comm, path, CREATE)
    status = MPI.Status()
    file.Write_at_all(1000 * rank, np.full(1000, rank, "u1"))
    comm.Barrier()
    many = np.empty((1 << 31) + 10, "u1")
    note("many", file.Read_at, 0, many, status)
    note("status", lambda: status_of(status, MPI.BYTE))
    note("content", lambda: many[: size * 1000].tobytes().hex())
    empty = MPI.INT.Create_contiguous(0).Commit()
    note("nothing", file.Read_at, 0, [many, 1 << 33, empty], status)
    note("status", lambda: status_of(status, MPI.BYTE))
    file.Close()


try:
    results = {}
    for step in (opening, sizes, views, pointers, kinds, large_counts):
        if step is large_counts and MPI.VERSION < 4:
            continue
        found.clear()
        step(f"{sys.argv[1]}.{step.__name__}")
        comm.Barrier()
        results[step.__name__] = list(found)
    Path(f"{sys.argv[2]}.{rank}").write_text(json.dumps(results))
except BaseException:
    # The other processes would wait for this one.
    traceback.print_exc()
    comm.Abort(1)
sys.stdout.write("well\n")
