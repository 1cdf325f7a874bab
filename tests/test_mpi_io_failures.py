"""The library for MPI-IO when processes die, servers are full, and parts do not fit together."""

import sys
from pathlib import Path

import pytest
from compiled_c import run
from mounted import mounted
from mpi_jobs import MPICH, MPICH_4, OPEN_MPI, Mpi, all_say, mpi_program, mpiexec, skip_without
from own_daemons import OwnDaemons
from served import Served
from served_pools import pool
from test_mount_lock_failures import pool_at

import outcore as oc
from outcore._util import c_library, mpi_io

__all__ = ["pool"]  # fixtures

JOBS = Path(__file__).parent / "mpi"


@pytest.fixture(scope="module")
def library() -> Path:
    return mpi_io.library(str(MPICH.mpicc))


def test_a_process_that_dies_is_noticed(library: Path, tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()
    # The launcher knows the shells only: it ends a job in which a process dies.
    shell = '"$@"; while ! [ -e "$0/0" -a -e "$0/1" -a -e "$0/2" ]; do sleep 0.05; done'
    with pool_at(tmp_path, 2) as started:
        served = started.served
        done = mpi_program(
            4, "sh", "-c", shell, str(results),
            sys.executable, str(JOBS / "deaths.py"), f"{served.url}f", str(results),
            LD_PRELOAD=str(library), MPI4PY_LIBMPI=str(MPICH.library),
            OUTCORE_KEY=str(served.key), OUTCORE_TIMEOUT="3",
        )  # fmt: skip
    found = {path.name: path.read_text() for path in results.glob("?")}
    assert found == dict.fromkeys("012", "well"), done.stdout + done.stderr


IS_GONE = "need all processes of f"
DEATHS = [
    # The function before which a process dies inside a call, which time, and the other's error.
    # In the first opening, before the processes have opened a file of the pool together:
    ("open", "PMPI_Comm_idup", 1, IS_GONE),
    ("open", "PMPI_Iallreduce", 1, IS_GONE),
    ("close", "PMPI_Iallreduce", 1, IS_GONE),
    ("write_all", "outcore_file_write_all", 1, IS_GONE),
    ("read_all", "PMPI_Ibcast", 1, IS_GONE),
    ("read_all", "outcore_file_read_all", 1, IS_GONE),
    ("set_size", "PMPI_Iallreduce", 2, IS_GONE),
    ("write_ordered", "PMPI_Iexscan", 1, IS_GONE),
    ("read_ordered_begin", "PMPI_Iallreduce", 3, IS_GONE),
    ("write_shared", "outcore_remove", 1, "need the turn of another process to end"),
    # A process that ends MPI after an error of its own, as Python does:
    ("write_all", "MPI_Finalize", 1, IS_GONE),
    ("open again", "MPI_Finalize", 1, IS_GONE),
]


def test_the_other_process_gets_an_error_wherever_one_dies(library: Path, tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()
    program = tmp_path / "dies_inside"
    flags = ["-Wall", "-Wextra", "-Werror", "-rdynamic", *c_library.cflags().split()]
    run(MPICH.mpicc, JOBS / "dies_inside.c", *flags, *c_library.libs().split(), "-o", program)
    cases = [f"{call}:{function}:{count}" for call, function, count, _ in DEATHS]
    # The launcher knows the shells only: it ends a job in which a process dies.
    shell = f'"$@"; while [ $(ls "$0" | wc -l) -lt {len(cases)} ]; do sleep 0.05; done'
    with pool_at(tmp_path, 2) as started:
        served = started.served
        done = mpi_program(
            2 * len(cases), "sh", "-c", shell, str(results), str(program), served.url,
            str(results), *cases, LD_PRELOAD=str(library), OUTCORE_KEY=str(served.key),
            OUTCORE_TIMEOUT="3",
        )  # fmt: skip
    for number, (case, (*_, error)) in enumerate(zip(cases, DEATHS, strict=True)):
        found = (results / str(number)).read_text()
        assert found.startswith(f"MPI_ERR_IO: {error}"), f"{case}: {found}\n{done.stderr}"


@pytest.mark.exhaustive(keep=1)
@pytest.mark.parametrize("mpi", [MPICH, MPICH_4, OPEN_MPI], ids=["mpich", "mpich4", "openmpi"])
def test_mistakes_and_full_servers(
    pool: Served, mpi: Mpi, small_disk: Path, tmp_path: Path
) -> None:
    skip_without(mpi)
    library = mpi_io.library(str(mpi.mpicc))
    user = pool.key_of("ada", 4711, 4711)
    with oc.connect(pool.url, key=pool.key) as client:
        (client / "private").write_bytes(b"x")
        client.chmod("private", 0o600)
    full = OwnDaemons(tmp_path, [small_disk])
    try:
        with mounted(pool, tmp_path / "m", "--read-only") as mount:
            done = mpiexec(
                2, JOBS / "mistakes.py", pool.url, str(user), f"{full.url}::", str(full.key),
                str(mount.place), mpi=mpi, LD_PRELOAD=str(library), OUTCORE_KEY=str(pool.key),
            )  # fmt: skip
    finally:
        full.stop()
    all_say("well", 2, done)


def test_parts_that_do_not_fit_are_refused(library: Path, pool: Served, tmp_path: Path) -> None:
    """Stand-ins for another launcher, another MPI and another version of the C library."""
    (tmp_path / "foreign.c").write_text(
        '#include <string.h>\nint PMPI_Get_library_version(char *text, int *bytes)'
        '{ strcpy(text, "Open MPI v4.1.4"); *bytes = 15; return 0; }\n'
    )  # fmt: skip
    (tmp_path / "newer.c").write_text("int outcore_interface(void) { return 99; }\n")
    for name in ("foreign", "newer"):
        run("cc", "-shared", "-fPIC", f"{name}.c", "-o", f"{name}.so", cwd=tmp_path)
    for stand_in, variable, expected in (
        ("", "OMPI_COMM_WORLD_SIZE", "mpirun of Open MPI (OMPI_COMM_WORLD_SIZE)"),
        ("newer.so", "", "interface 99"),
        ("foreign.so", "", "have 'Open MPI v4.1.4'"),
    ):
        more = {"LD_PRELOAD": f"{tmp_path / stand_in} {library}"} if stand_in else {}
        more |= {variable: "2"} if variable else {}
        done = mpiexec(
            1, JOBS / "failures.py", f"{pool.url}/f", "1",
            **({"LD_PRELOAD": str(library), "OUTCORE_KEY": str(pool.key)} | more),
        )  # fmt: skip
        said = done.stdout + done.stderr
        assert expected in said
        assert "need" in said
        assert ("start them by" if variable else "outcore env --mpi-io") in said
        assert "opened" not in said


def test_a_launcher_under_which_mpi_cannot_start_is_named(library: Path, pool: Served) -> None:
    skip_without(OPEN_MPI)
    done = mpi_program(
        2, sys.executable, str(JOBS / "failures.py"), f"{pool.url}/f", "1", mpi=OPEN_MPI,
        MPI4PY_LIBMPI=str(MPICH.library), LD_PRELOAD=str(library),
    )  # fmt: skip
    assert "have 2 of them from mpirun of Open MPI" in done.stderr
    assert "start them by the launcher of the program's MPI" in done.stderr
