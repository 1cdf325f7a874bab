"""The check that all processes that read the rows of a matrix have the same arguments."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from outcore.errors import InvalidError
from outcore.linalg._output.steps_done import version_of_operand
from outcore.linalg._rows.source import RowSource, StoredRows
from outcore.processes.sharing import Sharing


def agree_on_rows(
    title: str,
    given: Mapping[str, tuple[RowSource, object]],
    arguments: Mapping[str, Any],
    sharing: Sharing,
) -> None:
    """Check that all processes make the same call, before it reads any rows.

    Parameters
    ----------
    title
        The call, for messages.
    given
        Source and original argument of each operand. The elements of a memmap, or of another sliced
        object, are not compared.
    arguments
        The other arguments, by name.
    sharing
        The processes.

    Raises
    ------
    InvalidError
        On all of them, if one process has another argument, version or operand, an operand is an
        iterator, or there is no MPI for several threads.
    """
    if sharing.size == 1:
        return
    sharing.check_mpi(f"{title} by several processes")
    for name, (source, _) in given.items():
        if source.rows is None:
            raise InvalidError(
                f"several processes need {name} as an array, of which each reads its own rows, "
                "have an iterator; copy it to disk with oc.from_array, or leave out comm="
            )
    named = {f"{name}=": value for name, value in arguments.items()}
    sharing.agree({"operands": tuple(given), **named})
    sharing.agree({name: _identity(*each) for name, each in given.items()})


def _identity(source: RowSource, given: object) -> Any:
    if isinstance(source, StoredRows):
        return version_of_operand(source.array)
    if isinstance(given, np.ndarray) and not isinstance(given, np.memmap):
        return version_of_operand(given)
    return [source.rows, source.columns, source.layout.dtype.str]
