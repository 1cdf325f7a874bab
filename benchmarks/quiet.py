"""Waiting until only the benchmark uses the machine: no other programs, and not its host."""

import threading
import time
import zlib
from pathlib import Path

from outcore.machine.machine import usable_cores

WINDOW_S = 2.5
"""A virtual machine returns some free memory to its host every two seconds."""

MOST_S = 90.0
MOST_LOST = 0.006
"""Share of the processors' time; the clock counts hundredths of a second."""


def wait_until_quiet() -> None:
    """Return when all processors are free for this process, or after 90 s.

    After the end of a process with much memory, a virtual machine returns that memory for half a
    minute, and its host takes processor time for this. The next process loses it: LU after a rival
    in memory was 3 % slower than when run again. An idle machine does not show this. So this
    function keeps all processors busy, and measures their loss.
    """
    until = time.perf_counter() + MOST_S
    while lost_share(WINDOW_S) > MOST_LOST and time.perf_counter() < until:
        pass


def lost_share(seconds: float) -> float:
    """Keep all processors busy for this time; return the share of their time that others took."""
    cores = usable_cores()
    until = time.perf_counter() + seconds
    used_s = [0.0] * cores

    def burn(core: int) -> None:
        block = bytes(1 << 20)
        begun = time.thread_time()
        while time.perf_counter() < until:
            zlib.crc32(block)  # releases the interpreter's lock
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
    """Return the seconds that the host took, summed over all processors."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return int(fields[8]) / 100 if len(fields) > 8 else 0.0
