"""kill -9 before system calls that change names or lengths of files, or make them durable.

One line of Python can make several of them: it may leave a directory without its file, or a file
that is written but not renamed.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from killed_at_call import preloaded
from linpack import names_below, one_thread, random_matrix
from stopping import bits, noted_at_once
from timeouts import HANG_S

import outcore as oc
from outcore.array_files import blocks_done
from outcore.convert import rechunk_plan
from outcore.files import catalog
from outcore.linalg import (
    cho_factor,
    cho_solve,
    gauss_seidel,
    lu_factor,
    matmul,
    open_factor,
    qr,
)
from outcore.permutations import geometry

__all__ = ["noted_at_once", "one_thread", "preloaded"]  # fixtures for every test here

HERE = Path(__file__).parent
N, MOMENTS = 256, 9
B = np.arange(N, dtype="f8")
HARMLESS = {
    *("F/lock", "F/journal", "F/outcore.steps", "F/outcore.solving", "F/outcore.copy"),
    *(".F.filling", ".F.filling/lock"),
}
"""Left-overs of a kill after the result is complete."""

OPTIONS: dict[str, Any] = {"threads": 1, "progress": False}


def put(home: Path) -> None:
    """Write the matrix of each case."""
    a = random_matrix(N, "f8")
    np.save(home / "a.npy", a)
    for name, matrix in (("A", a), ("S", a @ a.T + N * np.eye(N)), ("D", a + 4 * N * np.eye(N))):
        oc.from_array(
            matrix, home / name, order="F", chunks=(64, 32), if_exists="overwrite", progress=False
        ).close()  # fmt: skip


def tournament(home: Path) -> None:
    lu_factor(home / "A", out=home / "F", memory=150_000, method="tournament", **OPTIONS)


def block_columns(home: Path) -> None:
    lu_factor(home / "A", out=home / "F", memory=150_000, method="block-columns", **OPTIONS)


def cholesky(home: Path) -> None:
    cho_factor(home / "S", out=home / "F", memory=200_000, overwrite_a=True, **OPTIONS)


def product(home: Path) -> None:
    matmul(home / "A", home / "S", out=home / "F", memory=300_000, **OPTIONS)


def reflections(home: Path) -> None:
    qr(home / "A", mode="economic", out=home / "F", memory=2_000_000, **OPTIONS)


def sweeps(home: Path) -> None:
    gauss_seidel(home / "D", B, out=home / "F", memory=300_000, **OPTIONS)


def permutation(home: Path) -> None:
    with pytest.MonkeyPatch.context() as small:
        small.setattr(geometry, "LEAST_REQUEST_BYTES", 4096)
        small.setattr(blocks_done, "NOTE_S", 0.0)
        oc.permute(
            home / "A", home / "F", "bit-reversal", memory=200_000, order="C", progress=False
        ).close()


def relayout(home: Path) -> None:
    """Copy columns into rows in two passes."""
    with pytest.MonkeyPatch.context() as small:
        small.setattr(rechunk_plan, "WORTH_BYTES", 0)
        small.setattr(rechunk_plan, "_BLOCK_BYTES", 0)
        small.setattr(blocks_done, "NOTE_S", 0.0)
        oc.rechunk(
            home / "A", home / "F", chunks=(1, N), order="C", memory=200_000, progress=False
        ).close()


def conversion(home: Path) -> None:
    with pytest.MonkeyPatch.context() as small:
        small.setattr(blocks_done, "NOTE_S", 0.0)
        oc.from_array(
            home / "a.npy", home / "F", chunks=(16, 64), memory=100_000, progress=False
        ).close()


def export(home: Path) -> None:
    """Replace an array of another layout, after removing the left-overs as ``outcore rm`` does."""
    for entry in catalog.find(home)[0]:
        if entry.kind == "left-over":
            catalog.remove(entry)
    # After a kill between two renames this is the only copy, and a left-over once it is replaced.
    only = {str(path) for path in home.glob(".F.zarr.*.old")}
    for chunks in ((128, 128), (64, 32)):
        oc.export_array(
            home / "a.npy", home / "F.zarr", chunks=chunks, memory=600_000, progress=False,
            if_exists="overwrite",
        )  # fmt: skip
    for entry in catalog.find(home)[0]:
        if entry.path in only:
            catalog.remove(entry)


def of_factors(home: Path) -> list[Any]:
    return list(bits(open_factor(home / "F")))  # type: ignore[arg-type]


def of_cholesky(home: Path) -> list[Any]:
    return [cho_solve(open_factor(home / "F"), B)]  # type: ignore[arg-type]


def of_array(home: Path) -> list[Any]:
    with oc.open_array(home / "F") as array:
        return [array[...]]


def of_export(home: Path) -> list[Any]:
    entries = {entry.kind for entry in catalog.find(home)[0]}
    found = zarr.open_array(home / "F.zarr", mode="r") if (home / "F.zarr").exists() else None
    if found is None or found.chunks != (64, 32) or "left-over" in entries:
        raise oc.errors.NotFoundError("the export is to be made again")
    return [found[...]]


CASES: list[tuple[Callable[[Path], None], Callable[[Path], list[Any]]]] = [
    (tournament, of_factors),
    (block_columns, of_factors),
    (cholesky, of_cholesky),
    (product, of_array),
    (reflections, of_array),
    (sweeps, of_array),
    (permutation, of_array),
    (relayout, of_array),
    (conversion, of_array),
    (export, of_export),
]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("case", "result"), CASES, ids=[case.__name__ for case, _ in CASES])
def test_killed_before_calls(
    tmp_path: Path,
    preloaded: Path,
    case: Callable[[Path], None],
    result: Callable[[Path], list[Any]],
    all_lines: bool,
) -> None:
    script = (
        f"from {Path(__file__).stem} import {case.__name__} as case\n"
        "import pathlib, pytest, stopping, sys\n"
        "stopping.note_each_step(pytest.MonkeyPatch())\n"
        "case(pathlib.Path(sys.argv[1]))"
    )

    def run(**more: str) -> "subprocess.CompletedProcess[str]":
        home.mkdir()
        put(home)
        environment = {**os.environ, "LD_PRELOAD": str(preloaded), "PYTHONPATH": str(HERE)}
        return subprocess.run(
            [sys.executable, "-c", script, str(home)],
            env=environment | more, capture_output=True, text=True, timeout=HANG_S,
        )  # fmt: skip

    home = tmp_path / "whole"
    done = run()
    assert done.returncode == 0, done.stderr
    count = int(done.stderr.split("calls:")[1])
    assert count > 2 * MOMENTS
    expected, names = result(home), set(names_below(home))
    home = tmp_path / "killed"
    for number in np.linspace(1, 0.9 * count, MOMENTS if all_lines else 5).round().astype(int):
        killed = run(KILL_AT=str(number))
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        try:
            found = result(home)
        except oc.OutcoreError:
            case(home)
            found = result(home)
        for have, want in zip(found, expected, strict=True):
            np.testing.assert_allclose(have, want, rtol=1e-12, atol=1e-12)
        left = set(names_below(home)) - HARMLESS
        assert left == names, f"killed before call {number} of {count}"
        shutil.rmtree(home)
