"""Settings and fixtures of several test files."""

# Before NumPy: idle threads of its OpenBLAS then sleep, and leave the processors to other tests.
import outcore  # noqa: F401

# isort: split
import gc
import itertools
import os
import signal
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chosen_cases import chosen
from compiled_c import Compile, compiler, install
from hypothesis import HealthCheck, settings
from memory_limits import Limit, memory_limit
from served import Served, serve
from stopped_copies import Fetched

# The duration of an example on a busy machine says nothing about it.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# The same examples in each run, so that a change cannot fail by a bug that it did not make.
settings.register_profile(
    "repeated", settings.get_profile("untimed"), derandomize=True, max_examples=35
)


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Processes that a shell starts in the background ignore Ctrl-C, and so do their children.
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Collecting makes some 400,000 objects that stay; to search them for garbage takes a third of it.
gc.disable()


def pytest_configure(config: pytest.Config) -> None:
    """Keep rates that tests measure away from the user's later plans."""
    # The parts of a test run share one directory: they inherit it, and its files outlive the run.
    cache = getattr(config, "cache", None)  # absent with -p no:cacheprovider
    os.environ["XDG_CACHE_HOME"] = str(cache.mkdir("user-cache") if cache else "")
    # The system gives servers of tests ports from 32768 on. A client whose server has ended may
    # still try its port, and would meet MPICH's launcher there, which ends its job for an unknown
    # message.
    os.environ.setdefault("MPIEXEC_PORT_RANGE", "20000:30000")
    settings.load_profile("untimed" if config.getoption("exhaustive") else "repeated")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--exhaustive", action="store_true", help="run all cases of each test")


def runs_all(config: pytest.Config) -> bool:
    """Whether all cases run: with ``--exhaustive``, and where the caller names a test."""
    return config.getoption("exhaustive") or any("::" in name for name in config.args)


def pytest_collection_finish() -> None:
    """Search for garbage again, but not among the tests."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out cases."""
    if not runs_all(config):
        kept = chosen(items)
        runs = set(kept)
        config.hook.pytest_deselected(items=[item for item in items if item not in runs])
        items[:] = kept


@pytest.fixture(autouse=True, scope="module")
def garbage_collected() -> Iterator[None]:
    """Close the files that failed calls keep open after a file of tests.

    An error that `pytest.raises` returns is in a cycle with the frames of the call. Python searches
    for cycles the less often the more objects there are: some 1000 descriptors were open.
    """
    yield
    gc.collect()


@pytest.fixture(autouse=True)
def repeated_draws(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a generator without a seed draw the same numbers in each run of the test."""
    name, generators = request.node.nodeid.encode(), itertools.count()
    make = np.random.default_rng

    def default_rng(seed: Any = None) -> np.random.Generator:
        return make([zlib.crc32(name), next(generators)] if seed is None else seed)

    monkeypatch.setattr(np.random, "default_rng", default_rng)


@pytest.fixture
def all_lines(request: pytest.FixtureRequest) -> bool:
    """Whether tests that stop a call at many of its lines take as many as for ``make test-all``."""
    return runs_all(request.config)


@pytest.fixture
def run_python(tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Start a Python script in a separate process, in the test's directory."""

    def start(script: str, *arguments: str) -> subprocess.Popen[str]:
        file = tmp_path / f"script{len(list(tmp_path.glob('script*')))}.py"
        file.write_text(script)
        return subprocess.Popen(
            [sys.executable, "-W", "error", str(file), *arguments],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> Fetched:
    """Watch the reads of sources by copies."""
    return Fetched(monkeypatch)


@contextmanager
def loop_disk(tmp_path: Path, *options: str) -> Iterator[Path]:
    """Create and mount a file system of 64 MB of ext4 on a loop device; for root only."""
    if os.geteuid() != 0:
        pytest.skip("mounting a file system needs root")
    image, mounted = tmp_path / "disk.img", tmp_path / "disk"
    mounted.mkdir()
    with image.open("wb") as file:
        file.truncate(64 << 20)
    try:
        subprocess.run(
            ["mkfs.ext4", "-q", "-m", "0", *options, image], check=True, capture_output=True
        )
        subprocess.run(["mount", "-o", "loop", image, mounted], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"cannot mount a loop file system here: {error}")
    try:
        yield mounted
    finally:
        subprocess.run(["umount", "-l", mounted], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount 64 MB of ext4."""
    with loop_disk(tmp_path) as mounted:
        yield mounted


@pytest.fixture
def disk_without_reserving(tmp_path: Path) -> Iterator[Path]:
    """Mount 64 MB without extents, as in ext2 and ext3: such a disk cannot reserve space."""
    with loop_disk(tmp_path, "-O", "^extent,^64bit") as mounted:
        yield mounted


@pytest.fixture
def limit() -> Iterator[Limit]:
    """A control group with a hard memory limit; for root only."""
    with memory_limit() as found:
        yield found


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """Serve a pool of two servers, and return its address and key."""
    with serve(tmp_path) as running:
        yield running


@pytest.fixture
def served_here(served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Served:
    """Serve the pool of `served` to commands in the test's directory, with the key."""
    monkeypatch.setenv("OUTCORE_KEY", str(served.key))
    monkeypatch.chdir(tmp_path)
    return served


@pytest.fixture(scope="session")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the C library."""
    return install(tmp_path_factory.mktemp("prefix"))


@pytest.fixture(scope="session")
def compiled(prefix: Path, tmp_path_factory: pytest.TempPathFactory) -> Compile:
    """Compile programs with the C library."""
    return compiler(prefix, tmp_path_factory.mktemp("programs"))
