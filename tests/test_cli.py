"""The command line: its output, its removals, and its exit codes."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from command_line import outcore
from timeouts import HANG_S

import outcore as oc
from outcore.cli import VERBS
from outcore.errors import InvalidError
from outcore.files import catalog
from outcore.linalg import lu_factor
from outcore.machine import doctor
from outcore.machine.doctor import Examination, Finding
from outcore.storage.volumes import exclusive, place


def document(result: Result) -> Any:
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def make_factor(path: Path, state: str = "complete", **more: object) -> Path:
    """Make an LU factor, with all that the command line reads of one."""
    own = {"kind": "lu", "state": state, "n": 8, "dtype": "float64", "source": "/scratch/Z"} | more
    path.mkdir()
    text = {"zarr_format": 3, "node_type": "group", "attributes": {"outcore": own}}
    (path / "zarr.json").write_text(json.dumps(text))
    for name, shape, dtype in [("lu", (8, 8), "f8"), ("piv", (8,), "i4")]:
        oc.create_array(path / name, shape, dtype).close()
    if state != "complete":
        (path / "journal").write_text("header\nslab\nslab\n")
    return path


def half_made_array(directory: Path) -> Path:
    oc.create_array(directory / "H", (10, 10), "f8").close()
    (directory / "H" / "zarr.json").unlink()
    return directory / "H"


def test_version_and_help() -> None:
    assert outcore("--version").stdout == f"outcore, version {oc.__version__}\n"
    assert "doctor" in outcore("--help").stdout
    for verb in VERBS:
        assert outcore(verb, "-h").exit_code == 0


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["info"], ["rm"], ["doctor", "--nonsense"], ["info", "--", ]]
)  # fmt: skip
def test_a_wrong_command_line_is_2(arguments: list[str]) -> None:
    result = outcore(*arguments)
    assert result.exit_code == 2
    assert "Usage" in result.stderr


def test_an_error_is_1_with_one_line_and_no_traceback(tmp_path: Path) -> None:
    result = outcore("info", tmp_path / "missing")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr == f"error: there is nothing at {tmp_path / 'missing'}; check the path\n"


def test_an_error_with_json_is_a_document_too(tmp_path: Path) -> None:
    result = outcore("info", tmp_path / "missing", "--json")
    assert result.exit_code == 1
    (error,) = json.loads(result.stdout)["errors"]
    assert error["kind"] == "not_found"
    assert result.stderr == f"error: {error['message']}\n"


def test_an_error_of_the_system_is_1_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    monkeypatch.setattr(catalog, "recognise", fail)
    result = outcore("info", "x")
    assert (result.exit_code, result.stderr) == (1, "error: x: Input/output error\n")


@pytest.mark.parametrize(
    ("stop", "said"),
    [
        (KeyboardInterrupt(), "stopped\n"),
        (oc.errors.Interrupted("call again to resume"), "stopped: call again to resume\n"),
    ],
)
def test_ctrl_c_is_130(monkeypatch: pytest.MonkeyPatch, stop: BaseException, said: str) -> None:
    def fail(path: Path) -> None:
        raise stop

    monkeypatch.setattr(catalog, "recognise", fail)
    result = outcore("info", "x")
    assert (result.exit_code, result.stderr) == (130, said)


def test_info_of_an_array(tmp_path: Path) -> None:
    array = oc.create_array(
        tmp_path / "Z", (30, 20), "c16", order="F", dims=("t", "x"), attributes={"unit": "Pa"}
    )
    text = outcore("info", tmp_path / "Z").stdout
    assert f"array        {tmp_path / 'Z'}\n" in text
    assert "30 x 20" in text
    assert "t, x" in text
    assert "state        whole\n" in text
    found = document(outcore("info", tmp_path / "Z", "--json"))
    (entry,) = found["entries"]
    assert found["complete"]
    assert entry["details"]["attributes"] == {"unit": "Pa"}
    assert entry["details"]["nbytes"] == array.nbytes
    assert (entry["kind"], entry["state"]) == ("array", "whole")


@pytest.mark.parametrize("state", ["incomplete", "consumed"])
def test_info_opens_arrays_that_cannot_be_used(tmp_path: Path, state: str) -> None:
    with oc.create_array(tmp_path / "Z", (3, 2)) as array:
        array.mark(state, "a reason")
    (entry,) = document(outcore("info", tmp_path / "Z", "--json"))["entries"]
    assert (entry["state"], entry["text"]) == (state, "a reason")
    assert entry["details"]["shape"] == [3, 2]


def test_info_of_real_factors(tmp_path: Path) -> None:
    matrix = oc.create_array(
        tmp_path / "Z", (40, 40), order="F", fill=lambda i, j: np.eye(40)[i, j], progress=False
    )
    lu_factor(matrix, memory="8 MiB", progress=False)
    (entry,) = document(outcore("info", tmp_path / "Z.lu", "--json"))["entries"]
    assert (entry["kind"], entry["state"], entry["details"]["n"]) == ("factor", "whole", 40)
    lines = outcore("info", tmp_path / "Z.lu").stdout.splitlines()
    assert ["n", "40"] in [line.split() for line in lines]
    assert outcore("rm", "-y", tmp_path / "Z.lu").exit_code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["Z"]


def test_info_of_a_stopped_factorization_in_place_says_what_is_at_stake(tmp_path: Path) -> None:
    make_factor(tmp_path / "Z.lu", "incomplete", overwrite_a=True)
    (entry,) = document(outcore("info", tmp_path / "Z.lu", "--json"))["entries"]
    assert "the only copy of the rest of the matrix is in here" in entry["text"]


def test_info_of_a_stopped_assembly_says_how_to_go_on(tmp_path: Path) -> None:
    def fill(*box: slice) -> np.ndarray[Any, Any]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        oc.create_array(tmp_path / "Z", (8, 8), fill=fill, progress=False)
    (entry,) = document(outcore("info", tmp_path, "--json"))["entries"]
    assert entry["state"] == "incomplete"
    assert "call create_array again" in entry["text"]


def test_info_of_damaged_arrays(tmp_path: Path) -> None:
    for name in ("cut", "garbled", "unreadable"):
        oc.create_array(tmp_path / name, (300, 200)).close()
    os.truncate(tmp_path / "cut" / "c" / "0" / "0", 100)
    (tmp_path / "garbled" / "zarr.json").write_text("{")
    metadata = (tmp_path / "unreadable" / "zarr.json").read_text()
    (tmp_path / "unreadable" / "zarr.json").write_text(metadata.replace('"shape"', '"form"', 1))
    found = document(outcore("info", tmp_path, "--json"))["entries"]
    assert [entry["state"] for entry in found] == ["damaged"] * 3
    assert all(entry["text"] for entry in found)


def test_info_of_a_directory(tmp_path: Path) -> None:
    oc.create_group(tmp_path / "G")
    oc.create_array(tmp_path / "G" / "u", 5).close()
    oc.create_array(tmp_path / "deep" / "down" / "Z", (4, 4)).close()
    make_factor(tmp_path / "Z.lu")
    make_factor(tmp_path / "Y.lu", "incomplete")
    (tmp_path / "Z.lu" / "journal").write_text("header\n")
    half_made_array(tmp_path)
    (tmp_path / ".X.filling").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    found = document(outcore("info", tmp_path, "--json"))["entries"]
    names = {Path(entry["path"]).relative_to(tmp_path).as_posix(): entry for entry in found}
    assert {name: (entry["kind"], entry["state"]) for name, entry in names.items()} == {
        "G": ("group", "whole"),
        "G/u": ("array", "whole"),
        "deep/down/Z": ("array", "whole"),
        "Z.lu": ("factor", "whole"),
        "Y.lu": ("factor", "incomplete"),
        "H": ("left-over", "incomplete"),
        ".X.filling": ("left-over", "incomplete"),
    }
    assert "call lu_factor with the same arguments to resume (2 slabs" in names["Y.lu"]["text"]
    assert names["Z.lu"]["details"]["n"] == 8
    text = outcore("info", tmp_path).stdout
    assert len(text.splitlines()) == len(names)
    assert "8 x 8 float64" in text


def test_info_of_a_group_tells_of_its_arrays(tmp_path: Path) -> None:
    oc.create_group(tmp_path / "G")
    oc.create_array(tmp_path / "G" / "u", 5).close()
    found = document(outcore("info", tmp_path / "G", "--json"))["entries"]
    assert [entry["kind"] for entry in found] == ["group", "array"]


def test_info_of_an_empty_directory(tmp_path: Path) -> None:
    assert "has no objects of outcore" in outcore("info", tmp_path).stdout
    assert document(outcore("info", tmp_path, "--json"))["entries"] == []


def test_info_stops_in_a_very_large_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "MOST_DIRECTORIES", 3)
    for number in range(5):
        (tmp_path / str(number)).mkdir()
    assert not document(outcore("info", tmp_path, "--json"))["complete"]
    assert "name a part of it" in outcore("info", tmp_path).stderr


def test_info_follows_no_links(tmp_path: Path) -> None:
    oc.create_array(tmp_path / "Z", 3).close()
    (tmp_path / "D").mkdir()
    (tmp_path / "D" / "link").symlink_to(tmp_path / "Z")
    (tmp_path / "D" / "loop").symlink_to(tmp_path / "D")
    assert document(outcore("info", tmp_path / "D", "--json"))["entries"] == []


def test_info_of_a_link_says_what_to_name(tmp_path: Path) -> None:
    oc.create_array(tmp_path / "Z", 3).close()
    (tmp_path / "link").symlink_to(tmp_path / "Z")
    result = outcore("info", tmp_path / "link")
    assert result.exit_code == 1
    assert f"is a link to {tmp_path / 'Z'}, and links are not followed" in result.stderr


@pytest.mark.parametrize("own", ["[1]", '"text"', '{"outcore": {"kind": [1]}}', '{"outcore": 3}'])
@pytest.mark.parametrize("node", ["array", "group"])
def test_info_of_a_directory_goes_on_behind_odd_metadata(
    tmp_path: Path, own: str, node: str
) -> None:
    oc.create_array(tmp_path / "Z", 3).close()
    (tmp_path / "odd").mkdir()
    text = f'{{"zarr_format": 3, "node_type": "{node}", "attributes": {own}}}'
    (tmp_path / "odd" / "zarr.json").write_text(text)
    entries = document(outcore("info", tmp_path, "--json"))["entries"]
    assert (str(tmp_path / "Z"), "whole") in [(each["path"], each["state"]) for each in entries]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: oc.create_group(path), "is a group, need an array; name one that is in it"),
        (make_factor, "holds factors, need an array; open them with oc.linalg.open_factor"),
    ],
)
def test_what_is_no_array_is_said_to_be_what_it_is(
    tmp_path: Path, make: Callable[[Path], Any], said: str
) -> None:
    make(tmp_path / "G")
    result = outcore("verify", tmp_path / "G")
    assert result.exit_code == 1
    assert said in result.stderr
    with pytest.raises(InvalidError, match=said):
        oc.open_array(tmp_path / "G")


def test_info_refuses_what_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "zarr.json").write_text('{"zarr_format": 3, "node_type": "array"}')
    for name in ("file", "foreign"):
        result = outcore("info", tmp_path / name)
        assert result.exit_code == 1
        assert "not an object of outcore" in result.stderr


@pytest.mark.parametrize(
    "make",
    [
        lambda directory: oc.create_array(directory / "Z", (3, 2)).path,
        lambda directory: make_factor(directory / "Z.lu"),
        lambda directory: make_factor(directory / "Z.lu", "incomplete"),
        half_made_array,
        lambda directory: oc.create_group(directory / "G"),
    ],
    ids=["array", "factor", "stopped factor", "half-made array", "group"],
)
def test_rm_removes_what_is_ours(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    path = make(tmp_path)
    (tmp_path / "other").write_text("mine")
    (removed,) = document(outcore("rm", path, "--yes", "--json"))["removed"]
    assert removed["path"] == str(path)
    assert [left.name for left in tmp_path.iterdir()] == ["other"]


def test_rm_removes_a_group_with_its_arrays_and_says_so_once(tmp_path: Path) -> None:
    oc.create_group(tmp_path / "G")
    oc.create_array(tmp_path / "G" / "u", 5).close()
    result = outcore("rm", "-y", tmp_path / "G", tmp_path / "G" / "u")
    assert result.exit_code == 0
    assert f"removed group {tmp_path / 'G'}\n" in result.stdout
    assert list(tmp_path.iterdir()) == []


def test_rm_takes_the_lock_of_a_killed_assembly_along(tmp_path: Path) -> None:
    oc.create_array(tmp_path / "Z", 5).close()
    (tmp_path / ".Z.filling").mkdir()
    (tmp_path / ".Z.filling" / "lock").touch()
    assert len(document(outcore("info", tmp_path, "--json"))["entries"]) == 1
    assert outcore("rm", "-y", tmp_path / "Z").exit_code == 0
    assert list(tmp_path.iterdir()) == []


def _foreign_file(directory: Path) -> Path:
    (directory / "x").write_text("mine")
    return directory / "x"


def _foreign_directory(directory: Path) -> Path:
    (directory / "x" / "c").mkdir(parents=True)
    (directory / "x" / "c" / "code.c").write_text("mine")
    return directory / "x"


def _foreign_zarr(directory: Path) -> Path:
    (directory / "x").mkdir()
    (directory / "x" / "zarr.json").write_text('{"zarr_format": 3, "node_type": "array"}')
    return directory / "x"


def _link(directory: Path) -> Path:
    oc.create_array(directory / "Z", 5).close()
    (directory / "x").symlink_to(directory / "Z")
    return directory / "x"


def _mixed_group(directory: Path) -> Path:
    oc.create_group(directory / "x")
    (directory / "x" / "notes.txt").write_text("mine")
    return directory / "x"


def _needed_journal(directory: Path) -> Path:
    return make_factor(directory / "x.lu", "incomplete") / "journal"


def _empty(directory: Path) -> Path:
    (directory / "x").mkdir()
    return directory / "x"


@pytest.mark.parametrize(
    "make",
    [
        _foreign_file,
        _foreign_directory,
        _foreign_zarr,
        _link,
        _mixed_group,
        _needed_journal,
        _empty,
        lambda directory: Path("/"),
    ],
)
def test_rm_refuses_what_is_not_ours_and_then_removes_nothing(
    tmp_path: Path, make: Callable[[Path], Path]
) -> None:
    path = make(tmp_path)
    good = oc.create_array(tmp_path / "good", 5).path
    result = outcore("rm", "--yes", good, path)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert os.path.lexists(path)
    assert good.exists()


def test_rm_removes_a_left_over_journal_alone(tmp_path: Path) -> None:
    factor = make_factor(tmp_path / "Z.lu")
    (factor / "journal").write_text("header\n")
    assert outcore("rm", "-y", factor / "journal").exit_code == 0
    assert sorted(path.name for path in factor.iterdir()) == ["lu", "piv", "zarr.json"]


@pytest.mark.parametrize("kind", ["factor", "array"])
def test_rm_refuses_what_is_being_made(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "Z.lu"
    if kind == "factor":
        make_factor(path, "incomplete")
    else:
        oc.create_array(path, 5).close()
    with exclusive(place(path if kind == "factor" else tmp_path / ".Z.lu.filling"), "testing"):
        result = outcore("rm", "-y", path)
        assert result.exit_code == 1
        assert "is being made by another process or call" in result.stderr
        assert [e["state"] for e in document(outcore("info", path, "--json"))["entries"]] == [
            "in use"
        ]
    assert outcore("rm", "-y", path).exit_code == 0


def test_rm_asks_where_there_is_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = oc.create_array(tmp_path / "Z", 5).path
    result = outcore("rm", path)
    assert result.exit_code == 2
    assert "pass --yes" in result.stderr
    monkeypatch.setattr("outcore.cli.rm._is_terminal", lambda: True)
    for typed, code in [("n\n", 1), ("\n", 1), ("", 130)]:
        assert outcore("rm", path, typed=typed).exit_code == code
        assert path.exists()
    result = outcore("rm", path, typed="y\n")
    assert f"array {path} (" in result.stderr
    assert result.stdout == f"removed array {path}\n"
    assert not path.exists()


def test_find_and_remove_agree_on_what_is_ours(tmp_path: Path) -> None:
    _mixed_group(tmp_path)
    (entry,), _ = catalog.find(tmp_path)
    with pytest.raises(InvalidError, match=r"notes\.txt"):
        catalog.remove(entry)


def test_verify_reads_through_and_compares(tmp_path: Path) -> None:
    with oc.create_array(tmp_path / "Z", (300, 300)) as array:
        array[...] = 1
    assert "no checksums" in outcore("verify", tmp_path / "Z").stdout
    assert "recorded" in outcore("verify", "--record", tmp_path / "Z").stdout
    (found,) = document(outcore("verify", "--json", tmp_path / "Z"))["verified"]
    assert (found["checksums"], found["bytes"]) == ("matched", 720_000)
    with open(tmp_path / "Z" / "c" / "0" / "0", "r+b") as shard:
        shard.write(b"x")
    result = outcore("verify", tmp_path / "Z")
    assert result.exit_code == 1
    assert "CRC-32C" in result.stderr


def test_what_a_killed_rm_leaves_can_be_removed(tmp_path: Path) -> None:
    for name in ("A", "B", "C"):
        oc.create_array(tmp_path / name, 5).close()
    (tmp_path / "A" / "zarr.json").unlink()
    shutil.rmtree(tmp_path / "B" / "c")
    (tmp_path / "C" / "zarr.json").rename(tmp_path / "C" / "zarr.json.7.new")
    shutil.rmtree(tmp_path / "C" / "c")
    assert outcore("rm", "-y", *tmp_path.iterdir()).exit_code == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("level", "code"), [("ok", 0), ("note", 0), ("warn", 0), ("fail", 1)])
def test_doctor_fails_only_on_failures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: doctor.Level, code: int
) -> None:
    finding = Finding("disk", level, "so and so", "" if level == "ok" else "do this")
    monkeypatch.setattr(
        "outcore.cli.doctor.examine", lambda directory: Examination("/x", [finding], None)
    )
    result = outcore("doctor", tmp_path)
    assert result.exit_code == code
    assert "so and so" in result.stdout
    result = outcore("doctor", tmp_path, "--json")
    assert result.exit_code == code
    assert json.loads(result.stdout) == {
        "ok": code == 0,
        "directory": "/x",
        "findings": [asdict(finding)],
        "rates": None,
    }


def test_the_command_itself(tmp_path: Path) -> None:
    oc.create_array(tmp_path / "Z", 5).close()
    command = [sys.executable, "-W", "error", "-c", "from outcore.cli import main; main()"]
    found = subprocess.run(
        [*command, "info", ".", "--json"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert json.loads(found.stdout)["entries"][0]["path"] == str(tmp_path / "Z")
    assert found.stderr == ""
    failed = subprocess.run(
        [*command, "rm", "nothing"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert failed.returncode == 1
    assert failed.stderr.startswith("error: there is nothing at ")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_doctor_cleanly(
    tmp_path: Path, run_python: Callable[..., subprocess.Popen[str]], number: int
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    script = (
        "import functools, outcore.machine.doctor as d, outcore.cli.doctor as c\n"
        "import outcore.machine.disk_rates as r\n"
        "from outcore.cli import main\n"
        "c.examine = functools.partial(d.examine, seconds=60)\n"
        "passes = r._passes\n"
        "def measure(*given):\n"
        "    print('measuring', flush=True)\n"
        "    return passes(*given)\n"
        "r._passes = measure\n"
        "main(['doctor', 'scratch'])\n"
    )
    process = run_python(script)
    assert process.stdout is not None
    assert process.stdout.readline() == "measuring\n"
    process.send_signal(number)
    _, said = process.communicate(timeout=HANG_S)
    assert process.returncode == 130
    assert said.startswith("stopped")
    assert "Traceback" not in said
    assert list(scratch.iterdir()) == []
