"""One process of a job: mistakes and full servers, and the classes and texts of their errors.

Run it as ``mistakes.py URL USER FULL FULL_KEY MOUNT``: the address of a pool with the file
``private`` and the key of a user who cannot read it; the address of a pool on a small disk, and its
key; a read-only mount of the first pool.
"""

import os
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
from errors_of import error_of
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
CREATE = MPI.MODE_CREATE | MPI.MODE_RDWR
URL, USER, FULL, FULL_KEY, MOUNT = sys.argv[1:]


def check(kind: int, text: str, call: Callable[..., Any], *arguments: Any) -> None:
    """Check the class of an error, and a part of its text on one process at least."""
    error = error_of(call, *arguments)
    assert error.Get_error_class() == kind, error
    said = comm.allgather(error.Get_error_string())
    assert any(text in each for each in said), said
    assert all("need" in each or "another process" in each for each in said), said


def environment() -> None:
    """Use the variables of the environment at each opening."""
    key = os.environ["OUTCORE_KEY"]
    MPI.File.Open(comm, f"{URL}/f", CREATE).Close()
    os.environ["OUTCORE_KEY"] = USER
    check(MPI.ERR_ACCESS, "private", MPI.File.Open, comm, f"{URL}/private", MPI.MODE_RDONLY)
    os.environ["OUTCORE_KEY"] = key
    MPI.File.Open(comm, f"{URL}/private", MPI.MODE_RDONLY).Close()
    for value in ("0", "-1", "soon", "5 s", "nan", "inf", "1e9"):
        os.environ["OUTCORE_TIMEOUT"] = value
        check(MPI.ERR_ARG, f"have '{value}'", MPI.File.Open, comm, f"{URL}/f", CREATE)
    for value in ("", "7.5", "60"):
        os.environ["OUTCORE_TIMEOUT"] = value
        MPI.File.Open(comm, f"{URL}/f", MPI.MODE_RDONLY).Close()
    for variable in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"):
        os.environ[variable] = "2"
    # The processes find each other.
    MPI.File.Open(comm, f"{URL}/f", MPI.MODE_RDONLY).Close()


def texts() -> None:
    """Keep the text of an error when others follow."""
    errors = [error_of(MPI.File.Open, comm, f"{URL}/no{i}", MPI.MODE_RDONLY) for i in range(3)]
    for i, error in enumerate(errors):
        assert error.Get_error_class() == MPI.ERR_NO_SUCH_FILE
        said = comm.allgather(error.Get_error_string())
        assert any(f"no{i}" in each for each in said), said
    MPI.File.Open(comm, f"{URL}/empty/f", CREATE | MPI.MODE_DELETE_ON_CLOSE).Close()
    check(MPI.ERR_BAD_FILE, "have the directory", MPI.File.Delete, f"{URL}/empty")
    file = MPI.File.Open(comm, f"{URL}/f", MPI.MODE_RDONLY)
    # More than MPI has codes for.
    for offset in range(-300, 0):
        error = error_of(file.Get_byte_offset, offset)
        assert f"have {offset};" in error.Get_error_string(), error
    file.Close()


def waits() -> None:
    """Open a file while another thread waits for a server that never answers."""
    comms = [MPI.COMM_SELF.Dup() for _ in range(2)]
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = "outcore://{}:{}/f".format(*silent.getsockname())
        thread = threading.Thread(target=error_of, args=(MPI.File.Open, comms[0], address, CREATE))
        thread.start()
        connection, _ = silent.accept()
        MPI.File.Open(comms[1], f"{URL}/own{rank}", CREATE).Close()
        assert thread.is_alive()
        # No answer of a server: the other thread fails at once.
        connection.sendall(bytes(1000))
        thread.join()
        connection.close()


def full() -> None:
    """Fill the servers by calls of one process and of all, and reserve more than they have."""
    key, os.environ["OUTCORE_KEY"] = os.environ["OUTCORE_KEY"], FULL_KEY
    file = MPI.File.Open(comm, f"{FULL}/f", CREATE)
    mine = np.full(8 << 20, 1 + rank, "u1")
    check(MPI.ERR_NO_SPACE, "", file.Preallocate, 1 << 30)
    file.Preallocate(1 << 20)
    assert file.Get_size() >= 1 << 20
    file.Write_at_all(rank * mine.size, mine)
    if rank == 0:
        # The first of two failing requests gives the text; on full servers, space fails first.
        runs = MPI.BYTE.Create_vector(300, 1, 2)
        far = MPI.Datatype.Create_struct([1, 1], [1 << 61, 1 << 62], [runs, runs]).Commit()
        own = MPI.File.Open(MPI.COMM_SELF, f"{FULL}/f", MPI.MODE_RDWR)
        own.Set_view(0, MPI.BYTE, far)
        error = error_of(own.Write_at, 0, mine[:600])
        assert f"at byte {1 << 61} of" in error.Get_error_string(), error
        own.Close()
    comm.Barrier()
    check(MPI.ERR_NO_SPACE, "", fill, file.Write_at_all, mine)
    if rank == 0:
        error = error_of(fill, file.Write_at, mine)
        assert error.Get_error_class() == MPI.ERR_NO_SPACE, error
    comm.Barrier()
    found = np.zeros(mine.size, "u1")
    file.Read_at_all(rank * mine.size, found)
    assert (found == mine).all()
    file.Close()
    os.environ["OUTCORE_KEY"] = key


def fill(write: Callable[..., Any], mine: np.ndarray) -> None:
    for turn in range(1, 100):
        write((turn * size + rank) * mine.size, mine)


def read_only() -> None:
    """Refuse changes of a read-only mount and file."""
    text = "without --read-only"
    for name in ("f", "new"):
        check(MPI.ERR_READ_ONLY, text, MPI.File.Open, comm, f"{MOUNT}/{name}", CREATE)
    check(MPI.ERR_READ_ONLY, text, MPI.File.Delete, f"{MOUNT}/f")
    file = MPI.File.Open(comm, f"{MOUNT}/f", MPI.MODE_RDONLY)
    for call in (
        lambda: file.Set_size(1), lambda: file.Preallocate(1), lambda: file.Write_all(b"x"),
        lambda: file.Write_shared(b"x"), lambda: file.Iwrite(b"x"), file.Sync,
    ):  # fmt: skip
        check(MPI.ERR_READ_ONLY, "MPI_MODE_RDWR", call)
    file.Close()


def hints() -> None:
    """Report the values in force, and leave out hints without effect."""
    given = {
        "striping_factor": "1", "striping_unit": "131072", "start_iodevice": "1", "cb_nodes": "7",
        "cb_buffer_size": "5", "chunked": "4,4", "chunked_item": "8", "chunked_size": "2,2",
        "romio_cb_write": "enable", "access_style": "write_once", "own": "x",
    }  # fmt: skip
    info = MPI.Info.Create(given)
    in_force = {
        "striping_factor": "1", "striping_unit": "131072", "start_iodevice": "1", "cb_nodes": "1",
    }  # fmt: skip
    file = MPI.File.Open(comm, f"{URL}/hints", CREATE, info)
    assert dict(file.Get_info()) == in_force, dict(file.Get_info())
    file.Set_info(info)
    file.Set_view(0, MPI.BYTE, MPI.BYTE, info=info)
    assert dict(file.Get_info()) == in_force
    file.Close()
    # The layout of a file lasts.
    file = MPI.File.Open(comm, f"{URL}/hints", CREATE, MPI.Info.Create({"striping_factor": "2"}))
    assert dict(file.Get_info()) == in_force
    file.Close()
    # Unusable values are ignored.
    bad = MPI.Info.Create({"striping_factor": "-3", "striping_unit": "many", "start_iodevice": "9"})
    file = MPI.File.Open(comm, f"{URL}/bad-hints", CREATE, bad)
    assert file.Get_info()["striping_factor"] == "2"
    file.Close()


try:
    for step in (environment, texts, waits, full, read_only, hints):
        step()
        comm.Barrier()
except BaseException:
    # The other processes would wait for this one.
    sys.stdout.write(traceback.format_exc())
    sys.stdout.flush()
    comm.Abort(1)
sys.stdout.write("well\n")
