"""Dense linear algebra on arrays larger than memory."""

from outcore.linalg.factor import LUFactor, open_factor
from outcore.linalg.lu import lu_factor

__all__ = ["LUFactor", "lu_factor", "open_factor"]
