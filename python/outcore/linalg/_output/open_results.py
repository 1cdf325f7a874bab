"""Results on disk of earlier calls, which ``if_exists="open"`` opens.

A call with ``if_exists="open"`` stores in the metadata of its result the function that made it, its
arguments and its operands. A later call opens the result if all of them are the same.
"""

import dataclasses
import functools
import inspect
import io
import json
import os
from collections.abc import Callable, Mapping
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from outcore._util.communicator import TIMEOUT_S
from outcore._util.if_exists import check_if_exists
from outcore.array.array import Array, open_array
from outcore.array.existing import refuse_other
from outcore.array_files.metadata import read_metadata, settle, version_of, write_metadata
from outcore.errors import ExistsError, InvalidError, NotFoundError, OutcoreError
from outcore.layout.zarr_format import Metadata
from outcore.linalg._output.factor import Factor
from outcore.linalg._output.steps_done import Made, version_of_operand
from outcore.processes.sharing import Sharing
from outcore.report.report import Report, keep
from outcore.storage.volumes import PathLike, Place, place

P = ParamSpec("P")
R = TypeVar("R")

_HOW = frozenset({
    "out", "if_exists", "resume", "memory", "threads", "progress", "factors", "keep_factors",
    "overwrite_a", "scratch", "pin", "comm", "timeout",
})  # fmt: skip
"""Arguments that affect how a result is computed, but not the result."""

_OPERANDS = frozenset({"A", "B", "T", "b", "weights", "x0", "lu", "c", "qr", "preconditioner"})

_BESIDE = "outcore.made-{}.npy"
"""Files in a result with the other arrays that the call returned."""


def beside(name: str, suffix: str) -> Callable[[Mapping[str, Any]], PathLike | None]:
    """Return a function for the default place of a result: named after an operand on disk."""

    def found(given: Mapping[str, Any]) -> PathLike | None:
        operand = given[name]
        if isinstance(operand, str | os.PathLike):
            return f"{place(operand).path}{suffix}"
        if isinstance(operand, Array):
            return f"{operand.place.stem}{suffix}"
        return f"{operand.path}{suffix}" if isinstance(operand, Factor) else None

    return found


def opens_results(
    default: Callable[[Mapping[str, Any]], PathLike | None] = lambda given: None,
    report: type[Report] = Report,
) -> Callable[[Callable[Concatenate[Made, P], R]], Callable[P, R]]:
    """Add ``if_exists="open"`` to a function that writes a result to ``out=``.

    The first parameter of the function, `made`, is not part of the public function. It is for the
    result, as an argument of `StepsDone` or `RightHandSide`.

    Parameters
    ----------
    default
        Returns the place of a result without ``out=``, given the arguments; `None` for memory.
    report
        Type of the function's report.
    """

    def decorate(function: Callable[Concatenate[Made, P], R]) -> Callable[P, R]:
        whole = inspect.signature(function)
        signature = whole.replace(parameters=[*whole.parameters.values()][1:])

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            given = bound.arguments
            made: Made = None
            # The others learn of an error wherever it was, in `function` or beside it.
            comm, timeout = given.get("comm"), given.get("timeout", TIMEOUT_S)
            with Sharing(comm, timeout, function.__name__) as sharing:
                where = _place_to_open(given, default, sharing)
                if where is not None:
                    made = {"call": function.__name__, "arguments": _described(given)}
                    # The first of several processes looks, and the others follow it.
                    found = sharing.same(_whole(where, made) if sharing.rank == 0 else None)
                    if found is not None:
                        returned = _opened(where, found, report)
                        if sharing.same(returned is not None):
                            return returned  # type: ignore[no-any-return]
                        # The call that made it was killed before it wrote its other values.
                        given["if_exists"] = "overwrite"
                result = function(made, *bound.args, **bound.kwargs)
                if where is not None and sharing.rank == 0:
                    _complete(where, result)
            return result

        del call.__annotations__["made"]
        call.__signature__ = signature  # type: ignore[attr-defined]
        return call

    return decorate


def _place_to_open(
    given: Mapping[str, Any],
    default: Callable[[Mapping[str, Any]], PathLike | None],
    sharing: Sharing,
) -> Place | None:
    """Return the place that ``if_exists="open"`` names; all processes have one, or none."""
    is_opening = check_if_exists(given["if_exists"]) == "open"
    out = given["out"] if given["out"] is not None else default(given)
    sharing.agree(
        {"if_exists=": given["if_exists"], "out=": None if out is None else "a directory"}
    )
    return place(out) if is_opening and out is not None else None


def with_version(made: Made, array: Array) -> dict[str, Any] | None:
    """Return the identity of a call with the version of its complete result."""
    if made is None:
        return None
    settle(array.place)
    return {**made, "version": list(version_of(array.place))}


def _described(given: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: _identity(name, given[name]) for name in given if name not in _HOW}
    plain: dict[str, Any] = json.loads(json.dumps(found))
    return plain


def _identity(name: str, value: Any) -> Any:
    """Return a JSON value that distinguishes an argument's value from others."""
    if isinstance(value, Array | Factor):
        return version_of_operand(value)
    if name == "dtype":
        return None if value is None else str(np.dtype(value))
    if value is None or isinstance(value, bool | int | float | str):
        if isinstance(value, str) and name in _OPERANDS - {"preconditioner"}:
            return _version_at(value)
        return value
    if isinstance(value, np.generic) and name not in _OPERANDS:
        return repr(value.item())
    if isinstance(value, complex):
        return repr(value)
    if isinstance(value, os.PathLike):
        return _version_at(value)
    if isinstance(value, list | tuple | np.ndarray | np.generic):
        array = np.asarray(value)
        if array.ndim in (1, 2):
            return version_of_operand(array)
        return [list(array.shape), str(array.dtype)]
    raise InvalidError(
        f"if_exists='open' needs {name}= that it can compare with that of an earlier call, have "
        f"{type(value).__name__}; pass an array, or if_exists='overwrite'"
    )


def _version_at(path: PathLike) -> list[Any]:
    where = place(path)
    settle(where)
    return [str(where.path), *version_of(where)]


def _whole(where: Place, made: Mapping[str, Any]) -> Metadata | None:
    """Read the metadata of a complete result of the same call; `None` if there is none."""
    try:
        found = read_metadata(where)
    except OutcoreError:
        return None  # The call itself reports the error.
    if found.state is not None:
        return None
    was = found.made or {}
    if "arguments" not in was:
        raise ExistsError(
            f"{where.path} exists, and no call with if_exists='open' made it; choose another out=, "
            "or pass if_exists='overwrite'"
        )
    refuse_other(where, was["call"], made["call"], "function")
    for name, now in made["arguments"].items():
        then = was["arguments"].get(name)
        if not _is_given_up(then, now):
            refuse_other(where, then, now, name)
    if was["version"] != list(version_of(where)):
        raise ExistsError(
            f"{where.path} was written to since the call made it; choose another out=, or pass "
            "if_exists='overwrite'"
        )
    return found


def _is_given_up(then: Any, now: Any) -> bool:
    """Whether an operand is the same matrix, after its files were given to the factors."""
    if not isinstance(then, list) or not isinstance(now, list):
        return False
    return len(now) == 3 and then[:2] == now[:2] and now[2] == 0


def _opened(where: Place, found: Metadata, kind: type[Report]) -> Any:
    """Load the values that a call returned; `None` if one of them is missing."""
    made = found.made or {}
    array = open_array(where.path, "r+")
    if "report" not in made:
        return None
    values = json.loads(made["report"])
    fields = {each.name for each in dataclasses.fields(kind)}
    report = kind(**{name: value for name, value in values.items() if name in fields})
    report.notes.append(f"opened {where.path}, which an earlier call made: the figures are of that")
    try:
        for name in made.get("beside_report", []):
            setattr(report, name, _read_beside(where, name))
    except (NotFoundError, ValueError):
        return None
    array.report = report
    returned: list[Any] = []
    for number, what in enumerate(made["returned"]):
        if what == "array":
            try:
                returned.append(_read_beside(where, number))
            except (NotFoundError, ValueError):
                return None
        else:
            returned.append({"result": array, "report": report}.get(what))
    if made["returned"] == ["result"]:
        keep(report, array)
        return array
    return tuple(returned)


def _read_beside(where: Place, number: int | str) -> npt.NDArray[Any]:
    content = where.volume.read_small(where.inside(_BESIDE.format(number)))
    found: npt.NDArray[Any] = np.load(io.BytesIO(content), allow_pickle=False)
    return found


def _write_beside(where: Place, number: int | str, array: npt.NDArray[Any]) -> None:
    content = io.BytesIO()
    np.save(content, array, allow_pickle=False)
    where.volume.replace_small(where.inside(_BESIDE.format(number)), content.getvalue())


def _complete(where: Place, result: Any) -> None:
    """Store the report, and the other values that the call returned, in the result."""
    parts = result if isinstance(result, tuple) else (result,)
    metadata = read_metadata(where) if where.exists() else None
    if metadata is None or metadata.made is None:
        return
    report = next((part for part in parts if isinstance(part, Report)), None)
    kinds: list[str | None] = []
    for number, part in enumerate(parts):
        if isinstance(part, Array):
            kinds.append("result")
            report = report or (part.report if isinstance(part.report, Report) else None)
        elif isinstance(part, np.ndarray):
            kinds.append("array")
            _write_beside(where, number, part)
        else:
            kinds.append("report" if isinstance(part, Report) else None)
    assert report is not None, "each call reports"
    arrays = {name: getattr(report, name) for name in report.ARRAYS}
    arrays = {name: array for name, array in arrays.items() if array is not None}
    for name, array in arrays.items():
        _write_beside(where, name, array)
    text = json.dumps(report.to_dict(), default=_plain)
    made = {**metadata.made, "returned": kinds, "report": text}
    if arrays:
        made["beside_report"] = list(arrays)
    write_metadata(where, dataclasses.replace(metadata, made=made))


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value.tolist()
