"""`export_array` and ``outcore convert``: against each format's own library, within the budget."""

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
import pytest
import zarr
from chosen_cases import examples
from click.testing import Result
from command_line import outcore
from export_cases import CODECS, NAMES, Values, read
from hypothesis import given
from hypothesis import strategies as st
from strategies import DTYPES, ORDERS, Layout, layouts, values
from timeouts import HANG_S

import outcore as oc
from outcore.errors import InvalidError


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


@examples(60)
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
    # Copy it back.
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
        with pytest.raises(InvalidError, match=r"casting=.unsafe"):
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


# The command line.


def convert(*arguments: object) -> Result:
    return outcore("convert", *arguments)


def test_from_everything_to_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = values((60, 50), "f8")
    np.save("start.npy", model)
    names = {**NAMES, "outcore": "Z"}
    raw = ["--shape", "60,50", "--dtype", "f8"]
    for first, middle in names.items():
        to = ["--format", "raw"] if first == "raw" else []
        result = convert("start.npy", middle, *to, "--memory", "1MB")
        assert result.exit_code == 0, result.stderr
        assert result.stdout.startswith(f"{tmp_path / middle}: {first}, 60 x 50 float64 in C order")
        for last, name in names.items():
            arguments = [middle, f"2{name}", "--format", last, "--overwrite", "--json"]
            result = convert(*arguments, *(raw if first == "raw" else []), "--memory", "1MB")
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
    assert convert("a.bin", "x.zarr", *raw, "--codec", "blosc", "--chunks", "7,5").exit_code == 0
    found = zarr.open_array("x.zarr", mode="r")
    assert found.chunks == (7, 5)
    np.testing.assert_array_equal(found[...], model)
    assert convert("x.zarr", "y.h5::u", "--codec", "gzip", "--dtype", "f4").exit_code == 0
    assert convert("y.h5::u", "Z", "--order", "F", "--chunks", "16,8").exit_code == 0
    array = oc.open_array("Z")
    assert (array.order, array.chunks, array.dtype) == ("F", (16, 8), np.float32)
    np.testing.assert_array_equal(array[...], model.astype("f4"))
    for arguments, message in [
        (["Z", "x.zarr"], "exists"),
        (["none", "y"], "there is no file none"),
        (["Z", "W", "--codec", "zstd"], "give --format zarr"),
        (["Z", "W", "--memory", "1kB"], "need"),
    ]:
        result = convert(*arguments)
        assert (result.exit_code, result.stdout) == (1, "")
        assert re.fullmatch(f"error: .*{message}.*\n", result.stderr)
    assert convert("Z", "W", "--chunks", "1,x").exit_code == 2
    assert convert("Z").exit_code == 2
    error = json.loads(convert("none", "y", "--json").stdout)["error"]
    assert error["kind"] == "not_found"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("name", ["x.npy", "x.zarr", "Z"])
def test_ctrl_c_of_the_command_line(
    tmp_path: Path, name: str, number: int, run_python: Callable[..., subprocess.Popen[str]]
) -> None:
    script = """
import os, sys, time
import numpy as np
from outcore.convert import sources
from outcore.cli import main
np.save("a.npy", np.ones((400, 100)))
fetch = sources.Flat.fetch
def slow(self, box, out):
    print("reading", flush=True)
    while not os.path.exists("signalled"):
        time.sleep(0.002)
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
    (tmp_path / "signalled").touch()
    _, said = process.communicate(timeout=HANG_S)
    assert process.returncode == 130, said
    assert said.startswith("stopped: ")
    assert "Traceback" not in said
    left = sorted(os.listdir(tmp_path))
    if name == "Z":
        assert left == ["Z", "a.npy", "script0.py", "signalled"]
        with pytest.raises(oc.errors.IncompleteError):
            oc.open_array(tmp_path / "Z")
    else:
        assert left == ["a.npy", "script0.py", "signalled"]


# The whole process.

RESIDENT = """
import sys
import dask.array, h5py, numpy as np, zarr, zarr.codecs
import outcore as oc

SHAPE, BUDGET = (2048, 3072), 12 << 20

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
    copy(source, target, memory=BUDGET, if_exists="overwrite", progress=False, **options)

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
    """The process grows by the budget of 12 MiB and the libraries' own memory for 48 MiB."""
    if not os.access("/proc/self/clear_refs", os.W_OK):
        pytest.skip("the kernel does not forget the most memory that a process had")
    said, errors = run_python(RESIDENT).communicate(timeout=HANG_S)
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
