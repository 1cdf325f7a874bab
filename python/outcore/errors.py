"""The error tree.

Every error that outcore raises on purpose is an `OutcoreError`. Programs test its stable ``kind``.
Its message states the requirement, the actual value, and one fix. Where Python has a built-in
exception for the case, the error derives from it too.
"""

import errno
import io
from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np


class OutcoreError(Exception):
    """Base class of all errors that outcore raises on purpose."""

    kind: ClassVar[str] = "error"


class BudgetError(OutcoreError, MemoryError):
    """A call needs more memory than its budget."""

    kind = "budget"


class DiskFullError(OutcoreError, OSError):
    """The disk has no room for the data."""

    kind = "disk_full"


class DiskError(OutcoreError, OSError):
    """The operating system refused a request, or failed at it."""

    kind = "io"


class NotFoundError(OutcoreError, FileNotFoundError):
    """A required file or array does not exist."""

    kind = "not_found"


class TruncatedError(OutcoreError, OSError):
    """A file ends before its data do."""

    kind = "truncated"


class CorruptError(OutcoreError, OSError):
    """Data on disk are damaged."""

    kind = "corrupt"


class ReadOnlyError(OutcoreError, PermissionError, io.UnsupportedOperation):
    """An attempt to write to an object that is open or mounted read-only."""

    kind = "read_only"


class ExistsError(OutcoreError, FileExistsError):
    """The target of a call already exists."""

    kind = "exists"


class InvalidError(OutcoreError, ValueError):
    """An argument is not usable."""

    kind = "invalid"


class BusyError(OutcoreError, OSError):
    """Another process or call has locked the object."""

    kind = "busy"


class ForkedError(OutcoreError, RuntimeError):
    """An object is used in a forked child of the process that made it."""

    kind = "forked"


class ClosedError(OutcoreError, ValueError):
    """An object is used after it was closed."""

    kind = "closed"


class IncompleteError(OutcoreError, ValueError):
    """An array that a failed or killed call left half-written."""

    kind = "incomplete"


class ConsumedError(OutcoreError, ValueError):
    """An array whose content a call with ``overwrite_a=True`` consumed."""

    kind = "consumed"


class JournalError(OutcoreError, ValueError):
    """A journal does not match the call that would resume from it."""

    kind = "journal"


class NonFiniteError(OutcoreError, ValueError):
    """A matrix contains a NaN or an infinity. ``index`` is its (row, column)."""

    kind = "non_finite"

    def __init__(self, message: str, index: tuple[int, int] = (-1, -1)) -> None:
        super().__init__(message)
        self.index = index


class SingularMatrixError(OutcoreError, np.linalg.LinAlgError):
    """A singular factor. ``info`` is LAPACK's: the first zero pivot, counted from 1."""

    kind = "singular"

    def __init__(self, message: str, info: int = 0) -> None:
        super().__init__(message)
        self.info = info


class MissingPackageError(OutcoreError, ImportError):
    """An optional package that this call needs is not installed."""

    kind = "missing_package"


class DivergenceError(OutcoreError, ArithmeticError):
    """An iteration diverges: its residual grows.

    ``ratio`` is the growth from step to step, ``history`` the residuals of all steps, as in a
    `Report`.
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

    ``history`` contains the residuals of earlier steps of conjugate gradients.
    """

    kind = "not_positive_definite"

    def __init__(self, message: str, info: int = 0, history: Iterable[float] = ()) -> None:
        super().__init__(message)
        self.info = info
        self.history = list(history)


class DeniedError(OutcoreError, PermissionError):
    """The rights of the user, or a grant, do not allow the access."""

    kind = "denied"


class LostError(OutcoreError, OSError):
    """Unsynced writes to a pool may be lost, because an I/O server was restarted.

    Each open file raises this error once. Repeat all writes since the last sync.
    """

    kind = "lost"


class IsDirectoryError(OutcoreError, IsADirectoryError):
    """A path names a directory where a file is needed."""

    kind = "is_directory"


class NotDirectoryError(OutcoreError, NotADirectoryError):
    """A path names a file where a directory is needed."""

    kind = "not_directory"


class ArgumentTypeError(OutcoreError, TypeError):
    """An argument has a type that is not usable."""

    kind = "type"


class LinkLoopError(OutcoreError, OSError):
    """A path in a pool leads through more than 40 symbolic links. ``errno`` is ``ELOOP``."""

    kind = "loop"

    def __init__(self, message: str) -> None:
        super().__init__(errno.ELOOP, message)

    def __str__(self) -> str:
        return str(self.strerror)


class Interrupted(KeyboardInterrupt):  # not an error: the user stopped the call
    """Ctrl-C or SIGTERM stopped a long call; the message says how to resume.

    ``x`` is the last iterate of an iterative method, from which a new call can start.
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
    """A checkpoint is damaged, and the one before it is used."""


class FillChangedWarning(UserWarning):
    """The source text of `fill` has changed since the assembly that a call resumes or opens."""


class GrowthWarning(UserWarning):
    """The pivots grew so much that the factors may have few correct digits."""


class SymmetryWarning(UserWarning):
    """A matrix is not symmetric or Hermitian, although the caller declared it so."""


def _tree(root: type[OutcoreError]) -> dict[str, type[OutcoreError]]:
    found = {root.kind: root}
    for child in root.__subclasses__():
        found |= _tree(child)
    return found


_BY_KIND = _tree(OutcoreError)


def from_kind(kind: str, message: str) -> OutcoreError:
    """Return the error of a stable kind."""
    return _BY_KIND[kind](message)


__all__ = sorted(
    name
    for name, each in globals().items()
    if isinstance(each, type) and each.__module__ == __name__
)


def __dir__() -> list[str]:
    return __all__
