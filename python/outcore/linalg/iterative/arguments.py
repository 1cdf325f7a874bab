"""Arguments common to all iterative methods."""

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from outcore._util.counts import is_count, is_number
from outcore._util.if_exists import IfExists
from outcore._util.progress import ProgressLike
from outcore.errors import InvalidError
from outcore.linalg._output.factor import CholeskyFactor, LUFactor
from outcore.linalg._output.steps_done import Made
from outcore.linalg._tiles.assumptions import AssumeA, assumption
from outcore.linalg.iterative.pinned_product import Mirror
from outcore.linalg.iterative.plan import Pin
from outcore.report.longcall import check_threads
from outcore.storage.volumes import PathLike

Storage: TypeAlias = Literal["f4"] | None


@dataclass(frozen=True)
class Setting:
    """Arguments common to all iterative methods, which `gauss_seidel` describes.

    Attributes
    ----------
    factors
        Factors that the method reads, if any.
    made
        The identity of the call, for its solution.
    """

    tol: float | None
    most: int
    memory: int | str | None = None
    threads: int | None = None
    progress: ProgressLike = True
    assume_a: AssumeA = "gen"
    pin: Pin = "auto"
    block: int | None = None
    storage: Storage = None
    scratch: PathLike | None = None
    out: PathLike | None = None
    if_exists: IfExists = "error"
    resume: bool = True
    factors: LUFactor | CholeskyFactor | None = None
    dtype: npt.DTypeLike | None = None
    made: Made = None

    def __post_init__(self) -> None:
        """Replace long names of matrix types by the short ones."""
        object.__setattr__(self, "assume_a", assumption(self.assume_a))

    def check(self) -> None:
        """Raise for invalid values."""
        check_threads(self.threads)
        if self.tol is not None and not (is_number(self.tol) and 0 <= self.tol < np.inf):
            raise InvalidError(f"tol must be a number of at least 0, or None, have {self.tol!r}")
        if not is_count(self.most):
            raise InvalidError(
                f"the most sweeps or iterations is an integer of at least 1, have {self.most!r}"
            )
        if not isinstance(self.assume_a, str) or self.assume_a not in ("gen", "sym", "her", "pos"):
            raise InvalidError(
                f"assume_a must be 'gen', 'sym', 'her' or 'pos', have {self.assume_a!r}"
            )
        if self.storage is not None and (not isinstance(self.storage, str) or self.storage != "f4"):
            raise InvalidError(f"storage must be None or 'f4', have {self.storage!r}")

    def shared(self) -> dict[str, Any]:
        """Return the arguments that must be equal on all processes of a joint call."""
        self.check()
        return {
            "tol=": self.tol, "number of sweeps": self.most, "block=": self.block,
            "assume_a=": self.assume_a, "storage=": self.storage,
            "dtype=": None if self.dtype is None else str(self.dtype),
        }  # fmt: skip

    @property
    def mirror(self) -> Mirror:
        """Relation of the upper triangle to the lower one."""
        if self.assume_a == "gen":
            return None
        return "T" if self.assume_a == "sym" else "C"


def check_omega(omega: Any, most: float = 2) -> None:
    """Raise for an ω that is not a number, or for which SOR converges for no matrix.

    With an infinite `most` it is a damping factor.
    """
    if is_number(omega) and 0 < omega < most:
        return
    need = "between 0 and 2 (Kahan 1958)" if most == 2 else "positive, and finite"
    raise InvalidError(f"omega must be {need}, have {omega!r}; 1 is without over-relaxation")
