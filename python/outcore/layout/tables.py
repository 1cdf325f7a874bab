"""Tables and columns of pandas and pyarrow in memory: integers that promotion rounds, and nulls.

NumPy makes one array of a table, of the type to which it promotes those of the columns. Missing
integers become NaN in it.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from outcore._util.packages import is_a
from outcore.errors import InvalidError
from outcore.layout.casting import refuse_rounded

_COLUMNS = {"pandas": ("Series", "Index"), "pyarrow": ("Array", "ChunkedArray")}
_TABLES = {"pandas": ("DataFrame",), "pyarrow": ("Table", "RecordBatch")}


def refuse_nulls(value: Any) -> None:
    """Refuse a table or column with missing elements, because NaN would stand for integers.

    NaN among the floating-point numbers of pandas is an element like any other.

    Raises
    ------
    InvalidError
        If elements are missing.
    """
    nulls = sum(_nulls(column) for _, _, column in _columns_of(value, "iub"))
    if nulls:
        raise InvalidError(
            f"need elements without nulls, have {nulls} of {_size(value)} null; fill "
            "them before, as pandas does by fillna()"
        )


def refuse_promoted(value: Any, found: npt.NDArray[Any]) -> None:
    """Refuse integers that NumPy rounded when it promoted the types of a table.

    Parameters
    ----------
    value
        Any object.
    found
        The array that NumPy made of it.

    Raises
    ------
    InvalidError
        If `found` lacks the value of an integer.
    """
    if found.dtype.kind not in "fc" or not found.size:
        return
    for number, name, column in _columns_of(value, "iu"):
        out = found.reshape(len(found), -1)[:, number : number + 1]
        try:
            refuse_rounded(np.asarray(column)[:, None], out, (0, number))
        except InvalidError as error:
            raise InvalidError(f"column {name}: {error}") from None


def _columns_of(value: Any, kinds: str) -> Iterator[tuple[int, str, Any]]:
    """Yield number, name and content of the columns of a table, or of a column.

    A pandas table yields the columns of some kinds of NumPy's types. For objects other than
    tables and columns, there is none.
    """
    if _is_one(value, _COLUMNS) or is_a(value, "pandas.api.extensions", "ExtensionArray"):
        yield 0, "", value
    elif not _is_one(value, _TABLES):
        return
    elif hasattr(value, "iloc"):
        for number, (name, dtype) in enumerate(zip(value.columns, value.dtypes, strict=True)):
            if getattr(dtype, "kind", "") in kinds:
                yield number, str(name), value.iloc[:, number]
    else:
        for number, (name, column) in enumerate(
            zip(value.column_names, value.columns, strict=True)
        ):
            yield number, name, column


def _size(value: Any) -> int:
    """Return the number of elements of a table or a column."""
    return len(value) * (len(value.columns) if _is_one(value, _TABLES) else 1)


def _is_one(value: Any, names: Mapping[str, tuple[str, ...]]) -> bool:
    return any(is_a(value, package, name) for package in names for name in names[package])


def _nulls(column: Any) -> int:
    """Count the nulls of pyarrow's columns, and those of pandas' integers and truth values."""
    if hasattr(type(column), "null_count"):
        return int(column.null_count)
    kind = getattr(column.dtype, "kind", "")
    return int(column.isna().sum()) if kind in ("i", "u", "b") else 0
