"""Block Gauss-Seidel: the exact words that a sweep reads, and its temporary files."""

import itertools
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from iterative_cases import (
    assert_as_planned,
    dominant,
    least_budget,
    on_disk,
    random,
    residual,
)
from linpack import Matrix, names_below, one_thread
from timeouts import HANG_S

import outcore as oc
from outcore.errors import BusyError, DivergenceError, ExistsError
from outcore.files import catalog
from outcore.linalg import gauss_seidel
from outcore.linalg.iterative.plan import Demands, MatrixLayout, iterative_geometry
from outcore.linalg.iterative.strips.diagonal_blocks import DiagonalBlocks

__all__ = ["one_thread"]  # a fixture for every test here

N = 150


def sweep_words(
    path: Path, a: Matrix, direction: Any, first: int, **options: Any
) -> npt.NDArray[np.float64]:
    """Return the words that each sweep after the `first` ones reads, in units of n²."""
    A, b = on_disk(path / "A", a, chunks=options.pop("chunks", (16, 64))), np.ones(len(a))
    moved = [
        gauss_seidel(
            A, b, direction=direction, tol=None, max_sweeps=first + k, progress=False, **options
        )[1].words_moved()
        for k in range(4)
    ]
    return np.diff(moved) / len(a) ** 2


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("direction", ["forward", "alternating"])
@pytest.mark.parametrize("pin", [0.0, 0.25, 0.5, 1.0])
def test_a_sweep_reads_what_is_not_pinned_and_nothing_else(
    tmp_path: Path, direction: Any, pin: float
) -> None:
    words = sweep_words(tmp_path, dominant(512, "f8"), direction, 1, pin=pin, block=32)
    assert (words == 1 - pin).all()


@pytest.mark.parametrize("chunks", [(16, 64), (64, 16), (32, 32)])
def test_a_half_sweep_with_half_of_the_matrix_pinned(
    tmp_path: Path, chunks: tuple[int, int]
) -> None:
    a = dominant(512, "f8")
    a = (a + a.T) / 2
    words = sweep_words(tmp_path, a, "symmetric", 2, pin=0.5, block=32, chunks=chunks)
    assert (words <= 0.27).all()
    # Each direction reads half of the unpinned tiles, up to one tile; with square chunks less.
    assert (words <= 0.25 + 16 * 64 / 512**2).all()
    assert (words >= (0.25 if chunks != (32, 32) else 0.2)).all()
    alone = sweep_words(
        tmp_path, a, "symmetric", 2, pin=0.5, block=32, chunks=chunks, assume_a="sym"
    )
    assert (alone < 0.1).all()


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_words_of_half_sweeps_at_large_orders(order: str, dtype: str) -> None:
    """Arithmetic only: n = 16384, with half of the matrix pinned."""
    n, kind = 16384, np.dtype(dtype)
    chunks = oc.layout.zarr_format.default_chunks((n, n), kind.itemsize, order)
    layout = MatrixLayout(n, kind, kind, (chunks[0], chunks[1]), order)
    demands = Demands("Gauss-Seidel", 5, True, by_triangle=True)
    g = iterative_geometry(layout, [demands], int(0.6 * n * n * kind.itemsize), 1, pin=0.5)
    tiles = len(g.tiles_of("all"))
    assert g.pinned_tiles == len(g.pins) == tiles / 2
    for kind_of_pass in ("lower", "upper"):
        assert g.unpinned(kind_of_pass) / tiles <= 0.27
    whole = iterative_geometry(
        layout, [Demands("Gauss-Seidel", 5, True)], int(0.6 * n * n * kind.itemsize), 1, pin=0.5
    )
    assert whole.unpinned("sweep") / tiles <= 0.5


def test_pinned_tiles_are_spread_over_the_sweep(tmp_path: Path) -> None:
    """Spread them, so that the disk always has something to read."""
    n, kind = 4096, np.dtype("f8")
    layout = MatrixLayout(n, kind, kind, (256, 2048), "C")
    g = iterative_geometry(layout, [Demands("x", 5, True)], int(0.8 * n * n * 8), 1, pin=0.5)
    is_pinned = [tile.chunk in g.pins for strip in g.strips.tiles for tile in strip]
    assert max(len(list(run)) for _, run in itertools.groupby(is_pinned)) == 1


def test_blocks_that_do_not_fit_go_to_a_file_and_it_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = dominant(N, "f8"), random(N, "f8", 1)
    A = on_disk(tmp_path / "A", a)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    before, seen = names_below(tmp_path), []
    solve = DiagonalBlocks.solve

    def looking(self: DiagonalBlocks, number: int, Z: Matrix) -> None:
        seen.append({path.name for path in scratch.iterdir()})
        solve(self, number, Z)

    monkeypatch.setattr(DiagonalBlocks, "solve", looking)
    memory = least_budget(gauss_seidel, A, b, block=64)
    x, report = gauss_seidel(
        A, b, block=64, memory=memory, scratch=scratch, tol=1e-13, progress=False
    )
    assert "diagonal blocks of 64 in a file" in report.method
    assert report.bytes_written == 3 * 64 * 64 * 8
    # The name contains a hash of the matrix's whole path.
    name = next(name for name in set.union(*seen) if name.endswith(".diagonal"))
    assert re.fullmatch(r"A-[0-9a-f]{8}\.diagonal", name)
    assert {name, f".{name}.filling"} == set.union(*seen)
    assert residual(a, x[:, None], b[:, None]) < 1e-13
    assert names_below(tmp_path) == before
    with pytest.raises(DivergenceError):
        gauss_seidel(
            on_disk(tmp_path / "A", a - 2 * N * np.eye(N) + 3 * np.eye(N)), b, block=64,
            memory=memory, scratch=scratch, progress=False,
        )  # fmt: skip
    assert names_below(tmp_path) == before


def test_places_of_temporary_files_that_are_taken(tmp_path: Path) -> None:
    a, b = dominant(N, "f8"), random(N, "f8", 1)
    A = on_disk(tmp_path / "A", a)
    memory = least_budget(gauss_seidel, A, b, block=64)
    options: dict[str, Any] = {"block": 64, "memory": memory, "progress": False}
    (tmp_path / "A.diagonal").mkdir()
    with pytest.raises(ExistsError, match=r"A\.diagonal exists .* scratch="):
        gauss_seidel(A, b, **options)
    (tmp_path / "A.diagonal").rmdir()
    with (
        oc.storage.volumes.exclusive(
            oc.storage.volumes.place(tmp_path / ".A.diagonal.filling"), "test"
        ),
        pytest.raises(BusyError, match="another call on the same matrix"),
    ):
        gauss_seidel(A, b, **options)


def test_a_killed_call_leaves_what_is_known_and_the_next_one_removes(
    tmp_path: Path, run_python: Any
) -> None:
    a, b = dominant(N, "f8"), random(N, "f8", 1)
    A = on_disk(tmp_path / "A", a)
    memory = least_budget(gauss_seidel, A, b, block=64)
    script = f"""
import os, signal
import numpy as np
from outcore.linalg import gauss_seidel
from outcore.linalg.iterative.strips.diagonal_blocks import DiagonalBlocks
DiagonalBlocks.solve = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
gauss_seidel("A", np.ones({N}), block=64, memory={memory})
"""
    child = run_python(script)
    child.communicate(timeout=HANG_S)
    assert child.returncode == -signal.SIGKILL
    left = {entry.path: entry for entry in catalog.find(tmp_path)[0]}
    assert left[str(tmp_path / "A.diagonal")].state == "incomplete"
    assert "can be removed" in left[str(tmp_path / "A.diagonal")].text
    gauss_seidel(A, b, block=64, memory=memory, progress=False)
    assert not (tmp_path / "A.diagonal").exists()


def test_matrices_of_one_name_share_a_directory_for_temporary_files(
    tmp_path: Path, run_python: Any
) -> None:
    b, scratch = random(N, "f8", 1), tmp_path / "scratch"
    matrices = [dominant(N, "f8", seed) for seed in (1, 2)]
    for name in ("scratch", "one", "two"):
        (tmp_path / name).mkdir()
    one, two = (
        on_disk(tmp_path / name / "A", a) for name, a in zip(("one", "two"), matrices, strict=True)
    )
    memory = least_budget(gauss_seidel, one, b, block=64)
    options: dict[str, Any] = {"block": 64, "memory": memory, "progress": False, "tol": 1e-12}
    found: list[Any] = []
    solve = DiagonalBlocks.solve

    def nested(self: DiagonalBlocks, number: int, Z: Matrix) -> None:
        if not found:
            found.append(None)
            found[0] = gauss_seidel(two, b, scratch=scratch, **options)[0]
        solve(self, number, Z)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DiagonalBlocks, "solve", nested)
        x, _ = gauss_seidel(one, b, scratch=scratch, **options)
    for a, y in zip(matrices, (x, found[0]), strict=True):
        assert residual(a, y[:, None], b[:, None]) < 1e-12
    # Only the same call finds the files of a killed call.
    script = f"""
import os, signal
import numpy as np
from outcore.linalg import gauss_seidel
from outcore.linalg.iterative.strips.diagonal_blocks import DiagonalBlocks
DiagonalBlocks.solve = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
gauss_seidel("one/A", np.ones({N}), block=64, memory={memory}, scratch="scratch")
"""
    child = run_python(script)
    child.communicate(timeout=HANG_S)
    assert child.returncode == -signal.SIGKILL
    left = list(scratch.iterdir())
    assert left
    gauss_seidel(two, b, scratch=scratch, **options)
    assert list(scratch.iterdir()) == left
    gauss_seidel(one, b, scratch=scratch, **options)
    assert not list(scratch.iterdir())


def test_a_block_may_be_several_chunks_of_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outcore.linalg.iterative.strips.diagonal_blocks.CHUNK_BYTES", 12_000)
    for dtype, (order, chunks) in itertools.product(
        ("f4", "c16"), (("C", (16, 64)), ("F", (64, 16)))
    ):
        a, b = dominant(N, dtype), random((N, 2), dtype, 1)
        A = on_disk(tmp_path / "A", a, order, chunks)
        memory = least_budget(gauss_seidel, A, b, block=64)
        tol = 100 * float(np.finfo(dtype).eps)
        x, report = gauss_seidel(A, b, block=64, memory=memory, tol=tol, progress=False)
        assert "diagonal blocks of 64 in a file" in report.method
        assert residual(a, x, b) < tol
        assert report.bytes_written >= 3 * a[:64, :64].nbytes
        assert_as_planned(report, memory)
