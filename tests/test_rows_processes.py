"""Methods that stream rows, by several processes of MPI, against NumPy and their own plans."""

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpi_jobs import MPICH, mpi_program
from rows_jobs import JOB, run
from tall import RATES

import outcore as oc
from outcore.errors import BudgetError
from outcore.linalg._rows.plan import RowLayout
from outcore.linalg._rows.shares import shares_of
from outcore.linalg._tiles.grains import Grains
from outcore.planning.processes import compare_processes

GRAM = """
# Rows that do not divide, fewer blocks than processes, and a product that memory does not hold.
for dtype, m, n, side, layout, memory in (
    ("f8", 1003, 70, "left", {"order": "C", "chunks": (64, 70)}, [2_000_000, 600_000]),
    ("c8", 1003, 70, "left", {"order": "F", "chunks": (128, 16)}, [2_000_000]),
    ("c16", 60, 500, "right", {"order": "C", "chunks": (60, 64)}, [2_000_000]),
    ("f4", 90, 130, "left", {"order": "F", "chunks": (64, 64)}, [2_000_000]),
    ("c8", 300, 300, "left", {"order": "C"}, [450_000]),
):
    a = random((m, n), dtype)
    A = put(f"A{dtype}{m}{n}", a, **layout)
    wide = a.astype("c16")
    want = wide.conj().T @ wide if side == "left" else wide @ wide.conj().T
    same = SAME | {"side": side, "memory": memory[rank % len(memory)]}
    for out in (None, f"{home}/G{dtype}{m}{n}"):
        if out is None and memory[0] < 500_000:
            continue
        G, report = gram(A, alpha=0.5, shift=2.0, out=out, **same)
        counted(report)
        assert (report.m, report.n) == (m, n) or side == "right"
        found = same_bits(G)
        limit = 10 * max(m, n) * np.finfo(dtype).eps
        assert np.abs(found - 0.5 * want - 2 * np.eye(len(want))).max() < limit
        if out:
            assert set(os.listdir(out)) == {"c", "outcore.generation", "zarr.json"}
    if memory[0] < 500_000:
        assert "passes" in report.method or "a pass for each" in report.method, report.method
    again, _ = gram(A, alpha=0.5, shift=2.0, out=f"{home}/G", if_exists="overwrite", **same)
    assert (again[...] == found).all()
    comm.barrier()
# Each process has its copy of A in an order of its own.
a, b = random((200, 30), "c16"), random((200,), "c16", 2)
mine = np.array(a, order="FC"[rank % 2])
for side, want in (("left", a.conj().T @ a), ("right", a @ a.conj().T)):
    assert np.abs(gram(mine, side=side, **SAME)[0] - want).max() < 1e-10, side
R = qr(mine, **SAME)[0]
assert np.abs(R.conj().T @ R - a.conj().T @ a).max() < 1e-10
assert np.abs(lstsq(mine, b, **SAME)[0] - np.linalg.lstsq(a, b)[0]).max() < 1e-10
"""


def test_a_sum_of_products(tmp_path: Path) -> None:
    run(tmp_path, 3, GRAM)


LSTSQ = """
for dtype, m, n, k, layout in (
    ("f8", 3001, 70, 1, {"order": "C", "chunks": (256, 70)}),
    ("c16", 1500, 70, 3, {"order": "F", "chunks": (128, 32)}),
    ("f4", 130, 65, 2, {"order": "C", "chunks": (8, 65)}),
    ("c8", 60, 90, 2, {"order": "C", "chunks": (8, 90)}),
    ("f8", 1, 1, 1, {}),
):
    a, b = random((m, n), dtype), random((m, k), dtype, 2)
    A = put(f"A{dtype}{m}", a, **layout)
    B = put(f"B{dtype}{m}", b, chunks=(min(64, m), k), order="C")
    weights = np.abs(random((m,), "f4")) * (np.arange(m) % 5 > 0)
    memory = 3_000_000 if rank != 1 else 1_000_000
    for right, w, damp, out in (
        (b, None, 0, None), (B, weights, 0, f"{home}/x{dtype}{m}"), (b[:, 0], weights, 0.3, None)
    ):
        x, report = lstsq(A, right, weights=w, damp=damp, out=out, keep_r=True, memory=memory,
                          **SAME)
        # The disk writes whole sectors.
        counted(report, written=out is None)
        found = same_bits(x)
        assert found.dtype == dtype and found.shape == (n, *getattr(right, "shape", (m, k))[1:])
        roots = np.sqrt(np.ones(m) if w is None else w.astype("f8"))[:, None]
        wide, wide_b = roots * a.astype("c16"), roots * b[:, : found.size // n].astype("c16")
        stacked = np.vstack([wide, damp * np.eye(n)])
        below = np.vstack([wide_b, np.zeros((n, wide_b.shape[1]))])
        want, _, most, _ = np.linalg.lstsq(stacked, below, rcond=None)
        found = found.reshape(n, -1)
        limit = 2e3 * np.finfo(dtype).eps
        assert np.abs(found - want).max() <= limit * np.abs(want).max(), (dtype, m, damp)
        residuals = np.linalg.norm(wide_b - wide @ want, axis=0)
        assert np.abs(residuals - report.residual_norms).max() <= limit * np.linalg.norm(wide_b)
        R = same_bits(report.R)
        gram_of = wide.conj().T @ wide
        assert np.abs(R.conj().T @ R - gram_of).max() <= limit * np.abs(gram_of).max()
        assert (np.tril(R, -1) == 0).all()
        if damp == 0 and w is None and m >= n:
            assert report.degrees_of_freedom == m - n and report.rank == n
        again, _ = lstsq(A, right, weights=w, damp=damp, memory=memory, **SAME)
        assert (again == x[...]).all()
    if m == 3001:
        read = [each["bytes_read"] for each in report.processes]
        # As many rows each, whatever the memory, to a chunk.
        assert max(read) - min(read) <= 256 * n * 8, read
        one, _ = lstsq(A, b, memory=memory, progress=False, threads=1)
        assert np.abs(one[:, 0] - lstsq(A, b, memory=memory, **SAME)[0][:, 0]).max() < 1e-13
    comm.barrier()
# Columns of lower rank: the solution of least norm.
a = random((900, 40), "f8")
a[:, 7] = a[:, 3]
A, b = put("S", a), random((900,), "f8", 3)
x, report = lstsq(A, b, **SAME)
assert report.rank == 39 and "rank 39 of 40" in report.notes[-1], report.notes
assert np.abs(x - np.linalg.lstsq(a, b, rcond=1e-10)[0]).max() < 1e-11
"""


@pytest.mark.exhaustive(keep=2)
@pytest.mark.parametrize("size", [2, 3, 5])
def test_least_squares_are_those_of_numpy(tmp_path: Path, size: int) -> None:
    run(tmp_path, size, LSTSQ)


STOPPED = """
steps_done.NOTE_S, steps_done.MOST_SHARE = 0.0, 1e9
a, b = random((4000, 50), "f8"), random((4000, 2), "f8", 2)
A = put("A", a, order="C", chunks=(64, 50))
calls = {
    "lstsq": lambda out, comm: lstsq(A, b, out=out, **SAME | {"comm": comm, "memory": 500_000}),
    "gram": lambda out, comm: gram(A, out=out, **SAME | {"comm": comm, "memory": 200_000}),
    "qr": lambda out, comm: qr(
        A, mode="economic", out=out, **SAME | {"comm": comm, "memory": 1_000_000}
    ),
}
check = Team.check
for verb, call in calls.items():
    whole = call(f"{home}/{verb}-whole", comm)[0][...]
    for name, few in (("stopped", comm), ("fewer", comm.Split(rank == 0))):
        out = f"{home}/{verb}-{name}"
        if rank == last:
            at_block(3, stop)
        text = raised(Interrupted, lambda: call(out, comm))
        Team.check = check
        assert f"call {verb} again with the same arguments and 3 processes" in text, text
        assert sum(comm.allgather(f"because rank {last} was stopped" in text)) == last, text
        assert Path(out, f"outcore.steps-{last}").exists()
        comm.barrier()  # The first process may restart, and then removes this file.
        # With the same number of processes the call resumes, with another one it restarts.
        if few is comm or rank == 0:
            x, *_, report = call(out, few)
            assert ("resumed at" in str(report)) == (few is comm), report
            assert (x[...] == whole).all() if few is comm else np.allclose(abs(x[...]), abs(whole))
            assert set(os.listdir(out)) == {"c", "outcore.generation", "zarr.json"}
        comm.barrier()
"""


def test_a_stopped_call_resumes_with_as_many_processes(tmp_path: Path) -> None:
    run(tmp_path, 3, STOPPED)


IDLE = """
steps_done.NOTE_S, steps_done.MOST_SHARE = 0.0, 1e9
a = random((32, 200), "f8")
A = put("A", a, order="C", chunks=(16, 200))
check = Team.check
# The last process has no rows, so it records nothing. Its budget determines the two parts of G:
# columns 0 to 127 and the rest, or 0 to 191 and the rest.
most, least = 620_000, 480_000
for first, second, resumes in ((least, most, True), (most, least, False)):
    out = f"{home}/G{resumes}"
    at_block(2, stop)
    raised(
        Interrupted, lambda: gram(A, out=out, memory=first if rank == last else most, **SAME)
    )
    Team.check = check
    assert Path(out, f"outcore.steps-{rank}").exists() == (rank != last)
    comm.barrier()
    G, report = gram(A, out=out, memory=second if rank == last else most, **SAME)
    assert "2 slabs" in report.method and ("resumed" in str(report)) == resumes, report
    assert np.abs(G[...] - a.T @ a).max() < 1e-12
    comm.barrier()
"""


def test_a_process_without_rows_does_not_change_the_parts(tmp_path: Path) -> None:
    run(tmp_path, 3, IDLE)


REFUSED = """
a, b = random((600, 30), "f8"), random((600,), "f8", 2)
A = put("A", a, order="C", chunks=(16, 30))
for other, text in (
    ({"damp": float(rank)}, "need the same damp= on every rank"),
    ({"out": f"{home}/{rank}"}, "need the same out= on every rank"),
    ({"weights": None if rank else np.ones(600)}, "need the same operands on every rank"),
    ({"b": b + rank}, "need the same b on every rank"),
    ({"b": iter([b])}, "leave out comm="),
    ({"b": b[: 600 - rank]}, "rows"),
):
    found = raised(InvalidError, lambda: lstsq(A, **{"b": b} | SAME | other))
    assert text in found, found
small = {"memory": 20_000 if rank == last else 3_000_000}
found = raised(BudgetError, lambda: lstsq(A, b, **SAME | small))
assert "leave out comm=" in found and ("rank" in found) == (rank != last), found
found = raised(BudgetError, lambda: gram(A, **SAME | small))

# The index of a NaN reaches all, and nothing stays.
a[500, 7] = np.nan
B = put("B", a, order="C", chunks=(16, 30))
same = SAME | {"out": f"{home}/x"}
for call in (lambda: lstsq(B, b, **same), lambda: gram(B, **same)):
    found = raised(NonFiniteError, call)
    assert "A[500, 7]" in found, found
    assert sum(comm.allgather(found.startswith(f"rank {last}: "))) == last, found
    assert not Path(home, "x").exists()
    comm.barrier()

# A process fails with an error of its own, while others wait for its triangle.
def fail():
    raise ValueError("out of paper")
check = Team.check
if rank == last:
    at_block(1, fail)
found = raised(Exception, lambda: lstsq(A, b, **SAME))
assert ("ValueError: out of paper" in found) == (rank != last), found
Team.check = check
# The communicator works on.
assert comm.allreduce(1) == comm.size
x, report = lstsq(A, b, out=f"{home}/x", if_exists="open", **SAME)
again, opened = lstsq(A, b, out=f"{home}/x", if_exists="open", **SAME)
assert opened.notes[-1].startswith("opened") and (x[...] == again[...]).all()
raised(ExistsError, lambda: lstsq(A, b, out=f"{home}/x", **SAME))
"""


def test_an_error_of_one_process_is_one_of_all(tmp_path: Path) -> None:
    run(tmp_path, 3, REFUSED)


DIES = """
a, b = random((600, 30), "f8"), random((600,), "f8", 2)
A = put("A", a, order="C", chunks=(16, 30))
if rank == 1:
    at_block(1, lambda: os.kill(os.getpid(), signal.SIGKILL))
text = raised(DiskError, lambda: lstsq(A, b, **SAME))
assert "rank 1 died" in text, text
Path(home, f"{rank}").write_text("well")
os._exit(0)
"""


def test_others_stop_waiting_for_a_process_that_died(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(JOB + DIES)
    # The launcher knows the shells only: it ends a job in which a process dies.
    shell = '"$@"; while ! [ -s "$0/0" -a -s "$0/2" ]; do sleep 0.05; done'
    words = sys.executable, str(script), str(tmp_path), "{}"
    done = mpi_program(
        3, "sh", "-c", shell, str(tmp_path), *words, MPI4PY_LIBMPI=str(MPICH.library)
    )
    found = {path.name: path.read_text() for path in tmp_path.glob("?") if path.is_file()}
    assert found == dict.fromkeys("02", "well"), done.stdout + done.stderr


@given(st.integers(1, 3000), st.integers(1, 9), st.integers(1, 70), st.integers(1, 400))
def test_shares_have_all_rows_and_trees_all_shares(m: int, p: int, grain: int, least: int) -> None:
    layout = RowLayout(m, 5, np.dtype("f8"), by_row=True, grains=Grains(grain, 5, 8))
    each = [shares_of([layout], p, rank, least) for rank in range(p)]
    assert sum(one.rows_of(one.rank) for one in each) == m
    assert all(one.own.start % grain == 0 or one.own.start == m for one in each)
    counts = [one.rows_of(one.rank) for one in each[: each[0].busy]]
    assert max(counts[:-1], default=0) - min(counts[:-1], default=0) <= grain
    # Each result is taken once, by the process to which its owner gives it.
    taken = [(other, one.rank) for one in each for other in one.sources()]
    assert sorted(taken) == [
        (r, one.target()) for r, one in enumerate(each) if one.target() is not None
    ]
    assert len(taken) == each[0].busy - 1


def test_plans_of_several_processes() -> None:
    options = {"n": 500, "m": 400_000, "memory": "60 MB", "rates": RATES}
    for verb in ("lstsq", "gram", "qr"):
        one, four = compare_processes(verb, [1, 4], **options).plans
        assert one.bytes_sent == 0
        assert four.bytes_read == pytest.approx(one.bytes_read / 4, rel=0.01)
        assert four.bytes_sent == pytest.approx(500**2 / 2 * 8, rel=0.15)
        assert four.seconds < one.seconds / 3
        slow = oc.plan(verb, processes=4, link="10 kB/s", **options)
        assert slow.bound == "network"
    with pytest.raises(BudgetError, match="leave out comm="):
        oc.plan("lstsq", processes=2, n=2000, m=9000, memory="40 MB", rates=RATES)


QR = """
for dtype, m, n, layout in (
    ("f8", 2001, 70, {"order": "C", "chunks": (64, 70)}),
    ("c16", 1500, 65, {"order": "F", "chunks": (128, 32)}),
    ("f4", 130, 64, {"order": "C", "chunks": (8, 64)}),
    ("c8", 60, 90, {"order": "C", "chunks": (8, 90)}),
):
    a = random((m, n), dtype)
    A = put(f"A{dtype}", a, **layout)
    gram_of = a.conj().T @ a
    for out in (None, f"{home}/R{dtype}"):
        R, report = qr(A, out=out, memory=2_000_000 if rank else 1_000_000, **SAME)
        counted(report, written=out is None)
        found = same_bits(R)
        assert found.shape == (min(m, n), n) and found.dtype == dtype and report.m == m
        assert (np.tril(found, -1) == 0).all()
        limit = 100 * m * np.finfo(dtype).eps
        assert np.abs(found.conj().T @ found - gram_of).max() < limit, dtype
        comm.barrier()
    if m < n:
        text = raised(InvalidError, lambda: qr(A, mode="economic", **SAME))
        assert 'mode="r"' in text, text
        continue
    Q, again, report = qr(A, mode="economic", memory=options["memory"], **SAME)
    counted(report)
    q = same_bits(Q)
    # The signs of rows of R depend on the blocks.
    assert np.abs(abs(again) - abs(found)).max() < limit
    assert np.abs(q.conj().T @ q - np.eye(n)).max() < 50 * n * np.finfo(dtype).eps
    assert np.abs(q @ again - a).max() < limit
    assert set(os.listdir(f"{A}.q")) == {"c", "outcore.generation", "zarr.json"}
# Q is orthogonal whatever the condition, also for columns of zeros.
a = random((700, 40), "f8") * 10.0 ** -np.arange(40)
a[:, 5] = 0
Q, R, report = qr(put("I", a), mode="economic", **SAME)
q = Q[...]
assert np.abs(q.T @ q - np.eye(40)).max() < 1e-13 and np.abs(q @ R - a).max() < 1e-13
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("size", [3, 5])
def test_q_and_r_are_those_of_all_rows(tmp_path: Path, size: int) -> None:
    run(tmp_path, size, QR, memory=2_500_000)
