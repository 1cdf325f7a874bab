"""Products by several processes of MPI, against NumPy, their plan, and one process."""

from pathlib import Path

import numpy as np
import pytest
from mpi_jobs import RAISED, run_job

import outcore as oc
from outcore.linalg._products.matmul_geometry import Product
from outcore.linalg._products.matmul_plan import matmul_geometry
from outcore.linalg._tiles.grains import Grains

JOB = (
    """
import json, os, signal, sys, time
from pathlib import Path
import numpy as np
from mpi4py import MPI
import outcore as oc
from outcore._util import budget
from outcore.errors import *
from outcore.linalg import matmul
from outcore.linalg._output import result, steps_done
from outcore.linalg._products import piece_counts
from outcore.linalg._products.matmul import _Multiplication

comm = MPI.COMM_WORLD
rank, last = comm.rank, comm.size - 1
home, options = sys.argv[1], json.loads(sys.argv[2])
SAME = {"comm": comm, "timeout": 60, "threads": 1, "progress": False}


def random(m, n, dtype, seed=1):
    draw = np.random.default_rng([m, n, seed])
    a = draw.integers(-9, 9, (m, n))
    if np.dtype(dtype).kind == "c":
        a = a + 1j * draw.integers(-9, 9, (m, n))
    return a.astype(dtype)


def put(name, a, **layout):
    if rank == 0:
        oc.from_array(a, f"{home}/{name}", progress=False, if_exists="overwrite", **layout)
    comm.barrier()
    return f"{home}/{name}"


def counted(report, whole_pages=True):
    exact = ("bytes_read", "bytes_sent", "messages_sent", "bytes_written")[: 3 + whole_pages]
    for each in report.processes:
        for what in exact:
            assert each[what] == each["planned_" + what], (what, each, report.method)
        assert each["peak_memory_bytes"] <= report.memory_bytes
    assert len(report.processes) == (comm.size if comm.size > 1 else 0)
    assert len(set(comm.allgather(str(report)))) == 1
"""
    + RAISED
)


def run(tmp_path: Path, size: int, job: str, *, is_well: bool = True, **options: object) -> None:
    run_job(tmp_path, size, JOB + job, options, is_well=is_well)


PRODUCTS = """
OP = {"N": lambda x: x, "T": lambda x: x.T, "C": lambda x: x.conj().T}
for number, (m, n, k, types, trans, layouts, memory) in enumerate(options["cases"]):
    shapes = [(m, k)[:: -1 if trans[0] != "N" else 1], (k, n)[:: -1 if trans[1] != "N" else 1]]
    operands = [random(*shape, kind) for shape, kind in zip(shapes, types)]
    given = [
        put(f"{name}{number}", a, **layout) if layout else a
        for name, a, layout in zip("AB", operands, layouts)
    ]
    right = OP[trans[0]](operands[0]) @ OP[trans[1]](operands[1])
    C = matmul(
        *given, trans_a=trans[0], trans_b=trans[1], memory=memory + 5000 * rank,
        out=f"{home}/C{number}", **SAME,
    )
    assert C.dtype == right.dtype and (C[...] == right).all(), number
    assert C.info().state == "whole"
    counted(C.report, whole_pages=n >= 16)
    # Not all of them divide columns, which need no copies.
    piece_counts._COPY_BYTES = 3000
    C = matmul(*given, trans_a=trans[0], trans_b=trans[1], memory=memory + 5000 * rank, **SAME)
    assert C.dtype == right.dtype and C.flags.f_contiguous and (C == right).all(), number
    report = oc.last_report()
    assert comm.size == 1 or any(each["bytes_sent"] for each in report.processes)
    counted(report)
    if number == 0:
        again = matmul(
            *given, trans_a=trans[0], trans_b=trans[1], memory=memory, out=f"{home}/C",
            if_exists="open", **SAME,
        )
        opened = matmul(
            *given, trans_a=trans[0], trans_b=trans[1], memory=memory, out=f"{home}/C",
            if_exists="open", **SAME,
        )
        assert (opened[...] == right).all() and "opened" in opened.report.notes[0]
"""

BY_COLUMN = {"order": "F", "chunks": (32, 16)}
BY_ROW = {"order": "C", "chunks": (16, 32)}


@pytest.mark.exhaustive
@pytest.mark.parametrize("size", [3, 1, 2, 4])
def test_products_are_those_of_numpy(tmp_path: Path, size: int) -> None:
    # Lengths one off the boundaries of chunks, and fewer of these than processes.
    both, mixed = (BY_COLUMN, BY_COLUMN), (BY_ROW, BY_COLUMN)
    cases = [
        (128, 96, 64, ("f8", "f8"), "NN", both, 120_000),
        (127, 97, 65, ("f4", "f4"), "TN", both, 90_000),
        (95, 129, 63, ("c16", "c16"), "CT", mixed, 200_000),
        (129, 95, 97, ("c8", "c8"), "NC", (BY_COLUMN, BY_ROW), 120_000),
        (65, 64, 130, ("f8", "f4"), "NT", (BY_ROW, BY_ROW), 120_000),
        # Each process conjugates pieces that all of them use in place.
        (40, 200, 63, ("c16", "c16"), "CN", (BY_ROW, BY_ROW), 200_000),
        (33, 31, 20, ("f4", "c16"), "CN", (BY_ROW, BY_ROW), 200_000),
        (129, 16, 97, ("f8", "f8"), "NN", (BY_COLUMN, None), 80_000),
        (16, 129, 97, ("f8", "f8"), "NN", (None, BY_ROW), 80_000),
        (3, 1, 2, ("f8", "f8"), "NN", both, 120_000),
    ]
    run(tmp_path, size, PRODUCTS, cases=cases)


MEMORY = {"f4": 100_000, "f8": 120_000, "c8": 120_000, "c16": 200_000}
"""A budget with which chunks of 32 x 16 elements form several blocks or groups."""


@pytest.mark.exhaustive(keep=0)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_products_of_lengths_by_a_boundary(tmp_path: Path, size: int) -> None:
    """Each length is a multiple of those of chunks, or one off."""
    cases = [
        (128 + m, 96 + n, 64 + k, (dtype, dtype), "NN", (BY_COLUMN, BY_COLUMN), memory)
        for dtype, memory in MEMORY.items()
        for m, n, k in ((0, 0, 0), (1, 1, 1), (-1, -1, -1), (1, -1, 0), (-1, 0, 1), (0, 1, -1))
    ]
    run(tmp_path, size, PRODUCTS, cases=cases)


IN_MEMORY = """
a, b = random(1, 130, "c16")[0], random(130, 65, "c16")
A = put("A", random(70, 130, "f8"), order="C", chunks=(16, 32))
B = put("B", b, order="F", chunks=(32, 16))
every = A, B, a
rights = oc.open_array(A)[...], b, a
for left, right in ((0, 2), (2, 1), (2, 2), (0, 1)):
    found = matmul(every[left], every[right], memory=150_000, **SAME)
    assert type(found) is type(rights[left] @ rights[right])
    assert (found == rights[left] @ rights[right]).all(), (left, right)
    counted(oc.last_report())
for shapes in (((0, 5), (5, 3)), ((3, 0), (0, 4)), ((0,), (0,))):
    operands = [np.ones(shape) for shape in shapes]
    found = matmul(*operands, **SAME)
    assert np.shape(found) == np.shape(operands[0] @ operands[1]) and not np.any(found)

# One process has to copy an operand, and the others have it ready for the BLAS.
for trans in ("N", "T"):
    wide = random(*((30, 1200) if trans == "N" else (600, 60)), "f8")[:, ::2]
    wide = wide if rank == 0 else wide.copy()
    left = random(60, 30, "f8")
    left_on_disk = put(f"L{trans}", left, chunks=(16, 32))
    found = matmul(left_on_disk, wide, trans_b=trans, memory=220_000, **SAME)
    assert (found == left @ (wide if trans == "N" else wide.T)).all()
    counted(oc.last_report())

from outcore.linalg import solve_triangular
T = np.triu(random(90, 90, "f8", 2)) + 200 * np.eye(90)
where = put("T", T, order="C", chunks=(16, 32))
for shape in ((90,), (90, 1), (90, 2), (90, 40), (90, 0)):
    X = np.ones(shape)
    found = solve_triangular(where, T @ X, memory=60_000, **SAME)
    assert found.shape == shape and np.allclose(found, X, rtol=0, atol=1e-12), shape
    if X.size:
        counted(oc.last_report())
assert len(set(comm.allgather(found.tobytes()))) == 1
"""


@pytest.mark.exhaustive(keep=1)
@pytest.mark.parametrize("size", [3, 1, 2, 4])
def test_every_process_gets_a_result_in_memory(tmp_path: Path, size: int) -> None:
    run(tmp_path, size, IN_MEMORY)


REFUSED = """
A = put("A", random(60, 50, "f8"), order="F", chunks=(16, 16))
B = put("B", random(50, 40, "f8"), order="F", chunks=(16, 16))
call = {"memory": 400_000, "out": f"{home}/C"} | SAME
text = raised(InvalidError, lambda: matmul(A, B, **call | {"out": f"{home}/C{rank}"}))
assert "need the same out= on every rank" in text, text
text = raised(InvalidError, lambda: matmul(A, random(50, 40, "f8", rank), **call))
assert "need the same B on every rank" in text, text
text = raised(InvalidError, lambda: matmul(A, B, **call | {"out": f"{home}/C" if rank else None}))
assert "out=" in text and "rank" in text, text
from outcore.linalg import solve_triangular
ones, none = np.ones(5), np.ones((5, 0))
for make in (matmul, solve_triangular):
    left, right = (ones, ones) if make is matmul else (np.eye(5), none)
    text = raised(InvalidError, lambda: make(left, right, out=f"{home}/C", **SAME))
    assert text.endswith("; leave out= out"), text
text = raised(InvalidError, lambda: matmul(A, B, **call | {"threads": 1 - (rank == last)}))
assert "threads" in text and ("rank" in text) == (rank != last), text
few = {"memory": 1000 if rank == last else 400_000}
text = raised(BudgetError, lambda: matmul(A, B, **call | few))
assert not Path(home, "C").exists()

def fail(*more, **options):
    raise ValueError("out of paper")

# Before the processes duplicate the communicator, and while they compute.
for holder, name in ((result, "open_array"), (_Multiplication, "add")):
    right = getattr(holder, name)
    if rank == last:
        setattr(holder, name, fail)
    text = raised(Exception, lambda: matmul(A, B, **call))
    assert ("rank" in text) == (rank != last) and "out of paper" in text, text
    setattr(holder, name, right)
assert comm.allreduce(1) == comm.size  # The communicator works on.
comm.barrier()
assert not Path(home, "C").exists()
"""


def test_an_error_of_one_process_is_one_of_all(tmp_path: Path) -> None:
    run(tmp_path, 3, REFUSED)


UNEVEN = """
from outcore.errors import OutcoreError
from outcore.linalg import solve_triangular
from outcore.linalg._products.solve_triangular import Substitution
from outcore.processes.sharing import Sharing, seconds_for

waits, added, exchange = [], [], Sharing.exchange

def noted(self, value, more_s=0.0):
    waits.append(more_s)
    return exchange(self, value, more_s)

Sharing.exchange = noted
for kind in (_Multiplication, Substitution):
    def run_and_mark(self, *more, run=kind.run):
        run(self, *more)
        waits.clear()
    kind.run = run_and_mark
# Both operands in memory: nobody waits for pieces, and the last process has the least to do.
a, b = random(100, 64, "f8"), random(64, 70, "f8")
matmul(a, b, memory=200_000, out=f"{home}/C", **SAME)
assert waits[0] >= seconds_for(0, 2 * 100 * 64 * 70 / comm.size), waits
X = solve_triangular(np.eye(64), b, memory=200_000, out=f"{home}/X", **SAME)
assert (X[...] == b).all() and waits[0] >= seconds_for(0, 64 * 64 * 70 / comm.size), waits

def add(self, *more):
    if rank == last:
        raise ValueError("out of paper")
    added.append(1)
    while True:  # the error arrives, and the next piece finds it
        try:
            self.team.check()
        except OutcoreError:
            return

_Multiplication.add = add
raised(Exception, lambda: matmul(a, b, memory=100_000, out=f"{home}/D", **SAME))
assert len(added) <= 1, added
"""


def test_processes_wait_for_the_one_with_most_work(tmp_path: Path) -> None:
    run(tmp_path, 3, UNEVEN)


STOPPED = """
if options["memory"] is None:
    budget.LEAST_BYTES, budget.available_bytes = 1, lambda: options["available"]
steps_done.NOTE_S = 0.0  # record each block
steps_done.MOST_SHARE = 1e9
calls, multiply = [], _Multiplication.multiply

def stops(self, *more):
    if rank == options["dies"] and len(calls) == options["at"]:
        # A later call resumes at the least number of blocks that a process has recorded.
        records = [Path(home, "C", f"outcore.steps-{each}") for each in range(comm.size)]
        while not all(record.exists() for record in records):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    calls.append(self.count)
    multiply(self, *more)

_Multiplication.multiply = stops
a, b = random(200, 60, "f8"), random(60, 150, "f8")
A, B = f"{home}/A", f"{home}/B"
if not options["is_there"]:
    put("A", a, order="F", chunks=(32, 16)), put("B", b, order="F", chunks=(32, 16))
C = matmul(A, B, memory=options["memory"], out=f"{home}/C", **SAME)
assert (C[...] == a @ b).all()
if rank == 0:
    names = sorted(path.name for path in Path(home, "C").iterdir())
    assert names == ["c", "outcore.generation", "zarr.json"], names
    assert bool(C.report.notes) == options["resumes"], C.report.notes
    assert (len(calls) < calls[0]) == options["resumes"], calls
"""


def test_the_same_number_of_processes_resumes(tmp_path: Path) -> None:
    stop = {"at": 2, "memory": 100_000}
    run(tmp_path, 3, STOPPED, is_well=False, dies=1, is_there=False, resumes=False, **stop)
    assert (tmp_path / "C/outcore.steps-1").exists()
    run(tmp_path, 3, STOPPED, is_well=False, dies=2, is_there=True, resumes=True, **stop)
    # More memory is no hindrance. Another number of processes restarts.
    stop["memory"] = 110_000
    run(tmp_path, 3, STOPPED, dies=-1, is_there=True, resumes=True, **stop)
    (tmp_path / "C").rename(tmp_path / "whole")
    run(tmp_path, 3, STOPPED, is_well=False, dies=1, is_there=True, resumes=False, **stop)
    run(tmp_path, 2, STOPPED, dies=-1, is_there=True, resumes=False, **stop)


def test_a_call_with_the_default_memory_resumes_with_a_little_less(tmp_path: Path) -> None:
    stop = {"at": 2, "memory": None, "available": 600_000}
    run(tmp_path, 3, STOPPED, is_well=False, dies=1, is_there=False, resumes=False, **stop)
    stop["available"] -= 6_000
    run(tmp_path, 3, STOPPED, dies=-1, is_there=True, resumes=True, **stop)


def test_parts_of_a_product() -> None:
    """All elements of C belong to one process, which has as many blocks as the others."""
    for m, n, k in ((1000, 900, 800), (1, 700, 90), (65, 64, 3)):
        grains = Grains.of((32, 16), "F", 8)
        product = Product(m, n, k, np.dtype("f8"), grains, grains, (m, n), is_stored=True)
        for size in (1, 2, 3, 7):
            dealt = [matmul_geometry(product, 300_000, size, rank) for rank in range(size)]
            times = np.zeros((m, n), int)
            for g in dealt:
                assert g.memory_bytes <= 300_000
                for rows, columns in g.blocks():
                    times[rows, columns] += 1
            assert (times == 1).all()
            assert len({len(list(g.blocks())) for g in dealt}) == 1
            assert sum(g.streamed()[0] for g in dealt) == dealt[0].streamed_bytes()


@pytest.mark.parametrize("link", [None, "10 MB/s"])
def test_plans_of_several_processes(link: str | None) -> None:
    one, two = (
        oc.plan("matmul", n=20_000, memory=memory, processes=processes, link=link)
        for processes, memory in ((1, "400 MB"), (2, "200 MB"))
    )
    assert two.bytes_read < 0.7 * one.bytes_read
    assert two.bytes_sent > 0 == one.bytes_sent
    assert (two.bound == "network") == (link is not None)
