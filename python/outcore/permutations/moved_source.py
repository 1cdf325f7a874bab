"""A source of copies whose axes are permuted and reversed."""

import dataclasses
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from outcore._core import Arena, Ticket
from outcore._util.streams import Box
from outcore.convert.copy_plan import Cuts, Kind
from outcore.convert.rechunk import Permuted
from outcore.convert.sources import Source, Stored
from outcore.layout.casting import AS_GIVEN
from outcore.permutations.moves import Move


class MovedSource(Source):
    """Another source after a move by axes. The other source closes its own files."""

    def __init__(self, source: Source, move: Move) -> None:
        assert move.axes is not None, "the move is one by axes"
        super().__init__(move.new_shape, source.dtype, source.order, AS_GIVEN)
        self._source, self._move, self._axes = source, move, move.axes
        side, old = source.side, [source.side.cuts[d] for d in move.axes]
        cuts = tuple(
            _reversed(c, whole=side.decoded) if d in move.flips else c
            for d, c in zip(move.axes, old, strict=True)
        )
        # Sources without a queue of reads fill a block of their own before it is moved.
        self._is_direct = isinstance(source, Stored) and not source.converts
        self.side = dataclasses.replace(
            side,
            cuts=cuts,
            loose=tuple(move.axes.index(d) for d in side.loose),
            library_blocks=side.library_blocks + (not self._is_direct),
        )
        self.reads_ahead = self._is_direct and source.reads_ahead
        self._fetched = 0, 0
        self.path, self.attributes = source.path, source.attributes
        if source.dims is not None:
            self.dims = tuple(source.dims[d] for d in move.axes)

    @property
    def kind(self) -> Kind:
        """See `Source`."""
        return self._source.kind

    @property
    def stored_order(self) -> tuple[int, ...]:
        """See `Source`."""
        return tuple(self._axes.index(d) for d in self._source.stored_order)

    def begin(self, arena: Arena, bounce_bytes: int) -> None:
        """See `Source`."""
        self._fetched = 0, 0
        self._source.begin(arena, bounce_bytes)

    def end(self) -> None:
        """See `Source`."""
        self._source.end()

    def fetch(self, box: Box, out: npt.NDArray[Any]) -> Ticket | None:
        """See `Source`."""
        self._fetched = self._fetched[0] + out.nbytes, self._fetched[1] + 1
        old: list[slice] = [slice(0)] * len(box)
        for d, piece in zip(self._axes, box, strict=True):
            n = self._move.shape[d]
            old[d] = slice(n - piece.stop, n - piece.start) if d in self._move.flips else piece
        back = np.transpose(out, np.argsort(self._axes))
        into = np.flip(back, self._move.flips)
        if self._is_direct:
            return self._source.fetch(tuple(old), into)
        order: Literal["C", "F"] = "F" if self._source.order == "F" else "C"
        part = np.empty(into.shape, self._source.dtype, order)
        ticket = self._source.fetch(tuple(old), part)
        if ticket is not None:
            ticket.wait()
        into[...] = part
        return None

    def moved(self) -> tuple[int, int]:
        """See `Source`. Boxes count for a source that does not count its requests."""
        return self._source.moved() or self._fetched

    def check_end(self) -> None:
        """See `Source`."""
        self._source.check_end()

    def version(self) -> dict[str, Any] | None:
        """See `Source`."""
        version = self._source.version()
        return None if version is None else {**version, "move": self._move.to_json()}


class Transposed(Permuted):
    """A source with its axes permuted; boxes count if it does not count its own requests."""

    def __init__(self, source: Source, axes: tuple[int, ...]) -> None:
        super().__init__(source, axes)
        self._fetched = 0, 0

    def begin(self, arena: Arena, bounce_bytes: int) -> None:
        """See `Source`."""
        self._fetched = 0, 0
        super().begin(arena, bounce_bytes)

    def fetch(self, box: Box, out: npt.NDArray[Any]) -> Ticket | None:
        """See `Source`."""
        self._fetched = self._fetched[0] + out.nbytes, self._fetched[1] + 1
        return super().fetch(box, out)

    def moved(self) -> tuple[int, int]:
        """See `Source`."""
        return super().moved() or self._fetched


def _reversed(cuts: Cuts, *, whole: bool) -> Cuts:
    """Return the cuts of a dimension whose indices are reversed.

    If each access decodes `whole` chunks, the cuts are exact. Otherwise a block may cut chunks, and
    even steps meet the chunks of the target more often.
    """
    if not cuts.edges and (cuts.n % cuts.step == 0 or not whole):
        return cuts
    edges = cuts.edges or (*range(cuts.step, cuts.n, cuts.step), cuts.n)
    return Cuts(cuts.n, edges=tuple(sorted({cuts.n - e for e in edges[:-1]} | {cuts.n})))
