"""The cases that `make test` leaves out: never a pair of values."""

from itertools import combinations, product
from types import SimpleNamespace
from typing import Any

import pytest
from chosen_cases import chosen

GRID = {"dtype": "fdFD", "order": "CF", "n": "0123456", "side": "LR"}


class Case(SimpleNamespace):
    """A case of a test, hashable as pytest's are."""

    __hash__ = object.__hash__


def cases(test: str, exhaustive: dict[str, Any] | None = None) -> list[Any]:
    mark = None if exhaustive is None else SimpleNamespace(kwargs=exhaustive)
    return [
        Case(
            nodeid=f"{test}[{'-'.join(values)}]",
            callspec=SimpleNamespace(params=dict(zip(GRID, values, strict=True))),
            get_closest_marker=lambda _: mark,
        )
        for values in product(*GRID.values())
    ]


def test_each_pair_of_values_stays() -> None:
    kept = chosen(cases("t.py::test_grid"))
    assert 28 <= len(kept) < 112 / 2, "no fewer than the two largest parameters have pairs"
    for one, other in combinations(GRID, 2):
        pairs = {(case.callspec.params[one], case.callspec.params[other]) for case in kept}
        assert pairs == set(product(GRID[one], GRID[other]))


def test_each_value_stays() -> None:
    kept = chosen(cases("t.py::test_grid", exhaustive={"each": True}))
    assert len(kept) == len(GRID["n"])
    for name, values in GRID.items():
        assert {case.callspec.params[name] for case in kept} == set(values)


def test_order_and_single_tests_stay() -> None:
    single = Case(nodeid="t.py::test_single", get_closest_marker=lambda _: None)
    items = [single, *cases("t.py::test_grid")]
    kept = chosen(items)
    assert kept[0] is single
    assert kept == [item for item in items if item in set(kept)]


@pytest.mark.parametrize(("mark", "count"), [({}, 1), ({"keep": 0}, 0), ({"keep": 3}, 3)])
def test_marked_tests_keep_their_first_cases(mark: dict[str, int], count: int) -> None:
    items = cases("t.py::test_kills", exhaustive=mark)
    assert chosen(items) == items[:count]


def test_every_third_case_stays() -> None:
    items = cases("t.py::test_layouts", exhaustive={"every": 3})
    assert chosen(items) == items[::3]
