"""``A[[1, 4, 7], :]`` and ``A[mask]``, against NumPy and h5py."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import numpy.typing as npt
import pytest
from chosen_cases import examples
from hypothesis import given
from hypothesis import strategies as st
from strategies import Layout, layouts, values

import outcore as oc
from outcore.errors import InvalidError, ReadOnlyError


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[oc.Pool]:
    home = tmp_path_factory.mktemp("pool")
    with oc.Pool.embedded([home / name for name in "abc"]) as opened:
        yield opened


@pytest.fixture(params=["plain", "pool"])
def where(request: pytest.FixtureRequest, tmp_path: Path, pool: oc.Pool) -> Any:
    return tmp_path / "A" if request.param == "plain" else pool / tmp_path.name


class ListKey(NamedTuple):
    """An index expression with one list, and the equivalent two steps in NumPy."""

    key: tuple[Any, ...]
    others: tuple[Any, ...]
    axis: int
    places: npt.NDArray[np.int64]

    def read(self, model: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return model[self.others].take(self.places, self.axis)

    def write(self, model: npt.NDArray[Any], value: npt.NDArray[Any]) -> None:
        np.moveaxis(model[self.others], self.axis, 0)[self.places] = np.moveaxis(
            value, self.axis, 0
        )


@st.composite
def list_keys(draw: st.DrawFn, shape: tuple[int, ...]) -> ListKey:
    axis = draw(st.integers(0, len(shape) - 1))
    extent = shape[axis]
    places = draw(st.lists(st.integers(-extent, extent - 1), max_size=8))
    listed: Any = places
    if draw(st.booleans()):
        listed = np.array(places, draw(st.sampled_from(["i8", "i2"])))
    if draw(st.booleans()):
        listed = np.array(draw(st.lists(st.booleans(), min_size=extent, max_size=extent)))
        places = list(np.flatnonzero(listed))
        listed = listed.tolist() if draw(st.booleans()) else listed
    basic = [
        draw(
            st.integers(-n, n - 1)
            | st.builds(
                slice, st.none() | st.integers(0, n), st.none(), st.sampled_from([1, -1, 2])
            )
        )
        for n in shape
    ]
    others = (*basic[:axis], slice(None), *basic[axis + 1 :])
    at = sum(isinstance(each, slice) for each in basic[:axis])
    key = (*basic[:axis], listed, *basic[axis + 1 :])
    return ListKey(key, others, at, np.array(places, "i8"))


@st.composite
def cases(draw: st.DrawFn) -> tuple[Layout, list[ListKey], float]:
    layout = draw(layouts(max_dims=3, max_extent=14))
    keys = draw(st.lists(list_keys(layout.shape), min_size=1, max_size=4))
    return layout, keys, draw(st.sampled_from([0, 0.1, 0.6, 0.95, 1]))


@examples(120)
@given(cases(), st.integers(0, 2**32))
def test_lists_and_masks_are_as_in_numpy(
    case: tuple[Layout, list[ListKey], float], seed: int
) -> None:
    layout, keys, density = case
    with tempfile.TemporaryDirectory() as directory:
        array = oc.create_array(f"{directory}/A", **layout.arguments(), reserve=False)
        array[...] = model = values(layout.shape, layout.dtype)
        for number, each in enumerate(keys):
            expected = each.read(model)
            found = array[each.key]
            assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
            np.testing.assert_array_equal(found, expected)
            if not any(isinstance(one, int) for one in each.key):
                np.testing.assert_array_equal(found, model[each.key])
            new = values(expected.shape, layout.dtype, seed + number)
            array[each.key] = new
            each.write(model, new)
            np.testing.assert_array_equal(array[...], model)
        mask = np.random.default_rng(seed).random(layout.shape) < density
        np.testing.assert_array_equal(array[mask], model[mask])
        array[mask] = model[mask] = values((int(mask.sum()),), layout.dtype, seed)
        np.testing.assert_array_equal(oc.open_array(array.path)[...], model)


def test_lists_read_and_write_what_h5py_does(tmp_path: Path, where: Any) -> None:
    model = values((20, 30, 4), "c16")
    mask = np.random.default_rng(1).random(model.shape) < 0.3
    line = mask[:, 0, 0]
    with (
        h5py.File(tmp_path / "h.h5", "w") as file,
        oc.from_array(model, where, chunks=(6, 7, 3), progress=False) as array,
    ):
        dataset = file.create_dataset("x", data=model)
        for key in [
            np.s_[[1, 4, 7], :],
            np.s_[2:12, [0, 1, 2, 9, 28], 1],
            np.s_[3, :, [1, 3]],
            np.s_[line, 2:5],
            np.s_[..., [0, 2]],
            mask,
        ]:
            found, expected = array[key], dataset[key]
            assert found.shape == expected.shape
            np.testing.assert_array_equal(found, expected)
            array[key] = 2 * expected
            dataset[key] = 2 * expected
            np.testing.assert_array_equal(array[...], dataset[...])


def test_neighbours_are_one_request_and_gaps_are_read(pool: oc.Pool) -> None:
    model = values((400, 300), "f8")
    mask = np.zeros(model.shape, bool)
    mask[10:90, 20:70] = True
    lists: list[tuple[Any, int, int]] = [
        (list(range(50, 90)), 1, 1),
        (list(range(0, 400, 7)), 1, 1),
        ([3, 5, 6, 11, 17, 4], 1, 4),
        ([*range(20), *range(300, 340)], 2, 2),
        (mask, 1, 1),
    ]
    with oc.from_array(model, pool / "R", chunks=(400, 300), progress=False) as array:
        for key, reads, _ in lists:
            before = pool.messages
            np.testing.assert_array_equal(array[key], model[key])
            assert 1 <= pool.messages - before <= 3 * reads
        array[0, 0] = model[0, 0]  # counts the writing, with its own messages
        for seed, (key, _, writes) in enumerate(lists):
            model[key] = new = values(model[key].shape, "f8", seed)
            before = pool.messages
            array[key] = new
            assert 1 <= pool.messages - before <= 3 * writes
        np.testing.assert_array_equal(array[...], model)


def test_scattered_elements_of_a_large_array(where: Any) -> None:
    """The call divides such masks; some elements stand alone, others fill regions."""
    draw = np.random.default_rng(4)
    model = draw.standard_normal((1500, 1100))
    mask = draw.random(model.shape) < 1e-3
    mask[300:900, 500:1050] = True
    rows = draw.integers(0, 1500, 700)
    with oc.from_array(model, where, chunks=(256, 256), progress=False) as array:
        np.testing.assert_array_equal(array[mask], model[mask])
        np.testing.assert_array_equal(array[rows], model[rows])
        np.testing.assert_array_equal(array.T[:, rows], model.T[:, rows])
        array[mask] = model[mask] = -1
        array[rows, 7:9] = model[rows, 7:9] = draw.standard_normal((700, 2))
        np.testing.assert_array_equal(array[...], model)


def test_a_transpose_takes_lists_and_masks(tmp_path: Path) -> None:
    model = values((7, 9), "f4")
    mask = np.random.default_rng(0).random((9, 7)) < 0.5
    A = oc.from_array(model, tmp_path / "A", progress=False)
    for key in [[8, 0, 3], np.s_[2, [6, 1]], np.s_[[True] + [False] * 8, 1:4], mask]:
        np.testing.assert_array_equal(A.T[key], model.T[key])


def test_steps_of_a_growing_array(where: Any) -> None:
    steps = values((9, 3, 2), "f8")
    with oc.create_array(where, (0, 3, 2), "f8", growing=True) as array:
        array.append(steps)
        np.testing.assert_array_equal(array[[8, 2, 2]], steps[[8, 2, 2]])
        array[[0, 4], :, 1] = steps[[0, 4], :, 1] = 5
        np.testing.assert_array_equal(array[steps > 0], steps[steps > 0])


def test_lists_that_fit_nothing_are_refused(tmp_path: Path) -> None:
    array = oc.create_array(tmp_path / "A", (4, 6), "f8")
    for key, message in [
        (([0, 1], [2, 3]), "at most one list or mask among the indices, have 2"),
        ([0.5, 1.5], "have float64"),
        ([[0, 1], [2, 3]], "have an index of shape"),
        ([[0, 1], [2]], "several lengths"),
        ((np.ones((4, 6), bool), 0), "index of shape"),
        (["a"], "have <U1"),
        (np.array([]), "have float64"),
    ]:
        with pytest.raises(InvalidError, match=message):
            array[key]
    for key in [[4], [-5, 0], [True] * 5, np.ones((4, 5), bool), ([0], 0, 0)]:
        with pytest.raises(IndexError):
            array[key]
    with pytest.raises(InvalidError, match="need values of shape"):
        array[[0, 1]] = np.ones(3)
    assert not array[...].any()
    with pytest.raises(ReadOnlyError):
        oc.open_array(tmp_path / "A")[[0]] = 1
