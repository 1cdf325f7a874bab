"""Distributions of an array's elements over a mesh of processes, as in HPF.

Source: High Performance Fortran language specification, version 2.0, section 3.3 (``DISTRIBUTE``).
"""

import itertools
import math
import operator
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from outcore.errors import InvalidError

Rules: TypeAlias = str | Sequence[str]
"""``"block,cyclic(2),*"``, or the same as a sequence with one entry for each dimension."""

_RULE = re.compile(r"(block)|cyclic(?:\(\s*([0-9]{1,18})\s*\))?|(\*)")


@dataclass(frozen=True)
class Share:
    """Indices of one dimension that belong to one process.

    They are runs of `size` indices. The first run begins at `start`, and the next ones follow at
    distances of `step`. `stop`, the end of the dimension, cuts the last run.
    """

    start: int
    size: int
    step: int
    stop: int

    def __len__(self) -> int:
        if self.start >= self.stop:
            return 0
        runs, rest = divmod(self.stop - self.start, self.step)
        return runs * self.size + min(rest, self.size)

    def places(self) -> Iterator[tuple[range, int]]:
        """Yield the runs, each with the number of elements before it."""
        at = 0
        for run in self.intervals():
            yield run, at
            at += len(run)

    def intervals(self) -> Iterator[range]:
        """Yield the non-empty runs, in increasing order."""
        for start in range(self.start, self.stop, self.step):
            yield range(start, min(start + self.size, self.stop))


@dataclass(frozen=True)
class Distribution:
    """An array over a mesh of processes.

    Processes are numbered in row-major order of their coordinates in the mesh, as in
    ``MPI_Cart_create``. Some may have no elements: with ``BLOCK``, 4 processes get 2, 2, 1 and 0 of
    5 elements.

    Attributes
    ----------
    shape : tuple of int
        Elements of the array along each dimension.
    rules : tuple of str
        Rule of each dimension: ``"block"``, ``"cyclic(K)"`` or ``"*"``.
    mesh : tuple of int
        Processes along each dimension of the array; 1 along dimensions that are not distributed.
    block : tuple of int
        Consecutive elements that stay together along each dimension: for n elements and p
        processes, ⌈n / p⌉ with ``BLOCK``, K with ``CYCLIC(K)``, and n with ``*``.
    """

    shape: tuple[int, ...]
    rules: tuple[str, ...]
    mesh: tuple[int, ...]
    block: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of processes."""
        return math.prod(self.mesh)

    def __str__(self) -> str:
        return ",".join(self.rules)

    def coordinates(self, rank: int) -> tuple[int, ...]:
        """Coordinates of a process in the mesh, one for each dimension of the array."""
        if not 0 <= rank < self.size:
            raise InvalidError(f"need a process from 0 to {self.size - 1}, have {rank}")
        at = []
        for count in self.mesh[::-1]:
            rank, coordinate = divmod(rank, count)
            at.append(coordinate)
        return tuple(at[::-1])

    def shares(self, rank: int) -> tuple[Share, ...]:
        """Return a process's share of each dimension; its elements have all indices in these."""
        return tuple(
            Share(min(c * b, n), b, p * b, n)
            for c, b, p, n in zip(
                self.coordinates(rank), self.block, self.mesh, self.shape, strict=True
            )
        )

    def local_shape(self, rank: int) -> tuple[int, ...]:
        """Elements of a process along each dimension."""
        return tuple(map(len, self.shares(rank)))

    def boxes(self, rank: int) -> Iterator[tuple[slice, ...]]:
        """Yield the boxes of a process in the array, in row-major order.

        With only ``BLOCK`` and ``*`` there is one box, or none.
        """
        for runs in itertools.product(*(share.intervals() for share in self.shares(rank))):
            yield tuple(slice(run.start, run.stop) for run in runs)

    def parts(self, rank: int) -> Iterator[tuple[tuple[slice, ...], tuple[slice, ...]]]:
        """Yield the boxes of a process in the array, each with its place in local memory."""
        for runs in itertools.product(*(share.places() for share in self.shares(rank))):
            yield (
                tuple(slice(run.start, run.stop) for run, _ in runs),
                tuple(slice(at, at + len(run)) for run, at in runs),
            )

    def owner(self, index: Sequence[int]) -> int:
        """Return the process that has the element with this index."""
        rank = 0
        for i, b, p in zip(index, self.block, self.mesh, strict=True):
            rank = rank * p + i // b % p
        return rank


def distribute(shape: Sequence[int], rules: Rules, mesh: Sequence[int] | int) -> Distribution:
    """Distribute an array over a mesh of processes.

    Parameters
    ----------
    shape
        Elements of the array along each dimension, at least 1.
    rules
        For each dimension ``"block"``, ``"cyclic(K)"``, ``"cyclic"`` (the same as ``"cyclic(1)"``),
        or ``"*"`` for no distribution. Case does not matter.
    mesh
        Processes along each distributed dimension, or along every dimension, with 1 for ``*``.

    Returns
    -------
    Distribution
        The share of each process.

    Raises
    ------
    InvalidError
        If `rules` cannot be read, or `rules` or `mesh` do not fit the shape.
    """
    parsed = parse_rules(rules)
    if len(parsed) != len(shape):
        raise InvalidError(
            f"need one of block, cyclic(K) and * for each of the {len(shape)} dimensions of "
            f"{tuple(shape)}, have {','.join(parsed)!r}"
        )
    if not all(n > 0 for n in shape):
        raise InvalidError(f"need at least 1 element in every dimension, have {tuple(shape)}")
    counts = _mesh(parsed, mesh)
    block = tuple(_block(rule, int(n), p) for rule, n, p in zip(parsed, shape, counts, strict=True))
    return Distribution(tuple(int(n) for n in shape), parsed, counts, block)


def parse_rules(rules: Rules) -> tuple[str, ...]:
    """Read the rules of a distribution, one for each dimension.

    Raises
    ------
    InvalidError
        If an entry is not ``block``, ``cyclic``, ``cyclic(K)`` or ``*``.
    """
    parts = rules.split(",") if isinstance(rules, str) else rules
    if (
        not isinstance(parts, Sequence)
        or not parts
        or not all(isinstance(part, str) for part in parts)
    ):
        raise InvalidError(f'need rules such as "block,cyclic(2),*", have {rules!r}')
    return tuple(_parse_rule(part) for part in parts)


def _parse_rule(text: str) -> str:
    word = text.strip().lower()
    found = _RULE.fullmatch(word)
    if found is None:
        raise InvalidError(
            f"need block, cyclic(K) or * for each dimension of an array, have {text!r}"
        )
    if not word.startswith("cyclic"):
        return word
    count = int(found[2] or 1)
    if count == 0:
        raise InvalidError(f"need cyclic(K) with K of at least 1, have {text!r}")
    return f"cyclic({count})"


def _block(rule: str, extent: int, processes: int) -> int:
    if rule.startswith("cyclic"):
        return int(rule[len("cyclic(") : -1])
    return math.ceil(extent / processes) if rule == "block" else extent


def mesh_of(mesh: Sequence[int] | int) -> tuple[int, ...]:
    """Return the processes along each dimension; a single number is one dimension.

    Raises
    ------
    InvalidError
        If they are not integers of at least 1.
    """
    try:
        given = tuple(operator.index(n) for n in (mesh if isinstance(mesh, Iterable) else (mesh,)))
    except TypeError:
        given = (0,)
    if not all(n > 0 for n in given):
        raise InvalidError(f"a mesh is integers of at least 1, have {mesh!r}")
    return given


def _mesh(rules: tuple[str, ...], mesh: Sequence[int] | int) -> tuple[int, ...]:
    """Return the processes along every dimension of the array."""
    given = mesh_of(mesh)
    distributed = [rule != "*" for rule in rules]
    if len(given) == len(rules) and all(
        n == 1 or is_cut for n, is_cut in zip(given, distributed, strict=True)
    ):
        return tuple(given)
    if len(given) != sum(distributed):
        raise InvalidError(
            f"need a mesh with {sum(distributed)} dimensions, one for each that "
            f"{','.join(rules)!r} distributes, have {mesh!r}"
        )
    along = iter(given)
    return tuple(next(along) if is_cut else 1 for is_cut in distributed)
