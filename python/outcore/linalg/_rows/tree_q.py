"""Q of several processes: from the tree of their triangles, a square for each.

With R_r and Q_r of the rows of process r, and the tree's QR of all R_r,

    [R_0; R_1; ...] = [C_0; C_1; ...] R,    so A = Q R with rows Q_r C_r of Q for process r

The tree keeps the reflections of each merge. From its root, C is the unit matrix, and each merge
with reflections Q_i gives [C; C_other] <- Q_i [C; 0], in the reverse order (Demmel, Grigori,
Hoemmen & Langou 2012, section 4.1). All C_r are upper triangular, like R_r and R. There is no
division by R, so Q is orthogonal to rounding.
"""

import functools
from typing import Any

import numpy as np
import numpy.typing as npt

from outcore.linalg._rows.merge import Merging, Message
from outcore.linalg._rows.merge_plan import STRIP_LINES, Strips
from outcore.linalg._rows.stream import allocated
from outcore.linalg._rows.tall_q import TallQ
from outcore.linalg._rows.tsqr import TallQR
from outcore.linalg._tiles.matrix import Matrix
from outcore.report.longcall import LongCall


class TreeQ:
    """The tree, as one process sees it.

    Parameters
    ----------
    q
        The factors of the rows of this process.
    merging
        Its messages.
    call
        The call.
    """

    def __init__(self, q: TallQ, merging: Merging, call: LongCall) -> None:
        n, dtype = q.geometry.n, q.geometry.dtype
        self._q, self._merging, self._strips = q, merging, Strips(n, n)
        # The triangle of the rows of this process stays, for a call that resumes.
        self._factor = TallQR(n, 0, dtype, call, has_head=False)
        self._spare = allocated(call, (n, n), dtype)
        parts = len(self._strips.parts)
        self._merges = [
            (other, allocated(call, (n, n), dtype), allocated(call, (n, parts), dtype))
            for other in merging.sources
        ]

    def merge(self) -> Matrix:
        """Merge the triangles of all processes, and return R, the same on all."""
        R, own = self._factor.R, self._q.factor.R
        for j in range(R.shape[1]):
            R[: j + 1, j] = own[: j + 1, j]
        for other, V, taus in self._merges:
            take = functools.partial(self._reflect, V, taus)
            self._merging.receive(self._strips, other, take)
        if self._merging.target is not None:
            self._merging.send(self._strips, self._merging.target, functools.partial(_give, R))
        self._merging.spread_triangle(R)
        return R

    def part(self, *, is_needed: bool) -> None:
        """Put the part of Q of this process into ``q.C``, if it needs it.

        It passes on those of the processes whose triangles it took.
        """
        C = self._q.C
        self._spare[...] = C
        C[...] = 0 if self._merging.target is not None else np.eye(len(C), dtype=C.dtype)
        if self._merging.target is not None:
            take = functools.partial(_take, C)
            self._merging.receive(self._strips, self._merging.target, take)
        for other, V, taus in reversed(self._merges):
            for lines in reversed(self._strips.parts):
                self._q.apply(V[lines], taus[:, lines.start // STRIP_LINES])
            self._merging.send(self._strips, other, functools.partial(_give, V))
        if not is_needed:
            C[...] = self._spare

    def _reflect(self, V: Matrix, taus: Matrix, lines: slice, message: Message) -> None:
        """Add rows of another triangle; their reflections go to V."""
        V[lines] = 0
        _take(V, lines, message)
        none: npt.NDArray[Any] = np.zeros((lines.stop - lines.start, 0), V.dtype, order="F")
        taus[:, lines.start // STRIP_LINES] = self._factor.add_below(V[lines], none)


def _give(R: Matrix, lines: slice, message: Message) -> None:
    part = R[lines, lines.start :]
    message.reshape(part.shape, order="F")[...] = part


def _take(R: Matrix, lines: slice, message: Message) -> None:
    part = R[lines, lines.start :]
    part[...] = message.reshape(part.shape, order="F")
