"""The methods of a transposed matrix, which reads through the matrix itself.

`outcore.array.array.TransposedArray` has them in front of those of `outcore.Array`.
"""

import operator
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from outcore._core import ArrayFile
from outcore._util.streams import Box
from outcore.array.info import Info
from outcore.layout.selection import index_array, is_listed, one_for_each, select

if TYPE_CHECKING:
    from outcore.array.array import Array


class Transposed:
    """The methods in which a transpose differs from an array.

    Attributes
    ----------
    array
        The matrix itself.
    """

    array: "Array"
    shape: tuple[int, ...]

    def __repr__(self) -> str:
        return f"<transpose of {self.array!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return operator.attrgetter("T"), (self.array,)

    @property
    def T(self) -> "Array":  # noqa: N802  NumPy's name
        """The matrix itself."""
        return self.array

    def _open(self) -> ArrayFile:
        return self.array._open()

    def __getitem__(self, key: Any) -> Any:
        if is_listed(key):
            only = key[0] if isinstance(key, tuple) and len(key) == 1 else key
            if not isinstance(only, tuple) and (mask := index_array(only)).ndim > 1:
                return self._masked(mask)
        else:
            select(key, self.shape)  # its errors name the dimensions of the transpose
        rows, columns = one_for_each(key, 2)
        return self.array[columns, rows].T

    def _masked(self, mask: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return elements in C order of the transpose: the columns of the matrix, in order."""
        found: npt.NDArray[Any] = self.array[mask.T]
        rows, columns = np.nonzero(mask)
        out = np.empty_like(found)
        out[np.lexsort((rows, columns))] = found
        return out

    def chunk_boxes(self) -> Iterable[Box]:
        """Yield the box of each chunk, in the order of the matrix's chunks."""
        return (box[::-1] for box in self.array.chunk_boxes())

    def info(self) -> Info:
        """Describe the matrix itself."""
        return self.array.info()

    def refresh(self) -> "Array":
        """Reload the metadata of the matrix."""
        self.array.refresh()
        return cast("Array", self)

    @property
    def is_closed(self) -> bool:
        """Whether the matrix was closed."""
        return self.array.is_closed

    def close(self) -> None:
        """Close the matrix."""
        self.array.close()
