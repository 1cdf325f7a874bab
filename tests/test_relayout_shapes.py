"""Rechunk and permute arrays of any shape, layout and budget, against NumPy."""

import re
import tempfile
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from chosen_cases import examples
from hypothesis import given
from hypothesis import strategies as st

import outcore as oc
from outcore.errors import BudgetError, InvalidError

EXTENTS = (1, 1, 2, 3, 7, 8, 13, 16)


class Move(NamedTuple):
    """A shape, the layouts of both arrays, the arguments of the move, and NumPy's function."""

    shape: tuple[int, ...]
    before: dict[str, Any]
    after: dict[str, Any]
    kind: str
    options: dict[str, Any]
    expected: Callable[[npt.NDArray[Any]], npt.NDArray[Any]]


@st.composite
def moves(draw: st.DrawFn) -> Move:
    shape = tuple(draw(st.lists(st.sampled_from(EXTENTS), min_size=1, max_size=4)))
    kind = draw(
        st.sampled_from(["rechunk", "transpose", "reverse", "rotate"][: 3 + (len(shape) > 1)])
    )
    axes = draw(st.permutations(range(len(shape))))
    options: dict[str, Any] = {"axes": tuple(axes)}
    if kind == "reverse":
        options["axes"] = tuple(axes[: draw(st.integers(0, len(axes)))])
        expected = lambda a: np.flip(a, options["axes"])  # noqa: E731
    elif kind == "rotate":
        turns = draw(st.integers(-3, 4))
        options = {"axes": tuple(axes[:2]), "turns": turns}
        expected = lambda a: np.rot90(a, turns, axes[:2])  # noqa: E731
    else:
        if kind == "rechunk":
            options = {"transpose": axes}
        expected = lambda a: np.transpose(a, axes)  # noqa: E731

    def layout(extents: tuple[int, ...]) -> dict[str, Any]:
        # Chunks may be larger than the array.
        chunks = tuple(draw(st.sampled_from([1, n, draw(st.integers(1, n + 5))])) for n in extents)
        return {"chunks": chunks, "order": draw(st.sampled_from("CF"))}

    new_shape = expected(np.empty(shape, "?")).shape
    return Move(shape, layout(shape), layout(new_shape), kind, options, expected)


def need_of(error: pytest.ExceptionInfo[BudgetError]) -> int:
    found = re.match(r"need (\d+) bytes .*; .*memory=", str(error.value))
    assert found is not None, str(error.value)
    return int(found[1])


@given(moves(), st.sampled_from(["i1", "f4", "f8", "c16"]), st.sampled_from([0, 30_000, 1 << 22]))
@examples(60)
def test_any_shape_layout_and_budget(move: Move, dtype: str, spare: int) -> None:
    """The least budget is stated before any work; it works, and a byte fewer does not."""
    model = (np.arange(np.prod(move.shape)) % 101).reshape(move.shape).astype(dtype)
    with tempfile.TemporaryDirectory() as name:
        A = oc.from_array(model, f"{name}/A", progress=False, **move.before)

        def call(memory: int) -> oc.Array:
            options = {**move.options, **move.after, "memory": memory, "progress": False}
            if move.kind == "rechunk":
                return oc.rechunk(A, f"{name}/B", **options)
            return oc.permute(A, f"{name}/B", move.kind, **options)

        with pytest.raises(BudgetError) as error:
            call(1)
        least = need_of(error)
        with pytest.raises(BudgetError, match=f"need {least} bytes"):
            call(least - 1)
        with pytest.raises(oc.errors.NotFoundError):
            oc.open_array(f"{name}/B")
        with call(least + spare) as B:
            np.testing.assert_array_equal(B[...], move.expected(model))
            assert B.report is not None
            assert B.report.peak_memory_bytes <= least + spare


@pytest.mark.parametrize("shape", [(0,), (3, 0, 2)])
def test_arrays_without_elements_are_refused(shape: tuple[int, ...], tmp_path: Any) -> None:
    """An array of outcore has at least one element along each dimension."""
    for call in (oc.rechunk, oc.permute):
        given = ("reverse",) if call is oc.permute else ()
        with pytest.raises(InvalidError, match=r"at least 1, have .*0"):
            call(np.zeros(shape), tmp_path / "B", *given, progress=False)
    assert not (tmp_path / "B").exists()
