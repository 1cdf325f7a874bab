"""The cases and drawn examples that `make test` runs; `make test-all` runs all of them."""

from collections import defaultdict
from itertools import combinations
from typing import Any

import pytest
from hypothesis import settings

Values = tuple[tuple[str, int], ...]


def chosen(items: list[pytest.Item]) -> list[pytest.Item]:
    """Choose cases of each test, in the order of `items`.

    A test marked ``exhaustive`` keeps its first case, with ``exhaustive(keep=N)`` its first N, with
    ``exhaustive(every=N)`` its first and each Nth after it, with ``exhaustive(each=True)`` cases
    that cover each value. A test with three parameters or more keeps cases that cover each pair of
    values of two parameters (pairwise testing: Cohen et al. 1997, *The AETG system*). Any other
    test keeps all cases.
    """
    tests: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        tests[item.nodeid.partition("[")[0]].append(item)
    kept: set[pytest.Item] = set()
    for cases in tests.values():
        mark = cases[0].get_closest_marker("exhaustive")
        others = [case.get_closest_marker("exhaustive") for case in cases[1:]]
        assert all(other == mark for other in others), f"mark the test {cases[0].nodeid}, no case"
        if mark is None:
            kept |= set(cases if len(values_of(cases[0])) < 3 else covering(cases, 2))
        elif mark.kwargs.get("each"):
            kept |= set(covering(cases, 1))
        else:
            keep = len(cases) if "every" in mark.kwargs else mark.kwargs.get("keep", 1)
            kept |= set(cases[: keep : mark.kwargs.get("every", 1)])
    return [item for item in items if item in kept]


def covering(cases: list[pytest.Item], size: int) -> list[pytest.Item]:
    """Choose cases greedily until they cover all combinations of `size` values that occur."""
    covered: dict[pytest.Item, set[Values]] = {
        case: set(combinations(values_of(case), size)) for case in cases
    }
    left = set().union(*covered.values())
    found = []
    while left:
        best = max(cases, key=lambda case: len(left & covered[case]))
        left -= covered[best]
        found.append(best)
    return found


def values_of(case: pytest.Item) -> list[tuple[str, int]]:
    """List the parameters of a case, each with the identity of its value."""
    params = getattr(getattr(case, "callspec", None), "params", {})
    # Cases share the objects of their values: some values are no keys, and some have no short text.
    return [(name, id(params[name])) for name in sorted(params)]


def examples(count: int, **more: Any) -> settings:
    """Return the settings of a test that draws `count` examples: in `make test` a third of them.

    There each run draws the same examples; ``make test-all`` draws others each time.
    """
    return settings(max_examples=count // 3 if settings.default.derandomize else count, **more)
