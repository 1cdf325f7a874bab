"""Dense linear algebra on arrays larger than memory."""

from .cholesky.factorization import cho_factor
from .cholesky.solve import cho_solve
from .factors.cond_est import cond_est
from .factors.factor import CholeskyFactor, LUFactor, QRFactor, TransposedQRFactor, open_factor
from .factors.slogdet import Determinant, slogdet
from .iterative.cg import cg
from .iterative.gauss_seidel import gauss_seidel
from .iterative.gmres import gmres
from .iterative.jacobi import jacobi
from .lu.export import export_lapack
from .lu.factorization import lu_factor
from .lu.solve import lu_solve
from .products.matmul import matmul
from .products.solve_triangular import solve_triangular
from .rows.gram import gram
from .rows.least_squares_report import LeastSquaresReport
from .rows.lstsq import lstsq
from .rows.qr import qr
from .rows.svd import SvdReport, svd
from .slab_qr.factorization import qr_factor
from .slab_qr.form_q import form_q
from .slab_qr.solve import qr_solve
from .systems.solve import solve

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
