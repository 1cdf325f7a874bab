"""The error tree.

Every error outcore raises on purpose is an `OutcoreError`. Its ``kind`` is a stable name to program
against; its message says what was needed, what was found, and one fix. Where Python has a built-in
exception for the case, the error is one of those too.
"""

import io
from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np


class OutcoreError(Exception):
    """Base of all errors raised on purpose."""

    kind: ClassVar[str] = "error"


class BudgetError(OutcoreError, MemoryError):
    """More memory was asked for than the budget holds."""

    kind = "budget"


class DiskFullError(OutcoreError, OSError):
    """The disk has no room for what must be written."""

    kind = "disk_full"


class DiskError(OutcoreError, OSError):
    """The operating system refused or failed a request."""

    kind = "io"


class NotFoundError(OutcoreError, FileNotFoundError):
    """A file or array that must exist does not."""

    kind = "not_found"


class TruncatedError(OutcoreError, OSError):
    """A file ends before the data it must hold."""

    kind = "truncated"


class CorruptError(OutcoreError, OSError):
    """Bytes on disk are not what they must be."""

    kind = "corrupt"


class ReadOnlyError(OutcoreError, PermissionError, io.UnsupportedOperation):
    """A write to something opened or mounted read-only."""

    kind = "read_only"


class ExistsError(OutcoreError, FileExistsError):
    """A target that must not exist does."""

    kind = "exists"


class InvalidError(OutcoreError, ValueError):
    """An argument is unusable."""

    kind = "invalid"


class BusyError(OutcoreError, OSError):
    """Another process or call holds it."""

    kind = "busy"


class ForkedError(OutcoreError, RuntimeError):
    """Used in a process forked from the one that made it."""

    kind = "forked"


class ClosedError(OutcoreError, ValueError):
    """Used after it was closed."""

    kind = "closed"


class IncompleteError(OutcoreError, ValueError):
    """An array that a failed or killed call left half-written."""

    kind = "incomplete"


class ConsumedError(OutcoreError, ValueError):
    """An array whose content was given up by ``overwrite_a=True``."""

    kind = "consumed"


class JournalError(OutcoreError, ValueError):
    """A journal that does not fit the call that would resume it."""

    kind = "journal"


class NonFiniteError(OutcoreError, ValueError):
    """A NaN or an infinity in a matrix. ``index`` is its (row, column)."""

    kind = "non_finite"

    def __init__(self, message: str, index: tuple[int, int] = (-1, -1)) -> None:
        super().__init__(message)
        self.index = index


class SingularMatrixError(OutcoreError, np.linalg.LinAlgError):
    """A factor that cannot solve. ``info`` is LAPACK's: the first zero pivot, counted from 1."""

    kind = "singular"

    def __init__(self, message: str, info: int = 0) -> None:
        super().__init__(message)
        self.info = info


class MissingPackageError(OutcoreError, ImportError):
    """A package that outcore can do without, but not for this, is not installed."""

    kind = "missing_package"


class DivergenceError(OutcoreError, ArithmeticError):
    """An iteration whose residual grows.

    ``ratio`` is by how much from step to step, ``history`` the residuals of all steps, as a
    `Report` has them.
    """

    kind = "divergence"

    def __init__(
        self, message: str, ratio: float = float("nan"), history: Iterable[float] = ()
    ) -> None:
        super().__init__(message)
        self.ratio = ratio
        self.history = list(history)


class NotPositiveDefiniteError(OutcoreError, np.linalg.LinAlgError):
    """A matrix without a Cholesky factor. ``info`` is LAPACK's: the order of the leading minor.

    ``history`` has the residuals of the steps that conjugate gradients made before.
    """

    kind = "not_positive_definite"

    def __init__(self, message: str, info: int = 0, history: Iterable[float] = ()) -> None:
        super().__init__(message)
        self.info = info
        self.history = list(history)


class DeniedError(OutcoreError, PermissionError):
    """The rights of the user, or a grant, do not allow it."""

    kind = "denied"


class LostError(OutcoreError, OSError):
    """What was written to a pool and not synced may be gone: an I/O server was started again.

    It is told once to each open file. Write again what was written since the last sync.
    """

    kind = "lost"


class IsDirectoryError(OutcoreError, IsADirectoryError):
    """A directory where a file is needed."""

    kind = "is_directory"


class NotDirectoryError(OutcoreError, NotADirectoryError):
    """A file where a directory is needed."""

    kind = "not_directory"


class ArgumentTypeError(OutcoreError, TypeError):
    """An argument is of a type that cannot be used."""

    kind = "type"


class Interrupted(KeyboardInterrupt):  # not an error: the user asked for it
    """A long call was stopped by Ctrl-C or SIGTERM; the message says how to go on.

    ``x`` is what an iterative method had reached, to begin again from.
    """

    kind: ClassVar[str] = "interrupted"
    x: Any = None


class ConvergenceWarning(UserWarning):
    """An iterative method ended before it reached the tolerance."""


class LargeLoadWarning(UserWarning):
    """NumPy loads a whole array that is larger than the default memory budget."""


class LeftOutWarning(UserWarning):
    """A copy leaves out parts of its source: attributes, or columns of a table."""


class DamagedCheckpointWarning(UserWarning):
    """A checkpoint that is damaged; the one before it is used."""


class FillChangedWarning(UserWarning):
    """The source text of `fill` changed since the assembly that a call resumes, or opens."""


class GrowthWarning(UserWarning):
    """Pivots grew so much that the factors may have few correct digits."""


class SymmetryWarning(UserWarning):
    """A matrix is not symmetric or Hermitian, as the caller says that it is."""


def _tree(root: type[OutcoreError]) -> dict[str, type[OutcoreError]]:
    found = {root.kind: root}
    for child in root.__subclasses__():
        found |= _tree(child)
    return found


_BY_KIND = _tree(OutcoreError)


def from_kind(kind: str, message: str) -> OutcoreError:
    """Make the error of a stable kind."""
    return _BY_KIND[kind](message)
