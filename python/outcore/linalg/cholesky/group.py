"""Steps of a Cholesky factorization on column-major blocks in memory."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from outcore.lapack import Kernels
from outcore.linalg.matrix import Matrix
from outcore.linalg.triangles import solve_lower


@dataclass(frozen=True)
class Group:
    """Columns of a slab that lie in memory as one matrix: rows on and below their diagonal.

    Attributes
    ----------
    first, end
        First column, and the one after the last.
    top
        Row of the matrix that is the first in memory.
    data
        The matrix, rounded up to whole tiles and panels.
    """

    first: int
    end: int
    top: int
    data: Matrix

    def part(self, rows: slice, columns: slice) -> Matrix:
        """View rows and columns, numbered as in the whole matrix."""
        return self.data[
            rows.start - self.top : rows.stop - self.top,
            columns.start - self.first : columns.stop - self.first,
        ]


def factor_panel(kernels: Kernels, P: Matrix) -> int:
    """Factor a tall panel in place: P = [L; M] with A = L Lᴴ on top and M Lᴴ below.

    k³/3 + (m - k) k² operations.

    Parameters
    ----------
    kernels
        For the type of `P`.
    P
        (m, k) with m >= k, column-major. Of its first k rows, the lower triangle is used.

    Returns
    -------
    int
        LAPACK's info: 0, or the order of the first leading minor that is not positive, in which
        case what is below is left as it was.
    """
    k = P.shape[1]
    info = kernels.potrf(P[:k], lower=True)
    if not info:
        solve_lower(kernels, P[:k], P[k:], "R", trans="C", unit=False)
    return info


def subtract_square(kernels: Kernels, L: Matrix, C: Matrix) -> None:
    """C <- C - L L_1ᴴ, from C's diagonal down; L_1 are L's first rows, one for each column of C."""
    k = C.shape[1]
    kernels.herk(L[:k], C[:k], alpha=-1, beta=1, lower=True)
    kernels.gemm(L[k:], L[:k], C[k:], alpha=-1, beta=1, trans_b="C")


def apply_blocks(
    kernels: Kernels, L: Iterable[tuple[int, Matrix]], groups: Sequence[Group]
) -> None:
    """Update a slab with an earlier panel of L: C <- C - L L_Cᴴ, with L_C the rows of the slab.

    Parameters
    ----------
    kernels
        For the type of the slab.
    L
        The panel in blocks of rows, from the top: (first row, block). The rows of a group lie in
        one block.
    groups
        Of the slab.
    """
    of_groups: list[tuple[Group, Matrix]] = []
    for first, block in L:
        rows = slice(first, first + block.shape[0])
        for group, L_C in of_groups:
            C = group.part(rows, slice(group.first, group.end))
            kernels.gemm(block, L_C, C, alpha=-1, beta=1, trans_b="C")
        for group in groups:
            if first <= group.first < rows.stop:
                C = group.part(slice(group.first, rows.stop), slice(group.first, group.end))
                subtract_square(kernels, block[group.first - first :], C)
                of_groups.append((group, block[group.first - first : group.end - first]))


def apply_beside(
    kernels: Kernels,
    L: Iterable[tuple[int, Matrix]],
    rows: slice,
    columns: slice,
    C: Matrix,
) -> None:
    """Update a block below the diagonal with an earlier panel of L: C <- C - L_C L_Jᴴ.

    Parameters
    ----------
    kernels
        For the type of the block.
    L
        The panel in blocks of rows, (first row, block): L_J, which stand beside the diagonal of the
        block's columns, and then L_C, the block's own.
    rows, columns
        Of the block.
    C
        The block.
    """
    of_columns: list[tuple[slice, Matrix]] = []
    for first, block in L:
        end = first + block.shape[0]
        if first >= rows.start:
            own = C[first - rows.start : end - rows.start]
            for part, L_J in of_columns:
                kernels.gemm(block, L_J, own[:, part], alpha=-1, beta=1, trans_b="C")
            continue
        left, right = max(first, columns.start), min(end, columns.stop)
        part = slice(left - columns.start, right - columns.start)
        of_columns.append((part, block[left - first : right - first]))


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


def apply_panel(
    kernels: Kernels, P: Matrix, first: int, columns: slice, groups: Sequence[Group]
) -> None:
    """Update columns of a slab with a panel of the same slab.

    Parameters
    ----------
    kernels
        For the type of the slab.
    P
        The panel from row `first` down.
    first
        Its first row, above those columns' diagonal.
    columns
        Which.
    groups
        Of the slab.
    """
    end = first + P.shape[0]
    for group in groups:
        part = slice(max(columns.start, group.first), min(columns.stop, group.end))
        if part.start < part.stop:
            C = group.part(slice(part.start, end), part)
            subtract_square(kernels, P[part.start - first :], C)
