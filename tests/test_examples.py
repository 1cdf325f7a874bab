"""The programs in examples/ run completely, twice: the second run finds the files of the first."""

import subprocess
import sys
from pathlib import Path

import pytest
from timeouts import HANG_S

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_example_runs(example: Path, tmp_path: Path) -> None:
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-W", "error", str(example), "here"],
            cwd=tmp_path, capture_output=True, text=True, check=False, timeout=HANG_S,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stdout
        assert [path.name for path in tmp_path.iterdir()] == ["here"], "it stays in its directory"


def test_every_example_is_on_the_index_page() -> None:
    page = (EXAMPLES[0].parent.parent / "docs/index.md").read_text()
    assert EXAMPLES
    assert [path.name for path in EXAMPLES if path.name not in page] == []
