"""The heat equation on a mesh of processes, with time steps to look at and checkpoints.

    python examples/heat.py [DIRECTORY]

It computes until it kills itself with SIGKILL, restarts from its newest checkpoint, and compares
the end with the exact solution. Under MPI the two parts are two commands, and the second may have a
different number of ranks:

    mpiexec -n 4 python examples/heat.py DIRECTORY --die
    mpiexec -n 2 python examples/heat.py DIRECTORY --go-on

With --pool=URL of a served pool, DIRECTORY is a name in it.
"""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np

import outcore as oc

n, steps, every, dies_at = 96, 60, 5, 38
options = [word for word in sys.argv[1:] if word.startswith("--")]
where = Path(next((word for word in sys.argv[1:] if word not in options), "heat"))
urls = [word.removeprefix("--pool=") for word in options if word.startswith("--pool=")]
is_job = "PMI_SIZE" in os.environ or "OMPI_COMM_WORLD_SIZE" in os.environ

if is_job:
    from mpi4py import MPI

    ranks, rank = MPI.COMM_WORLD.size, MPI.COMM_WORLD.rank
    mesh = MPI.Compute_dims(ranks, 2)
    comm = MPI.COMM_WORLD.Create_cart(mesh)
else:
    ranks, rank, mesh, comm = 1, 0, (1, 1), None

if not options and ranks == 1:
    # Without MPI: start afresh, let a first process die, and restart from its checkpoint.
    shutil.rmtree(where, ignore_errors=True)
    dead = subprocess.run([sys.executable, __file__, str(where), "--die"], check=False)
    assert dead.returncode == -signal.SIGKILL

# Each rank has a block of the plane, and a frame of one point around it.
schema = oc.distribute((n, n), "block,block", mesh)
rows, columns = schema.shares(rank)
framed = np.zeros((len(rows) + 2, len(columns) + 2))
inner = framed[1:-1, 1:-1]


def fill_frames():
    """Receive the edges of the neighbours; at the border of the plane the frame stays zero."""
    if comm is None:
        return
    for axis in (0, 1):
        plane = framed if axis == 0 else framed.T
        for shift, edge, frame in ((1, -2, 0), (-1, 1, -1)):
            source, target = comm.Shift(axis, shift)
            received = np.zeros(plane.shape[1])
            comm.Sendrecv(
                np.ascontiguousarray(plane[edge]), target, recvbuf=received, source=source
            )
            plane[frame] = received


# u_t = u_xx + u_yy on the unit square, zero at its border; explicit Euler.
h = 1 / (n + 1)
ratio = 0.2  # time step over h squared; stable up to 1/4
x = h * (1 + np.arange(n))
mode = np.outer(np.sin(np.pi * x), np.sin(2 * np.pi * x))[
    rows.start : rows.start + len(rows), columns.start : columns.start + len(columns)
]
# The mode is an eigenvector of the step, which scales it by the same factor each time.
factor = 1 - 4 * ratio * (np.sin(np.pi * h / 2) ** 2 + np.sin(np.pi * h) ** 2)

path = oc.connect(urls[0]) / str(where) if urls else where
group = oc.ArrayGroup(path, {"u": oc.ArraySpec((n, n), "f8", dims=("y", "x"))}, comm=comm)
try:
    saved = group.restart(schema=schema)
    inner[...] = saved["u"]
    first = saved.attributes["step"]
    if rank == 0:
        print(f"resuming from step {first} with {ranks} ranks")
except oc.errors.NotFoundError:
    inner[...] = mode
    first = 0

for step in range(first, steps):
    if step % every == 0:
        # A run that died later may have written this step already.
        if group.steps == step // every:
            group.timestep({"u": inner}, step * ratio * h * h, schema=schema)
        group.checkpoint({"u": inner}, {"step": step}, background=True, schema=schema)
    if step == dies_at and "--die" in options:
        os.kill(os.getpid(), signal.SIGKILL)
    fill_frames()
    inner[...] += ratio * (
        framed[:-2, 1:-1] + framed[2:, 1:-1] + framed[1:-1, :-2] + framed[1:-1, 2:] - 4 * inner
    )
group.checkpoint({"u": inner}, {"step": steps}, schema=schema)
group.close()

error = abs(inner - factor**steps * mode).max()
assert error < 1e-12, error
if rank == 0:
    print(f"{steps} steps, {group.steps} of them in {where}; largest error {error:.1e}")
