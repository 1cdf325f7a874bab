"""The cases of parametrized tests that `make test` runs; `make test-all` runs all of them."""

from collections import defaultdict
from itertools import combinations

import pytest

Pair = tuple[tuple[str, int], ...]


def chosen(items: list[pytest.Item]) -> list[pytest.Item]:
    """Choose cases of each test, in the order of `items`.

    A test marked ``exhaustive`` keeps its first case, with ``exhaustive(keep=N)`` its first N. A
    test with three parameters or more keeps cases that cover each pair of values of two parameters
    (pairwise testing: Cohen et al. 1997, *The AETG system*). Any other test keeps all cases.
    """
    tests: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        tests[item.nodeid.partition("[")[0]].append(item)
    kept: set[pytest.Item] = set()
    for cases in tests.values():
        mark = cases[0].get_closest_marker("exhaustive")
        kept |= set(cases[: mark.kwargs.get("keep", 1)] if mark else covering(cases))
    return [item for item in items if item in kept]


def covering(cases: list[pytest.Item]) -> list[pytest.Item]:
    """Choose cases greedily until they cover all pairs of values that occur."""
    if len(values_of(cases[0])) < 3:
        return cases
    pairs: dict[pytest.Item, set[Pair]] = {
        case: set(combinations(values_of(case), 2)) for case in cases
    }
    left = set().union(*pairs.values())
    found = []
    while left:
        best = max(cases, key=lambda case: len(left & pairs[case]))
        left -= pairs[best]
        found.append(best)
    return found


def values_of(case: pytest.Item) -> list[tuple[str, int]]:
    """List the parameters of a case, each with the identity of its value."""
    params = getattr(getattr(case, "callspec", None), "params", {})
    # Cases share the objects of their values: some values are no keys, and some have no short text.
    return [(name, id(params[name])) for name in sorted(params)]
