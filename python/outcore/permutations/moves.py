"""The move of each element of an array: by axes, or by the bits of its index."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from outcore._util.counts import is_count
from outcore.errors import InvalidError
from outcore.permutations.bit_matrices import (
    BIT_KINDS,
    checked_complement,
    checked_matrix,
    columns_of,
)
from outcore.permutations.gf2 import Matrix, identity
from outcore.permutations.layouts import bits_of, index_places, is_power_of_2

AXIS_KINDS = ("transpose", "reverse", "rotate")
KINDS = (*AXIS_KINDS, *BIT_KINDS)


@dataclass(frozen=True)
class Move:
    """The new place of each element of an array.

    Attributes
    ----------
    kind
        Its name.
    shape, new_shape
        Extents before and after.
    axes, flips
        For moves by axes, the old dimension of each new one, and the old dimensions whose indices
        are reversed; else `None` and ().
    matrix, complement
        The move of the index in C order, by bits, if the extents are powers of two.
    """

    kind: str
    shape: tuple[int, ...]
    new_shape: tuple[int, ...]
    axes: tuple[int, ...] | None
    flips: tuple[int, ...]
    matrix: Matrix | None
    complement: int

    def to_json(self) -> dict[str, Any]:
        """Return a description that differs for each move."""
        if self.axes is not None:
            return {"axes": list(self.axes), "flips": list(self.flips)}
        assert self.matrix is not None, "a move has axes or a matrix"
        return {"columns": list(map(hex, self.matrix)), "complement": hex(self.complement)}


def move_of(
    shape: tuple[int, ...],
    kind: str | None,
    *,
    axes: Sequence[int] | int | None = None,
    turns: int = 1,
    matrix: Any = None,
    complement: Any = 0,
) -> Move:
    """Return the move that the arguments of `permute` describe.

    Raises
    ------
    InvalidError
        If they describe none, or none for an array of this shape.
    """
    if kind is not None and kind not in KINDS:
        raise InvalidError(f"need kind=, one of {', '.join(KINDS)}, have {kind!r}; choose one")
    given = {"axes": axes is not None, "turns": turns != 1, "matrix": matrix is not None}
    given["complement"] = not _is_zero(complement)
    taken = {
        None: ("matrix", "complement"), "transpose": ("axes",), "reverse": ("axes",),
        "rotate": ("axes", "turns"),
    }.get(kind, ("complement",))  # fmt: skip
    if kind is None and not given["matrix"] and not given["complement"]:
        raise InvalidError(
            f"need kind=, one of {', '.join(KINDS)}, or matrix=, have neither; pass one of them"
        )
    for name, is_given in given.items():
        if is_given and name not in taken:
            raise InvalidError(
                f"kind={kind!r} takes {' and '.join(f'{each}=' for each in taken)}, have {name}=; "
                "leave it out"
            )
    if kind in AXIS_KINDS:
        return _by_axes(shape, kind, axes, turns)
    count = math.prod(shape)
    if not is_power_of_2(count) or count == 1:
        raise InvalidError(
            "need 2, 4, 8, ... elements to permute them by the bits of their indices, have "
            f"{count}, of shape {shape}; copy them into an array of as many"
        )
    bits = bits_of(count)
    if kind is not None:
        columns = columns_of(kind, bits)
    else:
        columns = identity(bits) if matrix is None else checked_matrix(matrix, bits)
    name = kind or "by a matrix"
    return Move(name, shape, shape, None, (), columns, checked_complement(complement, bits))


def _is_zero(complement: Any) -> bool:
    return isinstance(complement, int) and complement == 0


def _by_axes(
    shape: tuple[int, ...], kind: str, axes: Sequence[int] | int | None, turns: int
) -> Move:
    ndim = len(shape)
    everywhere = tuple(range(ndim))
    if kind == "transpose":
        order = everywhere[::-1] if axes is None else _checked_axes(axes, ndim)
        if len(order) != ndim:
            raise InvalidError(
                f"need axes= with the {ndim} dimensions of the array in their new order, have "
                f"{axes!r}; name each once"
            )
        flips: tuple[int, ...] = ()
    elif kind == "reverse":
        order = everywhere
        flips = everywhere if axes is None else tuple(sorted(_checked_axes(axes, ndim)))
    else:
        plane = (
            (0, 1)
            if axes is None and ndim > 1
            else _checked_axes(() if axes is None else axes, ndim)
        )
        if len(plane) != 2:
            raise InvalidError(
                f"need two dimensions, axes=, to rotate in, have {axes!r} of an array of {ndim}; "
                "name two"
            )
        if not isinstance(turns, int | np.integer) or isinstance(turns, bool):
            raise InvalidError(f"need turns= as an integer, have {turns!r}; pass 1, 2 or 3")
        order, flips = _rotation(everywhere, plane, int(turns) % 4)
    new_shape = tuple(shape[d] for d in order)
    matrix, complement = None, 0
    if all(map(is_power_of_2, shape)):
        places = index_places(new_shape)
        at = {(order[d], t): 1 << i for i, (d, t) in enumerate(places)}
        old = index_places(shape)
        matrix = tuple(at[place] for place in old)
        complement = sum(at[place] for place in old if place[0] in flips)
    return Move(kind, shape, new_shape, order, flips, matrix, complement)


def _rotation(
    everywhere: tuple[int, ...], plane: Sequence[int], turns: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the order of dimensions and the reversed ones of quarter turns, as in numpy.rot90."""
    first, second = plane
    swapped = list(everywhere)
    swapped[first], swapped[second] = second, first
    return {
        0: (everywhere, ()),
        1: (tuple(swapped), (second,)),
        2: (everywhere, tuple(sorted(plane))),
        3: (tuple(swapped), (first,)),
    }[turns]


def _checked_axes(axes: Sequence[int] | int, ndim: int) -> tuple[int, ...]:
    given = tuple(axes) if isinstance(axes, Iterable) else (axes,)
    if not all(is_count(d, -ndim) and d < ndim for d in given):
        raise InvalidError(f"need axes= from 0 to {ndim - 1}, have {axes!r}; name dimensions")
    found = tuple(int(d) % ndim for d in given)
    if len({*found}) < len(found):
        raise InvalidError(f"need axes= that differ, have {axes!r}; name each dimension once")
    return found
