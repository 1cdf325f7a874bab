"""The benchmark of FLASH's I/O writes files of the published sizes with the right numbers."""

import functools
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import netCDF4
import numpy as np
import pytest
from benchmarks.flash import arrays, model, programs
from benchmarks.flash.page import tables
from benchmarks.flash.points import CONTENDERS, Point, Split, split
from benchmarks.flash.programs import Extent, Written
from served import Served
from served_pools import pool
from test_benchmarks import run

import outcore as oc
from outcore._util import mpi_io

__all__ = ["pool"]  # fixtures

EXTENT = Extent(processes=2, factor=1, rounds=1)
FILES = {
    "f-checkpoint": "checkpoint", "f-checkpoint-packed": "checkpoint",
    "f-centred-packed": "centred", "f-corners-packed": "corners",
}  # fmt: skip


def test_sizes_are_the_published_ones() -> None:
    assert model.file_bytes("checkpoint", 80) == 7_864_320 + 13_120
    assert [len(blocks) for blocks in model.blocks_of(4, 10)] == [800, 810, 820, 800]
    # The talk's megabytes for 32 to 256 processes have some, but not all numbers of the tree.
    for processes, mb in ((32, 243.1), (64, 486.2), (128, 972.4), (256, 1945.1)):
        blocks = model.blocks_of(processes, 1)[-1].stop
        variables = blocks * 24 * 8**3 * 8
        assert variables < (mb + 0.05) * 2**20
        assert (mb - 0.05) * 2**20 < model.file_bytes("checkpoint", blocks)


@functools.cache
def expected(content: str) -> dict[str, Any]:
    """Compute the arrays of a file."""
    parts: dict[str, list[Any]] = {}
    for blocks in model.blocks_of(EXTENT.processes, EXTENT.factor):
        for name, numbers, layout in model.arrays(content, model.cells(blocks), blocks):
            parts.setdefault(name, []).append(numbers.astype(layout.dtype))
    return {name: np.concatenate(each) for name, each in parts.items()}


def check(read: Callable[[str], dict[str, Any]]) -> None:
    """Compare all files with what NumPy computes."""
    for file, content in FILES.items():
        found, whole = read(file), expected(content)
        assert set(found) == set(whole)
        for name, numbers in whole.items():
            np.testing.assert_array_equal(found[name], numbers, err_msg=f"{file}, {name}")
        assert sum(numbers.nbytes for numbers in found.values()) == model.file_bytes(content, 161)


def check_lines(lines: list[Written]) -> None:
    assert [(line.content, line.is_packed) for line in lines] == [
        ("checkpoint", False), ("checkpoint", True), ("centred", True), ("corners", True),
    ]  # fmt: skip
    assert all(line.seconds > line.packing >= 0 for line in lines)


def read_hdf5(path: Path) -> dict[str, Any]:
    with h5py.File(path) as file:
        return {name: array[...] for name, array in file.items()}


def read_netcdf(path: Path) -> dict[str, Any]:
    with netCDF4.Dataset(path) as file:
        return {name: np.asarray(variable[...]) for name, variable in file.variables.items()}


@pytest.mark.parametrize(("name", "read"), [("hdf5", read_hdf5), ("pnetcdf", read_netcdf)])
def test_programs_in_c(
    pool: Served, name: str, read: Callable[[Path], dict[str, Any]], tmp_path: Path
) -> None:
    if lacking := programs.why_not(name):
        pytest.skip(lacking)
    program = programs.build(name, tmp_path)
    preloaded = {
        "LD_PRELOAD": str(mpi_io.library(programs.MPICC)), "OUTCORE_KEY": str(pool.key),
    }  # fmt: skip
    above = f"{pool.url}/{name}"
    check_lines(programs.in_c(program, f"{above}/f", EXTENT, preloaded).run())

    def read_copy(file: str) -> dict[str, Any]:
        copy = tmp_path / file
        with oc.connect(pool.url, key=pool.key) as client:
            copy.write_bytes((client / name / file).read_bytes())
        return read(copy)

    check(read_copy)


@pytest.mark.exhaustive(keep=1)
@pytest.mark.parametrize("form", ["joined", "each"])
def test_groups_of_arrays(pool: Served, form: str) -> None:
    check_lines(programs.in_python(pool.url, pool.key, form, f"{form}/f", EXTENT).run())
    with oc.connect(pool.url, key=pool.key) as client:

        def read(file: str) -> dict[str, Any]:
            with oc.ArrayGroup(client / form / file) as group:
                found = {name: group[name][0] for name in group.names}
            if form == "joined":
                variables = found.pop(arrays.JOINED)
                found |= {f"variable{i:02}": one for i, one in enumerate(variables)}
            return found

        check(read)


def point(place: str, guards_s: float, packed_s: float, contender: int = 0) -> Point:
    written = [
        Written("checkpoint", False, guards_s, 0.0), Written("checkpoint", True, packed_s, 0.25),
        Written("centred", True, 9.0, 0.0),
    ]  # fmt: skip
    return Point(CONTENDERS[contender], place, 4, 8, 600_000_000, 400_000_000.0, written)


def test_the_split_and_the_tables_of_the_page() -> None:
    on_disks, in_memory = point("disks", 3.0, 2.0), point("memory", 2.0, 1.0)
    # Without disks, packed memory takes 1 s, of which the program packs for 0.25 s.
    assert split(on_disks, in_memory) == Split(types=1.25, exchange=0.75, disk=1.0)
    points = [
        point(place, seconds, 2.0, contender)
        for contender in range(len(CONTENDERS))
        for place, seconds in (("disks", 3.0), ("memory", 2.0))
    ]
    text = tables(points)
    assert "| way | memory | 8 → 4 |" in text
    assert "| (b) HDF5, plain MPI-IO | guard cells | 200 (50%) |" in text
    assert "| (c) PnetCDF | packed | 300 (75%) |" in text
    assert "| (b) HDF5 | 0.25 | 1.75 | 1.00 | 0.09 |" in text


@pytest.mark.exhaustive(keep=0)
def test_every_way_is_measured_and_drawn(tmp_path: Path) -> None:
    done = run(tmp_path, "flash")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "flash.json").read_text())
    if found["figures"][0]["skipped"]:
        pytest.skip(found["figures"][0]["skipped"])
    points = [Point.from_dict(values) for values in found["details"]["points"]]
    kinds = set(itertools.product(CONTENDERS, ("disks", "memory", "own disk"), (2,), (2,)))
    assert {each.key for each in points} == kinds
    assert len(points) == len(kinds)
    assert (tmp_path / "flash.png").read_bytes().startswith(b"\x89PNG")
    assert {path.name for path in tmp_path.iterdir()} <= {"flash.json", "flash.png", "cache"}
