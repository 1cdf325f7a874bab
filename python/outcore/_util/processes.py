"""Processes of this machine, read from ``/proc``."""

from pathlib import Path


def process_fields(pid: int) -> list[str] | None:
    """Return the fields of a process's status, its state first; `None` if there are none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def has_ended(fields: list[str]) -> bool:
    """Whether a process has ended that its parent has not waited for yet."""
    # After the first thread of a killed process has ended, others may still be closing files.
    return fields[0] in "ZX" and int(fields[17]) <= 1


def started_in(fields: list[str]) -> str:
    """Return the start of a process, in clock ticks since the start of the machine."""
    return fields[19]


def started_ticks(pid: int) -> int | None:
    """Return the start of a process in ticks; `None` if it has ended."""
    fields = process_fields(pid)
    return None if fields is None or has_ended(fields) else int(started_in(fields))
