"""`export_array`: invalid calls are refused, and files are complete or absent."""

import asyncio
import errno
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from export_cases import CODECS, NAMES, Values, read
from strategies import values

import outcore as oc
from outcore._util.streams import Box
from outcore.convert.formats.zarr_chunks import ZarrChunks
from outcore.errors import (
    BudgetError,
    BusyError,
    DiskFullError,
    ExistsError,
    Interrupted,
    InvalidError,
    MissingPackageError,
    NotFoundError,
    ReadOnlyError,
)
from outcore.files import catalog

# Invalid calls.


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("x", {}, "need a format, one of npy, raw, hdf5, zarr"),
        ("x.npy", {"format": "csv"}, "need a format"),
        ("x.npy", {"codec": "gzip"}, "npy has the codecs none"),
        ("x.h5", {"codec": "zstd"}, "hdf5 has the codecs none, gzip"),
        ("x.zarr", {"codec": "lzma"}, "zarr has the codecs"),
        ("x.h5", {"order": "F"}, "C in HDF5"),
        ("x.npy", {"order": "K"}, "C or F"),
        ("x.npy", {"chunks": (2, 2)}, "no chunks"),
        ("x.zarr", {"chunks": (2,)}, "need 2 extents"),
        ("x.zarr", {"chunks": (2, 0)}, "at least 1"),
        ("x.h5", {"chunks": (2, 1.5)}, "integers"),
        ("x.npy", {"dtype": "S3"}, "number type"),
        ("x.h5::a/", {}, "cannot make a dataset 'a/' in"),
    ],
)
def test_unusable_arguments(
    tmp_path: Path, name: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidError, match=message):
        oc.export_array(np.ones((4, 3)), f"{tmp_path}/{name}", **options)
    assert os.listdir(tmp_path) == []


def test_names_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match="need a path, have 5"):
        oc.export_array(np.ones(3), 5)  # type: ignore[arg-type]
    oc.export_array(np.ones(3), f"{tmp_path}/x.h5::")
    np.testing.assert_array_equal(read(tmp_path / "x.h5", "hdf5", np.ones(3)), np.ones(3))


def test_too_little_memory_is_said_before_any_work(tmp_path: Path) -> None:
    model = values((400, 400), "f8")
    with pytest.raises(BudgetError, match=r"need (\d+) bytes") as caught:
        oc.export_array(model, tmp_path / "x.zarr", chunks=(400, 400), memory="1 MiB")
    assert os.listdir(tmp_path) == []
    need = int(re.findall(r"need (\d+)", str(caught.value))[0])
    oc.export_array(model, tmp_path / "x.zarr", chunks=(400, 400), memory=need)
    np.testing.assert_array_equal(read(tmp_path / "x.zarr", "zarr", model), model)


@pytest.mark.parametrize("kind", NAMES)
def test_existing_targets(tmp_path: Path, kind: str) -> None:
    old, new = np.zeros((5, 4)), values((6, 3), "f8")
    path = tmp_path / NAMES[kind]
    oc.export_array(old, path, format=kind)
    with pytest.raises(ExistsError, match="if_exists='overwrite'"):
        oc.export_array(new, path, format=kind)
    np.testing.assert_array_equal(read(path, kind, old), old)
    oc.export_array(new, path, format=kind, if_exists="overwrite")
    np.testing.assert_array_equal(read(path, kind, new), new)
    # A file in place of a directory, and vice versa.
    other = "zarr" if kind != "zarr" else "npy"
    oc.export_array(old, path, format=other, if_exists="overwrite")
    np.testing.assert_array_equal(read(path, other, old), old)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("text")
    with pytest.raises(ExistsError, match="not overwritten"):
        oc.export_array(new, tmp_path / "mine", format=kind, if_exists="overwrite")
    with pytest.raises(NotFoundError, match="no directory"):
        oc.export_array(new, tmp_path / "none" / NAMES[kind], format=kind)
    assert sorted(os.listdir(tmp_path)) == sorted(["mine", NAMES[kind]])


def test_a_file_may_be_made_from_itself(tmp_path: Path) -> None:
    model = values((50, 40), "f8")
    np.save(tmp_path / "x.npy", model)
    oc.export_array(
        tmp_path / "x.npy", tmp_path / "x.npy", order="F", if_exists="overwrite", memory="64 KiB"
    )
    found = np.load(tmp_path / "x.npy")
    assert found.flags.f_contiguous
    np.testing.assert_array_equal(found, model)
    zarr.create_array(tmp_path / "Z", data=model)
    with pytest.raises(InvalidError, match="itself"):
        oc.export_array(tmp_path / "Z", tmp_path / "Z", format="zarr", if_exists="overwrite")


def test_a_directory_that_cannot_be_written(tmp_path: Path, monkeypatch: Any) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(ReadOnlyError, match="permissions"):
        oc.export_array(np.ones(3), tmp_path / "x.npy")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("package", "kind"), [("h5py", "hdf5"), ("zarr", "zarr")])
def test_a_package_that_is_not_installed(
    tmp_path: Path, package: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    export_array = oc.export_array  # the first use imports its module
    monkeypatch.setattr("importlib.import_module", missing)
    with pytest.raises(MissingPackageError, match=f"pip install '{package}>=3"):
        export_array(np.ones(3), tmp_path / NAMES[kind])
    assert os.listdir(tmp_path) == []


# Complete or absent.


class FailingAfter:
    """Rows, then an error."""

    shape, dtype = (400, 100), np.dtype("f8")

    def __init__(self, rows: int, error: BaseException) -> None:
        self._rows, self._error = rows, error

    def __getitem__(self, box: tuple[slice, ...]) -> Values:
        if box[0].stop > self._rows:
            raise self._error
        return np.ones([s.stop - s.start for s in box])


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("rows", [0, 200])
@pytest.mark.parametrize(
    ("error", "expected"),
    [(ZeroDivisionError(), ZeroDivisionError), (KeyboardInterrupt(), Interrupted)],
)
@pytest.mark.parametrize("before", [True, False])
def test_after_a_failure_nothing_is_left_or_what_was_there(
    tmp_path: Path, kind: str, rows: int, error: BaseException, expected: Any, before: bool
) -> None:
    old = np.zeros((5, 4))
    path = tmp_path / NAMES[kind]
    if before:
        oc.export_array(old, path, format=kind)
    chunks = {"chunks": (20, 50)} if kind in ("hdf5", "zarr") else {}
    with pytest.raises(expected):
        oc.export_array(
            FailingAfter(rows, error),
            path,
            format=kind,
            if_exists="overwrite",
            memory="150 KiB",
            **chunks,
        )
    assert os.listdir(tmp_path) == ([NAMES[kind]] if before else [])
    if before:
        np.testing.assert_array_equal(read(path, kind, old), old)


@pytest.mark.parametrize("kind", NAMES)
def test_a_killed_process_leaves_nothing_that_passes_for_whole(
    tmp_path: Path, kind: str, run_python: Callable[..., subprocess.Popen[str]]
) -> None:
    script = """
import os, signal, sys
import numpy as np
import outcore as oc
from outcore.files import catalog
class Rows:
    shape, dtype = (400, 100), np.dtype("f8")
    def __getitem__(self, box):
        if box[0].start >= 200:
            os.kill(os.getpid(), signal.SIGKILL)
        return np.ones([s.stop - s.start for s in box])
chunks = {"chunks": (20, 100)} if sys.argv[2] in ("hdf5", "zarr") else {}
oc.export_array(Rows(), sys.argv[1], format=sys.argv[2], memory="150 KiB", **chunks)
"""
    (tmp_path / "to").mkdir()
    process = run_python(script, str(tmp_path / "to" / NAMES[kind]), kind)
    said = process.communicate()[1]
    assert process.returncode == -signal.SIGKILL, said
    (left,) = os.listdir(tmp_path / "to")
    assert re.fullmatch(rf"\.{re.escape(NAMES[kind])}\.\d+-\w{{8}}\.part", left)
    oc.export_array(np.ones(3), tmp_path / "to" / NAMES[kind], format=kind)


@pytest.mark.parametrize("is_common", [True, False])
def test_chunks_still_being_written_when_one_fails_leave_nothing(
    tmp_path: Path, is_common: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[str] = []
    if is_common:
        write = ZarrChunks.write

        def one_fails(self: ZarrChunks, part: Box, *given: Any, **options: Any) -> None:
            at = [s.start // 20 for s in part]
            if at == [0, 0]:
                raise OSError(errno.ENOSPC, "no space")
            time.sleep(0.1)
            write(self, part, *given, **options)
            ended.append(f"c/{at[0]}/{at[1]}")

        monkeypatch.setattr(ZarrChunks, "write", one_fails)
    else:
        monkeypatch.setattr(ZarrChunks, "of", lambda _: None)
        store = zarr.storage.LocalStore
        original = store.set

        async def set_fails(self: Any, key: str, value: Any) -> None:
            if key == "c/0/0":
                raise OSError(errno.ENOSPC, "no space")
            if key.startswith("c/"):
                await asyncio.sleep(0.1)
                ended.append(key)
            await original(self, key, value)

        monkeypatch.setattr(store, "set", set_fails)
    with pytest.raises(DiskFullError, match="free some room"):
        oc.export_array(np.ones((40, 40)), tmp_path / "x.zarr", chunks=(20, 20))
    # Threads begin no chunk after the failure.
    assert len(ended) >= (0 if is_common else 3)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("kind", "codec"), CODECS)
def test_a_full_disk(small_disk: Path, kind: str, codec: str) -> None:
    model = np.random.default_rng(0).integers(0, 1 << 62, (3000, 3000))  # 72 MB
    with pytest.raises(DiskFullError, match="free some room"):
        oc.export_array(model, small_disk / NAMES[kind], format=kind, codec=codec)
    assert os.listdir(small_disk) == ["lost+found"]


@pytest.mark.parametrize(("kind", "codec"), [("npy", "none"), ("hdf5", "none"), ("zarr", "zstd")])
def test_a_disk_that_fills_up_meanwhile(small_disk: Path, kind: str, codec: str) -> None:
    model = np.random.default_rng(0).integers(0, 1 << 62, (2000, 2000))  # 32 MB
    ballast = small_disk / "ballast"

    class Filling:
        shape, dtype = model.shape, model.dtype

        def __getitem__(self, box: tuple[slice, ...]) -> Values:
            if box[0].start >= 1000 and not ballast.exists():
                free = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
                with ballast.open("wb") as file:
                    os.posix_fallocate(file.fileno(), 0, max(free - (2 << 20), 1 << 20))
            return model[box]

    options = {} if kind == "npy" else {"chunks": (100, 2000)}
    path = small_disk / NAMES[kind]
    with pytest.raises(DiskFullError, match="free some room"):
        oc.export_array(Filling(), path, format=kind, codec=codec, memory="8 MiB", **options)
    assert sorted(os.listdir(small_disk)) == ["ballast", "lost+found"]
    ballast.unlink()
    oc.export_array(model, path, format=kind, codec=codec)
    np.testing.assert_array_equal(read(path, kind, model), model)


@pytest.mark.parametrize("name", ["x.npy", "x.zarr"])
@pytest.mark.parametrize("moment", ["_put_in_place", "remove"])
def test_what_a_killed_export_leaves_is_known(tmp_path: Path, name: str, moment: str) -> None:
    oc.from_array(np.arange(6.0), tmp_path / "A").close()
    oc.export_array(tmp_path / "A", tmp_path / name, progress=False)
    script = (
        "import os, sys, outcore as oc, outcore.convert.new_file as e\n"
        "setattr(e, sys.argv[1], lambda *_: os.kill(os.getpid(), 9))\n"
        "oc.export_array(sys.argv[2], sys.argv[3], if_exists='overwrite', progress=False)"
    )
    arguments = [moment, tmp_path / "A", tmp_path / name]
    ended = subprocess.run([sys.executable, "-c", script, *arguments], check=False)
    assert ended.returncode == -9
    # Replacing a file leaves nothing behind; a directory's old content is removed last.
    replaced = moment == "remove" and name == "x.npy"
    entries = [e for e in catalog.find(tmp_path)[0] if e.kind == "left-over"]
    assert [entry.path.rpartition(".")[2] for entry in entries] == (
        [] if replaced else ["old" if moment == "remove" else "part"]
    )
    for entry in entries:
        assert name in entry.text
        catalog.remove(entry)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["A", name]


def test_an_export_under_way_is_in_use(tmp_path: Path) -> None:
    path = tmp_path / f".x.npy.{os.getpid()}-0123abcd.part"
    path.write_bytes(b"")
    (entry,) = catalog.find(tmp_path)[0]
    assert entry.state == "in use"
    with pytest.raises(BusyError):
        catalog.remove(entry)


def test_a_later_process_with_the_number_of_a_killed_one_is_another(tmp_path: Path) -> None:
    path = tmp_path / f".x.npy.{os.getpid()}-0123abcd.part"
    path.write_bytes(b"")
    before = Path("/proc/self").stat().st_ctime - 60
    os.utime(path, (before, before))
    (entry,) = catalog.find(tmp_path)[0]
    assert entry.state == "incomplete"
    catalog.remove(entry)
    assert list(tmp_path.iterdir()) == []


def test_the_only_copy_is_not_offered_for_removal(tmp_path: Path) -> None:
    (tmp_path / ".x.zarr.999999999-0123abcd.old").mkdir()
    assert catalog.find(tmp_path)[0] == []
