"""Servers that a check of a pool skips, because they cannot be reached."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from outcore.pool.pool import Pool


@dataclass(frozen=True)
class Unchecked:
    """An I/O server that was not checked completely: its number, and the reason."""

    server: int
    text: str

    @classmethod
    def each(cls, errors: Mapping[int, str]) -> "tuple[Unchecked, ...]":
        """Return one object for each server, sorted by number."""
        return tuple(cls(server, errors[server]) for server in sorted(errors))

    def __str__(self) -> str:
        why = self.text.removeprefix(f"I/O server {self.server}: ")
        return f"server {self.server} was not checked: {why}"


def away(pool: Pool) -> dict[int, str]:
    """Return the servers that cannot be reached, each with the reason."""
    return {one.id: one.error for one in pool.servers(partial=True) if one.error is not None}


def summary(unchecked: Sequence[Unchecked], retired: Sequence[int] = ()) -> str:
    """Return the end of a report: the unchecked and the retired servers."""
    parts = (("not checked", [one.server for one in unchecked]), ("retired", retired))
    return "".join(
        f"; {what}: servers {', '.join(map(str, numbers))}" for what, numbers in parts if numbers
    )
