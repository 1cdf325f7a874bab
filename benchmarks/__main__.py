"""The command: runs benchmarks, each in a process of its own, or renders their results."""

import argparse
import signal
import subprocess
import sys
from pathlib import Path

from benchmarks import environment, report
from benchmarks.options import SIZES, add_options

BENCHMARKS = {
    "lu": "out-of-core LU against in-core getrf with the same kernels, and against its plan",
    "cholesky": "out-of-core Cholesky against in-core potrf with the same kernels, and its plan",
    "matmul": "out-of-core product against in-core gemm with the same kernels, and its plan",
    "paper_panda": "figures 3 to 9 of Seamons et al. (1995): collectives over size and servers",
    "paper_lu": "tables 1 and 3 of Womble et al. (1993): budget, total and visible I/O",
    "gauss_seidel": "a sweep with half of the matrix in memory: its words, and the disk's rate",
    "paper_gauss_seidel": "table 1 of Cettei et al. (1997): sweeps over a growing matrix",
    "paper_nodes": "figure 10 of Cettei et al. (1997): sweeps by servers and processes",
    "scipy_lu": "out-of-core LU against scipy.linalg.lu_factor as installed",
    "streaming": "array streaming against fio with direct I/O",
    "blocks": "every block once through the block interface, against a stream",
    "boxes": "boxes, planes and strips in default chunks against numpy.memmap",
    "dask_linalg": "LU, Cholesky, QR and solve against dask.array.linalg, under a memory limit",
    "lu_processes": "LU and Cholesky by 2 processes against 1; LU by 1 to 8, after Womble et al.",
    "logical_disks": "solves by 4 processes with slow disks: factors on logical disks and striped",
    "mixed": "solve with factors in single precision and refinement, against it in double",
    "lstsq": "tall least squares against reading the rows, or geqrf, whichever is longer",
    "lstsq_processes": "tall least squares by 2 processes of 1 thread against 1 of 2 threads",
    "svd": "the largest singular triplets against ARPACK and randomized_svd of scikit-learn",
    "distributions": "orders of chunks, ways to read, 1 to 8 slow disks, and the rule of advise",
    "rechunk": "copies into other chunks against fio, dask, rechunker and cubed",
    "permute": "a transpose and a bit reversal against fio, numpy.memmap, zarr-python and dask",
    "rivals": "array strips against TensorStore and zarr-python",
    "pool_embedded": "a pool embedded over two directories against a plain one: streams, LU",
    "pool_served": "LU in a pool served on this machine against a plain path",
    "pool_hdf5": "h5py through the driver against a file of the Python client",
    "pool_disks": "1 to 8 servers with slow disks against the sum of the disks' rates",
    "pool_network": "the wire against disk and TCP, and two channels against one",
    "mount": "a mounted pool: large calls against the client, cp, and tar of small files",
    "pool_requests": "strided requests against one a piece, lists, and creates a second",
    "pool_watched": "64 busy clients with the page and all metrics read each second, and without",
    "collective": "arrays written and read by 8 processes together: one process, MPI-IO, TCP",
    "mpi_io": "MPI-IO by the preloaded library: outcore's own collectives, and plain MPI-IO",
    "flash": "checkpoints of FLASH: arrays, HDF5 and PnetCDF, against plain MPI-IO and slow disks",
    "flash.groups": "of these, the groups of arrays with the most processes and servers only",
    "beowulf": "Sterling et al. (1996): tokens, local and remote copies, and predicted gains",
    "collective_disks": "the same with 1 to 4 slow disks against the sum of their rates",
    "checkpoint": "a loop that computes while its arrays are written",
    "cliff": "time over the order of the matrix at a fixed memory limit: the cost curve",
}


def main() -> int:
    listed = {**BENCHMARKS, "report": "a Markdown table of the results in --output"}
    rows = "\n".join(f"  {name:<16} {text}" for name, text in listed.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=f"Benchmarks:\n{rows}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="which; by default all")
    add_options(parser)
    given = parser.parse_args()
    unknown = [name for name in given.names if name not in listed]
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]!r}; see --help")

    if not given.keep_env and environment.removed():
        print(f"{', '.join(environment.removed())} removed from the environment", file=sys.stderr)
    options = [f"--{size}" for size in SIZES if getattr(given, size, False)]
    options += ["--output", given.output] + (["--keep-env"] if given.keep_env else [])
    options += ["--scratch", given.scratch] if given.scratch else []
    failed = []
    for name in given.names or BENCHMARKS:
        if name == "report":
            print(report.render(Path(given.output)))
        elif run(name, options, keep_env=given.keep_env):
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return len(failed) > 0


def run(name: str, options: list[str], *, keep_env: bool) -> int:
    """Run one benchmark to its end, even if this process is asked to stop."""
    child = subprocess.Popen(
        [sys.executable, "-m", f"benchmarks.{name}", *options],
        env=environment.for_child(keep=keep_env),
    )
    before = signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    try:
        code = child.wait()
        if code == 128 + signal.SIGTERM:
            raise SystemExit(code)
        return code
    except KeyboardInterrupt:
        # The terminal has signalled the child too; it cleans up.
        child.wait()
        raise SystemExit(130) from None
    finally:
        signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    sys.exit(main())
