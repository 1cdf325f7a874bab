"""A call of a function, and its report."""

from collections.abc import Callable
from typing import Any

import outcore as oc


def reported(function: Callable[..., Any], *args: Any, **options: Any) -> tuple[Any, oc.Report]:
    """Call a function; return its result, and the report that it leaves."""
    result = function(*args, **options)
    report = oc.last_report()
    assert report is not None
    return result, report
