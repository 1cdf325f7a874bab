"""Conversion to other types: NumPy's answer for each element, or an error where it overflows."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array
import numpy as np
import pytest
from command_line import outcore
from hypothesis import given
from hypothesis import strategies as st
from source_cases import in_hdf5, in_npy, in_outcore, in_zarr
from strategies import DTYPES

import outcore as oc
from outcore.errors import IncompleteError, InvalidError

INTEGERS = [d for d in DTYPES if np.dtype(d).kind in "iu"]

SOURCES: dict[str, Callable[[Any, Path], Any]] = {
    "array": lambda model, path: model,
    "memmap": lambda model, path: np.load(in_npy(model, path), mmap_mode="r"),
    "npy": in_npy,
    "hdf5": in_hdf5,
    "zarr": in_zarr(),
    "outcore": in_outcore,
    "dask": lambda model, path: dask.array.from_array(model, chunks=4),
    "rows": lambda model, path: iter([model[:2], model[2:]]),
}

BEYOND = [
    ("i8", "i4", 2**40 + 5),
    ("u8", "i8", 2**63),
    ("i8", "u8", -1),
    ("f8", "f4", 1e300),
    ("c16", "c8", 1e300j),
    ("f8", "f2", -70000.0),
    ("u4", "f2", 70000),
]


def into_array(source: Any, path: Path, **options: Any) -> Any:
    with oc.from_array(
        source, path / "A", if_exists="overwrite", progress=False, **options
    ) as array:
        return array[...]


def into_npy(source: Any, path: Path, **options: Any) -> Any:
    oc.export_array(source, path / "A.npy", if_exists="overwrite", progress=False, **options)
    return np.load(path / "A.npy")


@pytest.mark.parametrize("copy", [into_array, into_npy])
@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize(("dtype", "narrow", "number"), BEYOND)
def test_copies_refuse_what_the_type_cannot_hold(
    tmp_path: Path, kind: str, dtype: str, narrow: str, number: Any, copy: Any
) -> None:
    model = np.ones((7, 5), dtype)
    model[4, 2] = model[5, 1] = number
    shape = (7, 5) if kind == "rows" else None
    value = f"{np.asarray(number, dtype).item()}"
    with pytest.raises(InvalidError) as told:
        copy(SOURCES[kind](model, tmp_path), tmp_path, dtype=narrow, shape=shape)
    assert f"have {value} at (4, 2); choose a wider dtype=" in str(told.value)
    if copy is into_array:
        with pytest.raises(IncompleteError):
            oc.open_array(tmp_path / "A")
    else:
        assert not (tmp_path / "A.npy").exists()
    found = copy(
        SOURCES[kind](model, tmp_path), tmp_path, dtype=narrow, shape=shape, casting="unsafe"
    )
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(found, model.astype(narrow))


@pytest.mark.parametrize(("dtype", "narrow", "number"), BEYOND)
def test_assignments_refuse_it_and_write_nothing(
    tmp_path: Path, dtype: str, narrow: str, number: Any
) -> None:
    model = np.ones((4, 6), dtype)
    model[3, 1] = number
    with oc.create_array(tmp_path / "A", (4, 6), narrow, chunks=(2, 3)) as array:
        with pytest.raises(InvalidError, match=r"at \(3, 1\); make the array with a wider dtype="):
            array[...] = model
        # The error names no index for a scalar or a single element.
        for given in (number, np.asarray(number, dtype)):
            with pytest.raises(InvalidError, match="need elements"):
                array[0, 0] = given
        with array.blocks() as blocks, pytest.raises(InvalidError, match=r"at \(1, 1\)"):
            blocks[1, 0] = model[2:, :3]
        assert not array[...].any()
    with pytest.raises(InvalidError, match=r"at \(3, 1\); make the array with a wider dtype="):
        oc.create_array(
            tmp_path / "B", (4, 6), narrow, chunks=(2, 3), fill=lambda i, j: model[i, j]
        )
    with pytest.raises(IncompleteError):
        oc.open_array(tmp_path / "B")
    with (
        oc.create_array(tmp_path / "C", (0, 6), narrow, growing=True) as steps,
        pytest.raises(InvalidError, match=r"at \(3, 1\)"),
    ):
        steps.append(model)
    with oc.ArrayGroup(tmp_path / "G", {"u": oc.ArraySpec((6,), narrow)}) as group:
        with pytest.raises(InvalidError, match=r"at \(1,\)"):
            group.timestep({"u": model[3]})
        with pytest.raises(InvalidError, match=r"at \(1,\)"):
            group.checkpoint({"u": model[3]})


@given(
    st.sampled_from(INTEGERS),
    st.sampled_from(INTEGERS),
    st.lists(st.integers(-(2**63), 2**64 - 1), min_size=1, max_size=5),
)
def test_integers_keep_their_values_or_are_refused(
    tmp_path_factory: pytest.TempPathFactory, wide: str, narrow: str, numbers: list[int]
) -> None:
    bounds, limits = np.iinfo(wide), np.iinfo(narrow)
    model = np.array([min(max(n, bounds.min), bounds.max) for n in numbers], wide)
    path = tmp_path_factory.mktemp("casts")
    if all(limits.min <= int(n) <= limits.max for n in model):
        assert into_array(model, path, dtype=narrow).tolist() == model.tolist()
    else:
        with pytest.raises(InvalidError, match="can hold"):
            into_array(model, path, dtype=narrow)


@pytest.mark.parametrize("order", ["C", "F"])
def test_precision_infinities_and_nan_may_go_into_narrow_floats(tmp_path: Path, order: Any) -> None:
    most = float(np.finfo("f4").max)
    model = np.array([[np.pi, np.inf, -np.inf], [np.nan, 1e-300, most]], order=order)
    with np.errstate(under="ignore"):
        expected = model.astype("f4")
    np.testing.assert_array_equal(into_array(model, tmp_path, dtype="f4"), expected)
    # This rounds to the largest number, so it does not overflow.
    model[1, 2] = most * (1 + 2.0**-26)
    assert into_array(model, tmp_path, dtype="f4")[1, 2] == np.float32(most)
    model[1, 1] = 2 * most
    with pytest.raises(InvalidError, match=r"at \(1, 1\)"):
        into_array(model, tmp_path, dtype="f4")


def test_the_first_element_is_named_far_inside_of_a_block(tmp_path: Path) -> None:
    model = np.zeros((700, 300), order="F")
    model[600, 3] = model[601, 2] = 1e300
    with pytest.raises(InvalidError, match=r"have 1e\+300 at \(600, 3\)"):
        into_array(model, tmp_path, dtype="f4", memory="64 MB")


@pytest.mark.parametrize(
    ("model", "dtype"),
    [
        (np.array([1.5, -2.5]), "i4"),
        (np.array([1.5 + 2j, 0]), "f8"),
        (np.array([0, 5]), "?"),
    ],
)
def test_another_kind_only_when_it_is_said(tmp_path: Path, model: Any, dtype: str) -> None:
    with pytest.raises(InvalidError, match=r"lose more than precision; pass casting=.unsafe"):
        into_array(model, tmp_path, dtype=dtype)
    with pytest.raises(InvalidError, match="lose more than precision"):
        into_array(iter([model.real.astype(dtype), model]), tmp_path, shape=4)
    found = into_array(model, tmp_path, dtype=dtype, casting="unsafe")
    np.testing.assert_array_equal(found, model.real.astype(dtype))
    found = into_array(iter([model]), tmp_path, shape=2, dtype=dtype, casting="unsafe")
    np.testing.assert_array_equal(found, model.real.astype(dtype))


def test_text_is_no_number_however_it_is_cast(tmp_path: Path) -> None:
    for casting in ("same_kind", "unsafe"):
        with pytest.raises(InvalidError, match=r"more than precision|number type"):
            oc.from_array(np.array(["1"]), tmp_path / "A", dtype="f8", casting=casting)
    with pytest.raises(InvalidError, match="'same_kind' or 'unsafe', have 'safe'"):
        oc.from_array(np.ones(3), tmp_path / "A", casting="safe")  # type: ignore[arg-type]
    assert not (tmp_path / "A").exists()


def test_a_stopped_copy_goes_on_with_unsafe(tmp_path: Path) -> None:
    model = np.arange(60.0).reshape(12, 5)
    model[9, 3] = 1e300
    file = in_npy(model, tmp_path)
    options: dict[str, Any] = {"dtype": "f4", "chunks": (2, 5), "progress": False}
    with pytest.raises(InvalidError, match="can hold"):
        oc.from_array(file, tmp_path / "A", **options)
    array = oc.from_array(file, tmp_path / "A", casting="unsafe", **options)
    with array, np.errstate(over="ignore"):
        np.testing.assert_array_equal(array[...], model.astype("f4"))


def test_the_command_line(tmp_path: Path) -> None:
    file = in_npy(np.array([2**40 + 5, 1]), tmp_path)
    arguments = ["convert", str(file), str(tmp_path / "b.npy"), "--dtype", "i4"]
    found = outcore(*arguments)
    assert found.exit_code != 0
    assert "need elements that int32 can hold" in found.stderr
    assert not (tmp_path / "b.npy").exists()
    found = outcore(*arguments, "--casting", "unsafe", "--json")
    assert json.loads(found.stdout)["dtype"] == "int32"
    assert np.load(tmp_path / "b.npy").tolist() == [5, 1]


class Scaled:
    """A source whose slices have another type than it states, as packed variables of netCDF4."""

    def __init__(self, stated: str, values: Any) -> None:
        self.values, self.dtype, self.shape = values, np.dtype(stated), values.shape

    def __getitem__(self, box: Any) -> Any:
        return self.values[box]


@pytest.mark.parametrize("stated", ["i2", "f4", "u8"])
def test_slices_of_another_type_than_stated_are_not_rounded(tmp_path: Path, stated: str) -> None:
    model = np.array([[0.1, 2.75], [3.5, -4.25]])
    message = f"need blocks of {np.dtype(stated)} from Scaled, have float64"
    with pytest.raises(InvalidError, match=message):
        oc.from_array(Scaled(stated, model), tmp_path / "A", progress=False)
    with oc.from_array(Scaled(stated, model), tmp_path / "B", dtype="f8", progress=False) as B:
        np.testing.assert_array_equal(B[...], model)
    with pytest.raises(InvalidError, match=r"need .* int32, have|need blocks of int32 from Scaled"):
        oc.from_array(Scaled(stated, model), tmp_path / "C", dtype="i4", progress=False)
    unsafe = oc.from_array(
        Scaled(stated, abs(model)), tmp_path / "D", casting="unsafe", progress=False
    )
    with unsafe:
        np.testing.assert_array_equal(unsafe[...], abs(model).astype(stated))
