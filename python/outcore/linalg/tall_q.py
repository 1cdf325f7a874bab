"""The orthogonal factor of a tall matrix, from the reflections that `TallQR` left of its rows.

They lie on disk where Q is to be, block by block. With Q_i the reflections of step i,

    Q = Q_1 [I; ...],    built from the last step to the first:  [C; B_i] <- Q_i [C; 0]

where C is n x n, the unit matrix at first, and B_i are the rows of Q that take the place of the
step's reflections (Demmel, Grigori, Hoemmen & Langou 2012, section 4.2). Nothing is divided by R,
so Q is orthogonal to rounding however A is conditioned.
"""

from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

from outcore._core import ArrayFile, Ticket
from outcore.array import Array
from outcore.lapack import Kernels, kernels
from outcore.linalg.grains import cut
from outcore.linalg.operand import open_whole_chunks
from outcore.linalg.panel import Matrix
from outcore.linalg.qr_plan import Q_COLUMNS, QrGeometry
from outcore.linalg.row_source import RowSource
from outcore.linalg.row_stream import allocated, check_finite, streams
from outcore.linalg.tsqr import TallQR
from outcore.longcall import LongCall
from outcore.streams import BlockStream, wait


class TallQ:
    """Q of a matrix of m >= n rows, on disk.

    Parameters
    ----------
    target
        The array that Q goes to.
    geometry
        Blocks and memory.
    call
        The call.
    """

    def __init__(self, target: Array, geometry: QrGeometry, call: LongCall) -> None:
        self._g, self._call = geometry, call
        self._file: ArrayFile = open_whole_chunks(
            target, call, geometry.target_bounce_bytes, number=1, writable=True
        )
        self._factor = TallQR(geometry.n, 0, geometry.dtype, call)
        self._taus: list[list[npt.NDArray[Any]]] = []

    def run(self, source: RowSource) -> Matrix:
        """Make Q and return R."""
        self._reduce(source)
        self._build()
        return self._factor.triangle()

    def bytes_moved(self) -> tuple[int, int]:
        """Bytes read and written of Q's file."""
        return self._file.counters()[:2]

    def _reduce(self, source: RowSource) -> None:
        """First pass: R from the rows; their reflections go to the disk."""
        g, call = self._g, self._call
        memory = allocated(call, (g.n, g.steps), g.dtype)
        with streams([source], [g.rows_plan], call) as (stream,):
            done = 0
            for first, data, whole in stream:
                check_finite(source.name, first, data)
                taus = self._factor.add(data)
                self._taus.append([])
                for tau in taus:
                    memory[:, done] = tau
                    self._taus[-1].append(memory[:, done])
                    done += 1
                # Rows beyond the matrix are padding: zeros rather than what was there.
                whole[len(data) :] = 0
                stream.leave(self._file.submit_write([first, 0], [1, 1], whole))
                call.meter.advance(len(data) * g.row_work)

    def _build(self) -> None:
        """Second pass, from the last block to the first: Q in place of the reflections."""
        g, call = self._g, self._call
        height = g.rows_plan.height
        C = allocated(call, (g.n, g.n), g.dtype)
        C[...] = np.eye(g.n, dtype=g.dtype)
        back = _Back(g, kernels(g.dtype), call)
        stream = BlockStream(self._file, g.dtype, call.arena, 3 * g.block_bytes, call.trace)
        blocks = cut(0, -(-g.m // height) * height, height)
        stream.extend((rows, slice(0, g.n)) for rows in reversed(blocks))
        writing: deque[tuple[Ticket, Matrix]] = deque()
        for rows in reversed(blocks):
            block = stream.take().data
            count = min(height, g.m - rows.start)
            start_ns = call.trace.now_ns()
            steps = self._factor.steps(rows.start, count)
            for step, tau in reversed(list(zip(steps, self._taus.pop(), strict=True))):
                back.apply(block[step.start : min(step.stop, count)], tau, C)
            if rows.start < g.n <= rows.start + count:
                self._factor.apply_head(C)
            head = C[rows.start : rows.stop]
            block[: len(head)] = head
            call.trace.record("compute", start_ns)
            call.meter.advance(count * g.row_work)
            writing.append((self._file.submit_write([rows.start, 0], [1, 1], block), block))
            del block
            if len(writing) > 1:
                wait(writing.popleft()[0], call.trace)
        for ticket, _ in writing:
            wait(ticket, call.trace)


class _Back:
    """Steps of the second pass, with their workspaces."""

    def __init__(self, g: QrGeometry, kernels: Kernels, call: LongCall) -> None:
        self._kernels, self._columns = kernels, min(Q_COLUMNS, g.n)
        self._panel = allocated(call, (g.step_rows, self._columns), g.dtype)
        self._product = allocated(call, (self._columns, g.n), g.dtype)
        self._square = allocated(call, (self._columns, self._columns), g.dtype)

    def apply(self, V: Matrix, tau: npt.NDArray[Any], C: Matrix) -> None:
        """[C; V] <- Q_i [C; 0], where V holds the reflections of Q_i.

        With a panel P of V's columns, a block reflection is I - [E; P] T [E; P]ᴴ, and T⁻¹ is the
        strictly upper part of PᴴP with 1 / tau on the diagonal (Puglisi 1992).
        """
        k, n = self._kernels, V.shape[1]
        for columns in reversed(cut(0, n, self._columns)):
            a, e = columns.start, columns.stop
            P, W = self._panel[: len(V), : e - a], self._product[: e - a, : n - a]
            P[...] = V[:, a:e]
            V[:, a:e] = 0
            W[...] = C[a:e, a:]
            k.gemm(P, V[:, e:], W[:, e - a :], trans_a="C")
            inverse = self._square[: e - a, : e - a]
            k.gemm(P, P, inverse, beta=0, trans_a="C")
            # A reflection with tau = 0 is none: its column of P is zero, and its row of W counts
            # for nothing.
            none = tau[a:e] == 0
            np.fill_diagonal(inverse, 1 / np.where(none, 1, tau[a:e]))
            k.trsm(inverse, W, lower=False, unit=False)
            W[none] = 0
            C[a:e, a:] -= W
            k.gemm(P, W, V[:, a:], alpha=-1)
