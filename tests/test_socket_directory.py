"""Directories for sockets: those of killed processes are removed, all others stay."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from outcore.pool.comm import SocketDirectory, remove_left


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def held_elsewhere() -> "subprocess.Popen[str]":
    """Start a process that holds a directory and prints its name."""
    code = (
        "import sys; from outcore.pool.comm import SocketDirectory\n"
        "made = SocketDirectory(); print(made.path, flush=True); sys.stdin.read()"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def told_by(process: "subprocess.Popen[str]") -> Path:
    assert process.stdout is not None
    return Path(process.stdout.readline().strip())


def test_it_is_removed_when_it_is_closed(temporary: Path) -> None:
    made = SocketDirectory()
    assert made.path.stat().st_mode & 0o777 == 0o700
    (made.path / "socket").touch()
    made.close()
    assert names(temporary) == []


def test_what_killed_processes_leave_goes_and_what_is_held_stays(temporary: Path) -> None:
    with held_elsewhere() as living, held_elsewhere() as killed:
        stays, goes = told_by(living), told_by(killed)
        (goes / "socket").touch()
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        made = SocketDirectory()
        assert names(temporary) == sorted([stays.name, made.path.name])
        remove_left()
        assert names(temporary) == sorted([stays.name, made.path.name])
        living.communicate("")
    made.close()
    remove_left()
    assert names(temporary) == []


def test_what_is_not_its_own_stays(temporary: Path) -> None:
    (temporary / "elsewhere").mkdir()
    (temporary / "elsewhere/lock").touch()
    (temporary / "outcore-sockets-link").symlink_to("elsewhere")
    (temporary / "outcore-sockets-without-a-lock").mkdir()
    (temporary / "outcore-other").mkdir()
    remove_left()
    assert len(names(temporary)) == 4
    assert os.path.exists(temporary / "elsewhere/lock")
