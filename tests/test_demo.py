"""The demonstration, small: it solves, checks itself against the series, and cleans up."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from memory_limits import Limit

from outcore.array.create import create_array
from outcore.cli import main
from outcore.demo import run
from outcore.demo.run import run_demo
from outcore.demo.sphere import SphereProblem
from outcore.errors import FillChangedWarning, InvalidError


def test_the_error_falls_as_the_mesh_is_refined(tmp_path: Path) -> None:
    errors = []
    for level in (2, 3):
        said: list[str] = []
        result = run_demo(level, output=tmp_path, memory="3 MiB", progress=False, say=said.append)
        errors.append((result.surface_error, result.far_field_error))
        assert result.report.peak_memory_bytes <= 3 << 20
        assert result.report.backward_error is not None
        assert result.report.backward_error < 1e-14
        for picture in (result.field_picture, result.timeline_picture):
            assert picture.read_bytes().startswith(b"\x89PNG")
        assert any("surface error" in line for line in said)
    assert errors[1][0] < errors[0][0] / 2
    assert errors[1][1] < errors[0][1] / 2
    assert not (tmp_path / "work").exists(), "the matrix and its factors are removed"


def test_a_matrix_left_by_a_stopped_demonstration_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = SphereProblem(1)
    path = tmp_path / "work" / "level1" / "matrix"
    create_array(path, (problem.n, problem.n), "c16", order="F", fill=problem.fill)

    def never(*blocks: slice) -> None:
        raise AssertionError("assembled again")

    monkeypatch.setattr(SphereProblem, "fill", never)
    with pytest.warns(FillChangedWarning):
        result = run_demo(1, output=tmp_path, progress=False, say=lambda line: None)
    assert result.surface_error < 0.2


def test_the_command_prints_one_json_document(tmp_path: Path) -> None:
    done = CliRunner().invoke(
        main, ["demo", "--level", "1", "--json", "-o", str(tmp_path)], catch_exceptions=False
    )
    assert done.exit_code == 0
    values = json.loads(done.output)
    assert values["n"] == 80
    assert values["report"]["verb"] == "solve"


def test_levels_out_of_range_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match="level must be"):
        run_demo(6, output=tmp_path)


@pytest.mark.parametrize("memory_bytes", [1 << 20, 3 << 20, 40 << 20])
def test_assembly_keeps_to_the_budget_too(tmp_path: Path, memory_bytes: int) -> None:
    array = run._assembled(SphereProblem(2), tmp_path / "Z", memory_bytes, progress=False)
    assert array.report is not None
    assert array.report.memory_bytes == memory_bytes
    assert array.report.peak_memory_bytes <= memory_bytes


@pytest.mark.exhaustive(keep=0)
def test_never_killed(tmp_path: Path, limit: Limit) -> None:
    """Run assembly, factors, solution and pictures under a hard memory limit."""
    script = """
import sys
from outcore.cli import main
main(["demo", "--level", "3", "--memory", sys.argv[1], "--json", "-o", "."], standalone_mode=False)
"""
    said = limit.survived(script, tmp_path, 3 << 20)
    values = json.loads(said)
    assert values["n"] == 1280
    assert values["report"]["peak_memory_bytes"] <= 3 << 20
    assert values["surface_error"] < 0.05
