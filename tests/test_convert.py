"""`export_array` and ``outcore convert``: against each format's own library; whole or not."""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import pytest
import zarr
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import DTYPES, ORDERS, Layout, layouts, values

import outcore as oc
from outcore import export
from outcore.cli import main
from outcore.errors import (
    BudgetError,
    DiskFullError,
    ExistsError,
    Interrupted,
    InvalidError,
    MissingPackageError,
    NotFoundError,
    ReadOnlyError,
)

Values = npt.NDArray[Any]

NAMES = {"npy": "x.npy", "hdf5": "x.h5", "zarr": "x.zarr", "raw": "x.raw"}
CODECS = [(name, codec) for name, codecs in export.CODECS.items() for codec in codecs]


def read(path: Path, kind: str, model: Values, order: Any = "C") -> Values:
    """What the format's own library finds; of a raw file, the type and shape are known."""
    if kind == "npy":
        return np.asarray(np.load(path))
    if kind == "hdf5":
        with h5py.File(path) as file:
            return np.asarray(file["data"])
    if kind == "zarr":
        return np.asarray(zarr.open_array(path, mode="r")[...])
    return np.fromfile(path, model.dtype).reshape(model.shape, order=order)


@pytest.mark.parametrize(("kind", "codec"), CODECS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_format_codec_and_type(tmp_path: Path, kind: str, codec: str, dtype: str) -> None:
    model = values((11, 7), dtype)
    array = oc.from_array(model, tmp_path / "A", chunks=(4, 3))
    path = tmp_path / NAMES[kind]
    chunked = {"chunks": (5, 2)} if kind in ("hdf5", "zarr") else {}
    report = oc.export_array(array, path, format=kind, codec=codec, memory="1 MiB", **chunked)
    found = read(path, kind, model)
    assert found.dtype == model.dtype
    np.testing.assert_array_equal(found, model)
    assert (report.format, report.codec, report.shape) == (kind, codec, (11, 7))
    assert (report.dtype, report.nbytes) == (model.dtype.name, model.nbytes)
    assert report.chunks == chunked.get("chunks")
    assert report.peak_memory_bytes <= report.memory_bytes == 1 << 20
    assert sorted(os.listdir(tmp_path)) == sorted(["A", NAMES[kind]])


@settings(max_examples=60, deadline=None)
@given(
    layout=layouts(3, 12), kind=st.sampled_from(list(NAMES)), to=st.sampled_from([None, *ORDERS]),
    memory=st.integers(150_000, 1 << 20), data=st.data(),
)  # fmt: skip
def test_every_layout(
    layout: Layout, kind: str, to: Any, memory: int, data: st.DataObject,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:  # fmt: skip
    path = tmp_path_factory.mktemp("export")
    model = values(layout.shape, layout.dtype)
    options = {name: getattr(layout, name) for name in ("chunks", "order", "chunk_order")}
    oc.from_array(model, path / "A", **options).close()
    to = None if kind == "hdf5" else to
    order = to or (layout.order if len(layout.shape) > 1 else "C")
    chunks = None
    if kind in ("hdf5", "zarr"):
        chunks = tuple(data.draw(st.integers(1, n + 2)) for n in layout.shape)
    report = oc.export_array(
        path / "A", path / NAMES[kind], format=kind, order=to, chunks=chunks, memory=memory
    )
    np.testing.assert_array_equal(read(path / NAMES[kind], kind, model, order), model)
    assert report.peak_memory_bytes <= memory
    # And back.
    options = {"shape": model.shape, "dtype": model.dtype, "source_order": order}
    back = oc.from_array(
        path / NAMES[kind], path / "B", memory=memory, chunks=layout.chunks,
        **(options if kind == "raw" else {}),
    )  # fmt: skip
    np.testing.assert_array_equal(back[...], model)


@pytest.mark.parametrize("order", ORDERS)
def test_files_are_the_ones_that_numpy_writes(tmp_path: Path, order: Any) -> None:
    model = np.asarray(values((40, 30), "c8"), order=order)
    np.save(tmp_path / "numpy.npy", model)
    oc.export_array(model, tmp_path / "ours.npy", memory="100 KiB")
    assert (tmp_path / "ours.npy").read_bytes() == (tmp_path / "numpy.npy").read_bytes()
    oc.export_array(model, tmp_path / "ours.raw", format="raw")
    assert (tmp_path / "ours.raw").read_bytes() == model.tobytes(order)
    # Big-endian elements become little-endian ones.
    big = model.astype(">c8")
    oc.export_array(big, tmp_path / "big.raw", format="raw")
    assert (tmp_path / "big.raw").read_bytes() == model.tobytes(order)


def test_what_the_library_says_of_its_file(tmp_path: Path) -> None:
    array = oc.create_array(
        tmp_path / "A", (30, 20), "f4", order="F", dims=("t", "x"), attributes={"unit": "m"}
    )
    array[...] = values((30, 20), "f4")
    oc.export_array(array, tmp_path / "x.zarr", chunks=(10, 8), codec="gzip", order="F")
    found = zarr.open_array(tmp_path / "x.zarr", mode="r")
    assert (found.chunks, dict(found.attrs)) == ((10, 8), {"unit": "m"})
    assert found.metadata.dimension_names == ("t", "x")
    codecs = [c["name"] for c in json.loads((tmp_path / "x.zarr/zarr.json").read_text())["codecs"]]
    assert codecs == ["transpose", "bytes", "gzip"]
    oc.export_array(array, f"{tmp_path}/x.h5::run/u", chunks=(10, 8), codec="gzip")
    with h5py.File(tmp_path / "x.h5") as file:
        dataset = file["run/u"]
        assert (dataset.chunks, dataset.compression) == ((10, 8), "gzip")
        np.testing.assert_array_equal(dataset[...], array[...])


def test_types_are_converted_as_numpy_does(tmp_path: Path) -> None:
    model = values((12, 9), "f8")
    for kind, name in NAMES.items():
        oc.export_array(model, tmp_path / name, format=kind, dtype="f4")
        found = read(tmp_path / name, kind, model.astype("f4"))
        np.testing.assert_array_equal(found, model.astype("f4"))
        with pytest.raises(InvalidError, match=r"\.astype\(\)"):
            oc.export_array(model, tmp_path / f"2{name}", format=kind, dtype="i4")


def test_rows_go_anywhere(tmp_path: Path) -> None:
    model = values((100, 30), "f8")
    for kind, name in NAMES.items():
        blocks = (model[i : i + 7] for i in range(0, 100, 7))
        options = {"chunks": (20, 10)} if kind in ("hdf5", "zarr") else {"order": "F"}
        oc.export_array(
            blocks, tmp_path / name, format=kind, shape=100, memory="256 KiB", **options
        )
        np.testing.assert_array_equal(read(tmp_path / name, kind, model, "F"), model)


def test_every_chunk_is_encoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[tuple[slice, ...]] = []
    set_item = h5py.Dataset.__setitem__

    def noting(self: Any, box: tuple[slice, ...], data: Values) -> None:
        written.append(box)
        set_item(self, box, data)

    monkeypatch.setattr(h5py.Dataset, "__setitem__", noting)
    array = oc.from_array(values((200, 210), "f8"), tmp_path / "A", chunks=(33, 44))
    report = oc.export_array(array, tmp_path / "x.h5", chunks=(30, 35), memory="220 KiB")
    assert len(written) == report.blocks > 4
    for box in written:
        for s, chunk, extent in zip(box, (30, 35), (200, 210), strict=True):
            assert s.start % chunk == 0
            assert s.stop % chunk == 0 or s.stop == extent


# What cannot be.


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
    with pytest.raises(ExistsError, match="overwrite=True"):
        oc.export_array(new, path, format=kind)
    np.testing.assert_array_equal(read(path, kind, old), old)
    oc.export_array(new, path, format=kind, overwrite=True)
    np.testing.assert_array_equal(read(path, kind, new), new)
    # A file in a directory's place, and the other way round.
    other = "zarr" if kind != "zarr" else "npy"
    oc.export_array(old, path, format=other, overwrite=True)
    np.testing.assert_array_equal(read(path, other, old), old)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("text")
    with pytest.raises(ExistsError, match="not overwritten"):
        oc.export_array(new, tmp_path / "mine", format=kind, overwrite=True)
    with pytest.raises(NotFoundError, match="no directory"):
        oc.export_array(new, tmp_path / "none" / NAMES[kind], format=kind)
    assert sorted(os.listdir(tmp_path)) == sorted(["mine", NAMES[kind]])


def test_a_file_may_be_made_from_itself(tmp_path: Path) -> None:
    model = values((50, 40), "f8")
    np.save(tmp_path / "x.npy", model)
    oc.export_array(
        tmp_path / "x.npy", tmp_path / "x.npy", order="F", overwrite=True, memory="64 KiB"
    )
    found = np.load(tmp_path / "x.npy")
    assert found.flags.f_contiguous
    np.testing.assert_array_equal(found, model)
    zarr.create_array(tmp_path / "Z", data=model)
    with pytest.raises(InvalidError, match="itself"):
        oc.export_array(tmp_path / "Z", tmp_path / "Z", format="zarr", overwrite=True)


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

    monkeypatch.setattr("importlib.import_module", missing)
    with pytest.raises(MissingPackageError, match=f"pip install {package}"):
        oc.export_array(np.ones(3), tmp_path / NAMES[kind])
    assert os.listdir(tmp_path) == []


# Whole or not at all.


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
            FailingAfter(rows, error), path, format=kind, overwrite=True, memory="150 KiB", **chunks
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
    assert re.fullmatch(rf"\.{re.escape(NAMES[kind])}\.\w{{8}}\.part", left)
    oc.export_array(np.ones(3), tmp_path / "to" / NAMES[kind], format=kind)


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


# The command line.


def outcore(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["convert", *map(str, arguments)])


def test_from_everything_to_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = values((60, 50), "f8")
    np.save("start.npy", model)
    names = {**NAMES, "outcore": "Z"}
    raw = ["--shape", "60,50", "--dtype", "f8"]
    for first, middle in names.items():
        to = ["--format", "raw"] if first == "raw" else []
        result = outcore("start.npy", middle, *to, "--memory", "1MB")
        assert result.exit_code == 0, result.stderr
        assert result.stdout.startswith(f"{tmp_path / middle}: {first}, 60 x 50 float64 in C order")
        for last, name in names.items():
            arguments = [middle, f"2{name}", "--format", last, "--overwrite", "--json"]
            result = outcore(*arguments, *(raw if first == "raw" else []), "--memory", "1MB")
            assert result.exit_code == 0, result.stderr
            found = json.loads(result.stdout)
            assert (found["format"], found["shape"]) == (last, [60, 50])
            assert found["peak_memory_bytes"] <= found["memory_bytes"] == 10**6
            copy = oc.open_array("2Z")[...] if last == "outcore" else read(
                Path(f"2{name}"), last, model
            )  # fmt: skip
            np.testing.assert_array_equal(copy, model)


def test_options_of_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = values((30, 20), "f8")
    Path("a.bin").write_bytes(b"12345678" + model.astype(">f8").tobytes("F"))
    raw = ["--shape", "30,20", "--dtype", ">f8", "--source-order", "F", "--offset", 8]
    assert outcore("a.bin", "x.zarr", *raw, "--codec", "blosc", "--chunks", "7,5").exit_code == 0
    found = zarr.open_array("x.zarr", mode="r")
    assert found.chunks == (7, 5)
    np.testing.assert_array_equal(found[...], model)
    assert outcore("x.zarr", "y.h5::u", "--codec", "gzip", "--dtype", "f4").exit_code == 0
    assert outcore("y.h5::u", "Z", "--order", "F", "--chunks", "16,8").exit_code == 0
    array = oc.open_array("Z")
    assert (array.order, array.chunks, array.dtype) == ("F", (16, 8), np.float32)
    np.testing.assert_array_equal(array[...], model.astype("f4"))
    for arguments, message in [
        (["Z", "x.zarr"], "exists"),
        (["none", "y"], "there is no file none"),
        (["Z", "W", "--codec", "zstd"], "give --format zarr"),
        (["Z", "W", "--memory", "1kB"], "need"),
    ]:
        result = outcore(*arguments)
        assert (result.exit_code, result.stdout) == (1, "")
        assert re.fullmatch(f"error: .*{message}.*\n", result.stderr)
    assert outcore("Z", "W", "--chunks", "1,x").exit_code == 2
    assert outcore("Z").exit_code == 2
    error = json.loads(outcore("none", "y", "--json").stdout)["error"]
    assert error["kind"] == "not_found"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("name", ["x.npy", "x.zarr", "Z"])
def test_ctrl_c_of_the_command_line(
    tmp_path: Path, name: str, number: int, run_python: Callable[..., subprocess.Popen[str]]
) -> None:
    script = """
import sys, time
import numpy as np
from outcore import sources
from outcore.cli import main
np.save("a.npy", np.ones((400, 100)))
fetch = sources.Flat.fetch
def slow(self, box, out):
    print("reading", flush=True)
    time.sleep(0.05)
    fetch(self, box, out)
sources.Flat.fetch = slow
main(["convert", "a.npy", sys.argv[1], "--memory", "200kB", *sys.argv[2:]])
"""
    chunks = [] if name.endswith("npy") else ["--chunks", "20,50"]
    process = run_python(script, name, *chunks)
    assert process.stdout is not None
    assert process.stdout.readline() == "reading\n"
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert said.startswith("stopped: ")
    assert "Traceback" not in said
    left = sorted(os.listdir(tmp_path))
    if name == "Z":
        assert left == ["Z", "a.npy", "script0.py"]
        with pytest.raises(oc.errors.IncompleteError):
            oc.open_array(tmp_path / "Z")
    else:
        assert left == ["a.npy", "script0.py"]


# The whole process.

RESIDENT = """
import sys
import dask.array, h5py, numpy as np, zarr, zarr.codecs
import outcore as oc

SHAPE, BUDGET = (3072, 4096), 12 << 20

def kib(name):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(name))

def rows():
    for first in range(0, SHAPE[0], 32):
        yield np.add.outer(np.arange(first, first + 32.0), np.sqrt(np.arange(SHAPE[1])))

def measured(name, act):
    with open("/proc/self/clear_refs", "w") as most:
        most.write("5")
    before = kib("VmRSS")
    act()
    print(name, (kib("VmHWM") - before) << 10)

def to(source, target, **options):
    copy = oc.from_array if target.isupper() else oc.export_array
    copy(source, target, memory=BUDGET, overwrite=True, progress=False, **options)

chunks = {"chunks": (512, 512)}
to(np.ones((600, 600)), "warm.zarr", chunks=(64, 64))
to("warm.zarr", "WARM", chunks=(64, 64))
measured("rows", lambda: to(rows(), "A", shape=SHAPE, **chunks))
measured("npy", lambda: to("A", "x.npy", order="F"))
measured("memmap", lambda: to(np.load("x.npy", mmap_mode="r"), "B", order="C", **chunks))
measured("to zarr", lambda: to("x.npy", "x.zarr", order="C", **chunks))
measured("zarr", lambda: to("x.zarr", "B", order="F", chunks=(1024, 256)))
measured("to hdf5", lambda: to("B", "x.h5", chunks=(300, 350)))
measured("hdf5", lambda: to("x.h5", "x.raw", format="raw", order="F"))
measured("dask", lambda: to(dask.array.from_zarr("x.zarr") * 2, "B", **chunks))
wanted = np.concatenate(list(rows()))
assert np.array_equal(np.fromfile("x.raw").reshape(SHAPE, order="F"), wanted)
assert np.array_equal(oc.open_array("B")[...], 2 * wanted)
"""


def test_memory_of_the_whole_process(
    tmp_path: Path, run_python: Callable[..., subprocess.Popen[str]]
) -> None:
    """An array of 96 MiB in 12 MiB: the process grows by that and what libraries keep."""
    if not os.access("/proc/self/clear_refs", os.W_OK):
        pytest.skip("the kernel does not forget the most memory that a process had")
    said, errors = run_python(RESIDENT).communicate(timeout=300)
    lines = [line.rpartition(" ") for line in said.splitlines()]
    grown = {name: int(nbytes) for name, _, nbytes in lines}
    assert len(grown) == 8, errors
    beside = 16 << 20
    assert max(grown.values()) < (12 << 20) + beside, grown


def test_the_readers_of_the_progress(tmp_path: Path) -> None:
    seen: list[float] = []

    def rows() -> Iterator[Values]:
        for _ in range(20):
            time.sleep(0.02)
            yield np.ones((10, 50))

    oc.export_array(
        rows(), tmp_path / "x.npy", shape=200, memory="20 KiB",
        progress=lambda done, left: seen.append(done),
    )  # fmt: skip
    assert seen == sorted(seen)
    assert len(seen) > 2
    assert seen[-1] == 1
