"""Sizes and times in the notation that people use."""

import math
import re

import numpy as np

from outcore.errors import InvalidError

_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}

MOST_BYTES = 2**62
"""Larger sizes are mistakes: no memory, disk or file has this size."""

_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?(?:[eE][0-9]+)?)\s*([kmgtKMGT]?[iI]?[bB]?)\s*")
_RATE = re.compile(r"\s*([0-9.]+\s*[kmgtKMGT]?[iI]?)(bit|[bB])/s\s*")


def parse_bytes(size: int | str) -> int:
    """Parse a size in bytes: a number, or text such as ``"64 MiB"``, ``"8GB"`` or ``"1.5 TB"``.

    Raises
    ------
    InvalidError
        If it is neither, not positive, or more than `MOST_BYTES`.
    """
    if isinstance(size, str):
        match = _SIZE.fullmatch(size)
        unit = _UNITS.get(match[2].lower()) if match else None
        if match is None or unit is None:
            raise InvalidError(f"cannot read {size!r} as a size; write it like '64 MiB' or '8 GB'")
        exact = float(match[1]) * unit
    elif isinstance(size, bool | np.bool_):
        raise InvalidError(f"a size is a number of bytes, have {size!r}; write it like '8 GB'")
    else:
        exact = size
    if exact in (math.inf, -math.inf):
        raise InvalidError(_too_large(size))
    try:
        value = int(exact)
    except (TypeError, ValueError):
        raise InvalidError(f"cannot read {size!r} as a size; give bytes or '8 GB'") from None
    if value <= 0:
        raise InvalidError(f"a size must be positive, have {size!r}")
    if value > MOST_BYTES:
        raise InvalidError(_too_large(size))
    return value


def parse_rate(rate: int | str) -> float:
    """Parse bytes per second: a number, or text such as ``"1 GB/s"`` or ``"10 Gbit/s"``.

    Raises
    ------
    InvalidError
        If it is neither, or not positive.
    """
    if not isinstance(rate, str):
        return float(parse_bytes(rate))
    match = _RATE.fullmatch(rate)
    if match is None:
        raise InvalidError(f"cannot read {rate!r} as a rate; write it like '1 GB/s' or '10 Gbit/s'")
    size, unit = match.groups()
    return parse_bytes(size + "B") / (8 if unit.lower() == "bit" else 1)


def _too_large(size: object) -> str:
    return f"a size is at most 2^62 bytes, have {size!r}; write it like '64 MiB' or '8 GB'"


def format_bytes(size: float) -> str:
    """Format a size in binary units, with three digits."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} TiB"


def format_seconds(seconds: float) -> str:
    """Format a duration in a suitable unit."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    if minutes < 120:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"
