"""Arrays of other libraries that can be read by slicing: h5py, zarr, dask and others."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from outcore._util.packages import is_a
from outcore.errors import CorruptError, DiskError, InvalidError, OutcoreError
from outcore.layout.elements import computed, refuse_masked, refuse_sparse


def is_sliced(given: Any) -> bool:
    """Whether an object can be sliced as NumPy slices.

    Tables of pandas are sliced by labels, and types unknown to NumPy can only be converted as a
    whole.
    """
    if not all(hasattr(given, name) for name in ("shape", "dtype", "__getitem__")):
        return False
    if hasattr(given, "iloc"):
        return False
    try:
        np.dtype(given.dtype)
    except TypeError:
        return False
    return True


def order_of(array: Any) -> str:
    """Return the order of the elements of an array-like object."""
    flags = getattr(array, "flags", None)
    by_row, by_column = (getattr(flags, f"{name}_contiguous", False) for name in "cf")
    fortran = by_column and not by_row
    return "F" if fortran or getattr(array, "order", "C") == "F" else "C"


def check_extents(array: Any, name: str = "an array") -> None:
    """Refuse an array for slicing that has no shape, or an unknown one.

    Raises
    ------
    InvalidError
        If the shape is missing or unknown.
    """
    if array.shape is None:
        raise InvalidError(
            f"need a shape of {name}, have none (an empty dataset of HDF5); name one that has "
            "elements"
        )
    if any(n != n for n in array.shape):
        raise InvalidError(
            f"need {name} of known shape, have {array.shape}; call compute_chunk_sizes() first"
        )


def part_of(array: Any, box: Any, name: object) -> npt.NDArray[Any]:
    """Return a part of an array; `name` is the array's, for messages.

    Raises
    ------
    InvalidError
        If elements are masked.
    DiskError, CorruptError
        If the part cannot be read.
    """
    with reading(name, array):
        part = computed(array[box])
        refuse_masked(part)
        refuse_sparse(part)
        return np.asanyarray(part)


@contextmanager
def opening(path: object, file_format: str) -> Iterator[None]:
    """Convert a library's errors for a header that it cannot read, into `InvalidError`.

    Libraries raise all kinds of errors for damaged headers.
    """
    try:
        yield
    except (OutcoreError, MemoryError):
        raise
    except Exception as error:
        said = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        said = " ".join(said.split()) or type(error).__name__
        raise InvalidError(f"{path} cannot be read as {file_format}: {said}") from None


@contextmanager
def reading(name: object, array: object = None) -> Iterator[None]:
    """Convert read errors of the system, or of a library, into outcore's errors."""
    try:
        yield
    except (OutcoreError, MemoryError):
        raise
    except OSError as error:
        raise DiskError(f"cannot read {name}: {error}; check that it is whole") from error
    except Exception as error:
        # Zarr's decoders raise various exceptions on damaged chunks.
        if not is_a(array, "zarr", "Array"):
            raise
        raise CorruptError(
            f"cannot decode {name}: {error or type(error).__name__}; restore it from a copy"
        ) from error
