"""QR factors on disk in tests: Q from LAPACK's orgqr, and LAPACK's test ratios."""

import numpy as np
import scipy.linalg
from linpack import Matrix, unit_roundoff

import outcore as oc
from outcore.linalg import QRFactor


def packed(qr: QRFactor) -> Matrix:
    """Return the whole array ``qr``."""
    with oc.open_array(qr.path / "qr") as array:
        whole: Matrix = array[...]
    return whole


def q_and_r(qr: QRFactor) -> tuple[Matrix, Matrix]:
    """Return Q, (m, min(m, n)), and R, in double precision."""
    wide = np.result_type(qr.dtype, np.float64)
    whole, k = packed(qr).astype(wide), min(qr.shape)
    form = scipy.linalg.get_lapack_funcs("orgqr" if wide.kind == "f" else "ungqr", (whole,))
    Q, _, info = form(np.asfortranarray(whole[:, :k]), qr.tau.astype(wide))
    assert info == 0
    return Q, np.triu(whole[:k])


def lapack_ratios(a: Matrix, qr: QRFactor) -> tuple[float, float]:
    """‖R - QᴴA‖₁ / (m ‖A‖₁ ε) and ‖I - QᴴQ‖₁ / (m ε), which LAPACK's tests want below 30."""
    Q, R = q_and_r(qr)
    eps = unit_roundoff(qr.dtype)
    norm = np.linalg.norm(a.astype(Q.dtype), 1)
    error = np.linalg.norm(R - Q.conj().T @ a, 1)
    lost = np.linalg.norm(np.eye(Q.shape[1]) - Q.conj().T @ Q, 1)
    return float(error / (qr.m * norm * eps)) if norm else float(error), float(lost / (qr.m * eps))


def assert_factors(a: Matrix, qr: QRFactor) -> None:
    """Check both of LAPACK's ratios."""
    assert max(lapack_ratios(a, qr)) < 30
