"""Memory schemas: the distribution of an array's elements over the processes of a program."""

import itertools
import math
import operator
import pickle
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from outcore._core import MemorySchema
from outcore._util.communicator import Communicator
from outcore.errors import InvalidError
from outcore.layout.distribution import Distribution, Rules, Share, distribute, mesh_of, parse_rules

SchemaLike: TypeAlias = "Schema | Distribution | Rules"
"""A schema, or the rules of a schema without a mesh."""


class Schema:
    """The elements of an array that each process has in its memory.

    The processes are those of a communicator. Their ranks number a mesh in row-major order.
    Processes beyond the mesh have no elements.

    Parameters
    ----------
    rules
        One of ``block``, ``cyclic(K)`` and ``*`` for each dimension, as in High Performance
        Fortran: ``"block,block,*"``; see `outcore.distribute`.
    mesh
        Processes along each distributed dimension. With one such dimension, the default is all
        processes.
    """

    def __init__(self, rules: Rules, mesh: Sequence[int] | int | None = None) -> None:
        self._rules = parse_rules(rules)
        self._mesh = None if mesh is None else mesh_of(mesh)
        self._boxes: list[list[Any]] | None = None
        if mesh is None and sum(rule != "*" for rule in self._rules) > 1:
            raise InvalidError(
                f"need a mesh for {','.join(self._rules)!r}, which distributes several dimensions, "
                "have none; pass mesh=, such as (2, 2)"
            )

    @classmethod
    def boxes(cls, boxes: Iterable[Sequence[Sequence[slice]]]) -> "Schema":
        """Return a schema with given boxes; each process has one array for each of its boxes.

        Parameters
        ----------
        boxes
            For each process a list of its boxes, which may be empty; each box is a tuple of slices
            without steps. Boxes need not cover the array. They may overlap in reads, such as those
            with ghost cells; a write refuses overlaps.
        """
        schema = cls.__new__(cls)
        schema._rules, schema._mesh = (), None
        schema._boxes = [list(own) for own in boxes]
        return schema

    @classmethod
    def own_boxes(cls, boxes: Sequence[Sequence[slice]], comm: Any) -> "Schema":
        """Return a schema of boxes, with one call on each process of a communicator.

        Parameters
        ----------
        boxes
            The boxes of this process, as in `boxes`.
        comm
            Communicator of the processes; see `Array.write_all`.

        Raises
        ------
        InvalidError
            On every process, if one of them passes no list of boxes.
        """
        ranks = Communicator(comm)
        mine: list[Any] = []
        error: Exception | None = None
        try:
            mine = list(boxes)
            pickle.dumps(mine)  # an object that cannot be sent would block the other processes
        except Exception as failed:
            error = failed
        said = ranks.allgather(mine if error is None else f"{type(error).__name__}: {error}")
        if error is not None:
            raise InvalidError(
                f"need a list of boxes, tuples of slices, have {type(boxes).__name__} "
                f"({type(error).__name__}: {error})"
            ) from error
        for rank, theirs in enumerate(said):
            if isinstance(theirs, str):
                raise InvalidError(f"process {rank} has no list of boxes: {theirs}")
        return cls.boxes(said)

    @classmethod
    def of(cls, schema: SchemaLike) -> "Schema":
        """Convert any form of a schema."""
        if isinstance(schema, Schema):
            return schema
        if isinstance(schema, Distribution):
            return cls(schema.rules, schema.mesh)
        return cls(schema)

    @property
    def is_boxes(self) -> bool:
        """Whether the schema consists of boxes."""
        return self._boxes is not None

    def __str__(self) -> str:
        if self._boxes is not None:
            return f"boxes of {len(self._boxes)} processes"
        return ",".join(self._rules) + ("" if self._mesh is None else f" over {self._mesh}")

    def __repr__(self) -> str:
        return f"<outcore.Schema {self}>"

    def key(self) -> bytes:
        """Return bytes that are equal for equal schemas only."""
        return repr((self._rules, self._mesh, self._boxes)).encode()

    def on(self, shape: tuple[int, ...], size: int, *, is_write: bool = False) -> MemorySchema:
        """Apply the schema to an array of this shape and `size` processes.

        Raises
        ------
        InvalidError
            If the schema does not fit them, or has overlapping boxes and `is_write` is set.
        """
        if self._boxes is not None:
            found = MemorySchema.boxes(
                [[_box(box, shape) for box in _boxes(own)] for own in self._boxes]
            )
        else:
            over = self.distribution(shape, size)
            pairs = list(zip(over.rules, over.mesh, strict=True))
            runs = [_run(rule) for rule in over.rules]
            found = MemorySchema.mesh([n for rule, n in pairs if rule != "*"], runs)
        found.shapes(shape, size, 0)
        if is_write:
            found.check_disjoint(shape)
        return found

    def distribution(self, shape: tuple[int, ...], size: int) -> Distribution:
        """Apply the rules to an array of this shape and `size` processes.

        Raises
        ------
        InvalidError
            If they do not fit, or the schema consists of boxes.
        """
        if self._boxes is not None:
            raise InvalidError(f"need a schema of rules, such as 'block,*', have {self}")
        distributed = sum(rule != "*" for rule in self._rules)
        mesh = (size,) * distributed if self._mesh is None else self._mesh
        return distribute(shape, self._rules, mesh)

    def local_shapes(
        self, shape: tuple[int, ...], size: int, rank: int
    ) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of a process's arrays: one array per box, or at most one in a mesh."""
        return tuple(tuple(each) for each in self.on(shape, size).shapes(shape, size, rank))

    def local_slices(
        self, shape: tuple[int, ...], size: int, rank: int
    ) -> tuple[tuple[slice, ...], ...]:
        """Return the global slices of a process's arrays, in the order of `local_shapes`.

        Each tuple of slices, applied to the whole array, selects one array of the process.

        Raises
        ------
        InvalidError
            If the schema does not fit, or a process has several blocks of ``cyclic(K)`` along a
            dimension: `Distribution.parts` lists those.
        """
        shapes = self.local_shapes(shape, size, rank)
        if self._boxes is not None:
            return tuple(self.boxes_of(shape, size, rank))
        over = self.distribution(shape, size)
        return (tuple(map(_slice, over.shares(rank), over.rules)),) if shapes else ()

    def boxes_of(self, shape: tuple[int, ...], size: int, rank: int) -> list[tuple[slice, ...]]:
        """Return the boxes of a process, with explicit bounds.

        Raises
        ------
        InvalidError
            If they do not fit an array of this shape and `size` processes, or the schema has rules.
        """
        if self._boxes is None:
            raise InvalidError(f"need a schema of boxes, as of oc.Schema.boxes, have {self}")
        self.on(shape, size)
        found = [_box(box, shape) for box in _boxes(self._boxes[rank])]
        return [
            tuple(slice(a, a + n) for a, n in zip(start, extent, strict=True))
            for start, extent in found
        ]

    def nbytes(self, shape: tuple[int, ...], size: int, rank: int, itemsize: int) -> int:
        """Return the number of bytes of a process."""
        return itemsize * sum(map(math.prod, self.local_shapes(shape, size, rank)))


def _slice(share: Share, rule: str) -> slice:
    """Return a process's elements along one dimension as a slice of the array's indices."""
    if share.size == 1:
        return slice(share.start, share.stop, share.step)
    runs = list(itertools.islice(share.intervals(), 2))
    if len(runs) > 1:
        raise InvalidError(
            f"need blocks of 1 element, or one block a process, for slices, have {rule}; take the "
            "boxes of schema.distribution(shape, size).parts(rank)"
        )
    return slice(runs[0].start, runs[0].stop) if runs else slice(share.stop, share.stop)


def _run(rule: str) -> int | None:
    """Convert a rule for `MemorySchema.mesh`."""
    if rule == "*":
        return None
    return int(rule[len("cyclic(") : -1]) if rule.startswith("cyclic") else 0


def _boxes(own: Sequence[Any]) -> list[Sequence[Any]]:
    """Return the boxes of a process; a single box needs no list around it."""
    is_one = len(own) > 0 and all(isinstance(part, slice) for part in own)
    return [own] if is_one else list(own)


def _box(box: Sequence[Any], shape: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """Return the first element and the shape of a box."""
    if (
        not isinstance(box, tuple | list)
        or len(box) != len(shape)
        or not all(isinstance(part, slice) and part.step in (None, 1) for part in box)
    ):
        raise InvalidError(
            f"a box is a tuple of {len(shape)} slices without steps, have {box!r}; write such as "
            "(slice(0, 10), slice(5, 7))"
        )
    start: list[int] = []
    extent: list[int] = []
    for part, n in zip(box, shape, strict=True):
        low, high = _bound(part.start, 0, box), _bound(part.stop, n, box)
        if not (0 <= low <= n and high <= n):
            raise InvalidError(
                f"the box {box!r} is not in an array of shape {shape}; write its first elements "
                "and those after its last"
            )
        start.append(low)
        extent.append(max(high - low, 0))
    return start, extent


def _bound(given: Any, default: int, box: Sequence[Any]) -> int:
    try:
        return default if given is None else operator.index(given)
    except TypeError:
        raise InvalidError(f"the slices of a box are of integers, have {box!r}") from None
