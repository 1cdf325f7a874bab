"""The rates of this machine's memory and arithmetic."""

from dataclasses import dataclass

import numpy as np

from outcore._util import budget
from outcore.machine.rates import gemm_rate
from outcore.machine.timing import median_rate

_COPY_BYTES = 64 << 20


@dataclass(frozen=True)
class ProcessorRates:
    """Rates of a host.

    Attributes
    ----------
    memory_bytes_s
        Bytes per second that one thread copies in memory.
    gemm_flops_s
        Operations per second of matrix products in float64, by all threads of the BLAS.
    """

    memory_bytes_s: float
    gemm_flops_s: float


def measure_processor(seconds: float) -> ProcessorRates:
    """Measure memory and arithmetic for about `seconds`, with at most 128 MiB of memory."""
    return ProcessorRates(_copy_rate(seconds / 2), gemm_rate("float64", seconds / 2))


def _copy_rate(seconds: float) -> float:
    nbytes = min(_COPY_BYTES, budget.available_bytes() // 8)
    source, target = np.ones(nbytes, np.uint8), np.zeros(nbytes, np.uint8)

    def copy(count: int) -> None:
        for _ in range(count):
            np.copyto(target, source)

    return median_rate(copy, seconds) * nbytes
