"""The most that the processors could compute, and who else used them meanwhile.

Sources: proc(5) for ``/proc/cpuinfo`` and ``/proc/stat``; the vendors' optimization manuals for the
operations of a core in a cycle.
"""

import os
import re
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
_STAT = Path("/proc/stat")
_FASTEST = "/sys/devices/system/cpu/cpu{}/cpufreq/cpuinfo_max_freq"

_UNITS = (
    ("avx512f", "AVX-512", 32),
    ("fma", "AVX2 and FMA", 16),
    ("asimd", "NEON", 8),
    ("avx", "AVX", 8),
    ("sse2", "SSE2", 4),
)
"""Flags of ``/proc/cpuinfo``, widest first, and float64 operations of a core in a cycle.

A core is taken to have two units for multiplications and additions, as most servers' have. Some
have one of AVX-512, and reach half of this.
"""

BUSY = 0.1
"""Others take so much of the processors that a measurement says little."""


@dataclass(frozen=True)
class Peak:
    """What the processors could do at most in float64.

    Attributes
    ----------
    cores
        Cores that the process may use.
    hertz
        The highest frequency that the system tells of. Processors may run faster for a while.
    per_cycle
        Operations of a core in a cycle.
    units
        Name of the instructions that do so many.
    """

    cores: int
    hertz: float
    per_cycle: int
    units: str

    @property
    def flops_s(self) -> float:
        """Operations a second."""
        return self.cores * self.hertz * self.per_cycle

    def __str__(self) -> str:
        cores = f"{self.cores} core{'s' * (self.cores != 1)}"
        return f"{cores} at {self.hertz / 1e9:.3g} GHz with {self.units}"


@dataclass(frozen=True)
class Use:
    """What became of processors over a time.

    Attributes
    ----------
    processors
        How many are meant.
    others
        How many of them other programs took, on average.
    stolen
        How many of them the host of a virtual machine did not give.
    """

    processors: int
    others: float = 0.0
    stolen: float = 0.0

    @property
    def is_busy(self) -> bool:
        """Whether others took so much that a measurement says little."""
        return self.others + self.stolen > BUSY * self.processors


def peak(allowed: int) -> Peak | None:
    """Say what `allowed` of the process's processors could do; `None` if that is not known."""
    numbers = os.sched_getaffinity(0)
    fastest = 0
    for number in numbers:
        path = Path(_FASTEST.format(number))
        if path.exists():
            fastest = max(fastest, int(path.read_text()))
    return parse_peak(_CPUINFO.read_text(), numbers, allowed, fastest * 1e3)


def parse_peak(
    cpuinfo: str, numbers: Collection[int], allowed: int, hertz: float = 0.0
) -> Peak | None:
    """Find the peak in the text of ``/proc/cpuinfo``.

    Parameters
    ----------
    cpuinfo
        The text.
    numbers
        Of the processors that count. Two threads of one core are one.
    allowed
        The most of them that may be used.
    hertz
        A frequency that is known from elsewhere; the highest counts.
    """
    cores, flags = set(), set[str]()
    for block in cpuinfo.split("\n\n"):
        values = dict(re.findall(r"^([^\t:\n]+?)\s*: ?(.*)$", block, re.MULTILINE))
        own = values.get("processor", "")
        if not own.isdigit() or int(own) not in numbers:
            continue
        cores.add((values.get("physical id", own), values.get("core id", own)))
        flags = set((values.get("flags") or values.get("Features", "")).split())
        named = re.search(r"@ ([0-9.]+) ?GHz", values.get("model name", ""))
        hertz = max(
            hertz,
            float(values.get("cpu MHz", 0)) * 1e6,
            float(named[1]) * 1e9 if named else 0.0,
        )
    for flag, units, per_cycle in _UNITS:
        if flag in flags and hertz:
            return Peak(min(len(cores), allowed), hertz, per_cycle, units)
    return None


@dataclass(frozen=True)
class Clocks:
    """Seconds since some time: of the wall, of busy and stolen processors, and of this process."""

    wall_s: float
    busy_s: float
    stolen_s: float
    own_s: float

    def until(self, later: "Clocks", processors: int) -> Use:
        """Say who used the processors until `later`."""
        wall_s = max(later.wall_s - self.wall_s, 1e-9)
        others_s = later.busy_s - self.busy_s - (later.own_s - self.own_s)
        return Use(
            processors, max(others_s, 0.0) / wall_s, (later.stolen_s - self.stolen_s) / wall_s
        )


def parse_stat(text: str, numbers: Collection[int]) -> tuple[int, int]:
    """Sum the busy and the stolen ticks of some processors in the text of ``/proc/stat``."""
    busy = stolen = 0
    for line in text.splitlines():
        name, *ticks = line.split()
        if not name.startswith("cpu") or not name[3:].isdigit() or int(name[3:]) not in numbers:
            continue
        user, nice, system, _, _, irq, softirq, *rest = map(int, ticks)
        busy += user + nice + system + irq + softirq
        stolen += rest[0] if rest else 0
    return busy, stolen


def _clocks(numbers: Collection[int]) -> Clocks:
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    busy, stolen = parse_stat(_STAT.read_text(), numbers)
    own = os.times()
    return Clocks(time.perf_counter(), busy * tick_s, stolen * tick_s, own.user + own.system)


@contextmanager
def watched() -> Iterator[list[Use]]:
    """Watch this process's processors; at the end the list that it yields has their use."""
    numbers = os.sched_getaffinity(0)
    found: list[Use] = []
    before = _clocks(numbers)
    yield found
    found.append(before.until(_clocks(numbers), len(numbers)))
