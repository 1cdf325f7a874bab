"""Several sources in one call: no copy destroys another, and an error does not stop the rest.

For plain files the expected result is that of GNU ``cp`` and ``mv`` on the same tree.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import outcore
from served import Served

import outcore as oc
from outcore.errors import ExistsError, NotFoundError
from outcore.files.copy import copy_files
from outcore.files.move import move_files
from outcore.storage.volumes import AnyPath


def tree(top: Path) -> dict[str, str | None]:
    """Return the tree below a directory without following links; `None` marks a directory."""
    found: dict[str, str | None] = {}
    for path in sorted(top.rglob("*")):
        name = str(path.relative_to(top))
        if path.is_symlink():
            found[name] = f"-> {os.readlink(path)}"
        else:
            found[name] = None if path.is_dir() else path.read_text()
    return found


def make(top: Path) -> None:
    """Create files and links of one base name in several directories, and a target directory."""
    for above in ("a", "b", "c", "d"):
        (top / above).mkdir(parents=True)
    for above in ("a", "b", "c"):
        (top / above / "x").write_text(above)
    (top / "b/only").write_text("only")
    (top / "a/link").symlink_to("x")
    (top / "b/link").symlink_to("../c/x")
    (top / "d/old").write_text("old")


@pytest.mark.parametrize("verb", ["cp", "mv"])
@pytest.mark.parametrize(
    "sources",
    [
        ["a/x", "b/x"],
        ["a/x", "b/x", "b/only", "c/x"],
        ["none", "a/x", "b/x"],
        ["a/x", "a/x"],
        ["a/x", "b/../a/x", "b/only"],
        ["a/link", "b/link"],
        ["b/only", "none", "a/x"],
        ["d/old", "a/x", "b/x"],
    ],
)
def test_plain_files_as_gnu_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str, sources: list[str]
) -> None:
    make(tmp_path / "ours")
    shutil.copytree(tmp_path / "ours", tmp_path / "theirs", symlinks=True)
    monkeypatch.chdir(tmp_path / "theirs")
    theirs = subprocess.run([verb, "-f", *sources, "d"], check=False, stderr=subprocess.DEVNULL)
    monkeypatch.chdir(tmp_path / "ours")
    ours = outcore(verb, "-f", *sources, "d")
    assert tree(tmp_path / "ours") == tree(tmp_path / "theirs")
    assert ours.exit_code == theirs.returncode, ours.stderr


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("verb", ["cp", "mv"])
@pytest.mark.parametrize(("first", "then"), [("", ""), ("", "P"), ("P", ""), ("P", "P")])
def test_the_first_copy_stays(served_here: Served, verb: str, first: str, then: str) -> None:
    """Copy files, directories and arrays of one base name from and to pools."""
    pool = f"{served_here.url}/"
    source, target = (pool if each else "" for each in (first, then))
    with oc.connect(served_here.url) as opened:
        for number, above in enumerate(("one", "two")):
            for where in (Path(above), opened / above):
                oc.from_array(np.full(5, number), where / "A", progress=False).close()
            Path(above, "D").mkdir()
            for name in ("D/f", "x"):
                Path(above, name).write_text(above)
                with opened.open(f"{above}/{name}", "w") as file:
                    file.write(above.encode())
    assert outcore("mkdir", f"{target}d").exit_code == 0
    names = ["x", "D", "A"]
    given = [f"{source}{above}/{name}" for above in ("one", "two") for name in names]
    options = ["-f", "-r"] if verb == "cp" else ["-f"]
    result = outcore(verb, *options, *given, f"{target}d", "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    done = found["copied" if verb == "cp" else "moved"]
    assert [Path(each["target"]).name for each in done] == names
    assert {each["kind"] for each in found["errors"]} == {"exists"}
    assert [each["path"].rsplit("/", 2)[1:] for each in found["errors"]] == [
        ["two", name] for name in names
    ]
    assert outcore("cp", "-r", f"{target}d", "seen").exit_code == 0
    assert Path("seen/x").read_text() == Path("seen/D/f").read_text() == "one"
    with oc.open_array("seen/A") as A:
        assert (A[...] == 0).all()
    # The refused sources still exist.
    assert outcore("ls", f"{source}two").stdout.split() == ["A", "D", "x"]
    assert outcore("ls", f"{source}one").stdout.split() == (sorted(names) if verb == "cp" else [])


def test_patterns_that_overlap_copy_once(served_here: Served) -> None:
    for name in ("xy", "x", "y"):
        Path(name).write_text(name)
    assert outcore("cp", "x", "xy", "y", served_here.url).exit_code == 0
    Path("d").mkdir()
    patterns = [f"{served_here.url}/{each}" for each in ("x*", "*y", "none*", "y")]
    result = outcore("cp", *patterns, "d", "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert sorted(Path(each["source"]).name for each in found["copied"]) == ["x", "xy", "y"]
    assert [each["path"] for each in found["errors"]] == [patterns[2]]
    assert tree(Path("d")) == {"x": "x", "xy": "xy", "y": "y"}


def test_in_a_program(tmp_path: Path) -> None:
    make(tmp_path)
    failures: list[tuple[Any, str]] = []

    def failed(path: AnyPath, error: Exception) -> None:
        failures.append((path, type(error).__name__))

    sources = [tmp_path / name for name in ("none", "a/x", "b/x", "b/only")]
    options: dict[str, Any] = {"if_exists": "overwrite", "progress": False, "failed": failed}
    for call in (copy_files, move_files):
        assert len(call(sources, tmp_path / "d", **options)) == 2
        assert failures == [(sources[0], "NotFoundError"), (sources[2], "ExistsError")]
        failures.clear()
        assert (tmp_path / "d/x").read_text() == "a"
    # Without `failed` the first error is raised.
    with pytest.raises(NotFoundError):
        copy_files([tmp_path / "none", tmp_path / "b/x"], tmp_path / "c", progress=False)
    (tmp_path / "e").mkdir()
    with pytest.raises(ExistsError, match="made by this very call"):
        copy_files([tmp_path / "b/x", tmp_path / "c/x"], tmp_path / "e", progress=False)
    assert (tmp_path / "e/x").read_text() == "b"


def test_a_hard_link_is_not_moved_over_the_other(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("1")
    (tmp_path / "y").hardlink_to(tmp_path / "x")
    theirs = subprocess.run(
        ["mv", "-f", tmp_path / "x", tmp_path / "y"], check=False, stderr=subprocess.DEVNULL
    )
    ours = outcore("mv", "-f", tmp_path / "x", tmp_path / "y")
    assert ours.exit_code == theirs.returncode == 1
    assert "are the same file" in ours.stderr


def test_a_move_to_another_disk_replaces_no_directory(served_here: Served) -> None:
    """A move within one disk refuses it too."""
    Path("f").write_text("1")
    Path("D").mkdir()
    for name in ("f", "D"):
        outcore("mkdir", "-p", f"{served_here.url}/d/{name}/below")
        result = outcore("mv", "-f", name, f"{served_here.url}/d")
        assert result.exit_code == 1
        assert "is a directory and no array" in result.stderr
    assert Path("f").exists()
    assert outcore("ls", f"{served_here.url}/d/f", f"{served_here.url}/d/D").stdout.count("f") == 1


def test_every_verb_tells_what_it_did_and_goes_on(served_here: Served) -> None:
    oc.create_array("A", 4).close()
    Path("f").write_text("1")
    url = served_here.url
    assert outcore("cp", "f", "A", url).exit_code == 0
    verbs = {
        "info": ("entries", ["A", "none", f"{url}/A"]),
        "verify": ("verified", ["A", "none", f"{url}/A"]),
        "stat": ("entries", ["f", "none", f"{url}/f"]),
        "ls": ("entries", ["f", "none", f"{url}/f"]),
        "chmod 600": ("changed", ["f", "none", f"{url}/f"]),
        f"chown {os.getuid()}": ("changed", ["f", "none", f"{url}/f"]),
        "attr list": ("entries", ["f", "none", f"{url}/f"]),
        "mkdir": ("made", ["new", "f", f"{url}/new"]),
        "df": ("places", [".", "none", url]),
        "rm -y": ("removed", ["A", "none", f"{url}/n*", f"{url}/A", f"{url}/f"]),
    }
    for verb, (name, paths) in verbs.items():
        result = outcore(*verb.split(), *paths, "--json")
        assert result.exit_code == 1, verb
        found = json.loads(result.stdout)
        failed = 2 if verb == "rm -y" else 1
        assert len(found["errors"]) == failed, verb
        assert len(found[name]) == len(paths) - failed, verb
        assert "error" not in found


def test_rm_removes_nothing_if_something_is_not_outcores(tmp_path: Path) -> None:
    oc.create_array(tmp_path / "A", 4).close()
    (tmp_path / "mine").write_text("1")
    result = outcore("rm", "-y", tmp_path / "A", tmp_path / "mine", tmp_path / "none", "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert found["removed"] == []
    assert [each["kind"] for each in found["errors"]] == ["invalid", "not_found"]
    assert (tmp_path / "A").exists()


def test_what_was_done_before_ctrl_c_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path)
    run = copy_files.__globals__["CopyJob"].run
    monkeypatch.chdir(tmp_path)

    def stopped(job: Any) -> None:
        if job.target.name == "only":
            raise KeyboardInterrupt
        run(job)

    monkeypatch.setattr("outcore.files.copy.CopyJob.run", stopped)
    result = outcore("cp", "a/x", "none", "b/only", "d", "--json")
    assert result.exit_code == 130
    found = json.loads(result.stdout)
    assert [each["target"] for each in found["copied"]] == [str(tmp_path / "d/x")]
    assert [each["kind"] for each in found["errors"]] == ["not_found"]
    assert found["error"]["kind"] == "interrupted"
