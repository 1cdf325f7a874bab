"""LU by several processes of MPI, against SciPy, its own plan, and one process."""

import dataclasses
import itertools
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi_jobs import MPICH, OPEN_MPI, RAISED, mpi_program, mpiexec, run_job, skip_without

import outcore as oc
from outcore.errors import BudgetError, InvalidError
from outcore.linalg._geometry.deal import ALONE, Deal, dealt
from outcore.linalg._geometry.factor_plan import dealt_lu_geometry
from outcore.machine.rates import NOMINAL
from outcore.planning.processes import compare_processes

JOB = (
    """
import json, os, re, signal, sys, warnings
from pathlib import Path
import numpy as np
import scipy.linalg
from mpi4py import MPI
import outcore as oc
from outcore.errors import *
from outcore.linalg import cho_factor, cho_solve, export_lapack, lu_factor, lu_solve
from outcore.linalg import open_factor, solve
from outcore.linalg._lu.slabs.factor_slabs import SlabFactorization
from outcore.processes import host_blocks

comm = MPI.COMM_WORLD
home, options = sys.argv[1], json.loads(sys.argv[2])
if options.get("apart"):
    # As on several hosts, whose processes have no memory in common.
    host_blocks.host_memory = lambda *_: None
SAME = {"comm": comm, "timeout": 60, "threads": 1, "progress": False}


def put(name, a, **layout):
    where = f"{home}/{name}"
    if comm.rank == 0:
        oc.from_array(a, where, progress=False, **layout)
    comm.barrier()
    return where


def check(f, a):
    lu, piv = scipy.linalg.lu_factor(a)
    assert (f.piv == piv).all()
    counted(f.report)
    if comm.rank == 0:
        found = export_lapack(f, f"{f.path}.lapack", progress=False)[0][...]
        eps = np.finfo(a.dtype).eps
        assert np.abs(found - lu).max() <= 200 * eps * np.abs(lu).max() * len(a) ** 0.5
        # The ratio of LAPACK's tests.
        swapped = a.copy()
        for i, other in enumerate(piv):
            swapped[[i, other]] = swapped[[other, i]]
        error = (np.tril(found, -1) + np.eye(len(a))) @ np.triu(found) - swapped
        assert np.linalg.norm(error, 1) < 30 * len(a) * np.linalg.norm(a, 1) * eps / 2
    comm.barrier()


def counted(report, exactly=True):
    exact = ("bytes_sent", "messages_sent", *(("bytes_read", "bytes_written") if exactly else ()))
    for each in report.processes:
        for what in exact:
            assert each[what] == each["planned_" + what], (what, each)
        assert each["peak_memory_bytes"] <= report.memory_bytes
    assert len(report.processes) == (comm.size if comm.size > 1 else 0)
    assert len(set(comm.allgather(str(report)))) == 1


def random(n, dtype, seed=1):
    draw = np.random.default_rng([n, seed])
    a = draw.standard_normal((n, n))
    if np.dtype(dtype).kind == "c":
        a = a + 1j * draw.standard_normal((n, n))
    return a.astype(dtype)


def before_late_panels(do):
    factor = SlabFactorization.factor
    def first(self, K, *more):
        if K >= self.g.panels * 2 // 3 and not self.storage.first_panel:
            do()
        factor(self, K, *more)
    SlabFactorization.factor = first


def files(f):
    return [path.read_bytes() for path in sorted(Path(f).glob("lu/c/**/*")) if path.is_file()]
"""
    + RAISED
)


def run(tmp_path: Path, size: int, job: str, **options: object) -> None:
    run_job(tmp_path, size, JOB + job, options)


FACTORED = """
for dtype, n, memory, layout in options["cases"]:
    a = random(n, dtype)
    A = put(f"A{dtype}{n}", a, **layout)
    f = lu_factor(A, memory=memory[comm.rank % len(memory)], **SAME)
    check(f, a)
"""


@pytest.mark.exhaustive(keep=2)
@pytest.mark.parametrize(("size", "apart"), [(2, True), (3, False), (4, False)])
def test_factors_are_those_of_scipy(tmp_path: Path, size: int, apart: bool) -> None:
    # Orders one off the boundaries of panels and slabs, and fewer panels than processes.
    column, row = {"order": "F"}, {"order": "C", "chunks": (24, 40)}
    cases = [
        ("f8", 128, [150_000], column),
        ("f8", 129, [150_000], row),
        ("f4", 127, [120_000], row),
        ("c8", 97, [150_000], column),
        ("c16", 95, [220_000], column),
        ("f8", 17, [400_000], column),
        ("f8", 1, [400_000], column),
        ("f8", 300, [400_000, 400_000, 160_000], column),
        ("f8", 301, [1_300_000, 130_000], column),
    ]
    run(tmp_path, size, FACTORED, cases=cases, apart=apart)


SOLVED = """
for dtype, n, memory in options["cases"]:
    a = random(n, dtype)
    A = put(f"A{dtype}{n}", a, order="F")
    f = lu_factor(A, memory=memory, **SAME)
    for k, trans, kind in ((None, 0, dtype), (1, 1, dtype), (7, 2, "c16"), (3, 0, "f8")):
        x = random(n, kind, 2)[:, : k or 1]
        b = ({0: a, 1: a.T, 2: a.conj().T}[trans] @ x).astype(np.result_type(dtype, kind))
        b = b[:, 0] if k is None else b
        found = lu_solve(f, b, trans=trans, memory=memory, **SAME)
        eps = np.finfo(found.dtype).eps
        right = scipy.linalg.lu_solve((*scipy.linalg.lu_factor(a),), b, trans=trans)
        assert found.shape == b.shape and found.dtype == right.dtype, (found.dtype, right.dtype)
        limit = 1e3 * eps * np.linalg.cond(a) * np.abs(right).max()
        assert np.abs(found - right).max() <= limit
        counted(oc.last_report())
        if k is not None:
            B = put(f"B{dtype}{n}{k}", b, order="F")
            X = lu_solve(f, B, trans=trans, memory=memory, out=f"{B}.x", **SAME)
            assert np.abs(X[...] - right).max() <= limit
            counted(oc.last_report(), exactly=False)
            X.close()
"""


COMMAND = str(Path(sys.executable).with_name("outcore"))


def outcore(size: int, *words: object) -> tuple[int, str, str]:
    done = mpi_program(size, COMMAND, *map(str, words))
    return done.returncode, done.stdout, done.stderr


def test_mpiexec_starts_the_command(tmp_path: Path) -> None:
    a = np.random.default_rng(3).standard_normal((200, 200))
    oc.from_array(a, tmp_path / "A", progress=False)
    np.save(tmp_path / "b.npy", a @ np.arange(200.0))
    words = "solve", tmp_path / "A", tmp_path / "b.npy", "-o", tmp_path / "x.npy"
    code, said, errors = outcore(3, *words, "--memory", "300kB", "--json")
    assert code == 0, errors
    document = json.loads(said)
    assert len(document["report"]["processes"]) == 3
    assert document["plan"]["processes"] == 3
    np.testing.assert_allclose(np.load(tmp_path / "x.npy"), np.arange(200.0), atol=1e-8)
    assert not (tmp_path / "A.lu").exists()
    code, said, errors = outcore(2, *words, "--memory", "1kB", "--overwrite")
    assert code == 1
    assert said == ""
    # One process prints the error of all.
    assert errors.count("error: ") == 1, errors
    # The second one runs elsewhere, and does not find b.
    (tmp_path / "elsewhere").mkdir()
    move = 'cd "$0"; if [ "$PMI_RANK" = 1 ]; then cd elsewhere; fi; exec "$@"'
    done = mpi_program(
        2, "sh", "-c", move, str(tmp_path), COMMAND, "solve", "A", "b.npy", "-o", "y"
    )
    assert done.returncode == 1
    assert "rank 1: there is no file b.npy" in done.stderr, done.stderr
    # It needs no directory of the files that the first one writes.
    (tmp_path / "notes").mkdir()
    beside = ["--report", "notes/report", "--trace", "notes/trace"]
    there = [*words, "--overwrite", "--memory", "300kB", *beside]
    done = mpi_program(2, "sh", "-c", move, str(tmp_path), COMMAND, *map(str, there))
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (tmp_path / "notes").iterdir()} == {"report", "trace"}


def test_a_launcher_of_another_mpi_is_refused(tmp_path: Path) -> None:
    skip_without(OPEN_MPI)
    words = ["solve", str(tmp_path / "A"), str(tmp_path / "b.npy"), "-o", str(tmp_path / "x.npy")]
    oc.from_array(np.eye(20), tmp_path / "A", progress=False)
    np.save(tmp_path / "b.npy", np.ones(20))
    done = mpi_program(2, COMMAND, *words, mpi=OPEN_MPI, MPI4PY_LIBMPI=str(MPICH.library))
    assert done.returncode == 1, done.stdout
    expected = "error: mpirun of Open MPI started 2 processes, but mpi4py uses MPICH: "
    assert expected in done.stderr, done.stderr
    assert not (tmp_path / "x.npy").exists()


CHOLESKY = """
for dtype in ("f8", "c16"):
    a = random(90, dtype)
    a = a @ a.conj().T + 90 * np.eye(90)
    A = put(f"A{dtype}", a, order="F")
    if comm.rank == 0:
        cho_factor(A, memory=300_000, progress=False)
    comm.barrier()
    c, x = open_factor(f"{A}.cho"), random(90, dtype, 2)[:, :5]
    found = cho_solve(c, a @ x, memory=300_000, **SAME)
    assert np.abs(found - x).max() < 1e-12
    counted(oc.last_report())
"""


def test_processes_solve_with_a_cholesky_factor(tmp_path: Path) -> None:
    run(tmp_path, 2, CHOLESKY)


SYSTEMS = """
a = random(150, "f8")
A = put("A", a, order="F")
x = random(150, "f8", 2)[:, :5]
# Unequal memory and threads are allowed.
same = SAME | {"memory": 300_000 if comm.rank else 700_000, "threads": None if comm.rank else 1}
for b, out in ((a @ x[:, 0], None), (a @ x, None), (put("B", a @ x, order="F"), f"{home}/X")):
    found, report = solve(A, b, out=out, **same)
    right = x[:, 0] if getattr(b, "ndim", 2) == 1 else x
    assert np.abs(found[...] - right).max() < 1e-10
    assert report.backward_error < 1e-14 and report.verb == "solve"
    counted(report, exactly=out is None)
    assert not Path(home, "A.lu").exists()
    comm.barrier()
opened = [
    solve(A, f"{home}/B", out=f"{home}/Y", if_exists="open", **same)[1].notes[-1] for _ in range(2)
]
assert [note.startswith("opened") for note in opened] == [False, True], opened
found, report = solve(A, a @ x, condition=True, assume_a="pos", keep_factors=True, **same)
assert 0.3 < report.condition / np.linalg.cond(a, 1) < 1.1
assert "is not positive definite; solved by LU" in report.notes[-1], report.notes
kept = solve(A, a @ x, **same)[1]
assert "used the factors in" in kept.notes[0], kept.notes
assert Path(home, "A.lu").exists()
text = raised(InvalidError, lambda: solve(A, a @ x, factors=f"{home}/{comm.rank}", **same))
assert "need the same factors= on every rank" in text, text
other = a @ x + comm.rank
text = raised(InvalidError, lambda: solve(A, other, **same))
assert "need the same b on every rank" in text, text
text = raised(InvalidError, lambda: solve(A, a @ x, factor_dtype="f4", **same))
assert "start one process" in text, text
# A budget as large as the error says is enough.
w, ones = random(400, "f8"), np.ones(400)
W = put("W", w, order="F")
few = raised(BudgetError, lambda: solve(W, w @ ones, **same | {"memory": 1000}))
need = int(re.search(r"need ([0-9]+)", few)[1])
found, _ = solve(W, w @ ones, **same | {"memory": need})
assert np.abs(found - ones).max() < 1e-9
singular = a.copy()
singular[:, 3] = 0
S = put("S", singular, order="F")
raised(SingularMatrixError, lambda: solve(S, a @ x, **same))
assert not Path(home, "S.lu").exists()
"""


def test_processes_solve_a_system_in_one_call(tmp_path: Path) -> None:
    run(tmp_path, 3, SYSTEMS)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("size", "apart"), [(3, True), (2, False)])
def test_solutions_are_those_of_scipy(tmp_path: Path, size: int, apart: bool) -> None:
    cases = [("f8", 129, 300_000), ("f4", 64, 300_000), ("c16", 50, 400_000), ("f8", 1, 300_000)]
    run(tmp_path, size, SOLVED, cases=cases, apart=apart)


IN_A_POOL = """
a = random(300, "f8")
with oc.Pool.from_comm(comm, f"{home}/{{rank}}", timeout=60) as pool:
    if comm.rank == 0:
        oc.from_array(a, pool / "A", order="F", progress=False)
    comm.barrier()
    f = lu_factor(pool / "A", memory=300_000, **SAME)
    counted(f.report)
    assert (f.piv == scipy.linalg.lu_factor(a)[1]).all()
    # Panel K lies on server K modulo their number, the rest of the file on the last.
    found = (pool / "A.lu" / "lu" / "c" / "0" / "0").stat()
    assert found.round_units == -(-300 // f.tile[1]), (found, f.tile)
    assert found.nbytes // found.stripe_unit_bytes == found.round_units, found
    assert list(found.servers) == [0, 1, 2], found
    x, report = solve(pool / "A", a.sum(axis=1), memory=300_000, **SAME)
    assert np.abs(x - 1).max() < 1e-9
"""


def test_processes_factor_in_a_pool_of_their_own(tmp_path: Path) -> None:
    run(tmp_path, 3, IN_A_POOL)


STOPPED = """
a = random(300, "f8")
A = put("A", a, order="F")
same = SAME | {"memory": 300_000, "if_exists": "overwrite"}
whole = lu_factor(A, out=f"{home}/whole", **same)
check(whole, a)

# The same call makes the same bytes.
again = lu_factor(A, out=f"{home}/again", **same)
assert files(whole.path) == files(again.path)

# One process is stopped: so are the others, and the same call resumes. So do fewer processes.
def stop():
    raise KeyboardInterrupt
before_late_panels(stop)
for name, few in (("stopped", comm), ("fewer", comm.Split(comm.rank == 0))):
    text = raised(Interrupted, lambda: lu_factor(A, out=f"{home}/{name}", **same))
    assert "call lu_factor again" in text, text
    found = comm.allgather("because rank" in text)
    assert sum(found) == comm.size - 1, found
    assert Path(home, name, "journal").exists()
    if few is comm or comm.rank == 0:
        f = lu_factor(A, out=f"{home}/{name}", **same | {"comm": few})
        assert "resumed at panel" in f.report.notes[0], f.report.notes
        assert (f.piv == whole.piv).all()
        if few is comm:
            assert files(f.path) == files(whole.path)
    comm.barrier()
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("apart", [False, True])
def test_a_stopped_run_resumes_with_any_number_of_processes(tmp_path: Path, apart: bool) -> None:
    run(tmp_path, 3, STOPPED, apart=apart)


REFUSED = """
a = random(200, "f8")
A = put("A", a, order="F")
rank, last = comm.rank, comm.size - 1
same = SAME | {"memory": 300_000}

text = raised(InvalidError, lambda: lu_factor(A, out=f"{home}/{rank}", **same))
assert "need the same out= on every rank" in text, text
raised(InvalidError, lambda: lu_factor(A, method="tournament", **same))
raised(InvalidError, lambda: lu_factor(A, overwrite_a=True, **same))
few = {"memory": 1000 if rank == last else 300_000}
text = raised(BudgetError, lambda: lu_factor(A, **same | few))
assert f"on rank {last}" in text, text
assert not Path(home, "A.lu").exists()

# The index of the NaN reaches all, and nothing stays.
a[3, 190] = np.nan
B = put("B", a, order="F")
text = raised(NonFiniteError, lambda: lu_factor(B, **same))
assert "A[3, 190]" in text, text
assert sum(comm.allgather(text.startswith("rank "))) == last, text
comm.barrier()
assert not Path(home, "B.lu", "journal").exists()

# An exactly singular matrix: LAPACK's info, on all.
a = random(200, "f8")
a[:, 20] = a[:, 90] = 0
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    f = lu_factor(put("C", a, order="F"), **same)
assert f.info == 21 and "number 21" in str(told[0].message), (f.info, told)

# A process fails with an error of its own.
if rank == last:
    def fail(self, *more):
        raise ValueError("out of paper")
    SlabFactorization.factor = fail
text = raised(Exception, lambda: lu_factor(A, **same))
assert ("ValueError: out of paper" in text) == (rank != last), text
# The communicator works on.
assert comm.allreduce(1) == comm.size
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("apart", [False, True])
def test_an_error_of_one_process_is_one_of_all(tmp_path: Path, apart: bool) -> None:
    run(tmp_path, 3, REFUSED, apart=apart)


KILLED = """
a = random(300, "f8")
A = put("A", a, order="F")
if comm.rank == options["rank"]:
    before_late_panels(lambda: os.kill(os.getpid(), signal.SIGKILL))
f = lu_factor(A, memory=300_000, **SAME)
check(f, a)
"""


def test_a_killed_process_loses_only_the_last_slab(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(JOB + KILLED)
    done = mpiexec(3, script, str(tmp_path), json.dumps({"rank": 1}))
    assert done.returncode != 0
    assert (tmp_path / "A.lu" / "journal").exists()
    a = oc.open_array(tmp_path / "A")[...]
    f = oc.linalg.lu_factor(tmp_path / "A", memory=300_000, progress=False)
    assert f.report is not None
    assert "resumed at panel" in f.report.notes[0]
    x = np.ones(300)
    solved = oc.linalg.lu_solve(f, a @ x, progress=False)
    assert np.abs(solved - x).max() < 1e-9


INTERRUPTED = """
from outcore.cli import main
if options["stops"]:
    a = random(300, "f8")
    put("A", a, order="F")
    if comm.rank == 1:
        np.save(f"{home}/b.npy", a @ np.ones(300))
        before_late_panels(lambda: os.kill(os.getpid(), signal.SIGINT))
comm.barrier()
words = "solve", f"{home}/A", f"{home}/b.npy", "-o", f"{home}/x.npy", "--memory", "300kB"
sys.argv = ["outcore", *words]
main()
"""


def test_ctrl_c_to_one_process_of_the_command_stops_all(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(JOB + INTERRUPTED)
    stopped = mpiexec(3, script, str(tmp_path), json.dumps({"stops": True}))
    assert stopped.returncode != 0
    # The first process prints the error of all.
    expected = "stopped: solving with A, because rank 1 was stopped, as by Ctrl-C; run the same"
    assert stopped.stderr.count(expected) == 1, stopped.stderr
    assert not (tmp_path / "x.npy").exists()
    again = mpiexec(3, script, str(tmp_path), json.dumps({"stops": False}))
    assert again.returncode == 0, again.stderr
    assert "resumed at panel" in again.stdout, again.stdout
    plan = r"plan: about .*, bound by [a-z ]+; each of 3 processes reads up to .* and sends "
    assert re.search(plan, again.stdout), again.stdout
    assert np.abs(np.load(tmp_path / "x.npy") - 1).max() < 1e-9


def test_a_deal_gives_no_process_more_than_it_holds() -> None:
    draw = np.random.default_rng(8)
    for _ in range(300):
        capacities = draw.integers(1, 12, draw.integers(1, 9)).tolist()
        panels = int(draw.integers(1, 60))
        counts = dealt(capacities, panels)
        is_alike = min(capacities) >= 0.8 * max(capacities)
        used = len(capacities) * min(capacities) if is_alike else sum(capacities)
        assert sum(counts) == min(used, panels)
        assert all(0 <= count <= most for count, most in zip(counts, capacities, strict=True))
        deals = [Deal(counts, rank) for rank in range(len(counts))]
        for first in range(0, panels, 5):
            last = min(first + sum(counts), panels)
            held = [list(deal.held(first, last)) for deal in deals]
            assert sorted(itertools.chain(*held)) == list(range(first, last))
            assert all(len(own) <= count for own, count in zip(held, counts, strict=True))


@pytest.mark.parametrize("n", [20_000, 50_000])
def test_panels_of_nearly_equal_processes_stay_on_their_servers(n: int) -> None:
    budgets = tuple(n * n + shift * n * n // 100 for shift in (3, 6, -2, 2))
    for rank in range(4):
        g = dealt_lu_geometry(n, np.dtype("f8"), budgets, rank)
        assert [g.deal.owner(panel) for panel in range(40)] == [0, 1, 2, 3] * 10


def test_processes_read_what_one_process_reads_at_the_same_width() -> None:
    n, kind = 2048, np.dtype("f8")
    shared = [dealt_lu_geometry(n, kind, (n * n,) * 4, rank) for rank in range(4)]
    one = dataclasses.replace(shared[0], deal=ALONE)
    assert one.slab_panels == 4 * shared[0].held_panels
    assert sum(g.factor_bytes_read() for g in shared) == one.factor_bytes_read()
    assert sum(g.factor_bytes_written() for g in shared) == one.factor_bytes_written()
    assert max(g.factor_bytes_read() for g in shared) <= 1.2 * one.factor_bytes_read() / 4


def test_plans_of_several_processes() -> None:
    table = compare_processes("lu", [1, 2, 4], n=20000, memory="200 MB", rates=NOMINAL)
    one, two, four = table.plans
    assert (one.bytes_sent, one.network_seconds) == (0, 0)
    assert one.bytes_read > two.bytes_read > four.bytes_read
    assert one.flops == pytest.approx(2 * 20000**3 / 3)
    assert 0.9 < 4 * four.flops / one.flops < 1.1
    assert [line.split()[0] for line in str(table).splitlines()[1:5]] == ["processes", *"124"]
    options: dict[str, Any] = {"n": 20000, "memory": "200 MB", "processes": 4, "rates": NOMINAL}
    slow, fast = (oc.plan("lu", link=link, **options) for link in ("8 Mbit/s", "10 GB/s"))
    assert (slow.bound, fast.bound) == ("network", "arithmetic")
    # A link carries all that the processes send.
    cuts = [dealt_lu_geometry(20000, np.dtype("f8"), (200_000_000,) * 4, r) for r in range(4)]
    sent = sum(g.sent()[0] for g in cuts)
    assert slow.network_seconds == sent / 1e6
    assert slow.seconds >= slow.network_seconds
    assert "dealt to 4 processes" in slow.method
    assert "network" in str(slow)
    for wrong in ({"link": "fast"}, {"processes": 0}, {"method": "tournament"}):
        with pytest.raises(InvalidError):
            oc.plan("lu", **options | wrong)


def test_a_budget_below_the_least_names_its_process() -> None:
    with pytest.raises(BudgetError, match="on rank 1"):
        dealt_lu_geometry(512, np.dtype("f8"), (1 << 20, 1000), 0)
