"""Servers that a check of a pool leaves out: they cannot be reached."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from outcore.pool import Pool


@dataclass(frozen=True)
class Unchecked:
    """An I/O server that was not checked, or not to the end: its number, and why."""

    server: int
    text: str

    @classmethod
    def each(cls, errors: Mapping[int, str]) -> "tuple[Unchecked, ...]":
        """Name them, by number."""
        return tuple(cls(server, errors[server]) for server in sorted(errors))

    def __str__(self) -> str:
        why = self.text.removeprefix(f"I/O server {self.server}: ")
        return f"server {self.server} was not checked: {why}"


def away(pool: Pool) -> dict[int, str]:
    """Find the servers that cannot be reached, and why."""
    return {one.id: one.error for one in pool.servers(partial=True) if one.error is not None}


def summary(unchecked: Sequence[Unchecked], retired: Sequence[int] = ()) -> str:
    """Say which were left out, behind what was found on the others."""
    parts = (("not checked", [one.server for one in unchecked]), ("retired", retired))
    return "".join(
        f"; {what}: servers {', '.join(map(str, numbers))}" for what, numbers in parts if numbers
    )
