"""Dense linear algebra on arrays larger than memory."""

from ._cholesky.factorization import cho_factor
from ._cholesky.solve import cho_solve
from ._estimate.cond_est import cond_est
from ._estimate.slogdet import Determinant, slogdet
from ._lstsq.least_squares_report import LeastSquaresReport
from ._lstsq.lstsq import lstsq
from ._lu.export import export_lapack
from ._lu.factorization import lu_factor
from ._lu.solve import lu_solve
from ._output.factor import CholeskyFactor, LUFactor, QRFactor, TransposedQRFactor, open_factor
from ._products.gram import gram
from ._products.matmul import matmul
from ._products.solve_triangular import solve_triangular
from ._qr.qr import qr
from ._slab_qr.factorization import qr_factor
from ._slab_qr.form_q import form_q
from ._slab_qr.solve import qr_solve
from ._svd.iteration import SvdReport
from ._svd.svd import svd
from ._systems.solve import solve
from .iterative.cg import cg
from .iterative.gauss_seidel import gauss_seidel
from .iterative.gmres import gmres
from .iterative.jacobi import jacobi

__all__ = [
    "CholeskyFactor",
    "Determinant",
    "LUFactor",
    "LeastSquaresReport",
    "QRFactor",
    "SvdReport",
    "TransposedQRFactor",
    "cg",
    "cho_factor",
    "cho_solve",
    "cond_est",
    "export_lapack",
    "form_q",
    "gauss_seidel",
    "gmres",
    "gram",
    "jacobi",
    "lstsq",
    "lu_factor",
    "lu_solve",
    "matmul",
    "open_factor",
    "qr",
    "qr_factor",
    "qr_solve",
    "slogdet",
    "solve",
    "solve_triangular",
    "svd",
]
