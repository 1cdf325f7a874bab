"""Symbolic modes against the system's own chmod."""

import os
import random
import stat
import subprocess
from pathlib import Path

import pytest

from outcore.errors import InvalidError
from outcore.storage.modes import as_letters, changed_mode, check_mode


def random_mode(rng: random.Random) -> str:
    if rng.random() < 0.2:
        return format(rng.randrange(0o10000), "o")

    def action() -> str:
        sign = rng.choice("-+=")
        if rng.random() < 0.3:
            return sign + rng.choice("ugo")
        return sign + "".join(rng.choices("rwxXst", k=rng.randrange(4)))

    def clause() -> str:
        who = "".join(rng.choices("ugoa", k=rng.choice([0, 1, 1, 2])))
        return who + "".join(action() for _ in range(rng.choice([1, 1, 2])))

    return ",".join(clause() for _ in range(rng.choice([1, 1, 2, 3])))


def test_modes_are_those_of_the_systems_chmod(tmp_path: Path) -> None:
    rng = random.Random(4)
    (tmp_path / "f").touch()
    (tmp_path / "d").mkdir()
    for _ in range(400):
        text, before, umask = random_mode(rng), rng.randrange(0o10000), rng.randrange(0o1000)
        for name in "fd":
            path = tmp_path / name
            os.chmod(path, before)
            set_before = stat.S_IMODE(path.stat().st_mode)
            subprocess.run(["chmod", "--", text, path], check=False, umask=umask,
                           capture_output=True)  # fmt: skip
            expected = stat.S_IMODE(path.stat().st_mode)
            found = changed_mode(text, set_before, is_directory=name == "d", umask=umask)
            assert f"{found:o}" == f"{expected:o}", (text, name, f"{set_before:o}", f"{umask:o}")


def test_letters_are_those_of_ls(tmp_path: Path) -> None:
    rng = random.Random(5)
    (tmp_path / "f").touch()
    (tmp_path / "d").mkdir()
    for _ in range(100):
        for name, kind in [("f", "file"), ("d", "directory")]:
            os.chmod(tmp_path / name, rng.randrange(0o10000))
            found = (tmp_path / name).stat().st_mode
            assert as_letters(kind, stat.S_IMODE(found)) == stat.filemode(found)


@pytest.mark.parametrize(
    "text", ["", "u", "8", "12345678", "77777", "u+q", "u+r,", "rwx", "+u+", "a=ug"]
)
def test_what_is_no_mode_is_refused(text: str, tmp_path: Path) -> None:
    if text != "+u+":
        with pytest.raises(InvalidError):
            check_mode(text)
    (tmp_path / "f").touch()
    theirs = subprocess.run(["chmod", "--", text, tmp_path / "f"], check=False, capture_output=True)
    assert (theirs.returncode == 0) == (text == "+u+")
