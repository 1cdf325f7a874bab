"""Parse layout hints, modes and times for files of a pool, in the forms that users pass."""

import math
import operator
import reprlib
from collections.abc import Mapping
from typing import Any

from outcore._util.sizes import parse_bytes
from outcore.errors import InvalidError


def modified_ns_of(times: Any, ns: Any) -> int:
    """Return the second of two times, in seconds or nanoseconds as for `os.utime`."""
    if (times is None) == (ns is None):
        raise InvalidError("need times= or ns=, have both; leave one out")
    try:
        _, modified = times if ns is None else ns
        if ns is not None:
            return operator.index(modified)
        whole: int = math.floor(modified)
        rest: int = math.floor((modified - whole) * 1e9)
        return whole * 10**9 + rest
    except (TypeError, ValueError, OverflowError):
        raise InvalidError(
            "times= are two numbers of seconds, ns= two integers, have "
            f"{reprlib.repr(times if ns is None else ns)}"
        ) from None


def mode_bits(mode: int) -> int:
    """Check permission bits, at most 0o3777; the manager allows 0o2000 for directories only."""
    try:
        bits = operator.index(mode)
    except TypeError:
        bits = -1
    if not 0 <= bits <= 0o3777:
        raise InvalidError(f"need permission bits of at most 0o3777, have {mode!r}")
    return bits


def hints_of(hints: dict[str, Any]) -> dict[str, Any]:
    """Sort hints: known ones, also MPI's, by outcore's names; others as text in ``others``."""
    ours = {
        "stripe_unit_bytes": "unit_bytes", "striping_unit": "unit_bytes",
        "round_units": "round_units",
        "stripe_count": "count", "striping_factor": "count",
        "base": "base", "start_iodevice": "base",
    }  # fmt: skip
    if not isinstance(hints, Mapping):
        raise InvalidError(f"hints= is a dictionary of names and values, have {hints!r}")
    found: dict[str, Any] = {"others": []}
    for name, value in hints.items():
        known = ours.get(name)
        if known is None:
            found["others"].append((str(name), str(value)))
            continue
        number = parse_bytes(value) if known == "unit_bytes" else _hinted(name, value)
        if not (0 if known == "base" else 1) <= number < 1 << 63:
            raise InvalidError(f"the hint {name} cannot be {value!r}")
        found[known] = number
    return found


def _hinted(name: str, value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        raise InvalidError(f"the hint {name} is a number, have {value!r}") from None
