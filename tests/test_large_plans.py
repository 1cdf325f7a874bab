"""Plans of large matrices enumerate little and take little memory, so that they take seconds."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from lu_by_method import RATES
from plan_work import LARGE, MOST_BYTES, MOST_CALLS, bytes_of, calls_of

import outcore as oc
from outcore.errors import BudgetError
from outcore.linalg._planners.planners import PLANNERS

SHAPES: dict[str, dict[str, Any]] = {
    "qr": {"m": 50 * LARGE, "n": 2000},
    "qr_factor": {"m": LARGE},
    "form_q": {"m": LARGE},
    "qr_solve": {"m": LARGE},
    "lstsq": {"m": 2 * LARGE},
    "gram": {"m": LARGE, "out": True},
    "svd": {"m": LARGE, "k": 100, "out": True},
    "matmul": {"m": LARGE, "k": LARGE},
}
"""For verbs with matrices that are not square."""

CASES = [
    *((verb, memory, {}) for verb in PLANNERS for memory in ("2 GB", "64 GB")),
    ("lu", "1 GB", {"order": "C"}),
    ("lu", "1 GB", {"method": "slabs"}),
    ("lu", "1 GB", {"method": "block-columns"}),
    ("lu", "1 GB", {"method": "tournament", "order": "C"}),
    ("lu", "1 GB", {"order": "C", "chunks": (64, 64)}),
    ("lu", "64 MiB", {}),
    ("cholesky", "1 GB", {"order": "C"}),
    ("cholesky", "1 GB", {"order": "F", "lower": False}),
    ("solve", "1 GB", {"factor_dtype": "c8"}),
    ("solve", "1 GB", {"assume_a": "pos"}),
    ("qr_factor", "1 GB", {"order": "C"}),
    ("lstsq", "64 GB", {"order": "F"}),
    ("cholesky", "4 GB", {"n": 1_000_000}),
    ("cholesky", "16 GB", {"n": 1_000_000}),
    ("gram", "8 MB", {"n": 50_000}),
    ("gram", "8 MB", {"n": 50_000, "dtype": "f8", "order": "F", "side": "right", "m": 50_000}),
]


def made(verb: str, memory: str, options: dict[str, Any]) -> Callable[[], oc.Plan]:
    given = {"n": LARGE, "dtype": "c16", "rates": RATES} | SHAPES.get(verb, {}) | options
    if verb == "gram" and memory == "2 GB":
        memory = "4 GB"  # the least that holds some rows
    return partial(oc.plan, verb, memory=memory, **given)


def name(value: object) -> str:
    return str(value).replace(" ", "")


@pytest.mark.exhaustive
@pytest.mark.parametrize(("verb", "memory", "options"), CASES, ids=name)
def test_they_enumerate_little(verb: str, memory: str, options: dict[str, Any]) -> None:
    assert calls_of(made(verb, memory, options)) < MOST_CALLS


def test_tiles_of_any_width_are_refused_at_once() -> None:
    def refused() -> None:
        with pytest.raises(BudgetError, match="for two panels of a QR"):
            oc.plan("form_q", n=700, memory="40 MB", tile=(1, 10**7), rates=RATES)

    assert calls_of(refused) < 10_000


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("verb", "memory", "options"),
    [
        *((verb, "64 GB", {}) for verb in PLANNERS),
        ("lu", "1 GB", {"order": "C"}),
        ("lu", "1 GB", {"method": "tournament"}),
    ],
    ids=name,
)
def test_they_take_little_memory(verb: str, memory: str, options: dict[str, Any]) -> None:
    assert bytes_of(made(verb, memory, options)) < MOST_BYTES
