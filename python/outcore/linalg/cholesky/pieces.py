"""Steps of a Cholesky factorization on column-major blocks in memory."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from outcore.lapack import Kernels
from outcore.linalg.matrix import Matrix
from outcore.linalg.team import Team
from outcore.linalg.triangles import solve_each, solve_lower


@dataclass(frozen=True)
class Piece:
    """Rows and columns of a slab that lie in memory as one matrix.

    Attributes
    ----------
    first, end
        First column, and the one after the last.
    top
        Row of the matrix that is the first in memory.
    data
        The piece, rounded up to whole tiles and panels.
    """

    first: int
    end: int
    top: int
    data: Matrix

    @property
    def bottom(self) -> int:
        """Row after the last in memory."""
        return self.top + len(self.data)

    def part(self, rows: slice, columns: slice) -> Matrix:
        """View rows and columns, numbered as in the whole matrix."""
        return self.data[
            rows.start - self.top : rows.stop - self.top,
            columns.start - self.first : columns.stop - self.first,
        ]


def factor_panel(kernels: Kernels, P: Sequence[Matrix]) -> int:
    """Factor a tall panel in place: P = [L; M] with A = L Lᴴ on top and M Lᴴ below.

    k³/3 + (m - k) k² operations.

    Parameters
    ----------
    kernels
        For the type of `P`.
    P
        (m, k) with m >= k, column-major, as matrices one below the other. Of its first k rows, all
        in the first of these, the lower triangle is used.

    Returns
    -------
    int
        LAPACK's info: 0, or the order of the first leading minor that is not positive, in which
        case what is below is left as it was.
    """
    first, *below = P
    k = first.shape[1]
    L = first[:k]
    info = kernels.potrf(L, lower=True)
    if not info:
        solve_each(kernels, L, [first[k:], *below], "R", trans="C", unit=False)
    return info


def subtract_square(team: Team, L: Matrix, C: Matrix) -> None:
    """Note C <- C - L L_1ᴴ, from C's diagonal down; L_1 are L's rows beside C's diagonal block."""
    k = C.shape[1]
    team.herk(L[:k], C[:k], alpha=-1, beta=1, lower=True)
    team.gemm(L[k:], L[:k], C[k:], alpha=-1, beta=1, trans_b="C")


def apply_blocks(
    team: Team,
    L: Iterable[tuple[int, Matrix]],
    pieces: Sequence[Piece],
    columns: slice,
    before: Iterable[tuple[int, Matrix]] = (),
) -> None:
    """Update columns of a slab with a panel left of them: C <- C - L L_Cᴴ.

    Parameters
    ----------
    team
        For the type of the slab.
    L
        The panel in blocks of rows, from the top: (first row, block). L_C, its rows that stand
        beside the columns' diagonal, and those below it that the pieces have.
    pieces
        Of the slab.
    columns
        Which, of those that the pieces have.
    before
        Blocks that have been used already, to go on after them.
    """
    beside = [(first, block) for first, block in before if first < columns.stop]
    for first, block in L:
        end = first + block.shape[0]
        if first < columns.stop:
            beside.append((first, block))
        for piece in pieces:
            for top, L_C in beside:
                left = max(top, columns.start, piece.first)
                right = min(top + L_C.shape[0], columns.stop, piece.end)
                rows = slice(max(first, left, piece.top), min(end, piece.bottom))
                if left >= right or rows.start >= rows.stop:
                    continue
                C, own = piece.part(rows, slice(left, right)), block[rows.start - first :]
                if rows.start == left:
                    subtract_square(team, own[: len(C)], C)
                else:
                    L_J = L_C[left - top : right - top]
                    team.gemm(own[: len(C)], L_J, C, alpha=-1, beta=1, trans_b="C")
        team.run()


def solve_panel(
    kernels: Kernels, L: Iterable[tuple[int, Matrix]], first: int, columns: slice, C: Matrix
) -> Iterator[None]:
    """Solve for columns of a block below the diagonal, and update those right of them.

        C_K <- C_K L_KK⁻ᴴ,    C <- C - C_K L_JKᴴ

    Parameters
    ----------
    kernels
        For the type of the block.
    L
        Panel K of L in blocks of rows, (first row, block), from its diagonal to that of the block's
        last column.
    first
        The first of the block's columns.
    columns
        Those of panel K.
    C
        The block.

    Yields
    ------
    None
        Once, when C_K is final.
    """
    C_K = C[:, columns.start - first : columns.stop - first]
    for top, block in L:
        below = top
        if top <= columns.start:
            below = columns.stop
            diagonal = block[columns.start - top : below - top]
            solve_lower(kernels, diagonal, C_K, "R", trans="C", unit=False)
            yield
        end = min(top + block.shape[0], first + C.shape[1])
        if below < end:
            right = C[:, below - first : end - first]
            kernels.gemm(C_K, block[below - top : end - top], right, alpha=-1, beta=1, trans_b="C")
