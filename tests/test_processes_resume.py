"""Factorizations that other numbers of processes resume, in a pool whose servers they are."""

from pathlib import Path

import pytest
from test_cholesky_processes import HELPERS
from test_lu_processes import run

RESUMED = """
def stop():
    raise KeyboardInterrupt

def remote_read(f):
    # The reads of L that the client has made: a span covers tiles in adjacent slots of 64 KiB.
    file = (f.path / f.kind.array / "c" / "0" / "0").stat()
    is_own = [server == comm.rank for server in file.servers]
    spans = f.report.spans[(f.report.spans[:, 0] == 0) & (f.report.spans[:, 1] == 1)]
    tile_bytes, total = f.tile[0] * f.tile[1] * f.dtype.itemsize, 0
    for at, nbytes in spans[:, 4:].tolist():
        for slot in range(at, at + nbytes // tile_bytes * 65536, 65536):
            is_remote = not is_own[slot // file.stripe_unit_bytes % len(is_own)]
            total += tile_bytes * is_remote
    return total, int(spans[:, 5].sum())

before_late_panels(stop)
late(stop)
groups = [None, *(comm.Split(comm.rank < size) for size in range(1, comm.size + 1))]
for number, (kind, n, begun, resumed, first_servers) in enumerate(options["cases"]):
    a = random(n, "f8") if kind == "lu" else definite(n, "f8")
    factor, solve_by, more = lu_factor, lu_solve, {"method": "slabs"}
    if kind == "cho":
        factor, solve_by, more = cho_factor, cho_solve, {}
    A = put(f"A{number}", a, order="F")
    same, right = SAME | {"memory": 300_000} | more, scipy.linalg.lu_factor(a)
    # The servers of the factors are those of the pool when they were begun.
    last_servers = max(begun, resumed)
    for size in range(first_servers, last_servers + 1):
        if comm.rank >= size:
            continue
        with oc.Pool.from_comm(groups[size], f"{home}/{number}/{{rank}}", timeout=60) as pool:
            out = pool / "F"
            if size == first_servers:
                call = lambda: factor(A, out=out, **same | {"comm": groups[begun]})
                assert comm.rank >= begun or "to resume" in raised(Interrupted, call)
                if size < last_servers:
                    continue
            groups[size].barrier()
            if comm.rank < resumed:
                f = factor(A, out=out, **same | {"comm": groups[resumed]})
                assert "resumed at panel" in f.report.notes[0], f.report.notes
                assert kind == "cho" or (f.piv == right[1]).all()
                each = f.report.processes[comm.rank]
                for what in ("bytes_read", "bytes_written", "bytes_sent", "remote_bytes_read"):
                    assert each[what] == each["planned_" + what], (what, each)
                found, all_of = remote_read(f)
                assert each["remote_bytes_read"] == found, (found, each)
                assert comm.rank < first_servers or found == all_of > 0, (found, all_of)
                # Panels lie on the servers of those that began in turn.
                remote = [each["remote_bytes_read"] for each in f.report.processes]
                assert any(remote) and "other servers" in str(f.report), remote
                if comm.rank == 0:
                    solved = solve_by(f, a @ np.ones(n), **SAME | {"comm": None})
                    assert np.abs(solved - 1).max() < 1e-9
                if comm.rank == 0 and kind == "lu":
                    found = export_lapack(f, f"{home}/L{number}", progress=False)[0][...]
                    assert np.abs(found - right[0]).max() < 1e-10
            groups[size].barrier()
    comm.barrier()
"""


CASES = [
    [("lu", 401, 2, 3, 2), ("cho", 501, 2, 3, 2)],
    [("lu", 301, 1, 3, 3), ("lu", 401, 3, 2, 3), ("cho", 501, 3, 2, 3)],
]


@pytest.mark.exhaustive
@pytest.mark.parametrize("cases", CASES)
def test_other_numbers_of_processes_resume_in_a_pool(tmp_path: Path, cases: list[object]) -> None:
    """The plan counts the bytes of panels that then lie on other servers."""
    run(tmp_path, 3, HELPERS + RESUMED, cases=cases)
