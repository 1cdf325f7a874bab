"""One call by different numbers of processes, side by side."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from outcore._util.sizes import format_bytes, format_seconds
from outcore.planning.plan import Plan, plan

_HEAD = ("processes", "time", "bound", "memory", "read", "write", "send")


@dataclass(frozen=True)
class ProcessComparison:
    """Plans of a call by different numbers of processes; print it for a table.

    Attributes
    ----------
    plans
        The plans, in the order of the numbers. Their figures are of the process that moves most.
    """

    plans: tuple[Plan, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain values, for JSON."""
        return {"plans": [each.to_dict() for each in self.plans]}

    def __str__(self) -> str:
        rows = [_HEAD, *map(_row, self.plans)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        first = self.plans[0]
        lines = [f"plan: {first.verb}, n = {first.n}, {first.dtype}; figures of each process"]
        lines += [
            "  " + "  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True))
            for row in rows
        ]
        return "\n".join([*lines, *(f"  note: {note}" for note in first.notes)])


def _row(each: Plan) -> tuple[str, ...]:
    moved = each.peak_memory_bytes, each.bytes_read, each.bytes_written, each.bytes_sent
    return (
        str(each.processes), format_seconds(each.seconds), each.bound, *map(format_bytes, moved)
    )  # fmt: skip


def compare_processes(verb: str, processes: Sequence[int], **options: Any) -> ProcessComparison:
    """Plan a call by each of these numbers of processes; `options` are those of `plan`."""
    return ProcessComparison(tuple(plan(verb, processes=each, **options) for each in processes))
