"""Waiting until nothing but the benchmark runs: neither other programs nor the machine's host."""

import threading
import time
import zlib
from pathlib import Path

from outcore.machine import usable_cores

WINDOW_S = 2.5
"""A virtual machine gives free memory back to its host every two seconds, some of it each time."""

MOST_S = 90.0
MOST_LOST = 0.006
"""Share of the processors' time; the clock counts hundredths of a second."""


def wait_until_quiet() -> None:
    """Return when all processors are there for this process, or after 90 s.

    After a process with much memory has ended, a virtual machine gives that memory back for half a
    minute, and its host takes processor time for this. Who runs next pays for it: LU that came
    after a rival in memory was 3 % slower than when run again. An idle machine does not show this.
    So all processors are kept busy, and what they lose is measured.
    """
    until = time.perf_counter() + MOST_S
    while lost_share(WINDOW_S) > MOST_LOST and time.perf_counter() < until:
        pass


def lost_share(seconds: float) -> float:
    """Keep all processors busy for so long; return the share of their time that others took."""
    cores = usable_cores()
    until = time.perf_counter() + seconds
    used_s = [0.0] * cores

    def burn(core: int) -> None:
        block = bytes(1 << 20)
        begun = time.thread_time()
        while time.perf_counter() < until:
            zlib.crc32(block)  # without the interpreter's lock
        used_s[core] = time.thread_time() - begun

    stolen_s, threads = _stolen_s(), []
    for core in range(cores):
        threads.append(threading.Thread(target=burn, args=(core,)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    taken_s = sum(seconds - used for used in used_s)
    return max(_stolen_s() - stolen_s, taken_s, 0.0) / (seconds * cores)


def _stolen_s() -> float:
    """Seconds that the host took, of all processors."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return int(fields[8]) / 100 if len(fields) > 8 else 0.0
