"""Processes that read panels on their own I/O servers, in pools whose directories change ranks."""

from pathlib import Path

import pytest
from test_cholesky_processes import HELPERS
from test_lu_processes import run

from outcore.linalg._factors.panel_servers import readers_of, turns_of
from outcore.linalg._geometry.deal import Deal, dealt

CHANGED = """
import scipy.linalg
from outcore.linalg import cond_est

def remote_read(f, report, own_server):
    # The client's reads of factors: a span covers tiles in adjacent slots of 64 KiB.
    file = (f.path / f.kind.array / "c" / "0" / "0").stat()
    spans = report.spans[(report.spans[:, 0] == 0) & (report.spans[:, 1] == 1)]
    tile_bytes, total = f.tile[0] * f.tile[1] * f.dtype.itemsize, 0
    for at, nbytes in spans[:, 4:].tolist():
        for slot in range(at, at + nbytes // tile_bytes * 65536, 65536):
            server = file.servers[slot // file.stripe_unit_bytes % len(file.servers)]
            total += tile_bytes * (server != own_server)
    assert len(spans)
    return total

def check(f, report, own_server):
    each = report.processes[comm.rank]
    for what in ("bytes_read", "bytes_sent", "messages_sent", "remote_bytes_read"):
        assert each[what] == each["planned_" + what], (what, each)
    assert each["remote_bytes_read"] == remote_read(f, report, own_server) == 0, each

n = 401
a, h = random(n, "f8"), definite(n, "f8")
A, H = put("A", a, order="F"), put("H", h, order="F")
right = scipy.linalg.lu_factor(a)
same, last = SAME | {"memory": 300_000}, comm.size - 1
lu, piv = right
for names in ([0, 1, 2], *options["orders"]):
    own = names[comm.rank]
    with oc.Pool.from_comm(comm, f"{home}/{own}", timeout=60) as pool:
        if names == sorted(names):
            # Server k lies in directory k.
            lu_factor(A, out=pool / "LU", **same)
            cho_factor(H, out=pool / "C", **same)
        new = lu_factor(A, out=pool / "LUnew", **same | {"if_exists": "overwrite"})
        check(new, new.report, own)
        assert (new.piv == piv).all()
        newc = cho_factor(H, out=pool / "Cnew", **same | {"if_exists": "overwrite"})
        check(newc, newc.report, own)
        if comm.rank == 0:
            found = export_lapack(new, f"{home}/L{names}", progress=False)[0][...]
            assert np.abs(found - lu).max() < 1e-10
            found = oc.open_array(newc.path / "l")[...]
            assert np.abs(np.tril(found) - np.linalg.cholesky(h)).max() < 1e-10
        comm.barrier()
        for f, c in ((new, newc), (open_factor(pool / "LU"), open_factor(pool / "C"))):
            for solved_by, g, m in ((lu_solve, f, a), (cho_solve, c, h)):
                x = solved_by(g, m @ np.ones((n, 2)), **same)
                check(g, oc.last_report(), own)
                assert np.abs(x - 1).max() < 1e-9
                cond_est(g, **same)
                check(g, oc.last_report(), own)
"""


def test_processes_read_their_own_servers_whatever_their_ranks(tmp_path: Path) -> None:
    """The pool has the same directories, which come in another order of ranks."""
    run(tmp_path, 3, HELPERS + CHANGED, orders=[[2, 1, 0], [1, 2, 0]])


@pytest.mark.parametrize(
    ("servers", "own", "turns", "readers"),
    [
        ([0, 1, 2, 0], [0, 1, 2], (0, 1, 2), (0, 1, 2, 0)),
        ([0, 1, 2, 0], [2, 1, 0], (2, 1, 0), (2, 1, 0, 2)),
        # Two ranks on each server, and ranks without one.
        ([0, 1, 0, 1, 0], [0, 0, 1, 1], (0, 2, 1, 3), (0, 2, 1, 3, 0)),
        ([5, 6, 5, 6], [None, 5, None], (1, 0, 2), (1, 1, 1, 0)),
        # Panels on several servers, or in no pool, and fewer panels than processes.
        ([None, None, None], [1, 0], (0, 1), (0, 1, 0)),
        ([1], [0, 1, 2], (1, 0, 2), (1,)),
    ],
)
def test_panels_go_to_the_rank_whose_server_holds_them(
    servers: list[int | None],
    own: list[int | None],
    turns: tuple[int, ...],
    readers: tuple[int, ...],
) -> None:
    assert turns_of(servers, own) == turns
    assert readers_of(servers, own) == readers


def test_a_deal_follows_the_order_of_the_ranks() -> None:
    assert [Deal((2, 2, 2), 0, (2, 0, 1)).owner(panel) for panel in range(4)] == [2, 0, 1, 2]
    # Panels of a small slab that are left over go to the first in the order.
    counts = dealt([9, 9, 9], 5, (2, 0, 1))
    assert counts == (2, 1, 2)
    deals = [Deal(counts, rank, (2, 0, 1)) for rank in range(3)]
    assert [deals[0].owner(panel) for panel in range(5)] == [2, 0, 1, 2, 0]
    assert [deal.number(0, 5) for deal in deals] == [2, 1, 2]
