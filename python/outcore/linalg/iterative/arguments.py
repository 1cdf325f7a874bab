"""Arguments that all iterative methods take."""

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from outcore.counts import is_count
from outcore.errors import InvalidError
from outcore.linalg.factors.factor import LUFactor
from outcore.linalg.iterative.pinned_product import Mirror
from outcore.linalg.iterative.plan import Pin
from outcore.longcall import check_threads
from outcore.progress import ProgressLike
from outcore.volumes import PathLike

AssumeA: TypeAlias = Literal["gen", "sym", "her", "pos"]
Storage: TypeAlias = Literal["f4"] | None


@dataclass(frozen=True)
class Setting:
    """Arguments that all iterative methods take, as `gauss_seidel` describes them.

    Attributes
    ----------
    factors
        What else a method reads.
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
    overwrite: bool = False
    resume: bool = True
    factors: LUFactor | None = None

    def check(self) -> None:
        """Refuse values that cannot be."""
        check_threads(self.threads)
        if self.tol is not None and not (_is_number(self.tol) and 0 <= self.tol < np.inf):
            raise InvalidError(f"tol must be a number of at least 0, or None, have {self.tol!r}")
        if not is_count(self.most):
            raise InvalidError(
                f"the most sweeps or iterations is an integer of at least 1, have {self.most!r}"
            )
        if self.assume_a not in ("gen", "sym", "her", "pos"):
            raise InvalidError(
                f"assume_a must be 'gen', 'sym', 'her' or 'pos', have {self.assume_a!r}"
            )
        if self.storage not in (None, "f4"):
            raise InvalidError(f"storage must be None or 'f4', have {self.storage!r}")

    def shared(self) -> dict[str, Any]:
        """Those that processes which iterate together must have the same."""
        self.check()
        return {
            "tol=": self.tol, "number of sweeps": self.most, "block=": self.block,
            "assume_a=": self.assume_a, "storage=": self.storage,
        }  # fmt: skip

    @property
    def mirror(self) -> Mirror:
        """How the upper triangle follows from the lower one."""
        if self.assume_a == "gen":
            return None
        return "T" if self.assume_a == "sym" else "C"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
