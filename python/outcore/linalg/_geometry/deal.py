"""The panels of each process, if several processes factor a matrix.

Panels are dealt in turn, so that each process has its share of every slab, of every panel to the
left of it, and of all disks (Womble, Greenberg, Riesen & Wheat 1993, section 3).
"""

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Deal:
    """The panels of this process, and of the others.

    Attributes
    ----------
    counts
        Panels of the widest slab that each process holds. A process with more memory holds more.
    rank
        Number of this process.
    order
        The ranks in the order of their turns; by default from 0 on.
    """

    counts: tuple[int, ...] = (1,)
    rank: int = 0
    order: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """Number of processes."""
        return len(self.counts)

    def owner(self, panel: int) -> int:
        """Return the process that holds a panel."""
        turns = _turns(self.counts, self.order)
        return turns[panel % len(turns)]

    def held(self, first: int, last: int) -> Sequence[int]:
        """Return the panels from `first` to ``last - 1`` that this process holds, in order."""
        if self.size == 1:
            return range(first, last)
        return [panel for panel in range(first, last) if self.owner(panel) == self.rank]

    def number(self, first: int, last: int) -> int:
        """Return the number of panels from `first` to ``last - 1`` that this process holds."""
        if self.size == 1:
            return max(last - first, 0)
        before = _before(self.counts, self.order, self.rank)
        rounds = len(before) - 1
        first, last = (
            at // rounds * before[-1] + before[at % rounds] for at in (first, max(first, last))
        )
        return last - first


ALONE = Deal()

_ALIKE = 0.8
"""Part of the most memory from which less memory counts as the same."""


@functools.lru_cache(maxsize=64)
def _turns(counts: tuple[int, ...], order: tuple[int, ...]) -> tuple[int, ...]:
    """Return the processes in the order in which they receive panels, again and again.

    The turns of each process are spread as evenly as possible. The number of turns divides the sum
    of `counts`, so no slab of that many panels gives a process more panels than it can hold.
    """
    unit = math.gcd(*counts)
    each = [count // unit for count in counts]
    ranks = order or range(len(counts))
    turns = [
        ((i + 0.5) / each[rank], at) for at, rank in enumerate(ranks) for i in range(each[rank])
    ]
    return tuple(ranks[at] for _, at in sorted(turns))


@functools.lru_cache(maxsize=64)
def _before(counts: tuple[int, ...], order: tuple[int, ...], rank: int) -> list[int]:
    """Return how many turns a process has had before each turn of a round, and in all of it."""
    return list(itertools.accumulate((owner == rank for owner in _turns(counts, order)), initial=0))


def dealt(capacities: Sequence[int], panels: int, order: Sequence[int] = ()) -> tuple[int, ...]:
    """Return how many panels of a slab each process holds, given how many fit in its memory.

    All panels of a small matrix form one slab, which is divided in proportion to the memory.
    Processes with nearly the same memory hold as many panels. So these stay on their own servers,
    to which the panels of factors are dealt one by one. Panels that are left over go to the ranks
    that are first in `order`.
    """
    if min(capacities) >= _ALIKE * max(capacities):
        capacities = [min(capacities)] * len(capacities)
    total = sum(capacities)
    if total <= panels:
        return tuple(capacities)
    shares = [capacity * panels / total for capacity in capacities]
    counts = [int(share) for share in shares]
    # The largest remainders get the panels that are left; no share exceeds its capacity.
    by_remainder = sorted(order or range(len(shares)), key=lambda rank: counts[rank] - shares[rank])
    for rank in by_remainder[: panels - sum(counts)]:
        counts[rank] += 1
    return tuple(counts)
