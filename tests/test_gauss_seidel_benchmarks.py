"""The benchmarks of sweeps run, at sizes too small to measure speed."""

import json
import shutil
from pathlib import Path

import pytest
from test_benchmarks import run


def test_the_words_of_a_sweep(tmp_path: Path) -> None:
    done = run(tmp_path, "gauss_seidel")
    assert done.returncode == 0, done.stderr
    figures = json.loads((tmp_path / "gauss_seidel.json").read_text())["figures"]
    words = [figure["values"] for figure in figures if "words" in figure["what"]]
    assert words == [[0.5], [0.25]]
    for rival in ("a stream", "fio"):
        rows = [row for row in figures if row["what"].endswith(f": rate against {rival}")]
        assert len(rows) == 2
        assert all(len(row["values"]) == 1 and row["values"][0] > 0 for row in rows)
        assert all(row["ours"].endswith("GB/s") and row["rival"].endswith("GB/s") for row in rows)


def test_without_fio_a_row_says_so(tmp_path: Path) -> None:
    done = run(tmp_path, "gauss_seidel", stand_ins=False)
    assert done.returncode == 0, done.stderr
    skipped = done.stdout.count("skipped: fio is not installed")
    assert skipped == (0 if shutil.which("fio") else 2)


@pytest.mark.exhaustive(keep=0)
def test_the_table_of_the_paper(tmp_path: Path) -> None:
    """Compare three ways to the same solution."""
    done = run(tmp_path, "paper_gauss_seidel")
    assert done.returncode == 0, done.stderr
    figures = json.loads((tmp_path / "paper_gauss_seidel.json").read_text())["figures"]
    if figures[0]["skipped"]:
        pytest.skip(figures[0]["skipped"])
    assert len(figures) == 2
    assert all(figure["rival"].startswith("memmap ") for figure in figures)
    assert {path.name for path in tmp_path.iterdir()} <= {"paper_gauss_seidel.json", "cache"}
