"""Arrays of other libraries, of which parts are taken by slicing: h5py, zarr, dask and others."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from outcore.elements import computed, refuse_masked, refuse_sparse
from outcore.errors import CorruptError, DiskError, InvalidError, OutcoreError
from outcore.packages import is_a


def is_sliced(given: Any) -> bool:
    """Whether parts can be taken by slicing as NumPy slices.

    Tables of pandas slice by labels, and types that are none of NumPy's are only converted as a
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
    """Order of the elements of anything like an array."""
    flags = getattr(array, "flags", None)
    by_row, by_column = (getattr(flags, f"{name}_contiguous", False) for name in "cf")
    fortran = by_column and not by_row
    return "F" if fortran or getattr(array, "order", "C") == "F" else "C"


def check_extents(array: Any, name: str = "an array") -> None:
    """Refuse what is to be sliced and has no shape, or does not know it.

    Raises
    ------
    InvalidError
        If so.
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
    """Take a part; `name` is the array's, for messages.

    Raises
    ------
    InvalidError
        If elements are masked.
    DiskError, CorruptError
        If it cannot be read.
    """
    with reading(name, array):
        part = computed(array[box])
        refuse_masked(part)
        refuse_sparse(part)
        return np.asanyarray(part)


@contextmanager
def reading(name: object, array: object = None) -> Iterator[None]:
    """Say in outcore's terms what the system, or a library for it, failed to read."""
    try:
        yield
    except (OutcoreError, MemoryError):
        raise
    except OSError as error:
        raise DiskError(f"cannot read {name}: {error}; check that it is whole") from error
    except Exception as error:
        # Decoders of Zarr's raise whatever they like at damaged chunks.
        if not is_a(array, "zarr", "Array"):
            raise
        raise CorruptError(
            f"cannot decode {name}: {error or type(error).__name__}; restore it from a copy"
        ) from error
