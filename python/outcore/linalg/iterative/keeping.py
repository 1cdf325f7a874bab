"""Iterates that are stored on disk from time to time, so that a killed call does not lose them."""

import math
import time

import numpy as np
import numpy.typing as npt

from outcore._util.signals import signals_held
from outcore.linalg._rhs.columns import Columns
from outcore.linalg._rhs.solutions import Iterate, Solution
from outcore.linalg._tiles import columns
from outcore.linalg._tiles.matrix import Matrix
from outcore.processes.sharing import Sharing
from outcore.report.report import SOLUTIONS

EVERY_S = 60.0
"""Seconds between two stores."""

MOST_SHARE = 0.05
"""Largest fraction of the time that stores may take, even for a large solution."""


class Keeping:
    """The iterate of the current group, and its place on disk.

    Attributes
    ----------
    found
        Iterate of a stopped call; `None` if there is none.
    gone_on_after
        Steps that led to the initial iterate of this call; 0 if there was none.
    """

    def __init__(self, into: Solution, moved: Columns, sharing: Sharing) -> None:
        self._into, self._moved, self._sharing = into, moved, sharing
        self.found: Iterate | None = sharing.same(into.iterate)
        self.gone_on_after = 0
        self._steps_before = 0
        self._due_s = time.monotonic() + EVERY_S

    def load(self, here: slice, X: Matrix, step_rows: int) -> bool:
        """Read the columns of a group from the iterate of a stopped call, on all processes.

        Returns whether there are any. Processes exchange at most `step_rows` rows at once.
        """
        self._steps_before = 0
        if self.found is None or here.stop > self.found.end:
            return False
        if self._into.x is not None and self._sharing.rank == 0:
            self._moved.load(self._into.x, here, X, SOLUTIONS, writable=True)
        self._sharing.spread(X, step_rows)
        if not np.isfinite(columns.norms(X)).all():
            X[:] = 0
            return False
        self._steps_before = self.gone_on_after = self.found.steps
        return True

    def keep_if_due(
        self, here: slice, X: Matrix, scales: npt.NDArray[np.float64], history: list[float]
    ) -> None:
        """Store the iterate durably if the time has come; X has another scale than x.

        It is not stored if an earlier one was better, or if the scale of x would round it.
        """
        begun_s = time.monotonic()
        if not self._into.is_noted or begun_s < self._due_s or not _is_best(history):
            return
        if columns.scales_exactly(X, scales):
            with signals_held():
                columns.scale(X, scales)
                try:
                    self._store(here, X, history)
                finally:
                    columns.scale(X, 1 / scales)
        now_s = time.monotonic()
        self._due_s = now_s + max(EVERY_S, (now_s - begun_s) / MOST_SHARE)

    def keep_at_stop(self, here: slice, X: Matrix, history: list[float]) -> None:
        """Store the iterate, in the scale of x, before the call ends."""
        is_open = self._into.is_noted and self._into.done < here.stop
        if is_open and _is_best(history) and np.isfinite(columns.norms(X)).all():
            with signals_held():
                self._store(here, X, history)

    def end(self, here: slice, history: list[float], *, is_met: bool) -> None:
        """Record the durable solutions of a group: as solved, or as an iterate."""
        rest = self._into.iterate
        if is_met:
            # A later call resumes after columns that reached the tolerance.
            self._into.note(here.stop, rest if rest and rest.end > here.stop else None)
        elif self._into.is_noted and math.isfinite(history[-1]):
            self._note(here, history)

    def _store(self, here: slice, X: Matrix, history: list[float]) -> None:
        self._moved.store(self._into.x, here, X)
        self._moved.sync()
        self._note(here, history)

    def _note(self, here: slice, history: list[float]) -> None:
        before = self._into.iterate
        end = max(here.stop, before.end if before else 0)
        steps = self._steps_before + len(history)
        self._into.note(self._into.done, Iterate(end, steps, float(history[-1])))


def _is_best(history: list[float]) -> bool:
    return bool(history) and math.isfinite(history[-1]) and history[-1] == min(history)
