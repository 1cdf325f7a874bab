"""Copies into other chunks: against fio's rates, and against dask, rechunker and cubed.

The disk's time is that of reading and writing every byte once at fio's rates. The rivals copy
between Zarr arrays, under the same hard memory limit, without compression and with zstd. A rival
that the limit kills runs again with half the budget, down to an eighth, and then is reported.
zstd alone decodes and encodes each chunk once, in memory. ``pip install dask cubed`` installs two
of the rivals. rechunker needs zarr 2, so it runs in an environment of its own:
``RECHUNKER_PYTHON`` names the interpreter.
"""

import importlib.util
import itertools
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import outcore as oc
from benchmarks.benchmark import Outcome, Setting, main
from benchmarks.child import Ended, run_module
from benchmarks.figures import Figure, Target
from benchmarks.fio import is_installed
from benchmarks.memory_limit import MemoryLimit, memory_limit
from benchmarks.relayout import PROGRAM_BYTES, TIMEOUT_S, Relayout
from benchmarks.rounds import alternate

RIVALS = ("dask", "rechunker", "cubed")
SHARES = (1, 2, 4, 8)
"""The budget over that of one task of a rival; its threads run several tasks at once."""


@dataclass(frozen=True)
class Case:
    """Shape, chunks before and after, the budget, its passes, and the target for time.

    Rows that become columns are too many tasks for the rivals.
    """

    shape: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    memory: int
    passes: int
    most: float
    has_rivals: bool = False


CASES = {
    "full": (
        Case((1024, 1024, 1024), (1, 1024, 1024), (256, 64, 64), 256 << 20, 1, 1.3, True),
        Case((32768, 32768), (1, 32768), (32768, 1), 256 << 20, 2, 2.5),
    ),
    "quick": (
        Case((256, 1024, 1024), (1, 1024, 1024), (256, 64, 64), 64 << 20, 1, 1.3, True),
        Case((16384, 16384), (1, 16384), (16384, 1), 128 << 20, 2, 2.5),
    ),
    "tiny": (
        Case((64, 256, 256), (1, 256, 256), (64, 32, 32), 32 << 20, 1, 1.3, True),
        Case((2048, 2048), (1, 2048), (2048, 1), 4 << 20, 1, 2.5),
    ),
}


def measure(setting: Setting) -> Outcome:
    figures = []
    for case in CASES[setting.size]:
        work = _Work(setting, case)
        for figure in work.figures():
            figures.append(figure)
            setting.keep(Outcome(figures))
        shutil.rmtree(work.directory)
    return Outcome(figures)


class _Work(Relayout):
    """The source of one case, as an array of outcore and as Zarr."""

    def __init__(self, setting: Setting, case: Case) -> None:
        super().__init__(setting, case.shape, "f4", _noise, chunks=case.before)
        self.case = case
        extents = " x ".join(map(str, case.shape))
        chunks = " to ".join(" x ".join(map(str, c)) for c in (case.before, case.after))
        self.title = f"rechunk of {extents} float32, {chunks}, {case.memory >> 20} MiB"

    def run(
        self, who: str, source: Path, codec: str, limit: MemoryLimit | None, share: int = 1
    ) -> Ended:
        result = self.directory / f"result-{who}"
        chunks = ",".join(map(str, self.case.after))
        return self.run_case(
            "benchmarks.rechunk_case",
            [who, source, result, chunks, self.case.memory // share, codec],
            source, result, limit, _interpreter(who) or sys.executable,
        )  # fmt: skip

    def figures(self) -> Iterator[Figure]:
        yield self.against_fio()
        if self.case.has_rivals:
            for codec, rival in itertools.product(("none", "zstd"), RIVALS):
                yield self.against(rival, codec)
            yield self.against_codec()
        with memory_limit(self.case.memory + PROGRAM_BYTES) as limit:
            yield self.killed(limit)

    def against_fio(self) -> Figure:
        case = self.case
        what = f"{self.title}: time against reading and writing each byte once at fio's rates"
        if not is_installed():
            return Figure(what, skipped="fio is not installed")
        plan = oc.plan(
            "rechunk", source=self.source, path=self.directory / "result-outcore",
            chunks=case.after, memory=case.memory,
        )  # fmt: skip
        if self.setting.size == "full" and plan.passes != case.passes:
            raise AssertionError(f"need {case.passes} passes, the plan has {plan.passes}")
        with memory_limit(case.memory + PROGRAM_BYTES) as limit:
            found = alternate(
                self.title,
                {
                    "outcore": lambda: self.run("outcore", self.source, "none", limit).seconds,
                    "fio": self.fio,
                },
                rounds=self.rounds,
            )
        return Figure(
            f"{what}, {plan.passes} passes", found.ratios("outcore", "fio"),
            Target("≤", case.most), ours=f"{found.median('outcore'):.2f} s",
            rival=f"{found.median('fio'):.2f} s",
            details={"reads": plan.reads, "writes": plan.writes, "read": plan.bytes_read},
        )  # fmt: skip

    def zarr(self, codec: str) -> Path:
        """Return the source as Zarr; the first call makes it."""
        source = self.directory / f"{codec}.zarr"
        if not source.exists():
            oc.export_array(
                self.source, source, codec=codec, chunks=self.case.before, zarr_format=2,
                progress=False,
            )  # fmt: skip
        return source

    def against_codec(self) -> Figure:
        what = f"{self.title}, zstd on both sides: time against that of the codec alone"
        if importlib.util.find_spec("numcodecs") is None:
            return Figure(what, skipped="numcodecs is not installed")
        source = self.zarr("zstd")

        def alone() -> float:
            return run_module(
                "benchmarks.codec_case", [source, ",".join(map(str, self.case.after))],
                environment=self.setting.child_environment(), timeout_s=TIMEOUT_S,
            ).seconds  # fmt: skip

        with memory_limit(self.case.memory + PROGRAM_BYTES) as limit:
            found = alternate(
                what,
                {
                    "outcore": lambda: self.run("outcore", source, "zstd", limit).seconds,
                    "zstd": alone,
                },
                rounds=self.rounds,
                warmups=0,
            )
        return Figure(
            what, found.ratios("outcore", "zstd"), Target("≤", 1.2),
            ours=f"{found.median('outcore'):.2f} s", rival=f"{found.median('zstd'):.2f} s",
        )  # fmt: skip

    def against(self, rival: str, codec: str) -> Figure:
        what = f"{self.title}, codec {codec}, same limit: time against {rival}"
        # With zstd, the codec takes most of the time of all contenders.
        target = Target("≤", round(1 / 1.7, 2)) if codec == "none" else None
        if _interpreter(rival) is None:
            return Figure(what, skipped=f"{rival} is not installed")
        source = self.zarr(codec)
        with memory_limit(self.case.memory + PROGRAM_BYTES) as limit:
            if limit is None:
                return Figure(what, skipped="no control groups here")
            try:
                first, share = self.first_run(rival, source, codec, limit)
            except RuntimeError as error:
                return Figure(what, skipped=f"{rival}: {str(error).splitlines()[-1]}")
            ours = self.source if codec == "none" else source
            return self.contest(
                f"{what} with {self.case.memory // share >> 20} MiB a task", rival, first,
                lambda: self.run("outcore", ours, codec, limit),
                lambda: self.run(rival, source, codec, limit, share), target,
            )  # fmt: skip

    def first_run(
        self, rival: str, source: Path, codec: str, limit: MemoryLimit
    ) -> tuple[Ended, int]:
        """Run a rival with the largest budget for each task that the limit allows, and its share.

        rechunker and cubed take the memory of one task, and run a task on each processor.
        """
        for share in SHARES:
            ended = self.run(rival, source, codec, limit, share)
            if not ended.is_out_of_memory:
                break
        return ended, share


def _noise(rng: np.random.Generator, count: tuple[int, ...]) -> npt.NDArray[Any]:
    """Return elements with noise in half of their bits: a codec has work, and gains something."""
    return rng.integers(0, 1 << 12, count).astype("f4")


def _interpreter(who: str) -> str | None:
    """Return the interpreter that has the package of a contender."""
    if who == "rechunker":
        return os.environ.get("RECHUNKER_PYTHON")
    return sys.executable if importlib.util.find_spec(who) else None


if __name__ == "__main__":
    main("rechunk", measure)
