"""Descriptions of arrays, groups and reports, by which a search of a pool finds them.

A description is a JSON object in an extended attribute. The pool's manager indexes its fields.
``description_of`` of the compiled module describes arrays and groups.
"""

import json
import math
import sys
from collections.abc import Mapping
from typing import Any

ATTRIBUTE = "outcore.description"
"""Name of the extended attribute."""


def of_report(values: Mapping[str, Any]) -> bytes:
    """Return the description of a report with these values.

    ``method`` of an iterative method is its function, such as ``"gmres"``. ``residual`` is the
    backward error; without one, the last residual of an iterative method, or the largest norm of a
    least-squares solution. ``time`` is in seconds. The condition of a singular
    matrix is the largest float64, because JSON has no infinity.
    """
    history = values.get("history") or []
    residuals = [values.get("backward_error"), *history[-1:]]
    residuals.append(max(values.get("residual_norms") or [], default=None))
    fields = {
        "kind": "report",
        "method": (values.get("verb") if history else values.get("method")) or None,
        "residual": next((each for each in residuals if each is not None), None),
        "condition": _finite(values.get("condition")),
        "time": values.get("seconds"),
    }
    known = {name: value for name, value in fields.items() if _is_known(value)}
    return json.dumps(known, separators=(",", ":")).encode()


def read(text: bytes) -> dict[str, Any]:
    """Return the fields of a description; none if it is empty or damaged."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _finite(value: Any) -> Any:
    return sys.float_info.max if value == math.inf else value


def _is_known(value: Any) -> bool:
    return value is not None and not (isinstance(value, float) and not math.isfinite(value))
