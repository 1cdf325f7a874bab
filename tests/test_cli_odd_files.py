"""The verbs for files, with unusual names, targets and files."""

import json
import os
import stat
from pathlib import Path

import pytest
from command_line import outcore
from served import Served

import outcore as oc
from outcore.cli import rm
from outcore.errors import ExistsError, NotFoundError, OutcoreError
from outcore.files.copy import copy_files
from outcore.files.move import move_files

NOT_UTF8 = os.fsdecode(b"\xff\xfe")


def succeed(*arguments: object) -> str:
    result = outcore(*arguments)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def refusal(*arguments: object) -> str:
    """Return the single line on standard error; the ``--json`` output has the same message."""
    result = outcore(*arguments, "--json")
    assert result.exit_code == 1, (result.stdout, result.stderr)
    assert result.stderr.count("\n") == 1, result.stderr
    document = json.loads(result.stdout)
    (error,) = document.get("errors") or [document["error"]]
    assert "error: " + error["message"] + "\n" == result.stderr
    return result.stderr


@pytest.mark.parametrize("verb", ["cp", "mv"])
def test_a_slash_at_the_end_says_that_it_is_a_directory(served_here: Served, verb: str) -> None:
    Path("file").write_text("1")
    Path("other").write_text("2")
    Path("tree").mkdir()
    for target in (f"{served_here.url}/new/", "new/", "other/"):
        assert "there is no directory" in refusal(verb, "file", target)
    assert Path("file").read_text() == "1"
    assert not Path("new").exists()
    assert succeed("ls", served_here.url) == ""
    assert Path("other").read_text() == "2"
    # The system's own commands do the same.
    options = ["-r"] if verb == "cp" else []
    succeed(verb, *options, "tree", f"{served_here.url}/tree/")
    succeed("mkdir", f"{served_here.url}/there")
    succeed(verb, "file", f"{served_here.url}/there/")
    succeed(verb, "other", f"{served_here.url}/")
    assert succeed("ls", served_here.url) == "other\nthere\ntree\n"
    assert succeed("ls", f"{served_here.url}/there") == "file\n"


def test_in_a_program_too(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for call in (copy_files, move_files):
        with pytest.raises(NotFoundError, match="leave out the slash"):
            call(tmp_path / "file", f"{tmp_path}/new/", progress=False)


def test_what_is_no_file_is_not_replaced(served_here: Served) -> None:
    os.mkfifo("pipe")
    Path("file").write_text("1")
    succeed("cp", "file", f"{served_here.url}/file")
    for verb in ("cp", "mv"):
        for source in ("file", f"{served_here.url}/file"):
            for options in ([], ["-f"]):
                said = refusal(verb, *options, source, "pipe")
                assert "is a device, a socket or the like, which is not replaced" in said
    assert stat.S_ISFIFO(os.stat("pipe").st_mode)
    with pytest.raises(ExistsError, match="not replaced"):
        copy_files("file", "pipe", if_exists="overwrite", progress=False)


def test_an_array_is_no_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening a pipe would wait for a writer."""
    monkeypatch.chdir(tmp_path)
    Path("A").mkdir()
    os.mkfifo("A/zarr.json")
    with pytest.raises(OutcoreError, match="it is a pipe"):
        oc.open_array("A")
    assert "is not an object of outcore" in refusal("info", "A")
    oc.create_array("B", 5, chunks=(5,)).close()
    (shard,) = (each for each in Path("B").rglob("*") if "c" in each.parts and each.is_file())
    shard.unlink()
    os.mkfifo(shard)
    for mode in ("r", "r+"):
        with pytest.raises(OutcoreError, match="it is a pipe"), oc.open_array("B", mode) as B:
            B[...]


def test_files_that_are_made_as_they_are_read_are_not_copied_as_empty(served_here: Served) -> None:
    made = Path("/proc/version")
    if not made.exists() or made.stat().st_size:
        pytest.skip("no such file here")
    assert "more than the 0 bytes" in refusal("cp", made, f"{served_here.url}/version")
    assert "more than the 0 bytes" in refusal("cp", made, "version")
    assert succeed("ls", "-a", served_here.url) == ""
    assert not Path("version").exists()


def test_a_link_is_renamed_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("directory").mkdir()
    for to in ("nowhere", "directory"):
        Path("link").symlink_to(to)
        succeed("mv", "link", "other")
        assert not os.path.lexists("link")
        assert os.readlink("other") == to
        succeed("mv", "other", "directory/")
        assert os.readlink("directory/other") == to
        Path("directory/other").unlink()


def test_names_that_leave_no_room_for_more(served_here: Served) -> None:
    Path("file").write_text("1")
    for name in ("n" * 255, "n" * 246, "ü" * 127):
        succeed("cp", "file", f"{served_here.url}/{name}")
        succeed("cp", f"{served_here.url}/{name}", ".")
        assert Path(name).read_text() == "1"
        succeed("mv", "-f", name, f"{served_here.url}/{name}")
    assert len(succeed("ls", "-a", served_here.url).splitlines()) == 3
    assert "more than 255 bytes" in refusal("cp", "file", f"{served_here.url}/{'n' * 256}")


def test_directories_far_below_one_another(served_here: Served) -> None:
    for depth in (1, 16, 17, 18, 33, 50):
        path = "/".join(["d"] * depth)
        succeed("mkdir", "-p", f"{served_here.url}/{depth}/{path}")
        with oc.connect(served_here.url) as pool:
            assert pool.stat(f"{depth}/{path}").is_directory
            assert pool.ls(f"{depth}/{path}") == []


def test_names_that_are_no_text(served_here: Served) -> None:
    Path("odd").mkdir()
    Path("odd", NOT_UTF8).write_text("1")
    oc.create_array("odd/u", (4,)).close()
    for options in ([], ["-l"], ["-lR"]):
        result = outcore("ls", *options, "odd")
        assert result.exit_code == 0
        assert b"\xff\xfe\n" in result.stdout_bytes
    assert len(json.loads(succeed("ls", "--json", "odd"))["entries"]) == 2
    assert "odd/u" in succeed("info", "odd")
    assert "no UTF-8" in refusal("cp", "-r", "odd", f"{served_here.url}/odd")
    succeed("cp", "-r", "odd", "copy")
    assert Path("copy", NOT_UTF8).read_text() == "1"

    Path("file").write_text("1")
    succeed("cp", "file", served_here.url)
    file = f"{served_here.url}/file"
    assert "UTF-8" in refusal("attr", "set", file, NOT_UTF8, "1")
    assert "UTF-8" in refusal("attr", "get", file, NOT_UTF8)
    assert "UTF-8" in refusal("attr", "rm", file, NOT_UTF8)
    succeed("attr", "set", file, "value", NOT_UTF8)
    assert outcore("attr", "get", file, "value").stdout_bytes == b"\xff\xfe"


def test_a_tree_that_is_removed_by_another_meanwhile(
    served_here: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second remover succeeds, since the tree is gone."""
    with oc.connect(served_here.url) as pool:
        for when in ("sizes are asked for", "it is removed"):
            pool.mkdir("tree/below")
            name = "bytes_on_disk" if when.startswith("sizes") else "place"
            whole = getattr(rm, name)

            def meanwhile(path: object, whole: object = whole) -> object:
                pool.rm("tree", recursive=True)
                return whole(path)  # type: ignore[operator]

            monkeypatch.setattr(f"outcore.cli.rm.{name}", meanwhile)
            succeed("rm", "-ry", f"{served_here.url}/tree")
            monkeypatch.undo()
            monkeypatch.setenv("OUTCORE_KEY", str(served_here.key))
            monkeypatch.chdir(served_here.key.parent)
