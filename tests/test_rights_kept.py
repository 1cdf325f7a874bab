"""A replacement of a file keeps its mode, its group and, where allowed, its owner.

GNU ``cp`` and NumPy write into the existing file, which keeps all three.
"""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import outcore
from served import Served

import outcore as oc
from outcore.array_files.metadata import read_metadata, write_metadata
from outcore.files.copy import copy_files
from outcore.storage.modes import current_umask
from outcore.storage.volumes import AnyPath, place

MODES = [0o600, 0o640, 0o400, 0o666]


def rights(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_mode & 0o7777, found.st_uid, found.st_gid


def set_rights(path: Path, mode: int) -> tuple[int, int, int]:
    os.chmod(path, mode)
    if os.geteuid() == 0:
        os.chown(path, 1234, 56)
    return rights(path)


def exported(name: str) -> Callable[[Path], Any]:
    return lambda top: oc.export_array(
        np.ones(4), top / name, format="raw" if name == "raw" else None, if_exists="overwrite",
        progress=False,
    )  # fmt: skip


def reported(top: Path) -> None:
    with oc.from_array(np.eye(3), top / "M", if_exists="overwrite", progress=False) as M:
        oc.linalg.gram(M, progress=False)[1].save(top / "report")


def drawn(top: Path) -> None:
    reported(top)
    result = outcore("report", top / "report", "-o", top / "page.html")
    assert result.exit_code == 0, result.stderr


def solved(top: Path) -> None:
    oc.from_array(2 * np.eye(3), top / "A", if_exists="overwrite", progress=False).close()
    np.save(top / "b.npy", np.ones(3))
    result = outcore("solve", top / "A", top / "b.npy", "-o", top / "x.npy", "--overwrite")
    assert result.exit_code == 0, result.stderr


def metadata_written(path: AnyPath) -> None:
    if not path.exists():
        oc.create_array(path, 4).close()
    write_metadata(place(path), read_metadata(place(path)))
    with oc.open_array(path, "r+") as A:
        A[0] = 1
    oc.verify(path, record=True, progress=False)


METADATA = ["A/zarr.json", "A/outcore.generation", "A/outcore.checksums"]

WRITERS: dict[str, Callable[[Path], Any]] = {
    "a.npy": exported("a.npy"), "raw": exported("raw"), "a.h5": exported("a.h5"),
    "report": reported, "page.html": drawn, "x.npy": solved,
    **{name: lambda top: metadata_written(top / "A") for name in METADATA},
}  # fmt: skip


@pytest.mark.parametrize("name", WRITERS)
def test_plain_files(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path)
    for mode in MODES:
        expected = set_rights(tmp_path / name, mode)
        WRITERS[name](tmp_path)
        assert rights(tmp_path / name) == expected
    assert not [path for path in tmp_path.rglob("*") if path.name.endswith((".new", ".part"))]


def test_the_content_is_not_readable_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x.npy").touch()
    os.chmod(tmp_path / "x.npy", 0o600)
    seen = []

    def look(*_: object, **__: object) -> None:
        seen.extend(path.stat().st_mode & 0o077 for path in tmp_path.glob(".*.part"))

    monkeypatch.setattr("outcore.convert.export.copy_blocks", look)
    exported("x.npy")(tmp_path)
    assert seen == [0]


def test_zarr_arrays(tmp_path: Path) -> None:
    exported("a.zarr")(tmp_path)
    expected = set_rights(tmp_path / "a.zarr", 0o750)
    exported("a.zarr")(tmp_path)
    assert rights(tmp_path / "a.zarr") == expected
    # A new directory does not inherit the rights of a file.
    (tmp_path / "file").touch()
    oc.export_array(
        np.ones(4), tmp_path / "file", format="zarr", if_exists="overwrite", progress=False
    )
    assert rights(tmp_path / "file")[0] == 0o777 & ~current_umask()


@pytest.mark.parametrize("mode", MODES)
def test_copies_as_gnu_does(tmp_path: Path, mode: int) -> None:
    (tmp_path / "source").write_text("new")
    for source_mode in (0o644, 0o755, 0o600):
        os.chmod(tmp_path / "source", source_mode)
        for name in ("ours", "theirs"):
            (tmp_path / name).write_text("old")
            set_rights(tmp_path / name, mode)
        subprocess.run(["cp", "-f", tmp_path / "source", tmp_path / "theirs"], check=True)
        copy_files(tmp_path / "source", tmp_path / "ours", if_exists="overwrite", progress=False)
        assert rights(tmp_path / "ours") == rights(tmp_path / "theirs")
        assert (tmp_path / "ours").read_text() == "new"
        subprocess.run(["cp", "-fp", tmp_path / "source", tmp_path / "theirs"], check=True)
        copy_files(
            tmp_path / "source",
            tmp_path / "ours",
            if_exists="overwrite",
            preserve=True,
            progress=False,
        )
        assert rights(tmp_path / "ours") == rights(tmp_path / "theirs")
        (tmp_path / "ours").unlink()
        (tmp_path / "theirs").unlink()


def test_copies_of_arrays(tmp_path: Path) -> None:
    for name in ("A", "B"):
        oc.create_array(tmp_path / name, 4).close()
    expected = set_rights(tmp_path / "B", 0o700)
    copy_files(tmp_path / "A", tmp_path / "B", if_exists="overwrite", progress=False)
    assert rights(tmp_path / "B") == expected


def test_a_copy_is_not_readable_by_others_before_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "source").write_text("secret")
    os.chmod(tmp_path / "source", 0o600)
    seen = []

    def look(job: Any, file: Any, buffer: Any) -> None:
        seen.append((job.working / "content").stat().st_mode & 0o077)

    monkeypatch.setattr("outcore.files.copy_job.CopyJob._mark_file", look)
    copy_files(tmp_path / "source", tmp_path / "copy", progress=False)
    assert seen == [0]


def test_in_a_pool(served_here: Served, tmp_path: Path) -> None:
    url = served_here.url
    (tmp_path / "source").write_text("new")
    with oc.connect(url) as pool:
        metadata_written(pool / "A")
        for name in ("copied", "piped", "report", *METADATA):
            if name not in METADATA:
                pool.open(name, "w").close()
            pool.chmod(name, 0o640)
            pool.chown(name, 1234, 56)
        copy_files(tmp_path / "source", pool / "copied", if_exists="overwrite", progress=False)
        fsspec = pytest.importorskip("fsspec")
        fsspec.filesystem("outcore", pool=pool).pipe_file(f"{url}/piped", b"new")
        metadata_written(pool / "A")
        with oc.from_array(np.eye(3), tmp_path / "M", progress=False) as M:
            oc.linalg.gram(M, progress=False)[1].save(pool / "report")
        for name in ("copied", "piped", "report", *METADATA):
            found = pool.stat(name)
            assert (found.mode, found.owner, found.group) == (0o640, 1234, 56), name
        assert (pool / "copied").read_bytes() == (pool / "piped").read_bytes() == b"new"


def test_who_may_not_give_a_file_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If `chown` fails, the writer owns the file, and the file loses the group's rights."""
    (tmp_path / "x.npy").touch()
    mine = rights(tmp_path / "x.npy")[1:]
    set_rights(tmp_path / "x.npy", 0o664)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "chown", refuse)
    exported("x.npy")(tmp_path)
    assert rights(tmp_path / "x.npy") == (0o644 if os.geteuid() == 0 else 0o664, *mine)
