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
    error = error_of(file.Iwrite(DATA).Wait)
    assert error.Get_error_class() == MPI.ERR_NO_SUCH_FILE, error
    assert "was removed" in error.Get_error_string(), error
    file.Close()


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
