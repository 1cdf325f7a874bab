"""The benchmarks of sweeps run, at sizes that say nothing about speed."""

import json
from pathlib import Path

import pytest
from test_benchmarks import run


def test_the_words_of_a_sweep(tmp_path: Path) -> None:
    done = run(tmp_path, "gauss_seidel")
    assert done.returncode == 0, done.stderr
    figures = json.loads((tmp_path / "gauss_seidel.json").read_text())["figures"]
    words = [figure["values"] for figure in figures if "words" in figure["what"]]
    assert words == [[0.5], [0.25]]


def test_the_table_of_the_paper(tmp_path: Path) -> None:
    """Three ways to the same solution, which the benchmark compares."""
    done = run(tmp_path, "paper_gauss_seidel")
    assert done.returncode == 0, done.stderr
    figures = json.loads((tmp_path / "paper_gauss_seidel.json").read_text())["figures"]
    if figures[0]["skipped"]:
        pytest.skip(figures[0]["skipped"])
    assert len(figures) == 2
    assert all(figure["rival"].startswith("memmap ") for figure in figures)
    assert {path.name for path in tmp_path.iterdir()} <= {"paper_gauss_seidel.json", "cache"}
