"""Input that only QR by slabs refuses; `test_factor_bad_input.py` has that of each kind."""

import shutil
from pathlib import Path

import pytest
from command_line import outcore
from linpack import names_below, on_disk, one_thread, order_beyond
from stopping import stop_after
from tall import tall
from test_lu_bad_input import refused

import outcore as oc
from outcore.errors import (
    DiskFullError,
    InvalidError,
    NotFoundError,
)
from outcore.linalg import open_factor, qr_factor

__all__ = ["one_thread"]  # a fixture for every test here

M, N, CHUNKS, MEMORY = 200, 150, (32, 16), 250_000


@pytest.fixture(name="A")
def matrix(tmp_path: Path) -> oc.Array:
    return on_disk(tmp_path / "Z", tall(M, N, "f8"), CHUNKS)


@pytest.mark.parametrize("shape", [(8,), (8, 8, 8)])
def test_no_matrix(tmp_path: Path, shape: tuple[int, ...]) -> None:
    B = oc.create_array(tmp_path / "Z", shape, "f8")
    with refused(tmp_path, InvalidError, "need a matrix, have shape"):
        qr_factor(B)


def test_no_factors(tmp_path: Path) -> None:
    with refused(tmp_path, NotFoundError, "lu_factor, cho_factor or qr_factor"):
        open_factor(tmp_path / "nothing")


def test_numbers_so_large_that_r_overflows(tmp_path: Path) -> None:
    for column in (0, 140):
        a = tall(M, N, "f4")
        a[:, column] = 3e38
        B = on_disk(tmp_path / f"Z{column}", a, CHUNKS)
        with pytest.raises(InvalidError, match="overflow float32; scale its columns"):
            qr_factor(B, memory=MEMORY, progress=False)


def test_more_than_the_disk_holds(tmp_path: Path) -> None:
    """The matrix is a sparse file."""
    n, free = order_beyond(tmp_path, 200_000), shutil.disk_usage(tmp_path).free
    B = oc.create_array(tmp_path / "Z", (2 * n, n), "f8", order="F", reserve=False)
    names = names_below(tmp_path)
    with pytest.raises(DiskFullError, match=r"need \d{12,} bytes"):
        qr_factor(B, memory="8 GB", progress=False)
    assert names_below(tmp_path) == names
    assert shutil.disk_usage(tmp_path).free > free - (1 << 30)


def test_as_the_command_line_sees_them(tmp_path: Path, A: oc.Array) -> None:
    """Check ``outcore info`` and ``outcore rm``: stopped, whole, and killed at the start."""
    stop_after(2, A, qr_factor, memory=MEMORY)
    text = outcore("info", tmp_path).stdout
    assert "call qr_factor with the same arguments to resume (" in text
    qr_factor(A, memory=MEMORY, progress=False)
    assert "200 x 150 float64  whole" in outcore("info", tmp_path).stdout
    assert outcore("rm", "-y", tmp_path / "Z.qr").exit_code == 0
    (tmp_path / "Z.qr" / "tau" / "c").mkdir(parents=True)
    (tmp_path / "Z.qr" / "journal").write_text("header\n")
    assert outcore("rm", "-y", tmp_path / "Z.qr").exit_code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["Z"]
