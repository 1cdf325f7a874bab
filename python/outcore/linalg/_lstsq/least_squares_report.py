"""The report of `lstsq`: figures of the fit, and the covariance of its coefficients.

With W^½ A = Q R of full rank the covariance is σ² (Rᴴ R)⁻¹ (Björck, *Numerical Methods for Least
Squares Problems*, 1996, section 2.8). With rank r it is that of the x of least norm, from the r
largest singular values of R. With damp d, x = C Aᴴ W b for C = (Rᴴ R + d² I)⁻¹. So the covariance
is σ² C Rᴴ R C: with R = U S Vᴴ it is σ² V (S (S² + d²)⁻¹)² Vᴴ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from outcore._util.packages import imported
from outcore.errors import InvalidError
from outcore.linalg._tiles.matrix import Matrix
from outcore.report.report import Report


@dataclass
class LeastSquaresReport(Report):
    """Figures of a call of `lstsq`.

    Attributes
    ----------
    rank
        Number of singular values of A above ``cond`` times the largest. With ``damp=`` a singular
        value s counts as √(s² + damp²).
    condition
        Estimate of the condition number of A's triangle in the 1-norm; infinite if R is singular,
        `None` for slabs of columns. If A has fewer rows than columns, full rank, and its rows are
        streamed, it is the condition number of A in the 2-norm. With weights it is that of W^½ A,
        with ``damp=`` that of [A; damp I].
    residual_norms
        ‖b - A x‖₂ of each right-hand side, with weights ‖W^½ (b - A x)‖₂. Slabs do not include the
        effect of rounding, so it is 0 with m <= n.
    degrees_of_freedom
        Number of rows with non-zero weight, less the rank of A. With ``damp=`` it is less the trace
        of the matrix from b to A x, ∑ s²/(s² + damp²) over the singular values s. `None` if
        unknown.
    damp
        ``damp=`` of the call.
    R
        With ``keep_r=True`` the (n, n) triangle of A alone, with RᴴR = Aᴴ W A, column-major.
        ``damp=`` does not change it.
    """

    rank: int = 0
    residual_norms: list[float] = field(default_factory=list)
    damp: float = 0.0
    R: npt.NDArray[Any] | None = field(default=None, repr=False, compare=False)

    ARRAYS: ClassVar[tuple[str, ...]] = ("R",)

    def covariance(
        self, column: int | None = None, *, scale: float | None = None
    ) -> npt.NDArray[Any]:
        """Compute the covariance matrix of the coefficients of one right-hand side.

        It is ``scale`` (Aᴴ W A)⁻¹. With ``damp=`` it is ``scale`` C Aᴴ W A C for C = (Aᴴ W A +
        damp² I)⁻¹. If A has a lower rank, the inverse is the pseudo-inverse, so it is the
        covariance of the coefficients of least norm.

        Parameters
        ----------
        column
            Number of the right-hand side; optional if there is only one.
        scale
            Variance of an observation of weight 1; by default that of
            `outcore.Report.residual_variances`. Pass 1.0 if the weights are the inverses of known
            variances.

        Returns
        -------
        numpy.ndarray
            (n, n), Hermitian, float64 or complex128, in memory beyond the budget of the call. The
            standard errors are the square roots of its diagonal.

        Raises
        ------
        InvalidError
            If the call had no ``keep_r=True``, there are several right-hand sides and neither
            `column` nor `scale` is given, or ``damp=`` is below the rounding errors of R, and these
            determine the largest variances.
        """
        if self.R is None:
            raise InvalidError("need R for the covariance, have none; call lstsq with keep_r=True")
        if scale is None:
            variances = self.residual_variances
            if column is None and len(variances) > 1:
                raise InvalidError(
                    f"need column= of {len(variances)} right-hand sides, have none; pass it, or "
                    "scale="
                )
            if not 0 <= (column or 0) < len(variances):
                raise InvalidError(
                    f"need column= from 0 to {len(variances) - 1}, have {column}; count from 0"
                )
            scale = variances[column or 0]
        covariance = _covariance_of(self.R, self.rank, self.damp)
        covariance *= scale
        return covariance

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain values, for JSON; without R."""
        values = super().to_dict()
        del values["R"]
        return values


def _covariance_of(R: Matrix, rank: int, damp: float) -> Matrix:
    """Compute the covariance for unit variance, in double precision, from `rank` singular values.

    Raises
    ------
    InvalidError
        If `damp` is so small beside A that rounding errors of R determine the largest variances.
    """
    wide = R.astype(np.result_type(R, np.float64))
    return _damped(wide, rank, damp, R.dtype) if damp else _inverse_product(wide, rank)


def _damped(R: Matrix, rank: int, damp: float, dtype: np.dtype[Any]) -> Matrix:
    """Return V (S (S² + d²)⁻¹)² Vᴴ for an R that was computed in `dtype`; R is overwritten."""
    linalg = imported("scipy.linalg")

    _, values, Vh = linalg.svd(R, overwrite_a=True)
    largest = float(values[0])
    values, Vh = values[:rank], Vh[:rank]
    gains = _gains(values, damp)
    # Rounding changes each singular value by about this much, so by how much each variance?
    error = largest * float(np.finfo(dtype).eps) * math.sqrt(len(R))
    others = np.stack([_gains(values + error, damp), _gains(np.maximum(values - error, 0), damp)])
    top = float(gains.max(initial=0))
    change = abs(others**2 - gains**2).max(initial=0)
    if change > 0.01 * top**2:
        better = "a larger damp=" + ("" if dtype.char in "dD" else ', or dtype="f8"')
        raise InvalidError(
            f"need a covariance to 1 % of the largest variance, have damp={damp:g} for a matrix of "
            f"norm {largest:.3g} in {dtype}, which R does not resolve; pass {better}"
        )
    half: Matrix = Vh * gains[:, None]
    covariance: Matrix = half.conj().T @ half
    return covariance


def _gains(values: npt.NDArray[Any], damp: float) -> npt.NDArray[Any]:
    """Return s / (s² + d²) for singular values s."""
    sizes = np.hypot(values, damp)
    gains: npt.NDArray[Any] = values / sizes / sizes
    return gains


def _inverse_product(R: Matrix, rank: int) -> Matrix:
    """Return (Rᴴ R)⁻¹, or with a lower rank its pseudo-inverse; R is overwritten."""
    linalg = imported("scipy.linalg")

    n = len(R)
    if rank < n:
        _, values, Vh = linalg.svd(R, overwrite_a=True)
        half: Matrix = Vh[:rank] / values[:rank, None]
        C: Matrix = half.conj().T @ half
        return C
    (potri,) = linalg.get_lapack_funcs(("potri",), (R,))
    C, info = potri(R, lower=0, overwrite_c=1)
    if info:
        raise InvalidError("R has a zero on its diagonal, so there is no inverse; lower cond=")
    for j in range(n):
        C[j + 1 :, j] = C[j, j + 1 :].conj()
    return C
