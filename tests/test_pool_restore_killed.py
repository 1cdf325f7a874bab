"""kill -9 inside ``outcore pool restore``: no store is used without its log or with another one."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from killed_at_call import preloaded
from metadata_store import records
from timeouts import HANG_S

import outcore as oc
from outcore import _core
from outcore.errors import ExistsError, InvalidError

__all__ = ["preloaded"]  # a fixture

COPIED, LATER = {"first"}, {"later"}
"""Names in the copy, and in the store that it replaces. The latter without its log has none."""

AGAIN = "run `outcore pool restore` again"

MAKE = """
import os, signal, sys
import outcore as oc
from outcore import _core
pool = oc.Pool.embedded([sys.argv[1]])
pool.mkdir("first")
_core.backup_metadata(sys.argv[1], sys.argv[2])
pool.core.volume().rename("first", "later")
os.kill(os.getpid(), signal.SIGKILL)
"""
RESTORE = """
import sys
from importlib.machinery import ExtensionFileLoader
loader = ExtensionFileLoader("_core", sys.argv[1])
_core = loader.load_module()
_core.restore_metadata(*sys.argv[2:])
"""
"""Without the other modules of outcore, whose imports would take most of the time."""


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """Return a directory with a killed pool, whose last change is in the log only, and a copy."""
    stopped = tmp_path / "stopped"
    stopped.mkdir()
    made = [sys.executable, "-c", MAKE, str(stopped / "a"), str(stopped / "copy")]
    assert subprocess.run(made, check=False, timeout=HANG_S).returncode == -signal.SIGKILL
    assert (stopped / "a/manager/metadata.sqlite-wal").stat().st_size > 0
    return stopped


def restore(preloaded: Path, home: Path, **more: str) -> "subprocess.CompletedProcess[str]":
    """Restore the copy in another process, which a library may kill."""
    return subprocess.run(
        [sys.executable, "-c", RESTORE, _core.__file__, str(home / "a"), str(home / "copy")],
        env={**os.environ, "LD_PRELOAD": str(preloaded)} | more,
        capture_output=True, text=True, timeout=HANG_S, check=False,
    )  # fmt: skip


def calls(preloaded: Path, stopped: Path) -> int:
    """Count the calls in a restoration that is not killed."""
    done = restore(preloaded, shutil.copytree(stopped, stopped.with_name("whole")))
    assert done.returncode == 0, done.stderr
    return int(done.stderr.split("calls:")[1])


def names(home: Path) -> set[str]:
    with oc.Pool.embedded([home / "a"]) as pool:
        return set(pool.ls())


def kept_names(home: Path) -> list[set[str]]:
    """List the names in each replaced store."""
    found = []
    for store in sorted((home / "a/manager").glob("replaced-*/metadata.sqlite")):
        with closing(sqlite3.connect(store)) as opened:
            keys = [key for key, _ in records(opened)]
        found.append({key[9:].decode() for key in keys if key[:1] == b"n"})
    return found


def test_killed_before_each_call(
    stopped: Path, tmp_path: Path, preloaded: Path, all_lines: bool
) -> None:
    count = calls(preloaded, stopped)
    assert count >= 10
    refused = 0
    for number in range(1, count + 1, 1 if all_lines else 3):
        home = shutil.copytree(stopped, tmp_path / "killed")
        killed = restore(preloaded, home, KILL_AT=str(number))
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        begun = shutil.copytree(home, tmp_path / "begun")
        if (begun / "a/manager/restoring").exists():
            refused += 1
            with pytest.raises(InvalidError, match=AGAIN):
                names(begun)
            with pytest.raises(InvalidError, match=AGAIN):
                _core.backup_metadata(str(begun / "a"), str(begun / "another copy"))
        else:
            assert names(begun) in (COPIED, LATER), f"killed before call {number} of {count}"
        finished = restore(preloaded, home)
        assert finished.returncode == 0, finished.stderr
        assert names(home) == COPIED
        kept = kept_names(home)
        assert LATER in kept, f"killed before call {number} of {count}"
        assert all(each in (COPIED, LATER) for each in kept), f"killed before call {number}"
        shutil.rmtree(home)
        shutil.rmtree(begun)
    assert refused >= 3


def test_files_of_a_killed_copy_do_not_get_into_the_next(stopped: Path, tmp_path: Path) -> None:
    log = stopped / "a/manager/metadata.sqlite-wal"
    for name in ("metadata.sqlite.restored", "metadata.sqlite.restored.part"):
        shutil.copy(log, log.with_name(f"{name}-wal"))
    _core.restore_metadata(str(stopped / "a"), str(stopped / "copy"))
    assert names(stopped) == COPIED
    shutil.copy(stopped / "a/manager/replaced-1/metadata.sqlite-wal", tmp_path / "new-wal")
    with pytest.raises(ExistsError, match="new-wal exists"):
        _core.backup_metadata(str(stopped / "a"), str(tmp_path / "new"))


def test_a_log_without_its_store_is_kept(stopped: Path, preloaded: Path, all_lines: bool) -> None:
    manager = stopped / "a/manager"
    (manager / "metadata.sqlite").unlink()
    log = (manager / "metadata.sqlite-wal").read_bytes()
    for number in range(1, calls(preloaded, stopped) + 1, 1 if all_lines else 3):
        home = shutil.copytree(stopped, stopped.with_name("killed"))
        killed = restore(preloaded, home, KILL_AT=str(number))
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        finished = restore(preloaded, home)
        assert finished.returncode == 0, finished.stderr
        assert names(home) == COPIED
        kept = home / "a/manager/replaced-1"
        assert [path.name for path in kept.iterdir()] == ["metadata.sqlite-wal"], number
        assert (kept / "metadata.sqlite-wal").read_bytes() == log
        shutil.rmtree(home)
