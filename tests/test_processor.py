"""The peak rate of processors and their use, from texts of the system, against sums by hand."""

import os

import pytest

from outcore.machine import processor
from outcore.machine.processor import Clocks, Peak, Use

XEON = """\
processor	: {number}
model name	: Intel(R) Xeon(R) Gold 6248 CPU @ 2.50GHz
cpu MHz		: 1000.123
physical id	: 0
core id		: {core}
flags		: fpu sse2 avx fma avx2 {more}
"""
GRAVITON = """\
processor	: 0
BogoMIPS	: 243.75
Features	: fp asimd evtstrm
"""


def xeon(cores: list[int], more: str = "avx512f") -> str:
    blocks = (XEON.format(number=n, core=core, more=more) for n, core in enumerate(cores))
    return "\n".join(blocks)


@pytest.mark.parametrize(
    ("text", "numbers", "allowed", "hertz", "expected"),
    [
        (xeon([0, 1]), {0, 1}, 8, 0.0, Peak(2, 2.5e9, 32, "AVX-512")),
        (xeon([0, 1, 0, 1]), {0, 1, 2, 3}, 8, 0.0, Peak(2, 2.5e9, 32, "AVX-512")),
        (xeon([0, 1, 2, 3]), {1, 3}, 8, 3.9e9, Peak(2, 3.9e9, 32, "AVX-512")),
        (xeon([0, 1, 2, 3]), {0, 1, 2, 3}, 1, 0.0, Peak(1, 2.5e9, 32, "AVX-512")),
        (xeon([0], ""), {0}, 1, 0.0, Peak(1, 2.5e9, 16, "AVX2 and FMA")),
        (GRAVITON, {0}, 1, 2.6e9, Peak(1, 2.6e9, 8, "NEON")),
        (GRAVITON, {0}, 1, 0.0, None),
        ("", {0}, 1, 1e9, None),
    ],
)
def test_the_peak_is_cores_times_frequency_times_width(
    text: str, numbers: set[int], allowed: int, hertz: float, expected: Peak | None
) -> None:
    assert processor.parse_peak(text, numbers, allowed, hertz) == expected
    if expected is not None:
        assert expected.flops_s == expected.cores * expected.hertz * expected.per_cycle


def test_the_peak_of_this_machine() -> None:
    found = processor.peak(1)
    assert found is None or found.cores == 1


STAT = """\
cpu  1000 100 200 9000 50 3 4 20 0 0
cpu0 600 60 100 4000 20 1 2 15 0 0
cpu1 400 40 100 5000 30 2 2 5 0 0
intr 123 4 5
"""


def test_ticks_of_some_processors_are_summed() -> None:
    assert processor.parse_stat(STAT, {0, 1}) == (1307, 20)
    assert processor.parse_stat(STAT, {1}) == (544, 5)
    assert processor.parse_stat("cpu0 1 2 3 4 5 6 7\n", {0}) == (19, 0)


def test_what_this_process_used_is_not_others() -> None:
    before, after = Clocks(0.0, 0.0, 0.0, 0.0), Clocks(2.0, 4.0, 0.0, 4.0)
    assert before.until(after, 4) == Use(4, 0.0, 0.0)
    assert not before.until(after, 4).is_busy
    assert before.until(Clocks(2.0, 4.0, 0.0, 1.0), 4).others == 1.5
    assert Use(4, 0.3, 0.2).is_busy
    assert not Use(64, 0.3, 0.2).is_busy


def test_processors_of_this_process_are_watched() -> None:
    with processor.watched() as found:
        pass
    (use,) = found
    assert use.processors == len(os.sched_getaffinity(0))
