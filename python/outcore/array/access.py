"""Words that describe how a program reads an array, and a fixed sample of the reads."""

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from outcore._util.counts import is_finite
from outcore._util.streams import Box
from outcore.errors import InvalidError

Access: TypeAlias = str | Iterable[str] | Mapping[str, float]
"""A word, several words of equal weight, or a dictionary of words and weights."""

WORDS = (
    '"planes:D" (one index along dimension D), "lines:D" (all indices along dimension D, one along '
    'the others), "rows" and "columns" (lines along the last and the first dimension), each of '
    'them also with " in order" at its end, "boxes:64x64x64" (boxes of this shape, anywhere) or '
    '"points"'
)

MOST_READS = 16
"""Reads in the sample of a word."""

_IN_ORDER = " in order"
_ROOTS = tuple(math.sqrt(prime) % 1 for prime in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37))
"""Steps of a sample along each dimension: irrational, so that no chunk shape is favoured."""


@dataclass(frozen=True)
class Pattern:
    """Reads of equal boxes of an array.

    Attributes
    ----------
    word, weight
        The caller's word, and its share of the bytes that are read.
    sides
        Shape of a box.
    is_in_order
        Whether boxes follow each other, so that each begins at a multiple of its shape.
    """

    word: str
    weight: float
    sides: tuple[int, ...]
    is_in_order: bool = False

    def sample(self, shape: Sequence[int], most: int = MOST_READS) -> list[Box]:
        """Return all boxes, or `most` of them at fixed places that no chunk shape favours."""
        ends = zip(shape, self.sides, strict=True)
        counts = [-(-n // b) if self.is_in_order else n - b + 1 for n, b in ends]
        places: Iterable[tuple[int, ...]]
        if math.prod(counts) <= most:
            places = itertools.product(*map(range, counts))
        else:
            roots = itertools.cycle(_ROOTS)
            steps = [(n, next(roots)) for n in counts]
            places = (tuple(int((i + 1) * root % 1 * n) for n, root in steps) for i in range(most))
        return [tuple(self._boxes(place, shape)) for place in places]

    def _boxes(self, place: Sequence[int], shape: Sequence[int]) -> Iterable[slice]:
        for at, side, extent in zip(place, self.sides, shape, strict=True):
            start = at * side if self.is_in_order else at
            yield slice(start, min(start + side, extent))


def weights_of(access: Access) -> dict[str, float]:
    """Check the form of `access`; return the weight of each word.

    Raises
    ------
    InvalidError
        If it is not words, or a weight is not a positive number.
    """
    if isinstance(access, Mapping):
        given = dict(access)
    elif isinstance(access, str):
        given = {access: 1.0}
    elif isinstance(access, Iterable):
        given = dict.fromkeys(access, 1.0)
    else:
        raise InvalidError(f"need words for access=, have {access!r}; use {WORDS}")
    if not given:
        raise InvalidError(f"need a word for access=, have none; use {WORDS}")
    found: dict[str, float] = {}
    for word, weight in given.items():
        if not isinstance(word, str):
            raise _unknown(word)
        if not is_finite(weight) or weight <= 0:
            raise InvalidError(
                f"the weight of {word!r} is a positive number, have {weight!r}; write it like "
                '{"planes:0": 3, "columns": 1}'
            )
        found[" ".join(word.lower().split())] = float(weight)
    return found


def patterns_of(
    access: Access, shape: Sequence[int], itemsize: int, memory_bytes: int
) -> list[Pattern]:
    """Return the reads that words describe.

    Parameters
    ----------
    access
        Words, see `WORDS`, with or without weights.
    shape, itemsize
        The array, and the bytes of an element.
    memory_bytes
        Memory for a read; reads in order are as long as it allows.

    Raises
    ------
    InvalidError
        If a word is unknown, or does not fit the shape.
    """
    return [
        _pattern(word, weight, shape, max(memory_bytes // itemsize, 1))
        for word, weight in weights_of(access).items()
    ]


def _pattern(word: str, weight: float, shape: Sequence[int], most: int) -> Pattern:
    is_in_order = word.endswith(_IN_ORDER)
    name, _, argument = word.removesuffix(_IN_ORDER).partition(":")
    dims = len(shape)
    if name == "points" and not argument and not is_in_order:
        return Pattern(word, weight, (1,) * dims)
    if name == "boxes" and not is_in_order and re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", argument):
        sides = tuple(map(int, argument.split("x")))
        if len(sides) != dims:
            raise InvalidError(
                f"need {dims} sides of a box of an array of shape {tuple(shape)}, have {word!r}; "
                f'write "boxes:{"x".join(["64"] * dims)}"'
            )
        return Pattern(word, weight, tuple(map(min, sides, shape)))
    if name in ("rows", "columns") and not argument:
        name, argument = "lines", str(dims - 1 if name == "rows" else 0)
    if name not in ("planes", "lines") or not re.fullmatch(r"\d+", argument):
        raise _unknown(word)
    if int(argument) >= dims:
        raise InvalidError(
            f"{word!r} names dimension {argument} of an array of shape {tuple(shape)}; its "
            f"dimensions are 0 to {dims - 1}"
        )
    along, is_plane = int(argument), name == "planes"
    sides = tuple(1 if (d == along) is is_plane else n for d, n in enumerate(shape))
    if is_in_order:
        sides = _longer(sides, shape, most)
    return Pattern(word, weight, sides, is_in_order)


def _longer(sides: tuple[int, ...], shape: Sequence[int], most: int) -> tuple[int, ...]:
    """Extend a box along its short sides, the last one first, to at most `most` elements."""
    found = list(sides)
    for d in range(len(shape))[::-1]:
        if found[d] == 1 and shape[d] > 1:
            found[d] = max(min(most // math.prod(found), shape[d]), 1)
            if found[d] < shape[d]:
                break
    return tuple(found)


def _unknown(word: object) -> InvalidError:
    return InvalidError(f"there is no access {word!r}; use {WORDS}")
