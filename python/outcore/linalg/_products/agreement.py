"""The agreement of all processes of a product on their arguments, and on the steps to do."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy.typing as npt

from outcore.array.array import Array
from outcore.errors import InvalidError
from outcore.linalg._output.steps_done import StepsDone, version_of_operand
from outcore.processes.sharing import Sharing, seconds_for
from outcore.processes.team import Team

T = TypeVar("T")


def agree_on_product(
    title: str,
    operands: Mapping[str, Array | npt.NDArray[Any]],
    arguments: Mapping[str, Any],
    sharing: Sharing,
    shape: Sequence[int],
    *,
    can_be_stored: bool,
) -> None:
    """Check that all processes make the same call, with a result of a shape on disk.

    Raises
    ------
    InvalidError
        On all of them, if one process has another argument, version or operand, or no MPI for
        several threads, or the result is not on disk.
    """
    if sharing.size == 1:
        return
    sharing.check_mpi(f"{title} by several processes")
    sharing.agree({f"{name}=": value for name, value in arguments.items()})
    sharing.agree({name: version_of_operand(given) for name, given in operands.items()})
    if not can_be_stored:
        raise InvalidError(
            f"{title} by several processes needs a result on disk, and one of shape {shape} cannot "
            "be there; leave comm= out"
        )
    if arguments["out"] is None:
        raise InvalidError(
            f"{title} by several processes needs a result on disk, have out=None; pass out="
        )


def leave_out(sharing: Sharing) -> str:
    """Return the arguments to leave out for a result that cannot be on disk."""
    return "leave out= out" if sharing.size == 1 else "leave out= and comm= out"


@contextmanager
def meeting_at_the_end(team: Team, nbytes: float, flops: float) -> Iterator[None]:
    """Meet after the work of each process, for which the others wait long enough.

    Processes may have different amounts of work, and no other reason to wait for each other.

    Parameters
    ----------
    nbytes, flops
        Bytes that this process moves, and its operations.
    """
    longest_s = max(team.all_of(seconds_for(nbytes, flops)))
    yield
    team.all_of(None, longest_s)


def left_of_all(steps: StepsDone, all_steps: Sequence[T]) -> list[tuple[int, T]]:
    """Return the steps that any process has not made durable; see `StepsDone.left`."""
    least = min(steps.sharing.exchange(steps.begin(len(all_steps))))
    if not least:
        steps.forget()
        # No process records anything before the records of others are gone.
        steps.sharing.meet()
    steps.gone_on_at = least
    return steps.left(all_steps)
