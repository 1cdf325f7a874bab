"""The user's attributes of arrays, groups and checkpoints, as JSON that changes none of them.

Other software reads the attributes of arrays and groups. So they are strict JSON, and a value that
JSON would change is refused. Copies keep a source's NaN and infinities, as zarr-python does,
because xarray marks missing elements with NaN. Only `restart` reads the attributes of checkpoints.
Values that JSON lacks are stored there in a tagged form: an object whose only key is ``outcore``.
``docs/format.md`` lists the tags.
"""

import base64
import json
import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from outcore.errors import InvalidError

_TAG = "outcore"
_ARRAY_KINDS = "biufcMmSU"
"""Kinds of NumPy types whose elements consist of their bytes only."""

_FIXES = {tuple: "a list", np.ndarray: "its tolist()"}


def plain_attributes(given: Any) -> dict[str, Any]:
    """Check the attributes of an array or a group, and copy them.

    A value is kept if it equals what JSON returns. NumPy's real scalars become the same numbers in
    Python.

    Raises
    ------
    InvalidError
        If they are not a dictionary, or JSON would change one of them.
    """
    return _checked(given, _plain)


def carried_attributes(given: Any) -> dict[str, Any]:
    """Copy a source's attributes as `plain_attributes` does, but keep NaN and infinities.

    ``zarr.json`` then contains `NaN`, `Infinity` and `-Infinity`, which zarr-python writes and
    reads.

    Raises
    ------
    InvalidError
        If JSON would change one of them in another way.
    """
    return _checked(given, partial(_plain, is_finite=False))


def is_same_json(one: Any, other: Any) -> bool:
    """Whether two values are the same JSON: NaN equals itself, and `True`, 1 and 1.0 differ."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def checkpoint_attributes(given: Any) -> dict[str, Any]:
    """Encode the attributes of a checkpoint as JSON that `restored` decodes to the same values.

    The result shares no object with the argument.

    Raises
    ------
    InvalidError
        If they are not a dictionary, or a value has a type that cannot be restored.
    """
    return _checked(given, _encoded)


def _checked(given: Any, encode: Any) -> dict[str, Any]:
    if given is not None and not isinstance(given, Mapping):
        raise InvalidError(
            f"attributes are a dictionary by their names, have {type(given).__name__}; give one "
            'such as {"units": "m"}'
        )
    found = {}
    try:
        for name, value in (given or {}).items():
            where = f"attributes[{name!r}]"
            if not isinstance(name, str):
                raise _refusal(f"the key of {where}", name, "text")
            if name == _TAG:
                raise InvalidError("the attribute 'outcore' is outcore's own; choose another name")
            found[_text(name, f"the key of {where}")] = encode(value, where)
    except RecursionError:
        raise InvalidError(
            "need attributes that JSON can hold, have a list or dictionary that contains itself, "
            "or too many levels; give fewer levels"
        ) from None
    return found


def _plain(value: Any, where: str, *, is_finite: bool = True) -> Any:
    """Check a value that JSON keeps, and copy it; refuse other numbers if `is_finite`."""
    if isinstance(value, np.bool_ | np.integer | np.floating):
        value = value.item()
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(str(value), where)
    if isinstance(value, int):
        return _whole(int(value), where)
    if isinstance(value, float):
        if is_finite and not math.isfinite(value):
            raise _refusal(where, value, "text, such as 'NaN' or 'Infinity'")
        return float(value)
    if isinstance(value, list):
        return [
            _plain(each, f"{where}[{at}]", is_finite=is_finite) for at, each in enumerate(value)
        ]
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise _refusal(f"the key of {where}[{key!r}]", key, "text")
        return {
            _text(str(key), where): _plain(each, f"{where}[{key!r}]", is_finite=is_finite)
            for key, each in value.items()
        }
    raise _refusal(where, value, _FIXES.get(type(value), "text, numbers, lists or dictionaries"))


def _encoded(value: Any, where: str) -> Any:
    """Encode by the exact type, because a subclass would be restored as its base type."""
    kind = type(value)
    if value is None or kind is bool:
        return value
    if kind is str:
        return _text(value, where)
    if kind is int:
        return _whole(value, where)
    if kind is float:
        return value if math.isfinite(value) else _tagged("float", repr(value))
    if kind is complex:
        return _tagged("complex", [_encoded(value.real, where), _encoded(value.imag, where)])
    if kind is bytes:
        return _tagged("bytes", base64.b64encode(value).decode())
    if kind in (list, tuple):
        parts = [_encoded(each, f"{where}[{at}]") for at, each in enumerate(value)]
        return parts if kind is list else _tagged("tuple", parts)
    if kind is dict:
        return _encoded_dict(value, where)
    if kind is np.ndarray or isinstance(value, np.generic):
        return _encoded_array(value, where)
    for base in (dict, list, tuple, str, int, float):
        if isinstance(value, base):
            raise _refusal(where, value, f"a plain {base.__name__}")
    raise _refusal(
        where, value, "text, bytes, numbers, NumPy arrays, tuples, lists or dictionaries"
    )


def _encoded_dict(value: dict[Any, Any], where: str) -> Any:
    parts = [
        (_encoded(key, f"the key of {where}[{key!r}]"), _encoded(each, f"{where}[{key!r}]"))
        for key, each in value.items()
    ]
    if _TAG in value or not all(type(key) is str for key in value):
        return _tagged("dict", [list(pair) for pair in parts])
    return dict(parts)


def _encoded_array(value: Any, where: str) -> Any:
    if value.dtype.kind not in _ARRAY_KINDS:
        raise _refusal(where, value, "one of numbers, text, bytes or dates")
    content = {
        "dtype": value.dtype.str,
        "shape": list(value.shape),
        "base64": base64.b64encode(value.tobytes()).decode(),
    }
    return _tagged("array" if isinstance(value, np.ndarray) else "scalar", content)


def _tagged(kind: str, content: Any) -> dict[str, Any]:
    return {_TAG: {kind: content}}


def restored(value: Any) -> Any:
    """Decode the result of `checkpoint_attributes`, or a part of it.

    Raises
    ------
    ValueError, KeyError or TypeError
        If the value is not such a result.
    """
    if isinstance(value, list):
        return [restored(each) for each in value]
    if not isinstance(value, dict):
        return value
    if set(value) != {_TAG}:
        return {name: restored(each) for name, each in value.items()}
    [(kind, content)] = value[_TAG].items()
    return _RESTORE[kind](content)


def _restored_array(content: dict[str, Any]) -> Any:
    found = np.frombuffer(base64.b64decode(content["base64"]), np.dtype(content["dtype"]))
    return found.reshape(content["shape"]).copy()


_RESTORE: dict[str, Any] = {
    "float": float,
    "complex": lambda content: complex(*restored(content)),
    "bytes": base64.b64decode,
    "tuple": lambda content: tuple(restored(content)),
    "dict": lambda content: {restored(key): restored(each) for key, each in content},
    "array": _restored_array,
    "scalar": lambda content: _restored_array(content)[()],
}


def _text(text: str, where: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _refusal(where, text, "text that UTF-8 can hold") from None
    return text


def _whole(number: int, where: str) -> int:
    try:
        str(number)
    except ValueError:
        raise InvalidError(
            f"need attributes that JSON can hold, have {where}, an integer of "
            f"{number.bit_length()} bits; give it as hexadecimal text"
        ) from None
    return number


def _refusal(where: str, value: Any, fix: str) -> InvalidError:
    kind = type(value)
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
    what = f"= {value!r}" if isinstance(value, float | str) else f"of type {name}"
    return InvalidError(
        f"need attributes that JSON can hold unchanged, have {where} {what}; give {fix}"
    )
