"""A process whose nonblocking calls return while the server of its pool cannot answer.

Run it as ``overlap.py FOLDER LEVEL``: an empty folder for the daemons of the pool, and the level of
threads that it asks MPI for.
"""

import os
import sys
import traceback
from pathlib import Path

import mpi4py
import numpy as np

mpi4py.rc.thread_level = sys.argv[2]
sys.path.append(str(Path(__file__).parent.parent))

from errors_of import error_of  # noqa: E402
from mpi4py import MPI  # noqa: E402
from served import Gate, daemon, make_key  # noqa: E402

import outcore as oc  # noqa: E402

DATA = np.random.default_rng(0).integers(0, 255, 3 << 20, "u1")
SIZE = DATA.size


def overlap(file: MPI.File, gate: Gate) -> None:
    """Start calls behind a shut gate, and complete them in each way."""
    found, more, status = np.zeros(SIZE, "u1"), np.zeros(SIZE, "u1"), MPI.Status()
    gate.shut()
    file.Iwrite_at(2 * SIZE, DATA).Free()
    requests = [
        file.Iwrite(DATA), file.Iwrite(DATA[::-1].copy()), file.Iread_at(7, found[7:]),
        file.Iread_at_all(2 * SIZE + 100, more), file.Iread_at(0, [found, 0, MPI.BYTE]),
    ]  # fmt: skip
    assert not any(request.Test() for request in requests[:-1])
    requests[0].Cancel()
    gate.open()
    # Another call waits for all of them.
    assert file.Get_position() == 2 * SIZE
    statuses = [MPI.Status() for _ in requests]
    MPI.Request.Waitall(requests, statuses)
    counts = [status.Get_count(MPI.BYTE) for status in statuses]
    assert counts == [SIZE, SIZE, SIZE - 7, SIZE - 100, 0], counts
    assert not any(status.Is_cancelled() for status in statuses)
    assert (found[7:] == DATA[7:]).all()
    assert (more[:-100] == DATA[100:]).all()
    # Memory that is not contiguous, and the shared pointer.
    pairs = MPI.BYTE.Create_vector(SIZE // 2, 1, 2).Create_resized(0, SIZE).Commit()
    file.Iwrite_at(0, [DATA, 1, pairs]).Wait(status)
    assert status.Get_count(MPI.BYTE) == SIZE // 2
    file.Iwrite_shared(DATA[:1]).Wait()
    file.Read_at(0, found)
    assert (found[: SIZE // 2] == DATA[::2]).all()


def close_and_fail(pool: oc.Pool, url: str, gate: Gate) -> None:
    """Close a file before its calls have ended, and fail."""
    file = MPI.File.Open(MPI.COMM_SELF, f"{url}/closed", MPI.MODE_CREATE | MPI.MODE_RDWR)
    requests = [file.Iwrite(DATA[i::8].copy()) for i in range(8)]
    file.Close()
    assert (pool / "closed").read_bytes() == b"".join(DATA[i::8].tobytes() for i in range(8))
    MPI.Request.Waitall(requests)
    file = MPI.File.Open(MPI.COMM_SELF, f"{url}/closed", MPI.MODE_RDWR)
    pool.rm("closed")
    other = MPI.File.Open(MPI.COMM_SELF, f"{url}/other", MPI.MODE_CREATE | MPI.MODE_RDWR)
    fail(file, other)
    left = file.Iwrite(DATA)
    file.Close()
    assert error_of(left.Wait).Get_error_class() == MPI.ERR_NO_SUCH_FILE
    other.Close()


def fail(file: MPI.File, other: MPI.File) -> None:
    """Complete calls that fail beside others: only the handler of their file gets the errors."""
    raised: list[int] = []
    file.Set_errhandler(MPI.File.Create_errhandler(lambda _, code: raised.append(code)))
    for comm in (MPI.COMM_WORLD, MPI.COMM_SELF):
        comm.Set_errhandler(MPI.ERRORS_ARE_FATAL)
    ways = [verb + extent for verb in ("Wait", "Test") for extent in ("", "any", "some", "all")]
    for way in ways:
        requests = [other.Iwrite_at(0, DATA[:9]), file.Iwrite_at(0, DATA)]
        statuses = [MPI.Status() for _ in requests]
        while not requests[1].Get_status():
            pass
        if MPI.Get_version() >= (4, 1):
            while not MPI.Request.Get_status_all(requests):
                pass
            assert MPI.Request.Get_status_any(requests[1:])[1]
            assert MPI.Request.Get_status_some(requests[1:]) == [0]
        errors = []
        while any(requests):
            try:
                complete(way, requests, statuses)
            except MPI.Exception as error:
                errors.append(error)
                found = [status.Get_error() for status in statuses]
        (error,) = errors
        if way.endswith(("some", "all")):
            assert error.Get_error_class() == MPI.ERR_IN_STATUS, (way, error)
            (error,) = [MPI.Exception(code) for code in found if code]
        assert error.Get_error_class() == MPI.ERR_NO_SUCH_FILE, (way, error)
        assert "was removed" in error.Get_error_string(), (way, error)
        assert raised.pop() == error.Get_error_code()
        assert not raised
    for comm in (MPI.COMM_WORLD, MPI.COMM_SELF):
        comm.Set_errhandler(MPI.ERRORS_RETURN)


def complete(way: str, requests: list[MPI.Request], statuses: list[MPI.Status]) -> None:
    call = getattr(MPI.Request, way)
    if way.endswith(("some", "all")):
        call(requests, statuses)
    elif way.endswith("any"):
        call(requests, statuses[0])
    else:
        call(next(filter(None, requests)), statuses[0])


def main(home: Path) -> None:
    gate, key = Gate(), make_key(home / "key")
    os.environ["OUTCORE_KEY"] = str(key)
    manager = daemon(home, key, "manager", "a")
    where = f'["{manager.addresses[0]}"]'
    server = daemon(home, key, "io", "a", manager=where, advertise=f'["{gate.address}"]')
    host, port = server.addresses[0].removeprefix("tcp:").split(":")
    gate.target = host, int(port)
    url = manager.addresses[0].replace("tcp:", "outcore://")
    file = MPI.File.Open(MPI.COMM_SELF, f"{url}/f", MPI.MODE_CREATE | MPI.MODE_RDWR)
    if sys.argv[2] == "multiple":
        overlap(file, gate)
        with oc.connect(url, key=key) as pool:
            close_and_fail(pool, url, gate)
    else:
        assert file.Iwrite(DATA).Test()
    file.Close()
    gate.close()
    server.stop()
    manager.stop()


try:
    main(Path(sys.argv[1]))
    sys.stdout.write("well\n")
except BaseException:
    traceback.print_exc()
    os._exit(1)
