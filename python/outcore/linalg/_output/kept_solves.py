"""Solutions that `cond_est` keeps beside the factors, for a resumed call.

Each solve is a pass over the factors, but its result is short: a vector or two. A resumed call uses
the stored results in order, up to the point where the earlier call was stopped.
"""

import contextlib
import json
import re
from typing import Any

import numpy as np
import numpy.typing as npt

from outcore.errors import OutcoreError
from outcore.linalg._output.factor import Factor
from outcore.linalg._output.steps_done import version_of_operand
from outcore.linalg._tiles.matrix import Matrix
from outcore.storage.volumes import place

LEAST_S = 5.0
"""Shorter solves are not kept: all of them together take less than a minute."""

_NAME = "outcore.condition"
_FILE = re.compile(rf"{re.escape(_NAME)}\.(1|inf)\.[0-9]+(\.[0-9]+\.new)?")


def is_kept_solve(name: str) -> bool:
    """Whether a file in a factor directory is a stored solution, or an unfinished one."""
    return _FILE.fullmatch(name) is not None


class KeptSolves:
    """The stored results of solves with some factors.

    Parameters
    ----------
    factor
        The factors.
    what
        Further identity of the call, beside the factors.
    resume
        Whether to resume from stored results. Otherwise they are removed.
    is_in_use
        Whether this process stores results, and reads and removes stored ones.

    Attributes
    ----------
    found
        Number of solves that an earlier call did.
    norm_a
        The norm of A, once this call or an earlier one has computed it.
    """

    def __init__(self, factor: Factor, what: str, *, resume: bool, is_in_use: bool = True) -> None:
        self._where, self._what, self._is_in_use = place(factor.path), what, is_in_use
        self._header = json.dumps([what, version_of_operand(factor)])
        self._number, self._keeps, self.found = 0, False, 0
        self.norm_a: float | None = None
        if not resume:
            self.remove()
        elif (first := self._read(0)) is not None:
            self.norm_a = first[0]["norm_a"]

    def take(self, X: Matrix) -> bool:
        """Copy the next solution into X, if it is stored."""
        kept = self._read(self._number) if self._number == self.found else None
        if kept is None or kept[1].nbytes != X.nbytes:
            return False
        X[...] = kept[1].view(X.dtype).reshape(X.shape, order="F")
        self._number += 1
        self.found, self._keeps = self._number, True
        return True

    def keep(self, X: Matrix, seconds: float) -> None:
        """Store a solution that took `seconds`, if the first one took long enough."""
        if self._number == 0:
            self._keeps = seconds >= LEAST_S
        if self._keeps:
            line = json.dumps({"of": self._header, "norm_a": self.norm_a}).encode()
            # Read-only factors and full disks store nothing.
            with contextlib.suppress(OutcoreError):
                name = self._where.inside(self._name(self._number))
                elements = X.T.reshape(-1).view(np.uint8)
                self._where.volume.replace_small(name, b"".join([line, b"\n", elements.data]))
        self._number += 1

    def notes(self) -> list[str]:
        """Return a note for the report if the call was resumed."""
        if not self.found:
            return []
        return [f"resumed after {self.found} solves: bytes moved are of the rest"]

    def remove(self) -> None:
        """Remove all stored results."""
        if not self._is_in_use:
            return
        with contextlib.suppress(OutcoreError):
            for name, *_ in self._where.names():
                if name.startswith(f"{_NAME}.{self._what}."):
                    self._where.volume.remove(self._where.inside(name))

    def _read(self, number: int) -> tuple[dict[str, Any], npt.NDArray[np.uint8]] | None:
        """Read a solution and its header; `None` if it is damaged or belongs to another call."""
        if not self._is_in_use:
            return None
        with contextlib.suppress(OutcoreError, ValueError, KeyError, TypeError):
            found = self._where.volume.read_small(self._where.inside(self._name(number)))
            end = found.index(b"\n")
            header = json.loads(found[:end])
            if header["of"] == self._header and "norm_a" in header:
                return header, np.frombuffer(found, np.uint8, offset=end + 1)
        return None

    def _name(self, number: int) -> str:
        return f"{_NAME}.{self._what}.{number}"
