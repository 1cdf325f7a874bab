"""Cholesky factors in ``outcore info`` and ``outcore rm``: complete, stopped, incomplete."""

import json
from pathlib import Path
from typing import Any

from command_line import outcore
from definite import definite
from linpack import on_disk, one_thread
from stopping import stop_after

from outcore.linalg import cho_factor

__all__ = ["one_thread"]  # a fixture for every test here

MEMORY = 150_000


def the_entry(path: Path) -> Any:
    result = outcore("info", path, "--json")
    assert result.exit_code == 0, result.stderr
    (entry,) = json.loads(result.stdout)["entries"]
    return entry


def test_a_whole_factor(tmp_path: Path) -> None:
    A = on_disk(tmp_path / "Z", definite(200, "f8"))
    cho_factor(A, memory=MEMORY, progress=False)
    entry = the_entry(tmp_path / "Z.cho")
    assert (entry["kind"], entry["state"], entry["details"]["n"]) == ("factor", "whole", 200)
    assert "200 x 200 float64  whole" in outcore("info", tmp_path).stdout
    (tmp_path / "Z.cho" / "journal").write_text("header\n")
    left_over = the_entry(tmp_path / "Z.cho" / "journal")
    assert left_over["kind"] == "left-over"
    assert outcore("rm", "-y", tmp_path / "Z.cho" / "journal").exit_code == 0
    assert outcore("rm", "-y", tmp_path / "Z.cho").exit_code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["Z"]


def test_a_stopped_factorization(tmp_path: Path) -> None:
    A = on_disk(tmp_path / "Z", definite(200, "f8"))
    stop_after(2, A, cho_factor, memory=MEMORY)
    entry = the_entry(tmp_path / "Z.cho")
    assert (entry["kind"], entry["state"]) == ("factor", "incomplete")
    assert "call cho_factor with the same arguments to resume (" in entry["text"]
    refused = outcore("rm", "-y", tmp_path / "Z.cho" / "journal")
    assert refused.exit_code == 1
    assert "needed to resume" in refused.stderr
    assert outcore("rm", "-y", tmp_path / "Z.cho").exit_code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["Z"]


def test_what_a_call_killed_at_its_start_leaves(tmp_path: Path) -> None:
    (tmp_path / "Z.cho" / "l" / "c" / "0").mkdir(parents=True)
    (tmp_path / "Z.cho" / "journal").write_text("header\n")
    entry = the_entry(tmp_path / "Z.cho")
    assert (entry["kind"], entry["state"]) == ("left-over", "incomplete")
    (tmp_path / "Z.cho" / "mine").write_text("mine")
    assert outcore("rm", "-y", tmp_path / "Z.cho").exit_code == 1
    (tmp_path / "Z.cho" / "mine").unlink()
    assert outcore("rm", "-y", tmp_path / "Z.cho").exit_code == 0
    assert list(tmp_path.iterdir()) == []
