"""Factorizations that tests stop and resume, each with a matrix that it cuts into many slabs."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import qr_factors
import scipy.linalg
import stopping
from definite import cholesky_ratio, definite, factor_of, lower_only
from linpack import Matrix, lapack_ratio, on_disk, random_matrix
from stopping import DECISIVE, LEFT_LOOKING
from tall import tall

from outcore.linalg import cho_factor, lu_factor, qr_factor
from outcore.linalg._cholesky.storage import CholeskyStorage
from outcore.linalg._factors.storage import FactorStorage
from outcore.linalg._lu.slabs.storage import LuStorage
from outcore.linalg._slab_qr.storage import SlabQrStorage


def assert_lu(a: Matrix, lu: Any) -> None:
    """Check LAPACK's ratio, and the pivots of partial pivoting."""
    assert lapack_ratio(a, lu) < 30
    np.testing.assert_array_equal(lu.piv, scipy.linalg.lu_factor(a)[1])


def assert_cholesky(a: Matrix, factor: Any) -> None:
    """Check LAPACK's ratio."""
    assert cholesky_ratio(a, factor) < 30


@dataclass(frozen=True, eq=False)
class Kind:
    """A factorization.

    Attributes
    ----------
    title, function, storage
        Its name in messages, the function, and the class of its files.
    suffix, names
        Suffix of its directory, and the files there when it is complete.
    matrix, chunks, stored
        A matrix of several slabs, its chunks, and a function that returns its part on disk.
    memory, changes
        Budget in bytes; and three values of an argument, for a call and two that resume it.
    large
        A matrix, and a budget for it, whose journal needs room of its own on a disk.
    bits
        Returns the arrays that must agree to the last bit.
    check
        Checks factors of a matrix.
    pages, more_pages
        Files that decide the order of writes; and files of its arithmetic.
    lines
        Lines at which it is killed: the end of the beginning and its step, the step between, the
        length of the end and its step.
    kills, steps, least
        The first line and the step of repeated kills, and the steps of repeated interrupts, of
        which there are more than `least`.
    """

    title: str
    function: Callable[..., Any]
    storage: type[FactorStorage[Any]]
    suffix: str
    names: list[str]
    matrix: Matrix
    chunks: tuple[int, int]
    memory: int
    changes: list[dict[str, list[int]]]
    large: tuple[Matrix, int]
    bits: Callable[[Any], tuple[Matrix, ...]]
    check: Callable[[Matrix, Any], None]
    pages: tuple[str, ...]
    more_pages: tuple[str, ...]
    lines: tuple[int, int, int, int, int]
    kills: tuple[int, int]
    steps: tuple[int, int]
    least: int = 3
    stored: Callable[[Matrix], Matrix] = field(default=lambda a: a)

    def __str__(self) -> str:
        return self.title

    @property
    def begun_names(self) -> list[str]:
        """The files of a stopped call."""
        return ["journal", self.names[0], "zarr.json"]

    def put(self, path: Path, a: Matrix | None = None) -> Path:
        """Write a matrix, by default the kind's own."""
        on_disk(path, self.stored(self.matrix if a is None else a), self.chunks).close()
        return path

    def factor(self, path: Path, overwrite_a: bool = False, **options: Any) -> Any:
        """Factor a matrix on disk."""
        options = {"memory": self.memory, "threads": 1, "progress": False} | options
        return self.function(path, overwrite_a=overwrite_a, **options)

    def assert_same(self, found: Any, expected: tuple[Matrix, ...], why: str = "") -> None:
        """Compare all bits."""
        for have, want in zip(self.bits(found), expected, strict=True):
            np.testing.assert_array_equal(have, want, err_msg=why)

    def assert_finished(self, found: Any, expected: tuple[Matrix, ...]) -> None:
        """Compare all bits, and the names of the files."""
        self.assert_same(found, expected)
        assert sorted(p.name for p in found.path.iterdir()) == self.names


LU = Kind(
    "LU", lu_factor, LuStorage, ".lu", ["lu", "piv", "zarr.json"],
    matrix=random_matrix(200, "f8"), chunks=(64, 32), memory=200_000,
    changes=[
        {"memory": [200_000, 300_000, 900_000]}, {"memory": [300_000, 200_000, 250_000]},
        {"threads": [1, 2, 1]}, {"threads": [2, 1, 1]},
    ],
    large=(random_matrix(1000, "f8"), 300_000), bits=stopping.bits, check=assert_lu,
    pages=DECISIVE, more_pages=(*LEFT_LOOKING, "_lu/slabs/factor_slabs.py"),
    lines=(130, 5, 37, 80, 5), kills=(59, 31), steps=(97, 211), least=4,
)  # fmt: skip

CHOLESKY = Kind(
    "Cholesky", cho_factor, CholeskyStorage, ".cho", ["l", "zarr.json"],
    matrix=definite(200, "f8"), chunks=(32, 16), memory=150_000, stored=lower_only,
    changes=[
        {"memory": [150_000, 180_000, 900_000]}, {"memory": [180_000, 150_000, 160_000]},
        {"threads": [1, 2, 1]},
    ],
    large=(definite(1000, "f8"), 300_000), bits=lambda found: (factor_of(found),),
    check=assert_cholesky,
    pages=(*DECISIVE, "_cholesky/storage.py", "_factors/lower_tiles.py", "../storage/file_room.py"),
    more_pages=(
        *LEFT_LOOKING,
        *(f"_cholesky/{name}.py" for name in ("conveyor", "factorization", "checks")),
    ),
    lines=(200, 9, 41, 120, 7), kills=(120, 37), steps=(331, 877),
)  # fmt: skip

QR = Kind(
    "QR", qr_factor, SlabQrStorage, ".qr", ["qr", "tau", "zarr.json"],
    matrix=tall(200, 150, "f8"), chunks=(32, 16), memory=250_000,
    changes=[
        {"memory": [250_000, 280_000, 900_000]}, {"memory": [280_000, 250_000, 260_000]},
        {"threads": [1, 2, 1]},
    ],
    large=(tall(900, 700, "f8"), 900_000), bits=lambda qr: (qr_factors.packed(qr), qr.tau),
    check=qr_factors.assert_factors, pages=(*DECISIVE, "_slab_qr/storage.py"),
    more_pages=(
        *(f"_slab_qr/{name}.py" for name in ("factorization", "reflections")),
        *LEFT_LOOKING,
    ),
    lines=(150, 13, 53, 90, 7), kills=(100, 31), steps=(599, 1051),
)  # fmt: skip

KINDS = (LU, CHOLESKY, QR)
