"""What matrices in memory are here."""

from typing import Any, TypeAlias

import numpy.typing as npt

Matrix: TypeAlias = npt.NDArray[Any]
"""Column-major: elements of a column next to each other, columns any distance apart."""
