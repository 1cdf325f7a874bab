"""Arguments common to all iterative methods: their names, defaults and checks.

`gauss_seidel` describes them.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Concatenate, Literal, ParamSpec, TypeAlias, TypedDict, TypeVar

import numpy as np
import numpy.typing as npt

from outcore._util.counts import is_count, is_number
from outcore._util.if_exists import IfExists
from outcore._util.progress import ProgressLike
from outcore.array.array import Array
from outcore.errors import InvalidError
from outcore.linalg._output.factor import CholeskyFactor, LUFactor
from outcore.linalg._output.open_results import opens_results
from outcore.linalg._output.steps_done import Made
from outcore.linalg._tiles.assumptions import AssumeA, assumption
from outcore.linalg.iterative.pinned_product import Mirror
from outcore.linalg.iterative.plan import Pin
from outcore.report.longcall import check_threads
from outcore.storage.volumes import PathLike, as_path

P = ParamSpec("P")
R = TypeVar("R")

Storage: TypeAlias = Literal["f4"] | None


class Options(TypedDict, total=False):
    """Keyword arguments that all iterative methods share; `Setting` has their defaults."""

    x0: npt.ArrayLike | Array | PathLike | None
    block: int | None
    pin: Pin
    storage: Storage
    dtype: npt.DTypeLike | None
    tol: float | None
    scratch: PathLike | None
    memory: int | str | None
    out: PathLike | None
    if_exists: IfExists
    resume: bool
    threads: int | None
    progress: ProgressLike


@dataclass(frozen=True)
class Setting:
    """Checked arguments of an iterative method.

    Attributes
    ----------
    most
        Most sweeps or iterations.
    assume_a
        As for `gauss_seidel`, as a short name.
    factors
        Factors that the method reads, if any.
    made
        The identity of the call, for its solution.

    Raises
    ------
    InvalidError
        For invalid values.
    """

    most: int
    assume_a: AssumeA = "gen"
    factors: LUFactor | CholeskyFactor | None = None
    made: Made = None
    x0: npt.ArrayLike | Array | PathLike | None = None
    block: int | None = None
    pin: Pin = "auto"
    storage: Storage = None
    dtype: npt.DTypeLike | None = None
    tol: float | None = 1e-5
    scratch: PathLike | None = None
    memory: int | str | None = None
    out: PathLike | None = None
    if_exists: IfExists = "error"
    resume: bool = True
    threads: int | None = None
    progress: ProgressLike = True

    def __post_init__(self) -> None:
        """Replace long names of matrix types by the short ones, and check."""
        object.__setattr__(self, "assume_a", assumption(self.assume_a))
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
        return {
            "tol=": self.tol, "number of sweeps": self.most, "block=": self.block,
            "assume_a=": self.assume_a, "storage=": self.storage,
            "dtype=": None if self.dtype is None else str(self.dtype),
            "x0=, given or not": self.x0 is not None,
            "out=": None if self.out is None else as_path(self.out).name,
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


def iterative_method(function: Callable[Concatenate[Made, P], R]) -> Callable[P, R]:
    """Show `Options` and their defaults in a method's signature, and add ``if_exists="open"``."""
    signature = inspect.signature(function)
    *own, options = signature.parameters.values()
    assert options.kind is inspect.Parameter.VAR_KEYWORD, "it takes Unpack[Options]"
    shared = [
        inspect.Parameter(
            each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=each.type
        )
        for each in dataclasses.fields(Setting)
        if each.name in Options.__annotations__
    ]
    vars(function)["__signature__"] = signature.replace(parameters=[*own, *shared])
    return opens_results()(function)
