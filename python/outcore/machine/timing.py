"""Work timed in several passes."""

import statistics
import time
from collections.abc import Callable

_PASSES = 3


def median_rate(run: Callable[[int], object], seconds: float, most: int | None = None) -> float:
    """Measure units per second: ``run(count)`` does `count` units, in about `seconds` in total.

    With `most`, all calls together do at most this number of units.
    """
    count, spent, done = 2, 0.0, 0
    while True:
        elapsed = _timed(run, count)
        spent, done = spent + elapsed, done + count
        is_long = elapsed >= seconds / 10 or spent >= seconds / 2
        if is_long or (most is not None and done + 2 * count > most // 4):
            break
        count *= 2
    each = int(count / elapsed * (seconds - spent) / _PASSES)
    if most is not None:
        each = min(each, (most - done) // _PASSES)
        if each < 1:
            return count / elapsed
    if spent >= seconds:
        return count / elapsed
    count = max(1, each)
    return statistics.median(count / _timed(run, count) for _ in range(_PASSES))


def _timed(run: Callable[[int], object], count: int) -> float:
    start = time.perf_counter()
    run(count)
    return max(time.perf_counter() - start, 1e-9)
