"""Errors that calls of MPI raise."""

from collections.abc import Callable
from typing import Any

from mpi4py import MPI


def error_of(call: Callable[..., Any], *arguments: Any) -> MPI.Exception:
    """Return the error of a call that fails."""
    try:
        call(*arguments)
    except MPI.Exception as error:
        return error
    raise AssertionError(f"no error of {call}")
