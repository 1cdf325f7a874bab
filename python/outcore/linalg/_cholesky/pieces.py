"""Steps of a Cholesky factorization on column-major blocks in memory."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from outcore.blas.lapack import Kernels
from outcore.linalg._tiles.matrix import Matrix
from outcore.linalg._tiles.team import Team
from outcore.linalg._tiles.triangles import solve_lower


@dataclass(frozen=True)
class Piece:
    """Rows and columns of a slab that form one matrix in memory.

    Attributes
    ----------
    first, end
        First column, and the column after the last.
    top
        First row in memory, as a row of the whole matrix.
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
        """View rows and columns, with the numbers of the whole matrix."""
        return self.data[
            rows.start - self.top : rows.stop - self.top,
            columns.start - self.first : columns.stop - self.first,
        ]


def factor_panel(kernels: Kernels, P: Sequence[Matrix]) -> int:
    """Factor a tall panel in place: P = [L; M] with A = L Lᴴ on top and M Lᴴ below.

    It takes k³/3 + (m - k) k² operations.

    Parameters
    ----------
    kernels
        Kernels for the type of `P`.
    P
        (m, k) with m >= k, column-major, as matrices one below the other. Its first k rows are all
        in the first matrix. Their lower triangle is used.

    Returns
    -------
    int
        LAPACK's info: 0, or the order of the first leading minor that is not positive. In the
        latter case the rows below are unchanged.
    """
    first, *below = P
    k = first.shape[1]
    L = first[:k]
    info = kernels.potrf(L, lower=True)
    if not info:
        solve_lower(kernels, L, first[k:], *below, side="R", trans="C", unit=False)
    return info


def subtract_square(team: Team, L: Matrix, C: Matrix) -> None:
    """Schedule C <- C - L L_1ᴴ, from C's diagonal down; L_1 is L beside the diagonal block."""
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
    """Update columns of a slab with a panel to their left: C <- C - L L_Cᴴ.

    Parameters
    ----------
    team
        Team for the type of the slab.
    L
        The panel in blocks of rows, from the top: (first row, block). L_C are its rows beside the
        columns' diagonal. Below them are the rows that the pieces have.
    pieces
        The pieces of the slab.
    columns
        The columns to update, which may be fewer than those of the pieces.
    before
        Blocks that earlier calls have applied already.
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
    """Solve for columns of a block below the diagonal, and update the columns to their right.

        C_K <- C_K L_KK⁻ᴴ,    C <- C - C_K L_JKᴴ

    Parameters
    ----------
    kernels
        Kernels for the type of the block.
    L
        Panel K of L in blocks of rows, (first row, block), from its diagonal to that of the block's
        last column.
    first
        First column of the block.
    columns
        Columns of panel K.
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
            solve_lower(kernels, diagonal, C_K, side="R", trans="C", unit=False)
            yield
        end = min(top + block.shape[0], first + C.shape[1])
        if below < end:
            right = C[:, below - first : end - first]
            kernels.gemm(C_K, block[below - top : end - top], right, alpha=-1, beta=1, trans_b="C")
