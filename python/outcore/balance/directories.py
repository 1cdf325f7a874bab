"""The balance of one machine: the directories on its disks."""

from collections.abc import Sequence
from pathlib import Path

from outcore.balance.balance import Balance, MeasuredHost, Use
from outcore.balance.disks import USES, Disk, measure_disks
from outcore.balance.model import Cluster
from outcore.balance.processor_rates import measure_processor

HERE = "this machine"


def balance_of_directories(directories: Sequence[Path], seconds: float) -> Balance:
    """Measure the disks of some directories, the memory and the arithmetic of this machine.

    Parameters
    ----------
    directories
        At least one directory.
    seconds
        Approximate time for each disk, for all disks at once, and for memory and arithmetic.

    Raises
    ------
    NotFoundError, ReadOnlyError, DiskFullError
        As `measure_disks`.
    """
    disks = measure_disks(directories, seconds)
    host = MeasuredHost(HERE, tuple(disks), measure_processor(seconds / 2))
    uses = [Use(name, Cluster((host.model(name),))) for name in USES]
    return Balance(HERE, (host,), (), 0, 0, tuple(uses), shared_disks(disks))


def shared_disks(disks: Sequence[Disk]) -> tuple[str, ...]:
    """Return a note for each disk with several of the directories."""
    places: dict[int, list[str]] = {}
    for disk in disks:
        places.setdefault(disk.device, []).append(disk.place)
    return tuple(
        f"{' and '.join(names)} are on one disk, and count as one"
        for names in places.values()
        if len(names) > 1
    )
