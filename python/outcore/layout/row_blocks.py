"""Rows from an iterator of blocks of any heights."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from outcore.errors import InvalidError
from outcore.layout.casting import FIX, Casting, convert, is_allowed
from outcore.layout.elements import array_of
from outcore.layout.tables import refuse_promoted


class RowBlocks:
    """Takes any number of rows at a time from an iterator of blocks.

    Parameters
    ----------
    blocks
        Each block is an array of any number of rows, or one row.
    shape
        Shape of all rows together. Missing dimensions at its end are those of the first block.
    dtype
        Type of the elements; by default that of the first block.
    casting
        Rule for converting elements of other types.

    Raises
    ------
    InvalidError
        If there is no block, the first block has a wrong shape or type, or NumPy's promotion of
        the columns of a table rounds integers.
    """

    def __init__(
        self,
        blocks: Iterator[npt.ArrayLike],
        shape: Sequence[int],
        dtype: npt.DTypeLike | None = None,
        casting: Casting = "same_kind",
    ) -> None:
        self._blocks, self._casting = blocks, casting
        self._may_round = dtype is not None or casting == "unsafe"
        self._taken = 0
        try:
            first = self._array_of(next(blocks))
        except StopIteration:
            raise InvalidError("the iterator has no rows; has it been used before?") from None
        self.shape = (*shape, *first.shape[len(shape) :])
        self.dtype: np.dtype[Any] = first.dtype if dtype is None else np.dtype(dtype)
        self._rest = self._checked(first)

    def take(self, out: npt.NDArray[Any]) -> None:
        """Fill `out` with the next rows.

        Raises
        ------
        InvalidError
            If there are too few rows, or a block has a wrong shape or type.
        """
        filled = 0
        while filled < len(out):
            count = min(len(out) - filled, len(self._rest))
            convert(
                self._rest[:count], out[filled : filled + count], fix=FIX, casting=self._casting,
                at=(self._taken, *(0 for _ in self.shape[1:])),
            )  # fmt: skip
            self._rest = self._rest[count:]
            filled += count
            self._taken += count
            if filled < len(out) and not self._refill():
                raise InvalidError(
                    f"need {self.shape[0]} rows, the iterator ended after {self._taken}; "
                    "give shape= as many rows as there are"
                )

    def check_end(self) -> None:
        """Raise `InvalidError` if there are more rows."""
        while not len(self._rest) and self._refill():
            pass
        if len(self._rest):
            raise InvalidError(
                f"need {self.shape[0]} rows, the iterator has more; "
                "give shape= as many rows as there are"
            )

    def _refill(self) -> bool:
        try:
            given = next(self._blocks)
        except StopIteration:
            return False
        self._rest = self._checked(self._array_of(given))
        return True

    def _array_of(self, given: npt.ArrayLike) -> npt.NDArray[Any]:
        block = array_of(given)
        if not self._may_round:
            refuse_promoted(given, block)
        return block

    def _checked(self, block: npt.NDArray[Any]) -> npt.NDArray[Any]:
        row = self.shape[1:]
        if row and block.shape == row:
            block = block[None]
        if block.ndim != len(self.shape) or block.shape[1:] != row:
            wanted = ", ".join(["rows", *map(str, row)])
            raise InvalidError(
                f"need blocks of shape ({wanted}), have one of {block.shape} after row "
                f"{self._taken}; make all of one width, or give another shape="
            )
        if not is_allowed(block.dtype, self.dtype, self._casting):
            raise InvalidError(
                f"need blocks of {self.dtype}, have one of {block.dtype} after row {self._taken}, "
                "which would lose more than precision; convert with .astype() first"
            )
        return block
