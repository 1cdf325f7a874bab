"""Linear algebra over GF(2), for addresses whose bits are vectors.

A vector is an integer, bit by bit. A matrix is the tuple of its columns: column j is the image of
the vector with bit j alone.
"""

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Matrix: TypeAlias = tuple[int, ...]
Addresses: TypeAlias = npt.NDArray[np.int64]


def identity(bits: int) -> Matrix:
    """Return the identity for vectors of `bits` bits."""
    return tuple(1 << j for j in range(bits))


def times(matrix: Sequence[int], vector: int) -> int:
    """Multiply a matrix by a vector."""
    image = 0
    for j, column in enumerate(matrix):
        if vector >> j & 1:
            image ^= column
    return image


def times_each(matrix: Sequence[int], vectors: Addresses) -> Addresses:
    """Multiply a matrix by each vector of an array."""
    images = np.zeros_like(vectors)
    for j, column in enumerate(matrix):
        images ^= (vectors >> j & 1) * column
    return images


def product(a: Sequence[int], b: Sequence[int]) -> Matrix:
    """Return the matrix that multiplies by `b` first, then by `a`."""
    return tuple(times(a, column) for column in b)


def basis(vectors: Iterable[int]) -> list[int]:
    """Return the reduced basis of the span of some vectors, in increasing order.

    The highest bit of each vector of it, its pivot, is zero in all others.
    """
    found: list[int] = []
    for vector in vectors:
        left = reduced(vector, found)
        if left:
            pivot = 1 << left.bit_length() - 1
            found = [each ^ left if each & pivot else each for each in found]
            found.append(left)
    return sorted(found)


def reduced(vector: int, reduced_basis: Iterable[int]) -> int:
    """Add vectors of a reduced basis, so that the bit of each pivot becomes zero."""
    for each in reduced_basis:
        if vector >> each.bit_length() - 1 & 1:
            vector ^= each
    return vector


def rank(vectors: Iterable[int]) -> int:
    """Return the dimension of the span of some vectors."""
    return len(basis(vectors))


def independent(vectors: Iterable[int], beside: Iterable[int] = ()) -> list[int]:
    """Return those vectors that depend neither on earlier ones nor on those `beside` them."""
    span, found = basis(beside), []
    for vector in vectors:
        if reduced(vector, span):
            span = basis([*span, vector])
            found.append(vector)
    return found


def intersection(one: Sequence[int], other: Sequence[int], bits: int) -> list[int]:
    """Return a basis of the intersection of the spans of two bases (Zassenhaus' algorithm)."""
    pairs = [vector << bits | vector for vector in one] + [vector << bits for vector in other]
    return [vector for vector in basis(pairs) if vector < 1 << bits]


def inverse(matrix: Sequence[int]) -> Matrix:
    """Return the inverse of a square matrix.

    Raises
    ------
    ZeroDivisionError
        If the matrix is singular.
    """
    bits = len(matrix)
    found = basis(column << bits | 1 << j for j, column in enumerate(matrix))
    if [vector >> bits for vector in found] != [1 << j for j in range(bits)]:
        raise ZeroDivisionError("the matrix is singular")
    return tuple(vector & ((1 << bits) - 1) for vector in found)


def from_rows(rows: npt.NDArray[Any]) -> Matrix:
    """Return the matrix of a square array of zeros and ones, whose row and column 0 are bit 0."""
    return tuple(sum(int(bit) << i for i, bit in enumerate(column)) for column in rows.T)


def to_rows(matrix: Sequence[int]) -> npt.NDArray[np.uint8]:
    """Return a square matrix as an array of zeros and ones."""
    columns = [[column >> i & 1 for i in range(len(matrix))] for column in matrix]
    return np.array(columns, np.uint8).reshape(len(matrix), len(matrix)).T
