"""Matrices over GF(2) that permute 2^n elements: by name, products, inverses."""

from typing import Any

import numpy as np
import numpy.typing as npt

from outcore._util.counts import count_of
from outcore.errors import InvalidError
from outcore.permutations import gf2
from outcore.permutations.gf2 import Matrix

MOST_BITS = 62

BIT_KINDS = ("bit-reversal", "gray", "inverse-gray", "shuffle", "unshuffle")
"""Permutations of 2^n elements in one dimension, by name."""


def bit_matrix(kind: str, bits: int) -> npt.NDArray[np.uint8]:
    """Return the matrix of a named permutation of ``2 ** bits`` elements.

    Parameters
    ----------
    kind
        ``"bit-reversal"``: the bits of an index in reverse order. ``"gray"``: the element i moves
        to the Gray code of i, ``i ^ (i >> 1)``; ``"inverse-gray"`` moves it back. ``"shuffle"``:
        the halves interleave, as of a deck of cards: i moves to 2 i modulo ``2 ** bits - 1``;
        ``"unshuffle"`` moves it back.
    bits
        Number of bits of an index, up to 62.

    Returns
    -------
    numpy.ndarray
        Zeros and ones, of shape (bits, bits) and type uint8. Row and column 0 belong to the lowest
        bit: over GF(2), bit i of the new index is the sum of ``matrix[i, j]`` times bit j of the
        old index.

    Raises
    ------
    InvalidError
        For another kind, or too many bits.
    """
    n = count_of("bits", bits)
    if n > MOST_BITS:
        raise InvalidError(f"need at most {MOST_BITS} bits of an index, have {n}; take fewer")
    return gf2.to_rows(columns_of(kind, n))


def columns_of(kind: str, bits: int) -> Matrix:
    """Return the matrix of a named permutation, by columns."""
    one = gf2.identity(bits)
    match kind:
        case "bit-reversal":
            return one[::-1]
        case "gray":
            return tuple(column ^ column >> 1 for column in one)
        case "inverse-gray":
            return tuple(2 * column - 1 for column in one)
        case "shuffle":
            return one[1:] + one[:1]
        case "unshuffle":
            return one[-1:] + one[:-1]
    raise InvalidError(f"need a kind, one of {', '.join(BIT_KINDS)}, have {kind!r}; choose one")


def bit_product(a: npt.ArrayLike, b: npt.ArrayLike) -> npt.NDArray[np.uint8]:
    """Return the matrix of the permutation by `b`, followed by that by `a`.

    Parameters
    ----------
    a, b
        Matrices of zeros and ones of one shape, not singular over GF(2).

    Returns
    -------
    numpy.ndarray
        ``a @ b`` over GF(2), uint8.

    Raises
    ------
    InvalidError
        If they are no such matrices.
    """
    one, other = checked_matrix(a), checked_matrix(b)
    if len(one) != len(other):
        raise InvalidError(
            f"need matrices of one shape, have {len(one)} and {len(other)} bits; pass equal ones"
        )
    return gf2.to_rows(gf2.product(one, other))


def bit_inverse(a: npt.ArrayLike) -> npt.NDArray[np.uint8]:
    """Return the matrix of the permutation that undoes another.

    Parameters
    ----------
    a
        Matrix of zeros and ones, not singular over GF(2).

    Returns
    -------
    numpy.ndarray
        The inverse over GF(2), uint8. The complement of a permutation with complement c is
        ``bit_inverse(a) @ c`` over GF(2).

    Raises
    ------
    InvalidError
        If it is no such matrix.
    """
    return gf2.to_rows(gf2.inverse(checked_matrix(a)))


def checked_matrix(given: Any, bits: int | None = None) -> Matrix:
    """Return a user's matrix by columns.

    Raises
    ------
    InvalidError
        If it is not square, with zeros and ones, not singular over GF(2); with `bits`, also if it
        has another shape.
    """
    try:
        rows = np.asarray(given)
    except ValueError:
        raise InvalidError(
            "need a matrix of zeros and ones, have rows of several lengths; pass a square one"
        ) from None
    n = rows.shape[0] if rows.ndim == 2 else 0
    need = f"{bits} x {bits}" if bits is not None else "square"
    if rows.ndim != 2 or rows.shape != (n, n) or n not in ((n,) if bits is None else (bits,)):
        raise InvalidError(
            f"need a {need} matrix, one row for each bit of an index, have shape {rows.shape}; "
            "pass such a matrix"
        )
    if not 1 <= n <= MOST_BITS:
        raise InvalidError(f"need 1 to {MOST_BITS} bits of an index, have {n}; pass as many rows")
    if rows.dtype.kind not in "bui" or not np.isin(rows, (0, 1)).all():
        raise InvalidError(
            f"need a matrix of the integers 0 and 1, have others, of type {rows.dtype}; take it "
            "modulo 2"
        )
    columns = gf2.from_rows(rows)
    if (rank := gf2.rank(columns)) < n:
        raise InvalidError(
            f"need a matrix of rank {n} over GF(2), which moves each element to a place of its "
            f"own, have rank {rank}; pass one that is not singular"
        )
    return columns


def checked_complement(given: Any, bits: int) -> int:
    """Return a user's complement as an integer.

    Raises
    ------
    InvalidError
        If it is neither a number below ``2 ** bits`` nor a vector of zeros and ones.
    """
    if isinstance(given, int | np.integer) and not isinstance(given, bool):
        if 0 <= given < 1 << bits:
            return int(given)
    else:
        vector = np.asarray(given)
        if vector.shape == (bits,) and vector.dtype.kind in "bui" and np.isin(vector, (0, 1)).all():
            return sum(int(bit) << i for i, bit in enumerate(vector))
    raise InvalidError(
        f"need complement= as {bits} zeros and ones, lowest bit first, or as an integer of 0 to "
        f"2^{bits} - 1, have {given!r}; pass one of these"
    )
