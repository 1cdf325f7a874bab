"""``outcore solve``: from files to a file, and its messages."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from click.testing import Result
from command_line import outcore
from linpack import on_disk, random_matrix
from stopping import after_notes, fill_up, interrupt
from timeouts import HANG_S

import outcore as oc
from outcore.linalg import lu_factor, open_factor
from outcore.report.report import Report

N, MEMORY = 300, "400KB"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a matrix and right-hand sides."""
    monkeypatch.chdir(tmp_path)
    on_disk(tmp_path / "A", random_matrix(N, "f8"))
    b = np.random.default_rng(5).standard_normal((N, 2))
    np.save("b.npy", b)
    oc.from_array(b, tmp_path / "B", order="F", progress=False).close()
    return tmp_path


def solved(*arguments: object, memory: str = MEMORY) -> Result:
    result = outcore("solve", *arguments, "--memory", memory)
    assert result.exit_code == 0, result.output
    return result


def expected() -> Any:
    return scipy.linalg.solve(random_matrix(N, "f8"), np.load("b.npy"))


def close(x: Any) -> bool:
    return np.allclose(x, expected(), rtol=1e-9, atol=1e-9)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.mark.parametrize("b", ["b.npy", "B"])
@pytest.mark.parametrize("x", ["x.npy", "X"])
def test_right_hand_sides_and_solutions_in_files_or_arrays(b: str, x: str, here: Path) -> None:
    said = solved("A", b, "-o", x).stdout
    assert close(np.load(x) if x == "x.npy" else oc.open_array(x)[...])
    plan, report = said.split("\n", 1)
    assert plan.startswith("plan: about ")
    assert f"of disk in {here}" in plan
    assert report.startswith(f"solve, n = {N}, float64\n")
    assert "backward error" in report
    assert report.endswith(f"x is in {x}\n")
    assert names(here) == sorted(["A", "B", "b.npy", x]), "the factors are gone"


def test_one_right_hand_side() -> None:
    np.save("one.npy", np.load("b.npy")[:, 0])
    solved("A", "one.npy", "-o", "x.npy")
    x = np.load("x.npy")
    assert x.shape == (N,)
    assert np.allclose(x, expected()[:, 0], rtol=1e-9, atol=1e-9)


def test_json_has_plan_and_report() -> None:
    found = json.loads(solved("A", "b.npy", "-o", "x.npy", "--json").stdout)
    assert found["x"] == "x.npy"
    assert found["plan"]["n"] == found["report"]["n"] == N
    assert found["plan"]["bytes_written"] == found["report"]["planned_bytes_written"]
    assert found["report"]["backward_error"] < 1e-13


def test_the_plan_is_for_the_matrix_as_it_lies() -> None:
    a = random_matrix(N, "f8")
    oc.from_array(a @ a.T + N * np.eye(N), "R", order="C", chunks=(16, N), progress=False).close()
    for more in ([], ["--assume-a", "pos"]):
        said = solved("R", "b.npy", "-o", "x.npy", "--overwrite", "--json", *more).stdout
        found = json.loads(said)
        words = ("bytes_read", "bytes_written")
        assert [found["plan"][name] for name in words] == [
            found["report"][f"planned_{name}"] for name in words
        ]


def test_the_report_is_saved_with_its_timeline() -> None:
    said = solved("A", "b.npy", "-o", "x.npy", "--report", "run.report").stdout
    found = Report.load("run.report")
    assert str(found) in said
    assert found.spans is not None
    assert len(found.spans) > 100
    assert outcore("report", "run.report", "-o", "page.html").exit_code == 0


def test_a_trace_shows_the_call_and_the_report_links_it(here: Path) -> None:
    for _ in range(2):  # The second trace replaces the first.
        solved("A", "b.npy", "-o", "x.npy", "--overwrite", "--report", "r", "--trace", "run.json")
    document = json.loads(Path("run.json").read_text())
    spans = [each for each in document["traceEvents"] if each["ph"] == "X"]
    names = {each["name"] for each in spans}
    assert {"LU of A", "solving with A.lu", "read", "write"} <= names
    assert Report.load("r").trace == str(here / "run.json")
    assert outcore("report", "r", "-o", "page.html").exit_code == 0
    assert '<a href="run.json">run.json</a>' in Path("page.html").read_text()


def test_x_is_in_its_file_where_the_trace_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: object) -> None:
        raise oc.errors.DiskFullError("the disk is full; remove files")

    monkeypatch.setattr("outcore.report.chrome_trace.report_file.replace", full)
    result = outcore("solve", "A", "b.npy", "-o", "x.npy", "--trace", "t", "--memory", MEMORY)
    assert (result.exit_code, result.stderr.count("the disk is full")) == (1, 1)
    assert close(np.load("x.npy"))


def test_factors_stay_where_they_are_asked_for(here: Path) -> None:
    solved("A", "b.npy", "-o", "x.npy", "--factors", "F", "--keep-factors")
    factor = open_factor("F")
    assert np.array_equal(factor.piv, scipy.linalg.lu_factor(random_matrix(N, "f8"))[1])
    said = solved("A", "B", "-o", "X", "--factors", "F").stdout
    assert f"used the factors in {here / 'F'}" in said
    assert close(oc.open_array("X")[...])


def test_the_condition_number_is_told_when_asked_for() -> None:
    assert "  condition " not in solved("A", "b.npy", "-o", "x.npy").stdout
    said = solved("A", "b.npy", "-o", "x.npy", "--overwrite", "--condition", "--json").stdout
    truth = np.linalg.cond(random_matrix(N, "f8"), 1)
    assert truth / 3 <= json.loads(said)["report"]["condition"] <= truth * (1 + 1e-9)


def test_options_reach_the_solver() -> None:
    a = random_matrix(N, "f8")
    on_disk(Path("P").absolute(), a @ a.T + N * np.eye(N))
    for given, method in (
        (["--assume-a", "pos"], "Cholesky"),
        (["--assume-a", "auto"], "Cholesky"),
        (["--factor-dtype", "f4"], "LU in float32"),
    ):
        said = solved("P", "b.npy", "-o", "x.npy", "--overwrite", "--threads", 1, *given).stdout
        assert method in said
        assert ", 1 thread\n" in said
        x = np.load("x.npy")
        assert np.allclose((a @ a.T + N * np.eye(N)) @ x, np.load("b.npy"), atol=1e-9)


def test_overwrite_a_gives_up_the_matrix() -> None:
    solved("A", "b.npy", "-o", "x.npy", "--overwrite-a", memory="4MB")
    assert close(np.load("x.npy"))
    result = outcore("solve", "A", "b.npy", "-o", "y.npy")
    assert result.exit_code == 1
    assert "overwrite_a" in result.stderr


def test_where_x_finds_no_room_the_same_command_goes_on(here: Path, small_disk: Path) -> None:
    """The factors of a consumed matrix stay until x is in its file."""
    on_disk(here / "L", random_matrix(1000, "f8"))
    b = random_matrix(1000, "f8", 3)[:, :200]
    np.save("l.npy", b)
    fill_up(small_disk / "filler")
    command = [
        "solve",
        "L",
        "l.npy",
        "-o",
        small_disk / "x.npy",
        "--overwrite-a",
        "--memory",
        "8MB",
    ]
    result = outcore(*command)
    assert result.exit_code == 1
    assert "free" in result.stderr
    assert not (small_disk / "x.npy").exists()
    (small_disk / "filler").unlink()
    again = outcore(*command)
    assert again.exit_code == 0, again.output
    assert "used the factors in" in again.stdout
    assert np.allclose(random_matrix(1000, "f8") @ np.load(small_disk / "x.npy"), b, atol=1e-8)
    assert not (here / "L.lu").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-o", "d.npy"], "d.npy exists and is no file"),
        (["-o", "d.npy", "--overwrite"], "d.npy exists and is no file"),
        (["-o", "X", "--report", "D"], "D is a directory"),
        (["-o", "X", "--report", "X"], "is the output in X"),
        (["-o", "y.npy", "--report", "y.npy"], "is the output in y.npy"),
        (["-o", "X", "--report", "b.npy"], "is B in b.npy"),
        (["-o", "X", "--report", "A/report"], "A in A"),
        (["-o", "X", "--report", "mine"], "mine exists and is no report"),
        (["-o", "X", "--report", "pipe"], "pipe is a device, pipe or socket"),
        (["-o", "X", "--trace", "D"], "D is a directory; name a file for the trace"),
        (["-o", "X", "--trace", "none/t"], "there is no directory none; make it first"),
        (["-o", "X", "--trace", "pipe"], "pipe is a device, pipe or socket; name a file for the t"),
        (["-o", "X", "--trace", "mine"], "mine exists and is no trace; choose another name"),
        (["-o", "X", "--trace", "b.npy"], "is B in b.npy"),
        (["-o", "X", "--trace", "A/trace"], "A in A"),
        (["-o", "X", "--trace", "r", "--report", "r"], "the trace in r is the report in r"),
        (["-o", "X", "--trace", "locked/t"], "locked is not writable; choose another name"),
    ],
)
def test_places_are_looked_at_before_any_work(
    arguments: list[str], said: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed = os.access
    # Root may write everywhere.
    monkeypatch.setattr(
        os, "access", lambda path, mode: Path(path).name != "locked" and allowed(path, mode)
    )
    Path("locked").mkdir()
    Path("d.npy").mkdir()
    Path("D").mkdir()
    os.mkfifo("pipe")
    Path("mine").write_text("text")
    before = names(here)
    result = outcore("solve", "A", "b.npy", *arguments, "--memory", MEMORY)
    assert (result.exit_code, result.stdout) == (1, "")
    assert said in result.stderr
    assert names(here) == before
    assert Path("mine").read_text() == "text"
    assert np.load("b.npy").shape == (N, 2)


def test_a_report_takes_the_place_of_one(here: Path) -> None:
    for out in ("X", "Y"):
        solved("A", "b.npy", "-o", out, "--report", "r")
    assert Report.load("r").spans is not None


def test_what_is_there_is_overwritten_only_when_asked(here: Path) -> None:
    Path("x.npy").write_text("mine")
    result = outcore("solve", "A", "b.npy", "-o", "x.npy")
    assert (result.exit_code, Path("x.npy").read_text()) == (1, "mine")
    assert result.stderr == "error: x.npy exists; choose another name, or pass --overwrite\n"
    assert result.stdout == "", "before any work"
    solved("A", "b.npy", "-o", "x.npy", "--overwrite")
    assert close(np.load("x.npy"))
    solved("A", "b.npy", "-o", "X")
    result = outcore("solve", "A", "b.npy", "-o", "X")
    assert result.exit_code == 1
    assert "exists" in result.stderr
    solved("A", "b.npy", "-o", "X", "--overwrite")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["A", "none.npy", "-o", "x.npy"], "there is no file none.npy"),
        (["A", "none", "-o", "x.npy"], "there is no array at"),
        (["none", "b.npy", "-o", "x.npy"], "there is no array at"),
        (["A", "b.npy", "-o", "none/x.npy"], "there is no directory"),
        (["A", "text.npy", "-o", "x.npy"], "cannot be read as a .npy file"),
        (["A", "short.npy", "-o", "x.npy"], "need a right-hand side of shape (300,)"),
        (["A", "nan.npy", "-o", "x.npy"], "NaN"),
        (["A", "b.npy", "-o", "x.npy", "--memory", "1KB"], "need"),
        (["A", "b.npy", "-o", "x.npy", "--factor-dtype", "c8"], "cannot refine"),
        (["A", "b.npy", "-o", "x.npy", "--factors", "A"], "is the matrix itself"),
        (["B", "b.npy", "-o", "x.npy"], "need a square matrix"),
    ],
)
def test_what_cannot_be_solved_is_refused(arguments: list[str], said: str, here: Path) -> None:
    Path("text.npy").write_text("text")
    np.save("short.npy", np.ones(7))
    np.save("nan.npy", np.full(N, np.nan))
    before = names(here)
    result = outcore("solve", *arguments)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
    assert said in result.stderr
    assert names(here) == before, "nothing is left"


def test_a_singular_matrix_is_an_error(here: Path) -> None:
    on_disk(here / "S", np.ones((N, N)))
    result = outcore("solve", "S", "b.npy", "-o", "x.npy", "--memory", MEMORY, "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["error"]["kind"] == "singular"
    assert not Path("x.npy").exists()


def test_the_plan_does_not_stand_in_the_way(here: Path) -> None:
    """With complete factors, less memory suffices than for a factorization."""
    lu_factor("A", memory="4MB", progress=False)
    tile = open_factor("A.lu").tile
    np.save("one.npy", np.ones(N))
    memory = 3 * tile[0] * tile[1] * 8 + 200_000
    result = outcore("solve", "A", "one.npy", "-o", "x.npy", "--memory", memory)
    assert result.exit_code == 0, result.output


def test_a_stopped_command_goes_on() -> None:
    command = ["solve", "A", "b.npy", "-o", "x.npy", "--memory", MEMORY]
    with after_notes(2, interrupt):
        result = outcore(*command)
    assert result.exit_code == 130
    assert "stopped: solving with A; run the same command again to resume" in result.stderr
    assert not Path("x.npy").exists()
    again = outcore(*command)
    assert again.exit_code == 0, again.output
    assert "resumed at panel" in again.stdout
    assert close(np.load("x.npy"))


def test_a_stopped_command_goes_on_with_overwrite_too() -> None:
    command = ["solve", "A", "b.npy", "-o", "X", "--memory", MEMORY, "--overwrite"]
    with after_notes(2, interrupt):
        assert outcore(*command).exit_code == 130
    again = outcore(*command)
    assert "resumed at panel" in again.stdout
    assert close(oc.open_array("X")[...])


def test_ctrl_c_in_another_process(here: Path) -> None:
    """Send the signal as a terminal does, during the factorization."""
    n = 1500
    rng = np.random.default_rng(1)
    oc.from_array(rng.standard_normal((n, n)), here / "L", order="F", progress=False).close()
    np.save("c.npy", np.ones(n))
    code = "from outcore.cli import main; main()"
    command = [sys.executable, "-c", code, "solve", "L", "c.npy", "-o", "y.npy", "--memory", "2MB"]
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    journal = here / "L.lu/journal"
    deadline = time.monotonic() + HANG_S
    while not (journal.exists() and journal.read_text().count("\n") > 2):
        assert time.monotonic() < deadline
        assert running.poll() is None
        time.sleep(0.005)
    os.kill(running.pid, signal.SIGINT)
    _, said = running.communicate(timeout=HANG_S)
    if running.returncode == 0:
        pytest.skip("it was done before the signal came")
    assert running.returncode == 130
    assert said.endswith("stopped: solving with L; run the same command again to resume\n")
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "resumed at panel" in done.stdout
    residual = oc.open_array("L")[...] @ np.load("y.npy") - 1
    assert np.abs(residual).max() < 1e-8
