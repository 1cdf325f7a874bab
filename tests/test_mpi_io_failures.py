"""The library for MPI-IO when processes die, servers are full, and parts do not fit together."""

import sys
from pathlib import Path

import pytest
from compiled_c import run
from mounted import mounted
from mpi_jobs import MPICH, MPICH_4, OPEN_MPI, Mpi, mpi_program, mpiexec, skip_without
from own_daemons import OwnDaemons
from served import Served
from served_pools import pool
from test_mount_lock_failures import pool_at

import outcore as oc
from outcore._util import mpi_io

__all__ = ["pool"]  # fixtures

JOBS = Path(__file__).parent / "mpi"


@pytest.fixture(scope="module")
def library() -> Path:
    return mpi_io.library(str(MPICH.mpicc))


@pytest.mark.exhaustive(keep=1)
@pytest.mark.parametrize("when", ["later", "first"])
def test_a_process_that_dies_is_noticed(library: Path, when: str, tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()
    # The launcher knows the shells only: it ends a job in which a process dies.
    shell = '"$@"; while ! [ -e "$0/0" -a -e "$0/1" -a -e "$0/2" ]; do sleep 0.05; done'
    if when == "first":
        # The last process dies as soon as it has told the others its number.
        (tmp_path / "dies.c").write_text(
            "#include <signal.h>\n#include <unistd.h>\n"
            "int outcore_file_open(void) { return kill(getpid(), SIGKILL); }\n"
        )
        run("cc", "-shared", "-fPIC", "dies.c", "-o", "dies.so", cwd=tmp_path)
        shell = f'[ $PMI_RANK != 3 ] || LD_PRELOAD="{tmp_path}/dies.so $LD_PRELOAD"; {shell}'
    with pool_at(tmp_path, 2) as started:
        served = started.served
        done = mpi_program(
            4, "sh", "-c", shell, str(results),
            sys.executable, str(JOBS / "deaths.py"), f"{served.url}f", str(results), when,
            LD_PRELOAD=str(library), MPI4PY_LIBMPI=str(MPICH.library),
            OUTCORE_KEY=str(served.key), OUTCORE_TIMEOUT="3",
        )  # fmt: skip
    found = {path.name: path.read_text() for path in results.glob("?")}
    assert found == dict.fromkeys("012", "well"), done.stdout + done.stderr


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
    assert done.stdout.replace("\n", "") == "well" * 2, done.stdout + done.stderr


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
