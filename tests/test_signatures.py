"""Signatures in ``help`` and editors: short enough to read, with the names of types."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import outcore as oc

MOST_CHARACTERS = 700
"""This length suffices for `create_array`, which has 19 parameters."""


def public() -> Iterator[tuple[str, Callable[..., Any]]]:
    for module in (oc, oc.linalg):
        for name in module.__all__:
            found = getattr(module, name)
            if inspect.isclass(found):
                methods = ((key, value) for key, value in vars(found).items() if key[0] != "_")
                yield from ((f"{name}.{key}", each) for key, each in methods if callable(each))
            # Only calls create reports, and reports have many figures.
            if callable(found) and not (inspect.isclass(found) and issubclass(found, oc.Report)):
                yield name, found


def signatures() -> dict[str, str]:
    found = {}
    for name, each in public():
        try:
            found[name] = str(inspect.signature(each))
        except ValueError:  # compiled
            continue
    return found


def test_signatures_are_short() -> None:
    found = signatures()
    assert len(found) > 150
    assert {"lstsq", "create_array", "Array.append", "BlockInterface"} <= found.keys()
    long = {name: len(text) for name, text in found.items() if len(text) > MOST_CHARACTERS}
    assert not long


@pytest.mark.parametrize("name", ["lstsq", "gram", "qr", "svd"])
def test_types_have_their_names(name: str) -> None:
    text = signatures()[name]
    assert "A: 'RowsLike'" in text
    assert "numpy._typing" not in text
