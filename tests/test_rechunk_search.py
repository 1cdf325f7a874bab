"""The search for the passes of `rechunk`, against all combinations of its blocks."""

import itertools
import math
from typing import Any

import numpy as np
import pytest

from outcore.array.create import array_metadata
from outcore.convert.rechunk_plan import End, _Chain, array_end

CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], str, int]] = {
    "rows to columns": ((1024, 1024), (1, 1024), (1024, 1), "CC", 700_000),
    "rows to columns, little memory": ((4096, 512), (1, 512), (4096, 1), "CF", 350_000),
    "rows to blocks": ((2000, 2400), (1, 2400), (500, 300), "CC", 4_000_000),
    "blocks to other blocks": ((1800, 1400), (180, 100), (128, 256), "FC", 1_000_000),
    "planes to boxes": ((64, 256, 256), (1, 256, 256), (64, 16, 16), "CC", 2_000_000),
    "planes to lines": ((64, 64, 64), (1, 64, 64), (64, 1, 1), "CC", 500_000),
}
"""Shape, chunks of both sides, their orders, and the budget in bytes."""

MOST_COMBINATIONS = 40_000


@pytest.mark.parametrize("name", CASES)
def test_the_search_is_as_good_as_all_combinations(name: str) -> None:
    shape, before, after, orders, have = CASES[name]
    source, target = (
        array_end(array_metadata(shape, np.dtype("f8"), chunks, order, None, None, None))
        for chunks, order in zip((before, after), orders, strict=True)
    )
    found, best = zip(*compared(source, target, have), strict=True)
    assert min(found) <= 1.02 * min(best)


def compared(source: End, target: End, have: int) -> Any:
    """Yield the costs of the search, and of the best combination, for one and two passes."""
    for passes in (1, 2):
        chain = _Chain(source, target, passes, 8, have, depth=3)
        allowed = [
            [steps for steps in itertools.product(*choices) if math.prod(steps) <= most]
            for choices, most in zip(chain.choices, chain.most, strict=True)
        ]
        if not all(allowed) or math.prod(map(len, allowed)) > MOST_COMBINATIONS:
            continue
        yield chain.cost(chain.search()), min(map(chain.cost, itertools.product(*allowed)))
