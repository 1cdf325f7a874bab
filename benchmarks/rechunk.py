"""Copies into other chunks: against fio's rates, and against dask, rechunker and cubed.

The disk's time is that of reading and writing every byte once at fio's rates. The rivals copy
between Zarr arrays, under the same hard memory limit, without compression and with zstd. A rival
that the limit kills runs again with half the budget, down to an eighth, and then is reported.
zstd alone decodes and encodes each chunk once, in memory. ``pip install dask cubed`` installs two
of the rivals. rechunker needs zarr 2, so it runs in an environment of its own:
``RECHUNKER_PYTHON`` names the interpreter.
"""

import importlib.util
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import outcore as oc
from benchmarks.benchmark import Outcome, Setting, main
from benchmarks.child import Ended, run_module
from benchmarks.figures import Figure, Target
from benchmarks.fio import Fio, is_installed
from benchmarks.memory_limit import MemoryLimit, memory_limit
from benchmarks.rounds import alternate
from benchmarks.scratch import drop_cached

RIVALS = ("dask", "rechunker", "cubed")
TIMEOUT_S = 1800.0
SLOW_S = 60.0
"""A rival that takes longer runs in one round only."""

PROGRAM_BYTES = 150 << 20
"""Memory beside the budget: Python, NumPy and the libraries."""

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
        figures.append(work.against_fio())
        if case.has_rivals:
            both = [(rival, codec) for codec in ("none", "zstd") for rival in RIVALS]
            figures += [work.against(*each) for each in both]
            figures.append(work.against_codec())
        shutil.rmtree(work.directory)
    return Outcome(figures)


class _Work:
    """The source of one case, as an array of outcore and as Zarr."""

    def __init__(self, setting: Setting, case: Case) -> None:
        self.setting, self.case = setting, case
        self.directory = setting.scratch / "case"
        self.directory.mkdir()
        self.source = self.directory / "source"
        self.rounds = 1 if setting.size == "tiny" else 3
        rng = np.random.default_rng(1)
        with oc.create_array(self.source, case.shape, "f4", chunks=case.before) as array:
            for box in _slabs(case):
                count = tuple(s.stop - s.start for s in box)
                # Half of the bits are noise, so that a codec has work and gains something.
                array[box] = rng.integers(0, 1 << 12, count).astype("f4")
            array.flush()
            self.nbytes = array.nbytes
        extents = " x ".join(map(str, case.shape))
        chunks = " to ".join(" x ".join(map(str, c)) for c in (case.before, case.after))
        self.title = f"rechunk of {extents} float32, {chunks}, {case.memory >> 20} MiB"

    def run(
        self, who: str, source: Path, codec: str, limit: MemoryLimit | None, share: int = 1
    ) -> Ended:
        result = self.directory / f"result-{who}"
        for name in (result, self.directory / "temporary"):
            shutil.rmtree(name, ignore_errors=True)
        drop_cached(source)
        chunks = ",".join(map(str, self.case.after))
        return run_module(
            "benchmarks.rechunk_case",
            [who, source, result, chunks, self.case.memory // share, codec],
            environment=self.setting.child_environment(), timeout_s=TIMEOUT_S, limit=limit,
            python=_interpreter(who) or sys.executable,
        )  # fmt: skip

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
        file = self.directory / "fio"

        def fio() -> float:
            write = Fio(file, self.nbytes, 4 << 20, 4, huge_pages=True, anew=True).rate("write")
            drop_cached(file)
            read = Fio(file, self.nbytes, 4 << 20, 4, huge_pages=True).rate("read")
            file.unlink()
            return self.nbytes / write + self.nbytes / read

        with memory_limit(case.memory + PROGRAM_BYTES) as limit:
            found = alternate(
                self.title,
                {
                    "outcore": lambda: self.run("outcore", self.source, "none", limit).seconds,
                    "fio": fio,
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
            task = f"{self.case.memory // share >> 20} MiB a task"
            if not first.found:
                reason = "killed at the limit" if first.is_out_of_memory else "its time was up"
                return Figure(what, skipped=f"{rival}: {reason}, even with {task}")
            ours = self.source if codec == "none" else source
            is_slow = first.seconds >= SLOW_S

            def theirs() -> float:
                return (first if is_slow else self.run(rival, source, codec, limit, share)).seconds

            found = alternate(
                what,
                {
                    "outcore": lambda: self.run("outcore", ours, codec, limit).seconds,
                    rival: theirs,
                },
                rounds=1 if is_slow else self.rounds,
                warmups=0,
            )
        return Figure(
            f"{what} with {task}", found.ratios("outcore", rival), target,
            ours=f"{found.median('outcore'):.2f} s", rival=f"{found.median(rival):.2f} s",
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


def _interpreter(who: str) -> str | None:
    """Return the interpreter that has the package of a contender."""
    if who == "rechunker":
        return os.environ.get("RECHUNKER_PYTHON")
    return sys.executable if importlib.util.find_spec(who) else None


def _slabs(case: Case) -> list[tuple[slice, ...]]:
    """Cut the array into slabs of about 64 MiB along its first dimension."""
    n = case.shape[0]
    row = 4 * int(np.prod(case.shape[1:]))
    step = max((64 << 20) // row, 1)
    rest = tuple(slice(0, extent) for extent in case.shape[1:])
    return [(slice(i, min(i + step, n)), *rest) for i in range(0, n, step)]


if __name__ == "__main__":
    main("rechunk", measure)
