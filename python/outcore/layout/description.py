"""Descriptions of arrays, groups and reports, by which a search of a pool finds them.

A description is a JSON object in an extended attribute. The pool's manager indexes its fields.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

ATTRIBUTE = "outcore.description"
"""Name of the extended attribute."""

_MOST_BYTES = 60_000


def of_document(text: bytes) -> bytes | None:
    """Return the description of an array or group with this ``zarr.json``; `None` if it has none.

    ``state`` is ``"complete"``, ``"incomplete"`` or ``"consumed"``.
    """
    try:
        document = json.loads(text)
        kind = document["node_type"]
        if kind == "group":
            return _packed({"kind": kind})
        own = document["attributes"]["outcore"]
        dtype = np.dtype(document["data_type"])
        shape = [int(n) for n in document["shape"]]
        chunks = document["codecs"][0]["configuration"]["chunk_shape"]
        fields = {
            "kind": kind, "dtype": dtype.str[1:], "shape": shape, "chunks": chunks,
            "ndim": len(shape), "size": math.prod(shape) * dtype.itemsize,
            "dims": document.get("dimension_names"), "order": own["order"],
            "chunk_order": own["chunk_order"], "state": own.get("state") or "complete",
        }  # fmt: skip
        if own.get("growing"):
            fields["steps"] = shape[0]
        return _packed(fields)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        # Another program's array.
        return None


def of_report(values: Mapping[str, Any]) -> bytes | None:
    """Return the description of a report with these values.

    ``residual`` is the backward error; of an iterative method the last residual of its history; of
    a least-squares solution the largest norm. ``time`` is in seconds.
    """
    residuals = [values.get("backward_error"), *(values.get("history") or [None])[-1:]]
    residuals.append(max(values.get("residual_norms") or [], default=None))
    return _packed(
        {
            "kind": "report",
            "method": values.get("method") or None,
            "residual": next((each for each in residuals if each is not None), None),
            "condition": values.get("condition"),
            "time": values.get("seconds"),
        }
    )


def read(text: bytes) -> dict[str, Any]:
    """Return the fields of a description; none if it is empty or damaged."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _packed(fields: dict[str, Any]) -> bytes | None:
    known = {name: value for name, value in fields.items() if _is_known(value)}
    text = json.dumps(known, separators=(",", ":")).encode()
    return text if len(text) <= _MOST_BYTES else None


def _is_known(value: Any) -> bool:
    return value is not None and not (isinstance(value, float) and not math.isfinite(value))
