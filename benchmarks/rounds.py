"""Contenders measured alternately: A B A B ..., so that drift affects all of them."""

import statistics
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from benchmarks.quiet import wait_until_quiet

Contender = Callable[[], float]
"""Does its work once and returns its measure: seconds, or bytes per second."""


@dataclass(frozen=True)
class Rounds:
    """Measures of each contender, one for each round, without the warm-up."""

    measures: dict[str, list[float]]

    def ratios(self, ours: str, rival: str) -> list[float]:
        """Return ours over the rival's, round by round."""
        pairs = zip(self.measures[ours], self.measures[rival], strict=True)
        return [a / b for a, b in pairs]

    def median(self, name: str) -> float:
        """Return the median of one contender's measures."""
        return statistics.median(self.measures[name])


def alternate(
    title: str,
    contenders: Mapping[str, Contender],
    *,
    rounds: int,
    warmups: int = 1,
    show: Callable[[float], str] = lambda seconds: f"{seconds:.2f} s",
    from_quiet: bool = False,
) -> Rounds:
    """Measure contenders alternately, showing each round; optionally each from a quiet machine."""
    measures: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(-warmups, rounds):
        found = {}
        for name, run in contenders.items():
            if from_quiet:
                wait_until_quiet()
            found[name] = run()
        label = f"round {number + 1}" if number >= 0 else "warm-up"
        shown = ", ".join(f"{name} {show(value)}" for name, value in found.items())
        print(f"{title}, {label}: {shown}", file=sys.stderr, flush=True)
        if number >= 0:
            for name, value in found.items():
                measures[name].append(value)
    return Rounds(measures)
