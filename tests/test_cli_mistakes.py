"""Mistakes of users on the command line, and their messages."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import outcore

import outcore as oc
from outcore.cli import verify


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a matrix, a right-hand side and a text."""
    monkeypatch.chdir(tmp_path)
    oc.from_array(np.eye(20) + 1, "A", progress=False).close()
    np.save("b.npy", np.ones(20))
    Path("text").write_text("text\n")
    return tmp_path


@pytest.mark.parametrize(
    "arguments",
    [
        ["solve"],
        ["solve", "A", "b.npy", "-o", "x.npy", "--threads", "0"],
        ["solve", "A", "b.npy", "-o", "x.npy", "--nonsense"],
        ["plan", "lu", "-n", "1e5"],
        ["plan", "nonsense", "-n", "5"],
        ["convert", "text", "T", "--shape", "x"],
        ["rm", "A"],
        ["pool", "up"],
        ["pool", "nonsense"],
        ["attr", "set", "text"],
        ["chmod", "u+q", "text"],
        ["nonsense"],
    ],
)
def test_a_command_line_that_is_not_understood_is_a_document_too(
    here: Path, arguments: list[str]
) -> None:
    plain = outcore(*arguments)
    assert (plain.exit_code, plain.stdout) == (2, "")
    result = outcore(*arguments, "--json")
    assert result.exit_code == 2
    error = json.loads(result.stdout)["error"]
    assert error["kind"] == "usage"
    assert error["message"].splitlines()[0] in result.stderr


@pytest.mark.parametrize(("verb", "choice"), [("serve", "io"), ("plan", "lu_solve")])
def test_choices_stand_on_indented_lines(verb: str, choice: str) -> None:
    shown = outcore(verb).stderr
    assert "\\t" not in shown
    assert choice in [line.strip(" ,") for line in shown.splitlines() if line.startswith("  ")]


def test_a_tab_of_an_argument_stays_visible() -> None:
    assert "'non\\tsense'" in outcore("non\tsense").stderr


@pytest.mark.parametrize("verb", ["status", "down"])
def test_addresses_are_not_directories_of_daemons(verb: str) -> None:
    for address in ("outcore://pc1:7171", "outcore+tls://pc1:7171/"):
        result = outcore("pool", verb, address)
        assert result.exit_code == 2
        assert f"'outcore df {address}'" in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (["solve", "none", "b.npy", "-o", "x"], "not_found"),
        (["solve", "A", "b.npy", "-o", "x", "--memory", "99999999999TB"], "invalid"),
        (["plan", "lu", "-n", "10", "--rhs", "-1"], "invalid"),
        (["plan", "matmul", "-n", "10", "-k", "-2"], "invalid"),
        (["info", "none"], "not_found"),
        (["verify", "text"], "not_found"),
        (["report", "text"], "invalid"),
        (["pool", "status", "none"], "not_found"),
        (["pool", "down", "none"], "not_found"),
        (["ls", "s3://bucket"], "invalid"),
        (["serve", "io", "--config", "none"], "not_found"),
        (["serve", "io", "--config", "latin-\udce9"], "invalid"),
        (["mkdir", "text/below"], "not_found"),
        (["convert", "b.npy", "C", "--offset", "8"], "invalid"),
        (["convert", "b.npy", "C", "--source-order", "F"], "invalid"),
        (["convert", "text", "C", "--shape", "2", "--dtype", "nonsense"], "invalid"),
    ],
)
def test_an_error_is_one_document(here: Path, arguments: list[str], kind: str) -> None:
    result = outcore(*arguments, "--json")
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    (found,) = [document["error"]] if "error" in document else document["errors"]
    assert found["kind"] == kind
    assert found["message"] in result.stderr


def test_ctrl_c_is_a_document_too(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(verify, "verify", stopped)
    result = outcore("verify", "A", "--json")
    assert result.exit_code == 130
    assert json.loads(result.stdout) == {
        "verified": [], "errors": [], "error": {"kind": "interrupted", "message": "stopped"}
    }  # fmt: skip
    assert outcore("verify", "A").stdout == ""


def test_the_flag_is_no_flag_after_two_dashes(here: Path) -> None:
    result = outcore("ls", "--", "--json")
    assert (result.exit_code, result.stdout) == (1, "")


def test_mv_makes_no_directories(here: Path) -> None:
    for name in ("text", "A"):
        result = outcore("mv", name, "none/x")
        assert result.exit_code == 1
        assert "there is no directory" in result.stderr
    assert sorted(path.name for path in here.iterdir()) == ["A", "b.npy", "text"]


def test_a_link_to_itself_is_one_clear_error(here: Path) -> None:
    Path("loop").symlink_to("loop")
    result = outcore("cp", "loop", "copy", "--json")
    assert result.exit_code == 1
    (error,) = json.loads(result.stdout)["errors"]
    assert "leads back to itself" in error["message"]
    # With -r, cp copies links as links.
    assert outcore("cp", "-r", "loop", "copy").exit_code == 0
    assert os.readlink("copy") == "loop"
