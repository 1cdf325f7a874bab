"""Input that only Cholesky refuses; `test_factor_bad_input.py` has that of each kind."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from definite import cholesky_ratio, definite, lower_only, upper_only
from linpack import names_below, on_disk, one_thread, order_beyond
from test_lu_bad_input import refused

import outcore as oc
from outcore.errors import (
    DiskFullError,
    InvalidError,
    NonFiniteError,
    NotPositiveDefiniteError,
)
from outcore.linalg import cho_factor

__all__ = ["one_thread"]  # a fixture for every test here

N, CHUNKS, MEMORY = 200, (32, 16), 150_000


@pytest.mark.parametrize("shape", [(8,), (8, 9), (9, 8), (8, 8, 8)])
def test_not_square(tmp_path: Path, shape: tuple[int, ...]) -> None:
    B = oc.create_array(tmp_path / "Z", shape, "f8")
    with refused(tmp_path, InvalidError, "need a square matrix, have shape"):
        cho_factor(B)


def test_a_number_that_is_none_in_the_upper_triangle(tmp_path: Path) -> None:
    a = upper_only(definite(N, "f8"))
    a[7, 101] = np.nan
    B = oc.from_array(a, tmp_path / "Z", chunks=CHUNKS)
    with refused(tmp_path, NonFiniteError, r"A\[7, 101\] is nan") as caught:
        cho_factor(B, lower=False, memory=MEMORY, progress=False)
    assert caught.value.index == (7, 101)
    with refused(tmp_path, InvalidError, "overwrite_a needs lower=True"):
        cho_factor(B, lower=False, overwrite_a=True)


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
@pytest.mark.parametrize("order", [1, 2, 16, 17, 100, 199, 200])
def test_not_positive_definite(tmp_path: Path, dtype: str, order: int) -> None:
    """The error has LAPACK's info and the words of SciPy 1.17, wherever the bad pivot is."""
    a = definite(N, dtype)
    a[order - 1, order - 1] = -1
    # Zeros beside it, so that the result does not depend on rounding.
    a[order - 1, : order - 1] = a[order:, order - 1] = 0
    a[: order - 1, order - 1] = a[order - 1, order:] = 0
    *_, info = scipy.linalg.get_lapack_funcs(("potrf",), (a,))[0](a, lower=True)
    assert info == order
    with pytest.raises(np.linalg.LinAlgError):
        scipy.linalg.cholesky(a, lower=True)
    B = on_disk(tmp_path / "Z", lower_only(a), CHUNKS)
    with refused(
        tmp_path, NotPositiveDefiniteError, f"^{order}-th leading minor of Z is not"
    ) as ours:
        cho_factor(B, memory=MEMORY, progress=False)
    assert ours.value.info == order
    assert isinstance(ours.value, np.linalg.LinAlgError)


@pytest.mark.parametrize("a", [np.zeros((N, N)), np.ones((N, N)), np.zeros((1, 1))])
def test_semidefinite(tmp_path: Path, a: Any) -> None:
    B, order = on_disk(tmp_path / "Z", a), 1 if a[0, 0] == 0 else 2
    with refused(tmp_path, NotPositiveDefiniteError, f"^{order}-th"):
        cho_factor(B, memory=MEMORY, progress=False)


def test_more_than_the_disk_holds(tmp_path: Path) -> None:
    """The triangle is half of the matrix, which is a sparse file."""
    n, free = order_beyond(tmp_path, 300_000), shutil.disk_usage(tmp_path).free
    B = oc.create_array(tmp_path / "Z", (n, n), "f8", order="F", reserve=False)
    names = names_below(tmp_path)
    for overwrite_a in (False, True):
        with pytest.raises(DiskFullError, match=r"need \d{12,} bytes on disk") as told:
            cho_factor(B, memory="8 GB", overwrite_a=overwrite_a, progress=False)
        assert 4 * n * n <= int(str(told.value).split()[1]) < 10 * n * n
    assert names_below(tmp_path) == names
    assert shutil.disk_usage(tmp_path).free > free - (1 << 30)


def test_a_disk_with_room_for_the_triangle_only(tmp_path: Path, small_disk: Path) -> None:
    """18 MB of matrix, 9 MB of triangle: the call works with 12 MB free, and is refused with 8."""
    a = definite(1500, "f8")
    A = on_disk(tmp_path / "Z", a)
    free = shutil.disk_usage(small_disk).free
    (small_disk / "filler").write_bytes(bytes(free - (12 << 20)))
    found = cho_factor(A, memory="2 MB", out=small_disk / "F", progress=False)
    assert cholesky_ratio(a, found) < 30
    shutil.rmtree(found.path)
    with (small_disk / "filler").open("ab") as file:
        file.write(bytes(4 << 20))
    with refused(small_disk, DiskFullError, "on disk"):
        cho_factor(A, memory="2 MB", out=small_disk / "F", progress=False)
