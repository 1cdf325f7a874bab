"""Calls to SciPy's BLAS and LAPACK that copy nothing and release the interpreter lock.

SciPy exports the BLAS and LAPACK it was built with as C function pointers, in
``scipy.linalg.cython_blas`` and ``scipy.linalg.cython_lapack``.  This module
calls them through `ctypes`, which differs from the usual wrappers in two ways.
An operand may be any column-major view, with the leading dimension that its
strides give.  And the interpreter lock is free during a call, so that other
threads can read and write files meanwhile.

A *column-major view* is a two-dimensional array whose elements of one column
lie next to each other in memory, and whose columns lie at a constant distance
of at least a column's length: any rectangle cut from a Fortran-ordered array.
For a row-major array, pass its transpose ``x.T``.

The functions check their operands and never copy them; one that does not fit
raises `ValueError`.  They do not check that an output overlaps no other operand.

Flop counts are for real types; one complex operation counts as four real ones.
"""

import ctypes
from collections.abc import Callable
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
Trans: TypeAlias = Literal["N", "T", "C"]
Side: TypeAlias = Literal["L", "R"]
Norm: TypeAlias = Literal["M", "1", "I", "F"]

# BLAS counts in 32-bit integers.
LIMIT: Final = 2**31

PREFIXES: Final = {"float32": "s", "float64": "d", "complex64": "c", "complex128": "z"}

# Every argument of a BLAS function is an address.  The option characters lie in
# one buffer, and a table holds their addresses.
_TEXT: Final = ctypes.create_string_buffer(b"NTCLRUM1IF")
CHAR: Final = {chr(c): ctypes.addressof(_TEXT) + place for place, c in enumerate(_TEXT.value)}

# Own prototypes: setting `argtypes` on the functions of `ctypes.pythonapi` would
# change them for the whole process.
_GivesName = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)
_capsule_name = _GivesName(("PyCapsule_GetName", ctypes.pythonapi))
_TakesName = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
_capsule_pointer = _TakesName(("PyCapsule_GetPointer", ctypes.pythonapi))


def function(module: Any, name: str, signature: str, returns: Any = None) -> Callable[..., Any]:
    """Return a Python callable for a C function that SciPy exports.

    `signature` has a letter for each argument: ``c`` character, ``i`` 32-bit
    integer, ``x`` floating-point number or numbers.  A build with 64-bit integers
    declares its functions differently, and a call would corrupt memory.  For such
    a declaration this function raises `ImportError`.

    The callable takes option letters, integers, arrays, and C scalars or `None`.  It
    returns the C function's value or, without `returns`, its last integer: LAPACK's info.
    """
    capsule = module.__pyx_capi__[name]
    declared = _capsule_name(capsule)
    text = declared.decode()
    arguments = text[text.index("(") + 1 : text.rindex(")")].split(",")
    kinds = {"char *": "c", "int *": "i"}
    if "".join(kinds.get(argument.strip(), "x") for argument in arguments) != signature:
        raise ImportError(f"this SciPy's {name} is declared as {text!r}")
    prototype = ctypes.CFUNCTYPE(returns, *[ctypes.c_void_p] * len(signature))
    compiled = prototype(_capsule_pointer(capsule, declared))
    integers = ctypes.c_int * signature.count("i")

    def call(*arguments: Any) -> Any:
        ints, used = integers(), 0
        addresses: list[int | None] = []
        for argument in arguments:
            if type(argument) is int:
                ints[used] = argument
                addresses.append(ctypes.addressof(ints) + 4 * used)
                used += 1
            elif type(argument) is str:
                addresses.append(CHAR[argument])
            elif isinstance(argument, np.ndarray):
                addresses.append(address(argument))
            else:
                addresses.append(None if argument is None else ctypes.addressof(argument))
        value = compiled(*addresses)
        return ints[used - 1] if returns is None else value

    return call


def address(x: Array) -> int:
    """Return the address of the first element, in half the time of ``x.ctypes.data``."""
    address: int = x.__array_interface__["data"][0]
    return address


def letter(name: str, value: str, allowed: str) -> str:
    """Return an option's character; refuse a value that is not allowed."""
    # `in` alone would let "" and "NT" pass.
    if len(value) != 1 or value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, not {value!r}")
    return value


class Calls:
    """Common base of the BLAS and LAPACK functions for one element type.

    A call costs two to six microseconds over the function's own time.
    Instances hold no state of a call, so any number of threads may share one.
    All matrices must have the element type `dtype`.
    """

    def __init__(self, dtype: np.dtype[Any]) -> None:
        prefix = PREFIXES[dtype.name]
        self.prefix: Final = prefix
        real: Any = ctypes.c_float if prefix in "sc" else ctypes.c_double
        self.dtype: Final = dtype
        self.itemsize: Final = dtype.itemsize
        self.is_complex: Final = prefix in "cz"
        self.real: Final = real
        # The common factors, made once.
        self._factors: Final[dict[complex, Any]] = {
            value: self._factor(value) for value in (-1.0, 0.0, 1.0)
        }

    def _factor(self, value: complex) -> Any:
        """Make a C scalar of the element type with the given value."""
        if self.is_complex:
            return (self.real * 2)(value.real, value.imag)
        if value.imag != 0:
            raise ValueError(f"a factor for {self.dtype} cannot be {value!r}")
        return self.real(value.real)

    def scalar(self, value: complex) -> Any:
        """Return the C scalar of `value`, from the prepared ones if it is among them."""
        ready = self._factors.get(value)
        return self._factor(value) if ready is None else ready

    def matrix(self, name: str, x: Array, output: bool) -> tuple[int, int, int]:
        """Check that `x` can be an operand; return its rows, columns and leading dimension."""
        if not isinstance(x, np.ndarray):
            raise TypeError(f"{name} must be a NumPy array, not {type(x).__name__}")
        if x.dtype != self.dtype:
            raise ValueError(f"{name} must have dtype {self.dtype}, not {x.dtype}")
        if x.ndim != 2:
            raise ValueError(f"{name} must have two dimensions, not {x.ndim}")
        rows, columns = x.shape
        leading = rows or 1
        if rows and columns:
            # NumPy leaves any stride along a dimension of length 1; so check
            # only those that are used.
            down, across = x.strides
            rest = 0
            if columns > 1:
                leading, rest = divmod(across, self.itemsize)
            if (rows > 1 and down != self.itemsize) or leading < rows or rest:
                raise ValueError(
                    f"{name} must be a column-major view (for a row-major array pass "
                    f"its transpose); its shape is {x.shape}, its strides {x.strides}"
                )
        if rows >= LIMIT or columns >= LIMIT or leading >= LIMIT:
            raise ValueError(
                f"{name} is {rows} x {columns} with leading dimension {leading}: "
                "more than BLAS counts to, 2**31 - 1"
            )
        if not x.flags.aligned or (output and not x.flags.writeable):
            need = "aligned and writeable" if output else "aligned"
            raise ValueError(f"{name} must be {need} in memory")
        return rows, columns, leading
