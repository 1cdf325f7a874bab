"""Truncated SVD by several processes of MPI, against SciPy and its own plans."""

import dataclasses
from pathlib import Path

import pytest
from rows_jobs import run
from tall import RATES

from outcore.planning.processes import compare_processes

SVD = """
import scipy.linalg
from outcore.machine.rates import Rates


def with_values(shape, values, dtype):
    u, v = (
        scipy.linalg.qr(random((size, len(values)), dtype, seed), mode="economic")[0]
        for seed, size in enumerate(shape)
    )
    return ((u * values) @ v.conj().T).astype(dtype)


# Rows that do not divide, and fewer shares than processes.
for dtype, m, n, k, layout in (
    ("f8", 1003, 70, 6, {"order": "C", "chunks": (64, 70)}),
    ("c16", 700, 65, 5, {"order": "F", "chunks": (128, 32)}),
    ("f4", 450, 130, 4, {"order": "F", "chunks": (64, 64)}),
    ("c8", 100, 190, 3, {"order": "C", "chunks": (64, 190)}),
):
    a = with_values((m, n), 1.5 ** -np.arange(min(m, n, 60)), dtype)
    A = put(f"A{dtype}", a, **layout)
    want = scipy.linalg.svdvals(a.astype("c16"))
    eps = np.finfo(dtype).eps
    same = SAME | {"memory": 2_000_000 if rank % 2 else 900_000, "seed": 3}
    for out in (None, f"{home}/U{dtype}"):
        U, s, Vh, report = svd(A, k, out=out, **same)
        counted(report)
        u, vh, values = same_bits(U), same_bits(Vh), same_bits(s)
        assert (u.shape, vh.shape, u.dtype, s.dtype) == ((m, k), (k, n), a.dtype, a.real.dtype)
        assert (report.m, report.n) == (m, n) and max(report.triplet_residuals) < 1e-4
        assert np.abs(values - want[:k]).max() < 1e-6 + 50 * m * eps
        for x in (u, vh.conj().T):
            assert np.abs(x.conj().T @ x - np.eye(k)).max() < 50 * max(m, n) * eps
        rest = a - (u * values) @ vh
        assert np.linalg.norm(rest, 2) <= report.error_bound + 50 * m * eps
        size = np.linalg.norm(want[k:])
        assert abs(report.frobenius_error - size) < 1e-3 * size, (report, size)
        residuals = np.linalg.norm(a.conj().T @ u - vh.conj().T * values, axis=0) / values[0]
        difference = np.abs(residuals - report.triplet_residuals).max()
        assert difference < 1e-2 * residuals.max() + 1e3 * eps
        if out:
            assert set(os.listdir(out)) == {"c", "outcore.generation", "zarr.json"}
            # A second call has the same result, bit by bit.
            again = svd(A, k, out=out, if_exists="overwrite", **same)
            assert all((x[...] == y).all() for x, y in zip(again, (u, values, vh)))
    comm.barrier()
# Each process has its copy of A in an order of its own.
mine = np.array(random((200, 30), "c16"), order="FC"[rank % 2])
U, s, Vh, _ = svd(mine, 15, tol=None, power=2, **SAME)
assert np.abs(same_bits(s) - scipy.linalg.svdvals(mine)[:15]).max() < 1e-10
assert np.abs(same_bits(U) * s - mine @ same_bits(Vh).conj().T).max() < 1e-10
# The plan is of a process that reads most, and gives its result to another one.
given = {"memory": 900_000, "power": 2}
*_, report = svd(f"{home}/Af8", 6, tol=None, out=f"{home}/U", **SAME | given)
shape = {"m": 1003, "n": 70, "order": "C", "chunks": (64, 70)}
planned = oc.plan(
    "svd", k=6, out=True, processes=comm.size, rates=Rates(**options["rates"]), **shape | given
)
alone = {"bytes_sent": 0, **report.to_dict()}
figures = [
    (each["bytes_read"], each["bytes_written"], each["bytes_sent"])
    for each in report.processes or [alone]
]
assert (planned.bytes_read, planned.bytes_written, planned.bytes_sent) in figures, figures
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("size", [3, 1, 2, 4])
def test_triplets_are_those_of_scipy(tmp_path: Path, size: int) -> None:
    run(tmp_path, size, SVD, rates=dataclasses.asdict(RATES))


TOGETHER = """
a = random((4000, 50), "f8") / 1.2 ** np.arange(50)
A = put("A", a, order="C", chunks=(64, 50))


def found(comm=comm, **more):
    given = {"tol": None, "power": 2, "seed": 1, "memory": 700_000}
    return svd(A, 3, **SAME | given | {"comm": comm} | more)


for other, text in (
    ({"seed": rank}, "need the same seed= on every rank"),
    ({"power": 1 + rank}, "need the same power= on every rank"),
    ({"out": f"{home}/{rank}"}, "need the same out= on every rank"),
):
    told = raised(InvalidError, lambda: found(**other))
    assert text in told, told
assert "leave out comm=" in raised(InvalidError, lambda: svd(iter([a]), 3, **SAME))
for out in (None, f"{home}/least"):
    told = raised(BudgetError, lambda: found(memory=20_000 if rank == last else 700_000, out=out))
    assert ("give out=" in told) == (out is None), told
    # The least budget that is named suffices.
    counted(found(memory=int(told.split("need ")[1].split()[0]), out=out)[3])
a[3500, 7] = np.nan
told = raised(NonFiniteError, lambda: svd(a, 3, **SAME))
assert "A[3500, 7]" in told, told
assert sum(comm.allgather(told.startswith(f"rank {last}: "))) == last, told
check = Team.check


def fail():
    raise ValueError("out of paper")


if rank == last:
    at_block(9, fail)
told = raised(Exception, lambda: found(out=f"{home}/x"))
assert ("ValueError: out of paper" in told) == (rank != last), told
Team.check = check
comm.barrier()
assert not Path(home, "x").exists()

# A later call opens the result.
for note in ("block Krylov", "opened"):
    *_, report = found(out=f"{home}/opened", if_exists="open")
    assert note in str(report), report
comm.barrier()

# A stop in each pass, and records of one process that end a pass earlier than those of others.
steps_done.NOTE_S, steps_done.MOST_SHARE = 0.0, 1e9
passed, limit = steps_done.StepsDone.passed, None
whole = found(out=f"{home}/whole")
blocks = []


def seldom(self, done, steps, keep):
    blocks[:] = [steps // 4]
    if limit is None or done <= limit:
        passed(self, done, steps, keep)


steps_done.StepsDone.passed = seldom
assert (found(out=f"{home}/other")[0][...] == whole[0][...]).all()
assert blocks[0] > 3, blocks
for number, late, size in (
    (0, None, 3), (1, None, 3), (1, 0, 3), (1, 1, 3), (2, last, 3), (3, None, 3), (3, 0, 3),
    (3, 1, 3), (1, None, 1),
):
    out = f"{home}/U{number}{late}{size}"
    stop_at = number * blocks[0] + blocks[0] // 2
    limit = (number - 1) * blocks[0] + 1 if rank == late else None
    if rank == last:
        at_block(stop_at, stop)
    told = raised(Interrupted, lambda: found(out=out))
    assert "call svd again with the same arguments and 3 processes" in told, told
    Team.check, limit = check, None
    fewer = comm if size == comm.size else comm.Split(rank < size)
    if rank < size:
        *again, report = found(fewer, out=out)
        if number:
            assert ("resumed at" in str(report)) == (size == 3), (number, late, report)
        assert report.triplet_residuals == whole[3].triplet_residuals or size < 3
        for x, y in zip(again, whole):
            if size == 3:
                assert (x[...] == y[...]).all(), (number, late)
            else:
                assert np.allclose(abs(x[...]), abs(y[...]))
        assert set(os.listdir(out)) == {"c", "outcore.generation", "zarr.json"}
    comm.barrier()
"""


def test_errors_and_stops_of_one_process_are_those_of_all(tmp_path: Path) -> None:
    run(tmp_path, 3, TOGETHER)


def test_plans_of_several_processes() -> None:
    options = {"n": 500, "m": 400_000, "k": 10, "power": 3, "memory": "60 MB", "rates": RATES}
    one, four = compare_processes("svd", [1, 4], out=True, **options).plans
    assert one.bytes_sent == 0
    # Each has whole blocks, which are the chunks of U.
    assert four.bytes_read == pytest.approx(one.bytes_read / 4, rel=0.02)
    # A sum of products in each of four passes, and a triangle, or two.
    assert 0 < four.bytes_sent - 4 * 500 * 20 * 8 < 2 * 20 * 20 * 8
    assert four.seconds < one.seconds / 3
    for given in ({"out": True}, {"out": False}):
        assert compare_processes("svd", [4], link="1 kB/s", **options | given).plans[0].bound == (
            "network"
        )
