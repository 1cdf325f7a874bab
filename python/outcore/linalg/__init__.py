"""Dense linear algebra on arrays larger than memory."""

from outcore.linalg.cg import cg
from outcore.linalg.cho_solve import cho_solve
from outcore.linalg.cholesky import cho_factor
from outcore.linalg.cond_est import cond_est
from outcore.linalg.factor import CholeskyFactor, LUFactor, open_factor
from outcore.linalg.gauss_seidel import gauss_seidel
from outcore.linalg.gmres import gmres
from outcore.linalg.gram import gram
from outcore.linalg.jacobi import jacobi
from outcore.linalg.lstsq import LeastSquaresReport, lstsq
from outcore.linalg.lu import lu_factor
from outcore.linalg.lu_export import export_lapack
from outcore.linalg.lu_solve import lu_solve
from outcore.linalg.matmul import matmul
from outcore.linalg.qr import qr
from outcore.linalg.slogdet import Determinant, slogdet
from outcore.linalg.solve import solve
from outcore.linalg.solve_triangular import solve_triangular
from outcore.linalg.svd import SvdReport, svd

__all__ = [
    "CholeskyFactor",
    "Determinant",
    "LUFactor",
    "LeastSquaresReport",
    "SvdReport",
    "cg",
    "cho_factor",
    "cho_solve",
    "cond_est",
    "export_lapack",
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
    "slogdet",
    "solve",
    "solve_triangular",
    "svd",
]
