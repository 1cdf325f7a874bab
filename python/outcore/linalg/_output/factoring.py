"""The arguments of a factorization, as input of each method."""

from dataclasses import dataclass

import numpy.typing as npt

from outcore._util.if_exists import IfExists
from outcore._util.progress import ProgressLike
from outcore.array.array import Array
from outcore.linalg._output.factor import Kind
from outcore.linalg._tiles.matrix import place_of
from outcore.storage.volumes import PathLike, Place, place


@dataclass(frozen=True)
class Factoring:
    """The matrix to factor, and the options of the call.

    Attributes
    ----------
    A, out, dtype, overwrite_a, if_exists, resume, threads, progress
        As for `lu_factor`.
    memory_bytes
        The budget.
    argument
        The argument that sets the place of the factors, for advice in errors.
    is_temporary
        Whether a call makes the factors for its own use. They are marked from their start.
    later
        Receives temporary factors that the caller removes. By default the call removes them.
    """

    A: Array | PathLike
    memory_bytes: int
    out: PathLike | None = None
    dtype: npt.DTypeLike | None = None
    overwrite_a: bool = False
    if_exists: IfExists = "error"
    resume: bool = True
    threads: int | None = None
    progress: ProgressLike = True
    argument: str = "out="
    is_temporary: bool = False
    later: list[Place] | None = None

    def target(self, kind: Kind) -> Place:
        """Directory of the factors, by default beside the matrix."""
        return place(self.out if self.out is not None else f"{place_of(self.A).stem}{kind.suffix}")
