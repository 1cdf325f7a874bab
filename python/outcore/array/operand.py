"""An array on disk as an operand of NumPy: products by blocks, implicit loads."""

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from outcore._util import budget
from outcore._util.sizes import format_bytes
from outcore.errors import InvalidError, LargeLoadWarning
from outcore.layout.elements import array_of

_BY_BLOCKS = ("float32", "float64", "complex64", "complex128")


class ArrayOperand(ABC):
    """An array on disk as an operand of NumPy functions.

    ``A @ x`` and ``x @ A`` with an `x` in memory are computed block by block, within the default
    budget of `outcore.linalg.matmul`. Other NumPy functions load the whole array.
    """

    product_by_blocks: ClassVar[Callable[[Any, Any], Any]]
    """The product of two matrices; `outcore.linalg`, which lies above arrays, sets it."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Elements along each dimension."""

    @property
    @abstractmethod
    def dtype(self) -> np.dtype[Any]:
        """Type of the elements."""

    @abstractmethod
    def __getitem__(self, key: Any) -> Any: ...

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return self.size * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(
        self, dtype: npt.DTypeLike | None = None, copy: bool | None = None
    ) -> npt.NDArray[Any]:
        """Read the whole array into memory; warn if it is larger than the default budget."""
        if copy is False:
            raise ValueError("an array on disk cannot become a NumPy array without a copy")
        # Computing the default budget takes half a millisecond.
        if self.nbytes > budget.LEAST_BYTES and self.nbytes > (have := budget.resolve(None)):
            warnings.warn(
                f"need {format_bytes(self.nbytes)} to load all of {self!r}, the default budget is "
                f"{format_bytes(have)}; read parts by slices or stream(), or call oc.linalg",
                LargeLoadWarning,
                stacklevel=2,
            )
        whole: npt.NDArray[Any] = self[...]
        return whole if dtype is None else whole.astype(dtype, copy=False)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        """Multiply block by block for `numpy.matmul`; load the array for any other function."""
        if ufunc is np.matmul and method == "__call__" and not options:
            return product(*inputs)
        if any(isinstance(each, ArrayOperand) for each in options.get("out", ())):
            return NotImplemented
        loaded = [np.asarray(each) if isinstance(each, ArrayOperand) else each for each in inputs]
        return getattr(ufunc, method)(*loaded, **options)

    def __matmul__(self, other: Any) -> Any:
        return product(self, other) if _is_operand(other) else NotImplemented

    def __rmatmul__(self, other: Any) -> Any:
        return product(other, self) if _is_operand(other) else NotImplemented


def _is_operand(given: Any) -> bool:
    return isinstance(given, ArrayOperand | list | tuple) or hasattr(given, "__array__")


def product(left: Any, right: Any) -> Any:
    """Multiply as `numpy.matmul` does, with one of the operands on disk.

    Raises
    ------
    InvalidError
        If both are on disk, or their shapes do not fit.
    """
    if isinstance(left, ArrayOperand) and isinstance(right, ArrayOperand):
        raise InvalidError(
            f"need one operand of @ in memory, have {left!r} and {right!r}; call "
            "oc.linalg.matmul(A, B, out=PATH), or without out= for a result in memory"
        )
    pair = [x if isinstance(x, ArrayOperand) else array_of(x, "an operand") for x in (left, right)]
    stored = next(x for x in pair if isinstance(x, ArrayOperand))
    if stored.dtype.name in _BY_BLOCKS and all(x.ndim <= 2 for x in pair):
        return ArrayOperand.product_by_blocks(*pair)
    return np.matmul(*map(np.asarray, pair))
