"""Dense linear algebra on arrays larger than memory."""

from outcore.linalg.factor import LUFactor, open_factor
from outcore.linalg.lu import lu_factor
from outcore.linalg.lu_solve import lu_solve
from outcore.linalg.solve import solve

__all__ = ["LUFactor", "lu_factor", "lu_solve", "open_factor", "solve"]
