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
    pairs = {case: pairs_of(case) for case in cases}
    if any(pairs_ is None for pairs_ in pairs.values()):
        return cases
    left: set[Pair] = set().union(*(pairs_ or () for pairs_ in pairs.values()))
    found = []
    while left:
        best = max(cases, key=lambda case: len(left & (pairs[case] or set())))
        left -= pairs[best] or set()
        found.append(best)
    return found


def pairs_of(case: pytest.Item) -> set[Pair] | None:
    """List the pairs of values of a case; None with fewer than three parameters."""
    params = getattr(getattr(case, "callspec", None), "params", {})
    # Cases share the objects of their values: some values are no keys, and some have no short text.
    values = [(name, id(params[name])) for name in sorted(params)]
    return set(combinations(values, 2)) if len(values) > 2 else None
