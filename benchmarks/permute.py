"""Permutations on disk: a transpose and a bit reversal against fio's rates, and rivals.

The disk's time is that of reading and writing every byte once at fio's rates. All run under a hard
limit of the budget and 150 MiB. A contender that the limit kills is reported.
"""

import importlib.util
import math
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import outcore as oc
from benchmarks.benchmark import Outcome, Setting, main
from benchmarks.child import Ended
from benchmarks.figures import Figure, Target
from benchmarks.fio import is_installed
from benchmarks.memory_limit import MemoryLimit, memory_limit
from benchmarks.relayout import PROGRAM_BYTES, Relayout
from benchmarks.rounds import alternate
from outcore.permutations.bit_matrices import columns_of
from outcore.permutations.factors import gamma_rank

RIVALS = ("memmap", "zarr", "dask")


@dataclass(frozen=True)
class Case:
    """The permutation, the shape, and the share of the array that is the budget."""

    kind: str
    shape: tuple[int, ...]
    share: int

    @property
    def memory(self) -> int:
        return 8 * math.prod(self.shape) // self.share


CASES = {
    "full": (Case("transpose", (16384, 16384), 16), Case("bit-reversal", (1 << 28,), 64)),
    "quick": (Case("transpose", (8192, 8192), 4), Case("bit-reversal", (1 << 26,), 64)),
    "tiny": (Case("transpose", (2048, 2048), 2), Case("bit-reversal", (1 << 21,), 4)),
}


def measure(setting: Setting) -> Outcome:
    figures = []
    for case in CASES[setting.size]:
        work = _Work(setting, case)
        with memory_limit(case.memory + PROGRAM_BYTES) as limit:
            figures += work.against_fio(limit)
            if case.kind == "transpose":
                figures += [work.against(rival, limit) for rival in RIVALS]
            figures.append(work.killed(limit))
        shutil.rmtree(work.directory)
    return Outcome(figures)


class _Work(Relayout):
    """The source of one case, as an array of outcore, and for rivals as ``.npy`` and Zarr."""

    def __init__(self, setting: Setting, case: Case) -> None:
        super().__init__(setting, case.shape, "f8", lambda rng, count: rng.random(count))
        self.case = case
        extents = " x ".join(map(str, case.shape))
        self.title = f"{case.kind} of {extents} float64, {case.memory >> 10} KiB"

    def run(self, who: str, source: Path, limit: MemoryLimit | None) -> Ended:
        result = self.directory / f"result-{who}"
        return self.run_case(
            "benchmarks.permute_case",
            [who, source, result, self.case.kind, self.case.memory],
            source, result, limit,
        )  # fmt: skip

    def against_fio(self, limit: MemoryLimit | None) -> list[Figure]:
        """Compare the time of the call with the disk's, or the rate of each pass."""
        kind = self.case.kind
        plan = oc.plan(
            "permute", source=self.source, path=self.directory / "result-outcore", kind=kind,
            memory=self.case.memory,
        )  # fmt: skip
        figures = []
        if kind == "bit-reversal":
            figures.append(self.passes(plan))
        what = f"{self.title}, {plan.passes} passes, requests from {plan.request_bytes >> 10} KiB: "
        what += (
            "time against one read and one write at fio's rates"
            if kind == "transpose"
            else "rate of the slowest pass against fio"
        )
        if not is_installed():
            return [*figures, Figure(what, skipped="fio is not installed")]
        slowest: list[float] = []

        def ours() -> float:
            ended = self.run("outcore", self.source, limit)
            slowest.append(max(ended.found["pass_seconds"]))
            return ended.seconds

        found = alternate(self.title, {"outcore": ours, "fio": self.fio}, rounds=self.rounds)
        if kind == "transpose":
            values, target = found.ratios("outcore", "fio"), Target("≤", 1.3)
        else:
            times = zip(found.measures["fio"], slowest[-self.rounds :], strict=True)
            values, target = [disk / each for disk, each in times], Target("≥", 0.75)
        row = Figure(
            what, values, target, ours=f"{found.median('outcore'):.2f} s",
            rival=f"{found.median('fio'):.2f} s",
            details={"reads": plan.reads, "writes": plan.writes, "slowest_pass_s": slowest},
        )  # fmt: skip
        return [*figures, row]

    def passes(self, plan: oc.PermutePlan) -> Figure:
        """Compare the passes with the bound of Cormen, Sundquist and Wisniewski."""
        bits = self.nbytes.bit_length() - 4
        block, load = ((n // 8).bit_length() - 1 for n in (plan.block_bytes, plan.load_bytes))
        rank = gamma_rank(columns_of(self.case.kind, bits), block)
        bound = math.ceil(rank / (load - block)) + 2
        return Figure(
            f"{self.title}: passes, with loads of {plan.load_bytes >> 10} KiB and blocks of "
            f"{plan.block_bytes >> 10} KiB",
            [plan.passes], Target("≤", bound),
        )  # fmt: skip

    def against(self, rival: str, limit: MemoryLimit | None) -> Figure:
        what = f"{self.title}, same limit: time against {rival}"
        if rival != "memmap" and importlib.util.find_spec(rival) is None:
            return Figure(what, skipped=f"{rival} is not installed")
        if limit is None:
            return Figure(what, skipped="no control groups here")
        source = self.source_of(rival)
        return self.contest(
            what, rival, self.run(rival, source, limit),
            lambda: self.run("outcore", self.source, limit),
            lambda: self.run(rival, source, limit), Target("<", 1),
        )  # fmt: skip

    def source_of(self, rival: str) -> Path:
        """Make the matrix as the rival reads it."""
        path = self.directory / ("source.npy" if rival == "memmap" else "source.zarr")
        if not path.exists():
            side = min(1024, *self.case.shape)
            given: dict[str, Any] = {"chunks": (side, side), "codec": "none"}
            if rival == "memmap":
                given = {}
            oc.export_array(self.source, path, progress=False, **given)
        return path


if __name__ == "__main__":
    main("permute", measure)
