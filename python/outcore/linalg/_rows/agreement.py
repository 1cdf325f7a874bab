"""The beginning of a call that reads the rows of a matrix, by one process or several."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from outcore.errors import InvalidError
from outcore.linalg._output.steps_done import Made, StepsDone, version_of_operand
from outcore.linalg._rows.source import RowSource, StoredRows, known_operands
from outcore.processes.sharing import Sharing


def agreed_steps(
    verb: str,
    given: Mapping[str, tuple[RowSource, object]],
    arguments: Mapping[str, Any],
    how: Mapping[str, Any],
    memory: int | str | None,
    made: Made,
    sharing: Sharing,
    *,
    is_known: bool = True,
    names: Mapping[str, str] | None = None,
) -> StepsDone:
    """Check that all processes make the same call, before it reads any rows; return its steps.

    Parameters
    ----------
    verb, arguments, memory, made, sharing
        As for `StepsDone`.
    given
        Source and original argument of each operand. The elements of a memmap, or of another sliced
        object, are not compared.
    how
        The other arguments, with ``out`` and ``resume``.
    is_known
        Whether a later call can recognize this one by its operands and `arguments`.
    names
        The caller's names of `arguments` that the steps have under others.

    Raises
    ------
    InvalidError
        On all of them, if one process has another argument, version or operand, an operand is an
        iterator, or there is no MPI for several threads.
    """
    out = how["out"]
    if sharing.size > 1:
        sharing.check_mpi(f"{verb} by several processes")
        for name, (source, _) in given.items():
            if source.rows is None:
                raise InvalidError(
                    f"several processes need {name} as an array, of which each reads its own rows, "
                    "have an iterator; copy it to disk with oc.from_array, or leave out comm="
                )
        values = {**arguments, **how, "out": out and str(out)}
        named = {f"{(names or {}).get(name, name)}=": value for name, value in values.items()}
        sharing.agree({"operands": tuple(given), **named})
        sharing.agree({name: _identity(*each) for name, each in given.items()})
    known = known_operands(given) if is_known else {}
    return StepsDone(
        out if known else None, verb, arguments, known, memory, resume=how["resume"], made=made,
        sharing=sharing,
    )  # fmt: skip


def _identity(source: RowSource, given: object) -> Any:
    if isinstance(source, StoredRows):
        return version_of_operand(source.array)
    if isinstance(given, np.ndarray) and not isinstance(given, np.memmap):
        return version_of_operand(given)
    return [source.rows, source.columns, source.layout.dtype.str]
