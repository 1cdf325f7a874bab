"""One process of a call has other or wrong arguments: all processes get the error at once."""

from pathlib import Path

from mpi_jobs import run_job

JOB = """
import pickle, re, sys
from pathlib import Path
from unittest import mock
import numpy as np
from mpi4py import MPI
import outcore as oc
from outcore.errors import OutcoreError
from outcore.linalg import *
from outcore.processes import sharing

comm, home = MPI.COMM_WORLD, sys.argv[1]
SAME = {"comm": comm, "timeout": 30, "progress": False}


def put(name, a):
    if comm.rank == 0:
        oc.from_array(a, f"{home}/{name}", progress=False)
    comm.barrier()
    return f"{home}/{name}"


a = np.eye(16) + 1 / (1 + np.add.outer(range(16), range(16)))
A, b = put("A", a), put("b", np.ones((16, 2)))
fill = lambda rows, cols: np.ones((rows.stop - rows.start, cols.stop - cols.start))
lu, c = lu_factor(A, **SAME), cho_factor(A, **SAME)

CALLS = {
    "lu_factor": lambda **more: lu_factor(A, **more),
    "cho_factor": lambda **more: cho_factor(A, **more),
    "lu_solve": lambda **more: lu_solve(lu, b, **more),
    "cho_solve": lambda **more: cho_solve(c, b, **more),
    "solve": lambda **more: solve(A, b, **more),
    "gram": lambda **more: gram(A, **more),
    "matmul": lambda **more: matmul(A, A, **more),
    "solve_triangular": lambda **more: solve_triangular(A, b, **more),
    "qr": lambda **more: qr(A, mode="economic", **more),
    "lstsq": lambda **more: lstsq(A, np.ones(16), **more),
    "svd": lambda **more: svd(A, 2, **more),
    "gauss_seidel": lambda **more: gauss_seidel(A, np.ones(16), **more),
    "create_array": lambda out, **more: oc.create_array(
        out, (8, 8), fill=fill, fill_id="1", **more
    ),
    "create_arrays": lambda out, **more: oc.create_arrays(
        [out, f"{out}2"], (8, 8), fill=lambda *_: [fill(*_)] * 2, fill_id="1", **more
    ),
}
FACTORED = {
    "cond_est": lambda lu=lu, **more: cond_est(lu, **more),
    "slogdet": lambda lu=lu, **more: slogdet(lu, **more),
}
AT = "/ is the root directory|need the same (out=|path)"


def check(name, call, here, everywhere, message, own=None):
    # One process in turn has other arguments than the other, and perhaps a message of its own.
    for at in range(comm.size):
        arguments = everywhere | (here if comm.rank == at else {})
        try:
            call(**arguments, **SAME)
        except (OutcoreError, pickle.PicklingError) as error:
            found = str(error)
        else:
            found = "no error"
        expected = own if own and comm.rank == at else message.format(at=at)
        assert re.search(expected, found), (name, here, at, comm.rank, found)


def by_version(call):
    def found(version=sharing.VERSION, **more):
        with mock.patch.object(sharing, "VERSION", version):
            call(**more)
    return found


for name, call in CALLS.items():
    out = {"out": f"{home}/{name}"}
    for how in (("open", "overwrite"), ("error", "open")):
        here, there = ({"if_exists": each} for each in how)
        check(name, call, here, out | there, "need the same if_exists= on every rank")
    check(name, call, {"if_exists": "never"}, out, "if_exists")
    for if_exists in ("open", "error"):
        check(name, call, {"out": "/"}, out | {"if_exists": if_exists}, AT)
    named = "rank {at}(: need [0-9]+ bytes|, have 1 )"
    check(name, call, {"memory": "1 B"}, out, named, own="need [0-9]+ bytes")
    assert not Path(out["out"]).exists()

for name, call in (CALLS | FACTORED).items():
    out = {"out": f"{home}/{name}"} if name in CALLS else {}
    check(name, by_version(call), {"version": "0"}, out, "need the same version of outcore on")
    other = CALLS["matmul" if name == "gram" else "gram"]
    either = lambda is_other=False, **more: (other if is_other else call)(**more)
    check(name, either, {"is_other": True}, out, f"need the same function on .*'{name}'")

# Errors before the common work, and results that only one process has on disk.
OPEN = {"out": f"{home}/G", "if_exists": "open"}
check("lu_solve", lambda b, **more: lu_solve(lu, b, **more), {"b": "/"}, {"b": b}, "/ is the root")
check("default", lambda b, **more: lu_solve(lu, b, **more), {"b": "/"},
      {"b": b, "if_exists": "open"}, "/ is the root")
check("described", lambda A, **more: gram(A, **more), {"A": iter([a])}, {"A": A} | OPEN,
      "if_exists='open' needs A= that it can compare")
check("on disk", CALLS["gram"], {"out": None}, OPEN, "need the same out=")
for name, call, here, message in (
    ("gram", CALLS["gram"], {"alpha": "1"}, "alpha must be a real number"),
    ("gram", CALLS["gram"], {"side": "top"}, "side must be"),
    ("lu_solve", lambda lu=lu, **more: lu_solve(lu, b, **more), {"lu": c}, "lu_solve"),
    ("cho_solve", lambda c=c, **more: cho_solve(c, b, **more), {"c": lu}, "cho_solve"),
    ("cond_est", FACTORED["cond_est"], {"norm": 2}, "norm must be 1 or"),
    ("cond_est", FACTORED["cond_est"], {"norm_a": -1}, "norm_a must be"),
    # A function without a name cannot be sent.
    ("lu_factor", CALLS["lu_factor"], {"resume": lambda: 1}, "<lambda>"),
    ("svd", CALLS["svd"], {"tol": -1}, "tol must be above 0"),
    ("slogdet", FACTORED["slogdet"], {"memory": "much"}, "cannot read"),
    ("slogdet", FACTORED["slogdet"], {"lu": A}, "need the same arguments on every rank"),
):
    check(name, call, here, {}, message)
G, _ = gram(A, **OPEN, **SAME)
again, report = gram(A, **OPEN, **SAME)
assert (again[...] == G[...]).all() and "opened" in report.notes[0]
assert len(set(comm.allgather(str(report)))) == 1
"""


def test_arguments_of_one_process(tmp_path: Path) -> None:
    run_job(tmp_path, 2, JOB, {})
