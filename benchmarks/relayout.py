"""Common parts of re-layout benchmarks: the array, the disk's time, and contests with rivals."""

import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import outcore as oc
from benchmarks.benchmark import Setting
from benchmarks.child import Ended, run_module
from benchmarks.figures import Figure, Target
from benchmarks.fio import Fio
from benchmarks.memory_limit import MemoryLimit
from benchmarks.rounds import alternate
from benchmarks.scratch import drop_cached

TIMEOUT_S = 1800.0
SLOW_S = 60.0
"""A rival that takes longer runs only once."""

PROGRAM_BYTES = 150 << 20
"""Memory beside the budget: Python, NumPy and the libraries."""

_SLAB_BYTES = 64 << 20

Draw = Callable[[np.random.Generator, tuple[int, ...]], npt.NDArray[Any]]


class Relayout:
    """An array on disk, filled by `draw`, and the processes that copy it into another layout."""

    title: str

    def __init__(
        self,
        setting: Setting,
        shape: tuple[int, ...],
        dtype: str,
        draw: Draw,
        chunks: tuple[int, ...] | None = None,
    ) -> None:
        self.setting = setting
        self.directory = setting.scratch / "case"
        self.directory.mkdir()
        self.source = self.directory / "source"
        self.rounds = 1 if setting.size == "tiny" else 3
        self.ends: list[Ended] = []
        rng = np.random.default_rng(1)
        with oc.create_array(self.source, shape, dtype, chunks=chunks) as array:
            step = max(_SLAB_BYTES * shape[0] // array.nbytes, 1)
            for i in range(0, shape[0], step):
                array[i : i + step] = draw(rng, (min(step, shape[0] - i), *shape[1:]))
            array.flush()
            self.nbytes = array.nbytes

    def run_case(
        self,
        module: str,
        arguments: Sequence[object],
        source: Path,
        result: Path,
        limit: MemoryLimit | None,
        python: str = sys.executable,
    ) -> Ended:
        """Run a process that reads `source`, which is not in memory, and makes `result`.

        The result is removed.
        """
        drop_cached(source)
        try:
            ended = run_module(
                module, arguments, environment=self.setting.child_environment(),
                timeout_s=TIMEOUT_S, limit=limit, python=python,
            )  # fmt: skip
        finally:
            # The next contender needs the room on the disk.
            for name in (result, self.directory / "temporary"):
                shutil.rmtree(name, ignore_errors=True)
                name.unlink(missing_ok=True)
        if arguments[0] == "outcore":
            self.ends.append(ended)
        return ended

    def fio(self) -> float:
        """Return the seconds in which fio writes and reads every byte once."""
        file = self.directory / "fio"
        write = Fio(file, self.nbytes, 4 << 20, 4, huge_pages=True, anew=True).rate("write")
        drop_cached(file)
        read = Fio(file, self.nbytes, 4 << 20, 4, huge_pages=True).rate("read")
        file.unlink()
        return self.nbytes / write + self.nbytes / read

    def contest(
        self,
        what: str,
        rival: str,
        first: Ended,
        ours: Callable[[], Ended],
        theirs: Callable[[], Ended],
        target: Target | None,
    ) -> Figure:
        """Compare the times with those of a rival, whose `first` run may have failed."""
        if not first.found:
            reason = "killed at the limit" if first.is_out_of_memory else "its time was up"
            return Figure(what, skipped=f"{rival}: {reason}")
        is_slow = first.seconds >= SLOW_S
        found = alternate(
            what,
            {
                "outcore": lambda: ours().seconds,
                rival: lambda: (first if is_slow else theirs()).seconds,
            },
            rounds=1 if is_slow else self.rounds,
            warmups=0,
        )
        return Figure(
            what, found.ratios("outcore", rival), target,
            ours=f"{found.median('outcore'):.2f} s", rival=f"{found.median(rival):.2f} s",
        )  # fmt: skip

    def killed(self, limit: MemoryLimit | None) -> Figure:
        """Count the calls of outcore that the limit killed."""
        what = f"{self.title}: calls killed under a hard limit of the budget and 150 MiB"
        if limit is None:
            return Figure(what, skipped="no control groups here")
        most = max((int(ended.found.get("rss_bytes", 0)) for ended in self.ends), default=0)
        return Figure(
            what, [sum(ended.is_out_of_memory for ended in self.ends)], Target("=", 0),
            ours=f"{len(self.ends)} calls", peak=f"{most >> 20} MiB" if most else "",
        )  # fmt: skip
