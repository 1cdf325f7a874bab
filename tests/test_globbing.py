"""Patterns in a pool against Python's glob on the same tree in a plain directory."""

import glob
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import outcore as oc
from outcore.errors import NotFoundError
from outcore.files.several import expanded

FILES = [
    "a", "b.txt", "c.txt", ".hidden", "x[1]", "y*", "d/a", "d/.h", "d/e/a.txt", "d/e/.deep/f",
    "d/e/g/h.txt", ".dot/a.txt", ".dot/b/c.txt", "run1/A/c/0", "run1/A/zarr.json", "run2/A/c/0",
    "run10/x", "Ä/ö.txt",
]  # fmt: skip

PATTERNS = [
    "*", "*.txt", "?", "??", "[ab]*", "[!a]*", ".*", "*/a", "*/*", "d/*", "d/e/*", "**", "**/*",
    "**/*.txt", "d/**", "d/**/*.txt", "**/a", "**/e/**", "run?/A", "run*/A/c/0", "run[0-9]*",
    "x[[]1]", "x[1]", "x[2]", "y[*]", "y*", "none/*", "a/*", ".dot/*", ".dot/**", "**/.*",
    "Ä/*", "Ä*", "*/**/a.txt", "d/e/.*/f", "**/**", "[z-a]", "[", "a[",
]  # fmt: skip


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[oc.Pool]:
    with oc.Pool.embedded([tmp_path / "pool"]) as opened:
        yield opened


def test_patterns_match_what_they_match_in_a_directory(pool: oc.Pool, tmp_path: Path) -> None:
    for name in FILES:
        pool.open(name, "x").close()
        (tmp_path / "plain" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "plain" / name).touch()
    for pattern in PATTERNS:
        theirs = glob.glob(pattern, root_dir=tmp_path / "plain", recursive=True)
        if (tmp_path / "plain" / pattern).exists():
            theirs = [pattern]  # the name of an existing file is not a pattern
        expected = {os.path.normpath(name) for name in theirs} - {"."}
        if expected:
            found = [path.inside for path in expanded([pool / pattern])]  # type: ignore[union-attr]
            assert set(found) == expected, pattern
            assert found == sorted(found), pattern
        else:
            with pytest.raises(NotFoundError, match="nothing matches"):
                expanded([pool / pattern])


def test_a_name_that_is_there_is_no_pattern(pool: oc.Pool) -> None:
    for name in ("f[1]", "f1", "f*", "f?", "fx", "d[1]/[", "d1/["):
        pool.open(name, "x").close()
    for name in ("f[1]", "f*", "f?", "d[1]", "d[1]/["):
        assert expanded([pool / name]) == [pool / name]
    assert expanded([pool / "f[[]1]", pool / "f[*]"]) == [pool / "f[1]", pool / "f*"]
    assert expanded([pool / "f[1-9]"]) == [pool / "f1"]


def test_a_name_is_no_pattern(pool: oc.Pool) -> None:
    # The caller checks whether it exists.
    assert expanded([pool / "d/none"]) == [pool / "d/none"]


def test_plain_paths_are_left_to_the_shell(tmp_path: Path) -> None:
    (tmp_path / "a*").touch()
    assert expanded([tmp_path / "a*"]) == [tmp_path / "a*"]
