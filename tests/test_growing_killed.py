"""A process that appends steps is killed at any moment: all steps are whole, and none is lost."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import zarr
from killed_writers import opened, reported_until_killed
from served_pools import in_memory

import outcore as oc


def append_steps(root: Any, report: Callable[[int], None]) -> None:
    array = oc.open_array(root / "u", "r+")
    while True:
        step = len(array)
        array.append(np.full((3, 500), step, "i4"))
        report(step)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["plain", "embedded"])
def test_killed_while_it_appends(kind: str, all_lines: bool) -> None:
    draw = random.Random(5)
    with in_memory() as above:
        with opened(kind, above) as root:
            oc.create_array(root / "u", (0, 3, 500), "i4", growing=True)
        steps = 0
        for _ in range(10 if all_lines else 4):
            reports = reported_until_killed(append_steps, kind, above, draw)
            assert reports == list(range(steps, steps + len(reports)))
            with opened(kind, above) as root:
                found = oc.open_array(root / "u")[...]
            assert steps + len(reports) <= len(found) <= steps + len(reports) + 1
            steps = len(found)
            expected = np.broadcast_to(np.arange(steps, dtype="i4")[:, None, None], found.shape)
            np.testing.assert_array_equal(found, expected)
            if kind == "plain":
                np.testing.assert_array_equal(zarr.open_array(above / "u", mode="r")[...], found)
