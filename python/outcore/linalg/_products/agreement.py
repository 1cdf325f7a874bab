"""The agreement of all processes of a product on their arguments, and on the steps to do."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy.typing as npt

from outcore.array.array import Array
from outcore.linalg._output.steps_done import StepsDone, version_of_operand
from outcore.linalg._products.dealt_pieces import Pieces
from outcore.linalg._products.piece_counts import result_messages
from outcore.linalg._tiles.matrix import Matrix
from outcore.processes.sharing import Sharing, seconds_for
from outcore.processes.team import Team

T = TypeVar("T")


def agree_on_product(
    title: str,
    operands: Mapping[str, Array | npt.NDArray[Any]],
    arguments: Mapping[str, Any],
    sharing: Sharing,
) -> None:
    """Check that all processes make the same call.

    Raises
    ------
    InvalidError
        On all of them, if one process has another argument, version or operand, or no MPI for
        several threads.
    """
    if sharing.size == 1:
        return
    sharing.check_mpi(f"{title} by several processes")
    sharing.agree({f"{name}=": value for name, value in arguments.items()})
    sharing.agree({name: version_of_operand(given) for name, given in operands.items()})


def share_result(X: Matrix, extents: Sequence[tuple[slice, slice]], team: Team) -> None:
    """Fill a column-major result, of which each process has the rows and columns in `extents`."""
    for rank, extent in enumerate(extents) if team.size > 1 else ():
        for rows, columns in result_messages(extent, len(X), X.itemsize):
            part = X[rows, columns].T
            memory = part if part.flags.c_contiguous else part.copy(order="C")
            team.broadcast(memory, seconds_for(memory.nbytes), rank)
            if memory is not part and rank != team.rank:
                part[...] = memory


def all_sent(pieces: Pieces, team: Team) -> tuple[int, int]:
    """Bytes and messages that this process has sent, of an operand and of a result in memory."""
    return pieces.sent[0] + team.sent[0], pieces.sent[1] + team.sent[1]


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
