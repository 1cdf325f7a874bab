"""The error tree: kinds are stable names, the same in Rust and Python."""

import io

import numpy as np
import pytest

import outcore as oc
from outcore import _core, errors

# Programs match on kinds: append to this list, never change it.
KINDS = [
    "error", "budget", "disk_full", "io", "not_found", "truncated", "corrupt", "read_only",
    "exists", "invalid", "busy", "forked", "closed", "incomplete", "consumed", "journal",
    "non_finite", "singular", "missing_package", "divergence", "not_positive_definite", "denied",
    "lost",
    "is_directory", "not_directory", "type", "loop",
]  # fmt: skip


def tree(root: type[errors.OutcoreError]) -> list[type[errors.OutcoreError]]:
    return [root, *(found for child in root.__subclasses__() for found in tree(child))]


def test_kinds_are_stable_and_unique() -> None:
    kinds = [error.kind for error in tree(errors.OutcoreError)]
    assert len(kinds) == len(set(kinds))
    assert kinds[: len(KINDS)] == KINDS


def test_every_error_has_a_kind_of_its_own() -> None:
    for error in tree(errors.OutcoreError):
        assert "kind" in vars(error), error
        assert error.__doc__


def test_every_kind_of_rust_is_an_exception_here() -> None:
    kinds = _core.error_kinds()
    assert kinds == [k for k in KINDS if k in kinds]
    assert len(kinds) == 15
    for kind in kinds:
        error = errors.from_kind(kind, "a message")
        assert type(error).kind == kind
        assert str(error) == "a message"


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (errors.BudgetError, MemoryError),
        (errors.DiskFullError, OSError),
        (errors.DiskError, OSError),
        (errors.NotFoundError, FileNotFoundError),
        (errors.TruncatedError, OSError),
        (errors.CorruptError, OSError),
        (errors.ReadOnlyError, PermissionError),
        (errors.ReadOnlyError, io.UnsupportedOperation),
        (errors.ArgumentTypeError, TypeError),
        (errors.ExistsError, FileExistsError),
        (errors.InvalidError, ValueError),
        (errors.BusyError, OSError),
        (errors.ForkedError, RuntimeError),
        (errors.ClosedError, ValueError),
        (errors.DeniedError, PermissionError),
        (errors.LostError, OSError),
        (errors.LinkLoopError, OSError),
        (errors.IsDirectoryError, IsADirectoryError),
        (errors.NotDirectoryError, NotADirectoryError),
        (errors.IncompleteError, ValueError),
        (errors.ConsumedError, ValueError),
        (errors.JournalError, ValueError),
        (errors.NonFiniteError, ValueError),
        (errors.SingularMatrixError, np.linalg.LinAlgError),
        (errors.DivergenceError, ArithmeticError),
    ],
)
def test_errors_are_the_built_in_ones_too(
    error: type[errors.OutcoreError], builtin: type[Exception]
) -> None:
    assert issubclass(error, builtin)
    assert issubclass(error, oc.OutcoreError)
    assert str(error("a message")) == "a message"


def test_numbers_that_go_with_an_error() -> None:
    assert errors.NonFiniteError("a message", (3, 4)).index == (3, 4)
    assert errors.SingularMatrixError("a message", 5).info == 5
    assert errors.DivergenceError("a message", 1.5).ratio == 1.5


def test_an_interruption_is_not_an_error() -> None:
    assert issubclass(errors.Interrupted, KeyboardInterrupt)
    assert not issubclass(errors.Interrupted, Exception)
