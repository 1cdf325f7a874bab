"""JSON for other programs: NaN and infinities, which JSON lacks, become null."""

import json
import math
from typing import Any


def dumps(document: Any, **options: Any) -> str:
    """Return JSON text, as `json.dumps` does, with null for NaN and infinities."""
    return json.dumps(_finite(document), allow_nan=False, **options)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return value
