"""One report on a call of several processes."""

import dataclasses
from typing import Any

import numpy as np

from outcore.processes.team import Team
from outcore.report import tracing
from outcore.report.report import Report, of_processes


def process_figures(
    own: Report,
    sent: tuple[int, int],
    planned: tuple[int, int],
    remote_read: tuple[int, int] | None = None,
) -> dict[str, Any]:
    """Return a process's entry of ``Report.processes``.

    Parameters
    ----------
    own
        Its report.
    sent, planned
        Bytes and messages that it sent, and those of the plan.
    remote_read
        Bytes of factors that it read from I/O servers of others, and those of the plan.
    """
    names = (
        "bytes_read", "planned_bytes_read", "bytes_written", "planned_bytes_written", "seconds",
        "wait_seconds", "peak_memory_bytes",
    )  # fmt: skip
    return {name: getattr(own, name) for name in names} | {
        "bytes_sent": sent[0], "planned_bytes_sent": planned[0],
        "messages_sent": sent[1], "planned_messages_sent": planned[1],
    } | (
        {} if remote_read is None
        else {"remote_bytes_read": remote_read[0], "planned_remote_bytes_read": remote_read[1]}
    )  # fmt: skip


def whole_report(own: Report, team: Team) -> Report:
    """Return the report of all processes, the same on each, from that of this one."""
    if team.size == 1:
        return own
    times = team.transfers.figures()
    own.processes = [figures | times for figures in own.processes]
    if own.spans is not None:
        moved = team.transfers.spans()
        if len(moved):
            start_ns, end_ns = int(moved[:, 2].min()), int(moved[:, 3].max())
            tracing.add_rows(f"{own.job}: blocks", start_ns, end_ns, moved)
        own.spans = np.concatenate([own.spans, moved])
    return of_processes(own, team.all_of(dataclasses.replace(own, spans=None)))
