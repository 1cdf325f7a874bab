"""The planners of all verbs."""

from outcore.linalg._cholesky.plan import cholesky_cost
from outcore.linalg._lstsq.lstsq_plan import lstsq_cost
from outcore.linalg._lu.choice import lu_plan
from outcore.linalg._planners.factor_plans import (
    cho_solve_cost,
    cond_est_cost,
    export_cost,
    lu_solve_cost,
    qr_solve_cost,
    slogdet_cost,
)
from outcore.linalg._products.gram_plan import gram_cost
from outcore.linalg._products.matmul_plan import matmul_cost
from outcore.linalg._products.triangular_plan import triangular_cost
from outcore.linalg._qr.qr_plan import qr_cost
from outcore.linalg._slab_qr.cost import slab_qr_cost
from outcore.linalg._slab_qr.form_q import form_q_cost
from outcore.linalg._svd.svd_plan import svd_cost
from outcore.linalg._systems.plan import solve_plan
from outcore.linalg._tiles.cost import Planner
from outcore.linalg.iterative.cost import cg_cost, gauss_seidel_cost, gmres_cost, jacobi_cost

PLANNERS: dict[str, Planner] = {
    "lu": lu_plan,
    "cholesky": cholesky_cost,
    "qr": qr_cost,
    "qr_factor": slab_qr_cost,
    "form_q": form_q_cost,
    "lu_solve": lu_solve_cost,
    "cho_solve": cho_solve_cost,
    "qr_solve": qr_solve_cost,
    "slogdet": slogdet_cost,
    "export_lapack": export_cost,
    "cond_est": cond_est_cost,
    "lstsq": lstsq_cost,
    "gram": gram_cost,
    "svd": svd_cost,
    "solve": solve_plan,
    "gauss_seidel": gauss_seidel_cost,
    "jacobi": jacobi_cost,
    "cg": cg_cost,
    "gmres": gmres_cost,
    "matmul": matmul_cost,
    "solve_triangular": triangular_cost,
}
"""The planner of each verb, from its module ``linalg/*_plan.py``."""

FUNCTIONS = {"lu_factor": "lu", "cho_factor": "cholesky"}
"""Verbs of functions with other names."""
