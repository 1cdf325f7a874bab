"""Dense linear algebra on arrays larger than memory."""

from outcore.linalg.cholesky.factorization import cho_factor
from outcore.linalg.cholesky.solve import cho_solve
from outcore.linalg.factors.cond_est import cond_est
from outcore.linalg.factors.factor import CholeskyFactor, LUFactor, QRFactor, open_factor
from outcore.linalg.factors.slogdet import Determinant, slogdet
from outcore.linalg.iterative.cg import cg
from outcore.linalg.iterative.gauss_seidel import gauss_seidel
from outcore.linalg.iterative.gmres import gmres
from outcore.linalg.iterative.jacobi import jacobi
from outcore.linalg.lu.export import export_lapack
from outcore.linalg.lu.factorization import lu_factor
from outcore.linalg.lu.solve import lu_solve
from outcore.linalg.products.matmul import matmul
from outcore.linalg.products.solve_triangular import solve_triangular
from outcore.linalg.rows.gram import gram
from outcore.linalg.rows.lstsq import LeastSquaresReport, lstsq
from outcore.linalg.rows.qr import qr
from outcore.linalg.rows.svd import SvdReport, svd
from outcore.linalg.slab_qr.factorization import qr_factor
from outcore.linalg.slab_qr.form_q import form_q
from outcore.linalg.slab_qr.solve import qr_solve
from outcore.linalg.systems.solve import solve

__all__ = [
    "CholeskyFactor",
    "Determinant",
    "LUFactor",
    "LeastSquaresReport",
    "QRFactor",
    "SvdReport",
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
