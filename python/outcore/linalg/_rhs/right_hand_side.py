"""Right-hand sides, in memory or on disk, and the places of their solutions."""

import os
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from outcore._util.if_exists import IfExists
from outcore.array.array import Array, open_array
from outcore.blas.calls import Trans
from outcore.errors import InvalidError
from outcore.layout.elements import array_of
from outcore.linalg._output.result import refuse_there
from outcore.linalg._output.steps_done import Made
from outcore.linalg._tiles.matrix import Matrix
from outcore.linalg._tiles.result_dtype import matrix_dtype, result_dtype
from outcore.storage.volumes import INSIDE, SAME, AnyPath, PathLike, Place, how_they_meet, place

Which: TypeAlias = Literal[0, 1, 2, "N", "T", "C"]
WHY = "the solve that wrote it was stopped; solve again"
"""Mark of a solution that a stopped call left."""

_ROWS = 8192


class RightHandSide(NamedTuple):
    """A right-hand side that fits a matrix of `n` rows and its factors."""

    b: Any
    trans: Trans
    n: int
    dtype: np.dtype[Any]
    out: Place | None
    """Place of the solution; `None` for a solution in memory."""
    unknowns: int | None = None
    """Rows of the solution, if not `n`."""
    if_exists: IfExists = "error"
    """Whether an array at `out` may be replaced."""
    made: Made = None
    """The identity of the call, for its solution."""

    @classmethod
    def read(
        cls,
        n: int,
        dtype: np.dtype[Any],
        b: Any,
        trans: Which,
        out: PathLike | None,
        *,
        if_exists: IfExists,
        unknowns: int | None = None,
        reads: Sequence[AnyPath] = (),
        stays: bool = False,
        made: Made = None,
    ) -> "RightHandSide":
        """Check a right-hand side and the place of its solution.

        `reads` lists other operands of the call, which the solution must not replace. Without
        `out`, the solution is in memory if `b` is, or if it `stays` there.

        Raises
        ------
        InvalidError
            If `b` is not a right-hand side for n rows.
        ExistsError
            If an array at `out` must not be overwritten.
        """
        letters: dict[Any, Trans] = {0: "N", 1: "T", 2: "C", "N": "N", "T": "T", "C": "C"}
        if not isinstance(trans, int | str) or trans not in letters:
            raise InvalidError(f"trans must be 0, 1, 2, 'N', 'T' or 'C', have {trans!r}")
        given = b = opened(b)
        if given.ndim not in (1, 2) or given.shape[0] != n:
            raise InvalidError(
                f"need a right-hand side of shape ({n},) or ({n}, k), have {given.shape}"
            )
        if out is None and isinstance(b, Array) and not stays:
            out = f"{b.place.stem}.x"
        where = None if out is None else place(out)
        if where is not None and 0 in given.shape:
            raise InvalidError(
                f"a solution of shape {given.shape} cannot be on disk; leave out= out"
            )
        for path in [*reads, b.path] if isinstance(b, Array) else reads:
            meet = None if where is None else how_they_meet(where.path, path)
            if meet == SAME and isinstance(b, Array) and path is b.path:
                raise InvalidError(f"out= is the right-hand side itself, {b.path}; choose another")
            if meet is not None:
                how = meet if meet == INSIDE else "would replace"
                raise InvalidError(
                    f"out= {how} {path}, which the call needs; choose another directory"
                )
        if where is not None:
            refuse_there(where, WHY, if_exists=if_exists)
        return cls(given, letters[trans], n, dtype, where, unknowns, if_exists, made)

    @property
    def columns(self) -> int:
        """Number of right-hand sides."""
        return int(self.b.shape[1]) if self.b.ndim == 2 else 1

    @property
    def is_split(self) -> bool:
        """Whether b is complex and the factors are real: its two parts are solved separately."""
        return bool(self.b.dtype.kind == "c" and self.dtype.kind == "f")

    @property
    def parts(self) -> int:
        """Columns to solve for per right-hand side: 2 if it is split."""
        return 1 + self.is_split

    @property
    def solution_dtype(self) -> np.dtype[Any]:
        """Type of the solution."""
        return np.result_type(self.dtype, np.complex64) if self.is_split else self.dtype

    @property
    def solution_shape(self) -> tuple[int, ...]:
        """Shape of the solution."""
        rows = self.n if self.unknowns is None else self.unknowns
        return (rows, *self.b.shape[1:])

    @property
    def height(self) -> int:
        """Rows of the memory in which the right-hand side becomes its solution."""
        return max(self.n, self.solution_shape[0])

    @property
    def is_alike(self) -> bool:
        """Whether a solution has the rows and the type of the columns that are solved for."""
        return self.unknowns is None and not self.is_split

    def in_memory(self, columns: slice = slice(None)) -> Matrix:
        """Copy columns of b, (n, k) column-major, in the factors' type; twice as many if split.

        Raises
        ------
        InvalidError
            If an element is NaN, or not finite in the factors' type.
        """
        part = self._part(self.b, columns)
        X: Matrix = np.empty((self.n, part.shape[1] * self.parts), self.dtype, order="F")
        self.convert(part, X, slice(0, part.shape[1]))
        self.refuse_non_finite(X)
        return X

    def refuse_non_finite(self, X: Matrix) -> None:
        """Raise if columns of b have elements that are not finite in the factors' type."""
        self.refuse_row(row_not_finite(X, X.dtype))

    def refuse_non_finite_given(self) -> None:
        """Raise, before any work, if a b in memory has such elements."""
        if not isinstance(self.b, Array):
            self.refuse_row(row_not_finite(self.b, self.solution_dtype))

    def refuse_row(self, row: int | None) -> None:
        """Raise for a row of b with such an element, if there is one."""
        if row is not None:
            raise InvalidError(
                f"the right-hand side has a NaN, an infinity or a number too large for "
                f"{self.dtype} in row {row}"
            )

    def load(self, array: Any, columns: slice, X: Matrix) -> None:
        """Copy columns of `array`, of the shape of b, into X in the layout of `in_memory`."""
        part = self._part(array, columns)
        self.convert(part, X, slice(0, part.shape[1]))

    def convert(self, part: npt.NDArray[Any], X: Matrix, columns: slice) -> None:
        """Copy some rows of such columns into X, to its right-hand sides `columns`."""
        # An element that is too large for the type becomes infinite.
        with np.errstate(over="ignore"):
            if self.is_split:
                half = X.shape[1] // 2
                X[:, columns] = part.real
                X[:, columns.start + half : columns.stop + half] = part.imag
            else:
                X[:, columns] = part

    def store(self, X: Matrix, x: npt.NDArray[Any], columns: slice) -> None:
        """Copy solutions from X into columns of x, in memory and of the shape of b."""
        target = x[:, columns] if x.ndim == 2 else x[:, None]
        if self.is_split:
            half = X.shape[1] // 2
            target.real, target.imag = X[:, :half], X[:, half:]
        else:
            target[...] = X

    def _part(self, array: Any, columns: slice) -> npt.NDArray[Any]:
        part = np.asarray(array[:, columns] if array.ndim == 2 else array[:])
        return part.reshape(self.n, part.size // self.n)

    def solution(self, X: Matrix) -> npt.NDArray[Any]:
        """Return a solution in the shape of b and the type of the solution."""
        if self.is_split:
            half = X.shape[1] // 2
            joined: Matrix = np.empty((len(X), half), self.solution_dtype, order="F")
            joined.real, joined.imag = X[:, :half], X[:, half:]
            X = joined
        return X[:, 0] if self.b.ndim == 1 else X

    def norms1(self, X: Matrix) -> npt.NDArray[np.float64]:
        """1-norms of the columns of X, in the layout of `in_memory`: one per column of b."""
        half = X.shape[1] // self.parts
        norms = np.empty(half)
        for j in range(half):
            column = np.hypot(X[:, j], X[:, half + j]) if self.is_split else np.abs(X[:, j])
            with np.errstate(over="ignore"):
                norms[j] = column.sum(dtype=np.float64)
        return norms


def opened(b: Any) -> Any:
    """Return a right-hand side, which may be a path, as an array in memory or on disk."""
    if isinstance(b, str | os.PathLike):
        return open_array(b)
    found = b if isinstance(b, Array) else array_of(b, "a right-hand side")
    if found.dtype.kind not in "biufc":
        raise InvalidError(f"a right-hand side is numbers, have {found.dtype}")
    return found


def substituted_in(factors: np.dtype[Any], b: Any, dtype: npt.DTypeLike | None) -> np.dtype[Any]:
    """Return the type in which factors of some type solve for an opened right-hand side."""
    return matrix_dtype(result_dtype({"factors": factors, "b": b.dtype}, dtype), factors)


def row_not_finite(array: npt.NDArray[Any], dtype: np.dtype[Any]) -> int | None:
    """Return a row of columns with an element that is not finite in a type, if any."""
    for column in array.T if array.ndim == 2 else [array]:
        for first in range(0, len(column), _ROWS):
            with np.errstate(over="ignore"):
                part = column[first : first + _ROWS].astype(dtype, copy=False)
            bad = np.flatnonzero(~np.isfinite(part))
            if len(bad):
                return first + int(bad[0])
    return None
