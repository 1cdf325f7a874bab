"""How files of a pool are laid out, as its users say it."""

from collections.abc import Mapping
from typing import Any

from outcore.errors import InvalidError
from outcore.sizes import parse_bytes


def hints_of(hints: dict[str, Any]) -> dict[str, Any]:
    """Sort hints: ours and MPI's by our names, others kept as text under ``others``."""
    ours = {
        "stripe_unit_bytes": "unit_bytes", "striping_unit": "unit_bytes",
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
