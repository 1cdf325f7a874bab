"""The library for MPI-IO: MPI programs on files in pools, against the same on plain files."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import outcore
from compiled_c import SANITIZED, run
from mounted import mounted
from mpi_jobs import PREFIX, mpi_program, mpiexec
from served import Served, serve
from served_pools import in_memory

import outcore as oc
from outcore._util import c_library, mpi_io

JOBS = Path(__file__).parent / "mpi"
SOURCES = Path(mpi_io.__file__).parent.parent / "_mpi_io"
MPICC = str(PREFIX / "bin/mpicc")

PASSED_ON = {
    # They concern the handle, and a file in a pool has a valid one.
    "MPI_File_call_errhandler", "MPI_File_create_errhandler", "MPI_File_get_errhandler",
    "MPI_File_set_errhandler", "MPI_File_toint", "MPI_File_fromint", "MPI_File_c", "MPI_File_f",
    # Types of functions.
    "MPI_File_errhandler_function", "MPI_File_errhandler_fn",
}  # fmt: skip


@pytest.fixture(scope="module")
def pool() -> Iterator[Served]:
    with in_memory() as directory, serve(directory) as served:
        yield served


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the library as a user does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        done = outcore("env", "--mpi-io", "--mpicc", MPICC)
        assert done.exit_code == 0, done.output
        # It is built once.
        made = Path(done.output.strip()).stat().st_mtime_ns
        patch.setenv("MPICC", MPICC)
        again = json.loads(outcore("env", "--mpi-io", "--json").output)
        assert again == {"library": done.output.strip()}
        assert Path(again["library"]).stat().st_mtime_ns == made
    return Path(again["library"])


def test_each_call_is_defined_or_passed_on(library: Path) -> None:
    header = "".join(path.read_text() for path in (PREFIX / "include").glob("mpi*.h"))
    wanted = {name.removesuffix("_t") for name in re.findall(r"\bMPI_File_[a-z_]+", header)}
    # The names of types of functions, such as MPI_File_open_t.
    assert len(wanted) > 80
    defined = set(re.findall(r"MPI_File_\w+", run("nm", "-D", "--defined-only", library)))
    assert wanted - defined == PASSED_ON & wanted
    assert not defined & PASSED_ON
    assert not {name for name in defined if name not in wanted}
    # It calls MPI by the profiling interface only, so that it never calls itself or another tool.
    used = run("nm", "-D", "--undefined-only", library)
    assert re.findall(r"\bMPI_\w+", used) == []


def test_the_sources_have_no_warnings(tmp_path: Path) -> None:
    flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O2", "-fsyntax-only"]
    run(MPICC, *flags, *c_library.cflags().split(), *SOURCES.glob("*.c"), cwd=tmp_path)


def test_mistakes_of_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    missing = outcore("env", "--mpi-io", "--mpicc", tmp_path / "no-mpicc")
    assert missing.exit_code == 1
    assert "need mpicc" in missing.output
    assert "--mpicc" in missing.output
    broken = tmp_path / "mpicc"
    broken.write_text("#!/bin/sh\necho 'no licence' >&2\nexit 1\n")
    broken.chmod(0o755)
    failed = outcore("env", "--mpi-io", "--mpicc", broken)
    assert failed.exit_code == 1
    assert "no licence" in failed.output
    assert "need --mpi-io" in outcore("env", "--mpicc", MPICC).output


def preloaded(library: Path, pool: Served) -> dict[str, str]:
    return {"LD_PRELOAD": str(library), "OUTCORE_KEY": str(pool.key)}


@pytest.mark.exhaustive(keep=1)
@pytest.mark.parametrize("size", [2, 1, 3])
def test_calls_are_those_of_a_plain_file(
    library: Path, pool: Served, size: int, tmp_path: Path
) -> None:
    done = mpiexec(
        size, JOBS / "calls.py", str(tmp_path / "f"), f"{pool.url}/calls-{size}/f",
        **preloaded(library, pool),
    )  # fmt: skip
    assert done.stdout.replace("\n", "") == "well" * size, done.stdout + done.stderr
    with oc.connect(pool.url, key=pool.key) as client:
        # Nothing but the files of the program is left.
        left = {path.name for path in tmp_path.iterdir()}
        assert set(client.ls(f"calls-{size}")) == left


@pytest.mark.exhaustive(keep=1)
@pytest.mark.parametrize(("size", "first", "count"), [(2, 0, 6), (3, 100, 40), (1, 200, 40)])
def test_random_types_move_the_same_bytes(
    library: Path, pool: Served, size: int, first: int, count: int, tmp_path: Path
) -> None:
    done = mpiexec(
        size, JOBS / "random_types.py", str(tmp_path / "f"), f"{pool.url}/random-{first}",
        str(first), str(count), **preloaded(library, pool),
    )  # fmt: skip
    assert done.stdout.replace("\n", "") == "well" * size, done.stdout + done.stderr


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile a program that knows nothing of pools."""
    made = tmp_path_factory.mktemp("program") / "subarrays"
    run(MPICC, "-Wall", "-Wextra", "-Werror", JOBS / "subarrays.c", "-o", made)
    return made


def test_a_program_in_c_needs_no_change(
    library: Path, pool: Served, program: Path, tmp_path: Path
) -> None:
    plain, n = tmp_path / "plain", "24"
    done = mpi_program(4, str(program), str(plain), n)
    assert done.stdout.replace("\n", "") == "well" * 4, done.stderr
    address = f"{pool.url}/sub/arrays"
    done = mpi_program(4, str(program), address, n, **preloaded(library, pool))
    assert done.stdout.replace("\n", "") == "well" * 4, done.stderr
    with oc.connect(pool.url, key=pool.key) as client:
        assert (client / "sub/arrays").read_bytes() == plain.read_bytes()


def test_paths_below_a_mount(library: Path, pool: Served, program: Path, tmp_path: Path) -> None:
    with mounted(pool, tmp_path / "m") as mount:
        new = mount.place / "through-a-mount"
        done = mpi_program(2, str(program), str(new), "12", **preloaded(library, pool))
        assert done.stdout.replace("\n", "") == "well" * 2, done.stderr
        with oc.connect(pool.url, key=pool.key) as client:
            assert len((client / "through-a-mount").read_bytes()) == 12**3 * 8
        # Without the key, the library cannot connect; the kernel could. The job ends by itself:
        # after MPI_Abort, the launcher may lose what a process has said.
        more = {"LD_PRELOAD": str(library), "OUTCORE_KEY": ""}
        done = mpiexec(2, JOBS / "failures.py", str(new), CREATE, **more)
        assert done.stdout.count("key") >= 2, done.stdout + done.stderr
        assert "opened" not in done.stdout


def test_sanitized(pool: Served, tmp_path: Path) -> None:
    """Linked instead of preloaded: a sanitizer must be the first library of a program."""
    made = tmp_path / "sanitized"
    flags = [*SANITIZED, *c_library.cflags().split(), *c_library.libs().split()]
    run(MPICC, *SOURCES.glob("*.c"), JOBS / "subarrays.c", *flags, "-o", made)
    done = mpi_program(
        2, str(made), f"{pool.url}/sanitized", "13", OUTCORE_KEY=str(pool.key),
        ASAN_OPTIONS="detect_leaks=0",
    )  # fmt: skip
    assert done.stdout.replace("\n", "") == "well" * 2, done.stderr


CREATE = "1"


@pytest.mark.parametrize(
    ("name", "mode", "expected"),
    [
        ("missing", "0", "File does not exist"),
        ("", CREATE, "Invalid file name"),
        ("directory", "0", "Invalid file name"),
    ],
)
def test_names_that_cannot_be_opened(
    library: Path, pool: Served, name: str, mode: str, expected: str
) -> None:
    with oc.connect(pool.url, key=pool.key) as client:
        client.mkdir("directory", exist_ok=True)
    done = mpiexec(2, JOBS / "failures.py", f"{pool.url}/{name}", mode, **preloaded(library, pool))
    assert done.stdout.count(expected) >= 2, done.stdout + done.stderr
    assert (done.stdout.count("\n"), done.stdout.count("opened")) == (2, 0)
    assert "need" in done.stdout


def test_pools_that_cannot_be_reached(library: Path, pool: Served, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.key"
    wrong.touch(0o600)
    wrong.write_text(f"outcore-pool-key-1 {'00' * 32}\n")
    job = JOBS / "failures.py"
    more = preloaded(library, pool) | {"OUTCORE_KEY": str(wrong)}
    done = mpiexec(2, job, f"{pool.url}/f", CREATE, **more)
    assert done.stdout.count("Access denied") == 2, done.stdout + done.stderr
    more |= {"OUTCORE_TIMEOUT": "1", "OUTCORE_KEY": str(pool.key)}
    done = mpiexec(2, job, "outcore://127.0.0.1:1/f", CREATE, **more)
    assert done.stdout.count("Other I/O error") == 2, done.stdout + done.stderr
    unusable = mpiexec(1, job, "outcore://node1/f", CREATE, **more)
    assert "outcore://HOST:PORT/NAME" in unusable.stdout


def test_a_process_without_mpi_may_load_the_library(library: Path) -> None:
    done = subprocess.run(
        ["sh", "-c", "echo well"], env={"LD_PRELOAD": str(library), "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "well\n"
