"""What the system says of processes of this machine."""

from pathlib import Path


def process_fields(pid: int) -> list[str] | None:
    """Read what the system says of a process, its state first; `None` if it says nothing."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def has_ended(fields: list[str]) -> bool:
    """Whether a process is over of which its parent has not heard yet."""
    # Threads of a process that was killed may still be closing its files when its first has ended.
    return fields[0] in "ZX" and int(fields[17]) <= 1


def started_in(fields: list[str]) -> str:
    """Clock ticks from the start of the machine to that of a process."""
    return fields[19]


def started_ticks(pid: int) -> int | None:
    """Return the ticks at which a process was started; `None` if it is gone."""
    fields = process_fields(pid)
    return None if fields is None or has_ended(fields) else int(started_in(fields))
