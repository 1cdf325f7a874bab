"""An out-of-core call against the same in core with the same kernels, and against its own plan.

Each run is a process of its own, like a user's: its remains in memory do not affect the next run.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

import outcore as oc
from benchmarks.benchmark import Outcome, Setting
from benchmarks.child import run_module
from benchmarks.figures import Figure, Target
from benchmarks.rounds import Contender, Rounds, alternate
from outcore.machine import rates

Case = TypeVar("Case")

OURS, RIVAL = "outcore", "in core"

MOST_PLAN_OFF = 25
"""Largest error of the plan's time, in percent."""


def measure_cases(
    setting: Setting,
    cases: Iterable[Case],
    compare: Callable[[Setting, rates.Rates, Case], list[Figure]],
) -> Outcome:
    """Compare case by case, with one measurement of the rates of machine and disk."""
    known = rates.measure(setting.scratch, 0.2 if setting.size == "tiny" else 4.0)
    figures = [figure for case in cases for figure in compare(setting, known, case)]
    details = {
        "read_bytes_s": known.read_bytes_s,
        "write_bytes_s": known.write_bytes_s,
        "gemm_flops_s": known.gemm_flops_s,
    }
    return Outcome(figures, details)


@dataclass(frozen=True)
class Comparison:
    """The measurements of both sides, and the plan.

    Attributes
    ----------
    name
        The operation; every figure's name begins with it.
    plan
        Plan of the out-of-core call.
    gemm_flops_s
        The peak: the rate of a large matrix product.
    rounds
        Seconds of `OURS` and `RIVAL`.
    found
        Output of each process, in order, warm-ups included; ours is the report.
    """

    name: str
    plan: oc.Plan
    gemm_flops_s: float
    rounds: Rounds
    found: dict[str, list[dict[str, Any]]]

    @property
    def report(self) -> dict[str, Any]:
        """Report of our last run."""
        return self.found[OURS][-1]

    @property
    def bytes_moved(self) -> int:
        """Bytes that our last run read and wrote."""
        return int(self.report["bytes_read"] + self.report["bytes_written"])

    @property
    def words(self) -> float:
        """The same, in elements of the matrix."""
        return self.bytes_moved / np.dtype(self.plan.dtype).itemsize

    def time(self, rival: str, bound: float | None, **details: object) -> Figure:
        """Return the time against the rival's."""
        return Figure(
            f"{self.name}: time against {rival}",
            self.rounds.ratios(OURS, RIVAL),
            Target("≤", bound) if bound else None,
            ours=rated(self.rounds.median(OURS), self.plan.flops),
            rival=rated(self.rounds.median(RIVAL), self.plan.flops),
            peak=f"gemm {self.gemm_flops_s / 1e9:.0f} GFLOP/s",
            details={**self.rounds.measures, **details},
        )

    def plan_off(self) -> Figure:
        """Return the error of the plan's time, with plan and report."""
        return Figure(
            f"{self.name}: plan's time off by",
            [abs(self.plan.seconds / s - 1) * 100 for s in self.rounds.measures[OURS]],
            Target("≤", MOST_PLAN_OFF),
            unit="%",
            ours=f"planned {self.plan.seconds:.2f} s",
            details={"plan": self.plan.to_dict(), "report": self.report},
        )

    def beyond_plan(self) -> Figure:
        """Return the words moved beyond the plan."""
        planned = self.plan.bytes_read + self.plan.bytes_written
        return Figure(
            f"{self.name}: words moved beyond the plan",
            [(self.bytes_moved - planned) // np.dtype(self.plan.dtype).itemsize],
            Target("=", 0),
            ours=f"{self.bytes_moved / 1e9:.2f} GB",
        )

    def words_over(self, what: str, words: float, target: Target | None = None) -> Figure:
        """Return the words moved over the given number, also in squares of the order."""
        return Figure(
            f"{self.name}: words moved over {what}",
            [self.words / words],
            target,
            ours=f"{self.words / self.plan.n**2:.2f} n²",
            rival=f"{words / self.plan.n**2:.2f} n²",
        )

    def words_over_bound(self, target: Target | None = None) -> Figure:
        """Return the words moved over the least that any algorithm must move."""
        bound = self.plan.words_lower_bound or math.nan
        return self.words_over("the lower bound (lower is better)", bound, target)

    def hidden(self) -> Figure:
        """Return the share of the disk's time that overlapped with arithmetic, in the counted
        rounds.
        """
        rounds = len(self.rounds.measures[OURS])
        return Figure(
            f"{self.name}: I/O time hidden",
            [
                math.nan if (share := run["overlap"]) is None else share * 100
                for run in self.found[OURS][-rounds:]
            ],
            unit="%",
            ours=f"busy {self.report['io_seconds']:.2f} s, "
            f"waited {self.report['wait_seconds']:.2f} s",
        )


def run_both(
    setting: Setting,
    name: str,
    plan: oc.Plan,
    known: rates.Rates,
    *,
    ours: tuple[object, ...],
    rival: tuple[object, ...],
    rounds: int = 3,
) -> Comparison:
    """Run both alternately, with `rounds` rounds in a full run.

    `ours` and `rival` are each a module of this package, without the package's name, and its
    arguments.
    """
    found: dict[str, list[dict[str, Any]]] = {OURS: [], RIVAL: []}
    environment = setting.child_environment()

    def contender(side: str, module: object, *arguments: object) -> Contender:
        def run() -> float:
            ended = run_module(f"benchmarks.{module}", arguments, environment=environment)
            found[side].append(ended.found)
            return ended.seconds

        return run

    measured = alternate(
        name,
        {OURS: contender(OURS, *ours), RIVAL: contender(RIVAL, *rival)},
        rounds=1 if setting.size == "tiny" else rounds,
        warmups=0 if setting.size == "tiny" else 1,
        from_quiet=setting.size != "tiny",
    )
    return Comparison(name, plan, known.gemm_flops_s[plan.dtype], measured, found)


def rated(seconds: float, work: float) -> str:
    """Format a time and its rate."""
    return f"{seconds:.2f} s, {work / seconds / 1e9:.0f} GFLOP/s"
