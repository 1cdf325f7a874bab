"""Cholesky by several processes of MPI, against SciPy, its own plan, and one process."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_lu_processes import outcore, run

import outcore as oc
from outcore.errors import BudgetError, InvalidError, NonFiniteError
from outcore.linalg._cholesky.plan import dealt_cholesky_geometry
from outcore.linalg._geometry.deal import ALONE
from outcore.machine.rates import NOMINAL
from outcore.planning.processes import compare_processes
from outcore.processes.sharing import Sharing
from outcore.storage.volumes import is_held

HELPERS = """
import time
from outcore.linalg import cond_est, slogdet
from outcore.linalg._cholesky import factorization


def definite(n, dtype):
    # Kac, Murdock and Szego; complex types get phases. Its condition is at most 9.
    i = np.arange(n)
    a = 0.5 ** abs(i[:, None] - i)
    if np.dtype(dtype).kind == "c":
        a = a * np.exp(1j * i)[:, None] * np.exp(-1j * i)
        a = (a + a.conj().T) / 2
    return a.astype(dtype)


def checked(f, a):
    counted(f.report)
    assert len(set(comm.allgather(f.norm1))) == 1
    norm1, slack = np.linalg.norm(a, 1), 2**0.5 if a.dtype.kind == "c" else 1.0
    eps = np.finfo(a.dtype).eps
    assert norm1 / slack * (1 - 10 * eps) <= f.norm1 <= norm1 * (1 + 10 * eps), (f.norm1, norm1)
    if comm.rank == 0:
        L = oc.open_array(f"{f.path}/l")[: len(a), : len(a)]
        right = scipy.linalg.cholesky(a, lower=True)
        assert np.abs(L - right).max() <= 20 * eps * len(a) ** 0.5
        assert not np.triu(L, 1).any()
    comm.barrier()


def stored(f):
    return [path.read_bytes() for path in sorted(Path(f.path).glob("l/c/**/*"))
            if path.is_file()]


def late(do):
    factor = factorization._Factorization.factor
    def first(self, K, part):
        if K >= self.g.panels * 2 // 3 and not self.storage.first_panel:
            do()
        factor(self, K, part)
    factorization._Factorization.factor = first
"""

FACTORED = """
for dtype, n, memory, layout, lower in options["cases"]:
    a = definite(n, dtype)
    A = put(f"A{dtype}{n}", np.tril(a) if lower else np.triu(a), **layout)
    f = cho_factor(A, lower=lower, memory=memory[comm.rank % len(memory)], **SAME)
    checked(f, a)
"""

COLUMN, ROW = {"order": "F"}, {"order": "C", "chunks": (24, 40)}


@pytest.mark.parametrize("size", [2, 3])
def test_factors_are_those_of_scipy(tmp_path: Path, size: int) -> None:
    # Orders one off the boundaries of panels and slabs, and fewer panels than processes. Panels of
    # the first case have more blocks than memory holds, of which some stay until the last.
    cases = [
        ("f8", 505, [160_000], COLUMN, True),
        ("f8", 256, [200_000], ROW, False),
        ("f4", 255, [150_000], ROW, True),
        ("c8", 193, [200_000], COLUMN, False),
        ("c16", 192, [300_000], COLUMN, True),
        ("f8", 600, [1_000_000], COLUMN, True),
        ("f8", 9, [400_000], COLUMN, True),
        ("f8", 1, [400_000], COLUMN, True),
        ("f8", 400, [500_000, 500_000, 250_000], COLUMN, True),
    ]
    run(tmp_path, size, HELPERS + FACTORED, cases=cases, apart=size == 3)


STOPPED = """
a = definite(500, "f8")
A = put("A", a, order="F")
same = SAME | {"memory": 250_000, "if_exists": "overwrite"}
whole = cho_factor(A, out=f"{home}/whole", **same)
checked(whole, a)
again = cho_factor(A, out=f"{home}/again", **same)
assert (stored(again), again.norm1) == (stored(whole), whole.norm1)

# Any number of processes solves with the factor of several, and with that of one.
if comm.rank == 0:
    cho_factor(A, out=f"{home}/one", **same | {"comm": None})
comm.barrier()
x = random(500, "f8", 2)[:, :3]
for made, by in ((whole, None), (open_factor(f"{home}/one"), comm)):
    assert np.abs(cho_solve(made, a @ x, **SAME | {"comm": by}) - x).max() < 1e-12

# One process is stopped: so are the others, and the same call resumes. So does another number.
def stop():
    raise KeyboardInterrupt
late(stop)
alone = comm.Split(comm.rank == 0)
for name, begun, resumed in (("same", comm, comm), ("fewer", comm, alone), ("more", alone, comm)):
    if begun is comm or comm.rank == 0:
        call = lambda by: cho_factor(A, out=f"{home}/{name}", **same | {"comm": by})
        assert "call cho_factor again" in raised(Interrupted, lambda: call(begun))
        assert Path(home, name, "journal").exists()
    comm.barrier()
    if resumed is comm or comm.rank == 0:
        f = cho_factor(A, out=f"{home}/{name}", **same | {"comm": resumed})
        assert "resumed at panel" in f.report.notes[0], f.report.notes
        if resumed is comm:
            checked(f, a)
        if name == "same":
            assert (stored(f), f.norm1) == (stored(whole), whole.norm1)
    comm.barrier()
"""


def test_a_stopped_run_resumes_with_any_number_of_processes(tmp_path: Path) -> None:
    run(tmp_path, 3, HELPERS + STOPPED)


REFUSED = """
a = definite(300, "f8")
A = put("A", a, order="F")
rank, last = comm.rank, comm.size - 1
same = SAME | {"memory": 300_000}

text = raised(InvalidError, lambda: cho_factor(A, lower=rank > 0, **same))
assert "need the same lower= on every rank" in text, text
text = raised(InvalidError, lambda: cho_factor(A, overwrite_a=True, **same))
assert "start one process" in text, text
few = {"memory": 1000 if rank == last else 300_000}
assert f"on rank {last}" in raised(BudgetError, lambda: cho_factor(A, **same | few))
assert not Path(home, "A.cho").exists()

# What one process finds reaches all, and nothing stays.
def found_by_all(name, a, kind, expected):
    B = put(name, a, order="F")
    try:
        cho_factor(B, **same)
        raise AssertionError(f"no {kind.__name__}")
    except kind as error:
        assert expected in str(error), str(error)
        found = getattr(error, "info", 0)
    comm.barrier()
    assert not Path(home, f"{name}.cho", "journal").exists()
    return found

# Not even if the others find it before this one opens the files.
b = a.copy()
b[290, 3] = np.nan
if rank == last:
    opened = factorization.CholeskyStorage.open
    factorization.CholeskyStorage.open = lambda *more: (time.sleep(0.2), opened(*more))
found_by_all("B", b, NonFiniteError, "A[290, 3]")
for minor in (201, 300):
    c = a.copy()
    c[minor - 1, minor - 1] = -1
    name = f"C{minor}"
    info = found_by_all(name, c, NotPositiveDefiniteError, f"{minor}-th leading minor")
    assert info == minor, info

# Elements that differ are told to all.
d = a.copy()
d[260, 259] += 1e-3
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    f = cho_factor(put("D", d, order="F"), **same)
assert "259" in str(told[0].message) and "259" in f.report.notes[-1], (told, f.report.notes)
assert comm.allreduce(1) == comm.size
"""


def test_an_error_of_one_process_is_one_of_all(tmp_path: Path) -> None:
    run(tmp_path, 2, HELPERS + REFUSED)


SYSTEMS = """
same = SAME | {"memory": 300_000 if comm.rank else 700_000}
for dtype, layout, assume_a in (("f8", {"order": "F"}, "pos"), ("c16", {"order": "C"}, "auto")):
    a = definite(200, dtype)
    A, x = put(f"A{dtype}", a, **layout), random(200, dtype, 2)[:, :3]
    found, report = solve(A, a @ x, assume_a=assume_a, condition=True, **same)
    assert np.abs(found - x).max() < 1e-12
    assert report.method.startswith("Cholesky"), report.method
    assert 0.3 < report.condition / np.linalg.cond(a, 1) < 1.5
    counted(report, exactly=False)
    assert not Path(home, f"A{dtype}.cho").exists()
    comm.barrier()
text = raised(InvalidError, lambda: solve(A, a @ x, assume_a=["pos", "gen"][comm.rank], **same))
assert "need the same assume_a= on every rank" in text, text

# The last minor is found by one process, and LU by all follows.
a[199, 199] = 0.1
found, report = solve(put("B", a, order="F"), a @ x, assume_a="auto", **same)
assert np.abs(found - x).max() < 1e-11
assert "200-th leading minor" in report.notes[-1], report.notes
assert not any(Path(home, f"B{kind}").exists() for kind in (".cho", ".lu"))
comm.barrier()
"""


def test_processes_solve_a_system_in_one_call(tmp_path: Path) -> None:
    run(tmp_path, 2, HELPERS + SYSTEMS)


ESTIMATED = """
same = SAME | {"memory": 300_000}
for dtype in ("f8", "c8"):
    a = definite(200, dtype)
    A = put(f"A{dtype}", a, order="F")
    lu, c = lu_factor(A, **same), cho_factor(A, **same)
    eps = np.finfo(dtype).eps
    for f in (lu, c):
        for norm in (1, np.inf):
            condition, report = cond_est(f, norm, **same)
            assert 0.3 < condition / np.linalg.cond(a, norm) < 1.5
            one, alone = cond_est(f, norm, memory=300_000, threads=1, progress=False)
            assert abs(condition - one) <= 200 * eps * one and report.notes == alone.notes
            counted(report)
            comm.barrier()
    right = np.linalg.slogdet(a.astype("c16" if dtype == "c8" else dtype))
    for of in (lu, c, A):
        sign, size = slogdet(of, **same)
        assert abs(size - right[1]) <= 1e3 * eps and abs(sign - right[0]) <= 1e3 * eps
    assert "used the factors in" in str(slogdet(A, **same).report)
    assert comm.allgather(size) == [size] * comm.size
text = raised(InvalidError, lambda: cond_est(c, norm=[1, np.inf][comm.rank], **same))
assert "need the same norm= on every rank" in text, text
text = raised(InvalidError, lambda: slogdet([c, lu][comm.rank], **same))
assert "need the same factors on every rank" in text, text

class OfAnotherPackage:
    rank, size, bcast, barrier = comm.rank, comm.size, comm.bcast, comm.barrier

text = raised(InvalidError, lambda: slogdet(lu, **same | {"comm": OfAnotherPackage()}))
assert "needs a communicator of mpi4py" in text, text
text = raised(InvalidError, lambda: slogdet(lu, **same | {"comm": MPI.COMM_NULL}))
assert "have MPI.COMM_NULL" in text, text
x = np.ones(200)
for wrong in ({"resume": comm.rank > 0}, {"timeout": 60 + comm.rank}):
    calls = [lambda: lu_solve(lu, x, **same | wrong), lambda: cho_solve(c, x, **same | wrong)]
    calls += [lambda: solve(A, x, **same | wrong), lambda: cond_est(c, **same | wrong)]
    for call in calls:
        text = raised(InvalidError, call)
        assert f"need the same {next(iter(wrong))}= on every rank" in text, text
"""


def test_mpiexec_starts_the_command(tmp_path: Path) -> None:
    a = 0.5 ** abs(np.arange(150)[:, None] - np.arange(150))
    oc.from_array(a, tmp_path / "A", progress=False)
    np.save(tmp_path / "b.npy", a @ np.arange(150.0))
    words = "solve", tmp_path / "A", tmp_path / "b.npy", "-o", tmp_path / "x.npy"
    code, said, errors = outcore(2, *words, "--assume-a", "pos", "--memory", "300kB", "--json")
    assert code == 0, errors
    document = json.loads(said)
    assert (document["plan"]["verb"], document["plan"]["processes"]) == ("solve", 2)
    assert document["report"]["method"] == "Cholesky"
    np.testing.assert_allclose(np.load(tmp_path / "x.npy"), np.arange(150.0), atol=1e-10)


def test_estimates_are_those_of_one_process(tmp_path: Path) -> None:
    run(tmp_path, 2, HELPERS + ESTIMATED)


@pytest.mark.parametrize("factor", [oc.linalg.cho_factor, oc.linalg.lu_factor])
def test_a_failed_process_holds_the_factors_until_the_others_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, factor: Any
) -> None:
    """They may still write a slab. They have stopped when `tell` returns."""
    A, out = oc.from_array(np.full((9, 9), np.nan), tmp_path / "A", progress=False), tmp_path / "F"
    held: list[tuple[bool, bool]] = []
    monkeypatch.setattr(Sharing, "tell", lambda *_: held.append((is_held(out), out.exists())))
    with pytest.raises(NonFiniteError):
        factor(A, out=out, progress=False)
    assert (held[0], held[-1]) == ((True, True), (False, False))


def test_processes_read_what_one_process_reads_at_the_same_cuts() -> None:
    n, kind = 4096, np.dtype("f8")
    shared = [dealt_cholesky_geometry(n, kind, (n * n,) * 4, rank) for rank in range(4)]
    one = dataclasses.replace(shared[0], deal=ALONE)
    for figure in ("factor_bytes_read", "factor_bytes_written", "matrix_bytes_read"):
        each = [getattr(g, figure)() for g in shared]
        assert sum(each) == getattr(one, figure)()
        assert max(each) <= 1.2 * sum(each) / 4
    assert all(g.memory_bytes <= g.budget_bytes for g in shared)


def test_plans_of_several_processes() -> None:
    table = compare_processes("cholesky", [1, 2, 4], n=20000, memory="200 MB", rates=NOMINAL)
    one, two, four = table.plans
    assert (one.bytes_sent, one.network_seconds) == (0, 0)
    assert one.bytes_read > two.bytes_read > four.bytes_read
    assert 0.9 < 4 * four.flops / one.flops < 1.1
    options: dict[str, Any] = {"n": 20000, "memory": "200 MB", "processes": 4, "rates": NOMINAL}
    slow, fast = (oc.plan("cholesky", link=link, **options) for link in ("8 Mbit/s", "10 GB/s"))
    assert (slow.bound, fast.bound) == ("network", "arithmetic")
    assert slow.seconds >= slow.network_seconds > 0
    assert "dealt to 4 processes" in slow.method
    for wrong in ({"link": "fast"}, {"processes": 0}, {"overwrite_a": True}):
        with pytest.raises(InvalidError):
            oc.plan("cholesky", **options | wrong)


def test_a_budget_below_the_least_names_its_process() -> None:
    with pytest.raises(BudgetError, match="on rank 1"):
        dealt_cholesky_geometry(512, np.dtype("f8"), (1 << 20, 1000), 0)


@pytest.mark.parametrize("dtype", ["f4", "c16"])
def test_slabs_and_blocks_fit_into_the_memory_of_each_process(dtype: str) -> None:
    draw = np.random.default_rng(4)
    for _ in range(10):
        n, count = int(draw.integers(2, 6000)), int(draw.integers(2, 6))
        budgets = tuple((draw.integers(4, 30, count) * (n + 1000) * 300).tolist())
        cuts = [dealt_cholesky_geometry(n, np.dtype(dtype), budgets, r) for r in range(count)]
        assert (
            len({dataclasses.replace(g, deal=ALONE, slab_bytes=0, budget_bytes=0) for g in cuts})
            == 1
        )
        for g, budget in zip(cuts, budgets, strict=True):
            assert g.memory_bytes <= budget
            assert g.slabs()[-1].last == g.panels
            for slab in g.slabs():
                (part,) = g.parts(slab)
                pieces = list(g.pieces(part))
                assert [panels[0] for panels, _ in pieces] == list(g.deal.held(*slab))
                assert sum(len(tiles) for _, tiles in pieces) * g.tile_bytes <= g.slab_bytes
                for K in {0, slab.first, slab.last - 2} & set(range(slab.last - 1)):
                    blocks = g.blocks(part, K)
                    beside = [b for b in blocks if b.start < g.last_tile(slab)]
                    # One of the ring is read ahead.
                    assert min(len(beside) + 1, len(blocks)) < g.ring_blocks
                    assert max(map(len, blocks)) <= g.block_tiles
