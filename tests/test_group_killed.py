"""A process that writes steps and checkpoints is killed at any moment: all states are whole.

Each state is a function of its number. A restart loads one of them, not older than the last one
that was reported done.
"""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import xarray
from killed_writers import Writer, opened, reported_until_killed
from served_pools import in_memory

import outcore as oc

SPECS = {"u": oc.ArraySpec((7, 300), "i4", chunks=(3, 200)), "v": oc.ArraySpec(900, "f8")}
KINDS = pytest.mark.parametrize("kind", ["plain", "embedded"])


def state(number: int) -> dict[str, npt.NDArray[Any]]:
    return {"u": np.full((7, 300), number, "i4"), "v": np.arange(900.0) * number}


def assert_is(found: Any, number: int) -> None:
    for name, expected in state(number).items():
        np.testing.assert_array_equal(found[name], expected)


def write_steps(root: Any, report: Callable[[int], None]) -> None:
    group = oc.ArrayGroup(root / "run")
    while True:
        number = group.steps
        group.timestep(state(number), float(number))
        report(number)


def write_checkpoints(root: Any, report: Callable[[int], None]) -> None:
    group = oc.ArrayGroup(root / "run")
    number = max(group.checkpoints(), default=-1)
    while True:
        number += 1
        assert group.checkpoint(state(number), {"number": number}) == number
        report(number)


def write_in_the_background(root: Any, report: Callable[[int], None]) -> None:
    """Write steps during a checkpoint: neither disturbs the other."""
    group = oc.ArrayGroup(root / "run")
    number = max(group.checkpoints(), default=-1)
    while True:
        number += 1
        handle = group.checkpoint(state(number), {"number": number}, background=True)
        group.timestep(state(group.steps), 0.0)
        assert handle.wait() == number
        report(number)


@pytest.mark.exhaustive
@KINDS
def test_killed_while_it_writes_steps(kind: str, all_lines: bool) -> None:
    draw = random.Random(6)
    with in_memory() as above:
        with opened(kind, above) as root:
            oc.ArrayGroup(root / "run", SPECS)
        steps = 0
        for _ in range(6 if all_lines else 3):
            reports = reported_until_killed(write_steps, kind, above, draw)
            assert reports == list(range(steps, steps + len(reports)))
            with opened(kind, above) as root:
                group = oc.ArrayGroup(root / "run")
                reported = steps + len(reports)
                assert reported <= group.steps <= reported + 1
                steps = group.steps
                found = {name: group[name][:steps] for name in SPECS}
            for step in range(steps):
                assert_is({name: one[step] for name, one in found.items()}, step)
            if kind == "plain":
                # A kill just before the group's file is written hides the last step from xarray.
                with xarray.open_zarr(above / "run") as dataset:
                    seen = dataset.sizes["time"]
                    assert reported <= seen <= steps
                    np.testing.assert_array_equal(dataset["time"], np.arange(seen))
                    np.testing.assert_array_equal(dataset["u"], found["u"][:seen])


@pytest.mark.exhaustive
@KINDS
@pytest.mark.parametrize("writer", [write_checkpoints, write_in_the_background])
def test_killed_while_it_writes_checkpoints(kind: str, writer: Writer, all_lines: bool) -> None:
    draw = random.Random(7)
    with in_memory() as above:
        with opened(kind, above) as root:
            oc.ArrayGroup(root / "run", SPECS)
        newest = -1
        for _ in range(6 if all_lines else 3):
            reports = reported_until_killed(writer, kind, above, draw)
            assert reports == list(range(newest + 1, newest + 1 + len(reports)))
            with opened(kind, above) as root:
                group = oc.ArrayGroup(root / "run")
                found = group.restart()
                # An older checkpoint stays beside the newest.
                assert len(group.checkpoints()) <= 3
            assert newest + len(reports) <= found.number <= newest + len(reports) + 1
            assert found.damaged == {}
            assert found.attributes == {"number": found.number}
            assert_is(found, found.number)
            newest = found.number
