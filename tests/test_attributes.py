"""Attributes return with their types, or raise an error that names their key."""

import json
import math
import pickle
import random
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore
import zarr
from chosen_cases import examples
from hypothesis import given
from hypothesis import strategies as st
from served_pools import above, in_memory
from timeouts import HANG_S

import outcore as oc
from outcore.errors import InvalidError
from outcore.series import group_transfer

__all__ = ["above"]  # a fixture

SPECS = {"u": oc.ArraySpec((6,), dims=("x",))}
U = {"u": np.arange(6.0)}


def assert_same(found: Any, expected: Any) -> None:
    """Compare values and types, including NaN and the bytes of arrays."""
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert len(found) == len(expected)
        for (key, value), (its_key, its_value) in zip(found.items(), expected.items(), strict=True):
            assert_same(key, its_key)
            assert_same(value, its_value)
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    elif isinstance(expected, np.ndarray | np.generic):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert found.tobytes() == expected.tobytes()
    elif isinstance(expected, float):
        assert math.isnan(found) if math.isnan(expected) else found == expected
        assert math.copysign(1, found) == math.copysign(1, expected) or math.isnan(expected)
    elif isinstance(expected, complex):
        assert_same([found.real, found.imag], [expected.real, expected.imag])
    else:
        assert found == expected


EXACT: dict[str, Any] = {
    "scalars": [np.int64(3), np.float32(0.1), np.bool_(True), np.complex64(1j), np.float16(2)],
    "text": [np.str_("ü"), np.bytes_(b"\x00a"), b"\xff\x00", "\x00"],
    "dates": [np.datetime64("2020-02-03T04:05"), np.timedelta64(3, "D")],
    "arrays": [np.eye(3, dtype="c16"), np.arange(6, dtype=">i2").reshape(2, 3), np.zeros((0, 2))],
    "no dimension": np.array(2.5),
    "NaN": [math.nan, np.float64("nan"), np.array([math.nan, -math.inf])],
    "infinite": (math.inf, -math.inf, complex(math.nan, -0.0), -0.0),
    "tuples": (1, (2, [3, ()])),
    "keys": {1: "a", "1": "b", (1, 2.5): "c", None: "d", True + 1: "e", np.int8(7): "f"},
    "reserved": {"outcore": {"tuple": [1]}, "more": {"outcore": 1}},
    "large": 2**127 - 1,
    "plain": {"a": [1, 2.5, None, True, "x", {}], "b": []},
}


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("background", [False, True])
def test_restart_returns_attributes_as_they_were(above: Any, background: bool) -> None:
    group = oc.ArrayGroup(above / "run", SPECS)
    if background:
        group.checkpoint(U, EXACT, background=True).wait()
    else:
        group.checkpoint(U, EXACT)
    assert_same(oc.ArrayGroup(above / "run").restart().attributes, EXACT)
    text = (above / "run/checkpoints/00000000/zarr.json").read_bytes()
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


simple = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.complex_numbers() | st.binary()
    | st.text(st.characters(exclude_categories=["Cs"])) | st.floats(width=32).map(np.float32)
)  # fmt: skip
nested = st.recursive(
    simple,
    lambda each: (
        st.lists(each) | st.lists(each).map(tuple)
        | st.dictionaries(st.integers() | st.sampled_from(["a", "outcore", "tuple"]), each)
    ),
    max_leaves=8,
)  # fmt: skip


@examples(30)
@given(st.dictionaries(st.sampled_from("abc"), nested))
def test_any_attributes(attributes: dict[str, Any]) -> None:
    with in_memory() as above:
        group = oc.ArrayGroup(above / "run", SPECS)
        group.checkpoint(U, attributes)
        assert_same(group.restart().attributes, attributes)


def test_generators_of_random_numbers_resume(tmp_path: Path) -> None:
    """Their states have tuples, NumPy arrays and integers of 128 bits."""
    mine, theirs, older = random.Random(3), np.random.default_rng(3), np.random.MT19937(3)
    group = oc.ArrayGroup(tmp_path / "run", SPECS)
    group.checkpoint(
        U, {"mine": mine.getstate(), "theirs": theirs.bit_generator.state, "older": older.state}
    )
    expected = [mine.random(), theirs.random(), older.random_raw()]
    found = group.restart().attributes
    mine.setstate(found["mine"])
    theirs.bit_generator.state = found["theirs"]
    older.state = found["older"]
    assert [mine.random(), theirs.random(), older.random_raw()] == expected


def test_attributes_of_a_background_checkpoint_are_copied(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The program may change them, at any depth, as soon as the call returns."""
    is_changed, write = threading.Event(), group_transfer.write

    def wait(*arguments: Any) -> None:
        assert is_changed.wait(HANG_S)
        write(*arguments)

    monkeypatch.setattr(group_transfer, "write", wait)
    state = {"history": [1, 2], "rng": {"n": 0, "key": np.arange(3)}, "step": 7}
    before = pickle.loads(pickle.dumps(state))
    with oc.ArrayGroup(tmp_path / "run", SPECS) as group:
        handle = group.checkpoint(U, state, background=True)
        state["history"].append(3)  # type: ignore[attr-defined]
        state["rng"]["n"] = 99  # type: ignore[index]
        state["rng"]["key"][:] = 0  # type: ignore[index]
        state["step"] = 8
        is_changed.set()
        handle.wait()
        assert_same(group.restart().attributes, before)


@pytest.mark.parametrize(
    ("attributes", "where"),
    [
        ({1: "a", "1": "b"}, r"the key of attributes\[1\] of type int; give text"),
        ({"a": {"b": [0, {1, 2}]}}, r"attributes\['a'\]\['b'\]\[1\] of type set"),
        ({"a": OrderedDict(b=1)}, r"attributes\['a'\] of type collections.OrderedDict; .* dict"),
        ({"a": np.ma.zeros(2)}, r"attributes\['a'\] of type numpy.ma.MaskedArray"),
        ({"a": np.zeros(2, "i4,i4")}, r"attributes\['a'\] of type numpy.ndarray; .* numbers"),
        ({"a": [object()]}, r"attributes\['a'\]\[0\] of type object"),
        ({"a": "\ud800"}, r"attributes\['a'\] = .*UTF-8"),
        ({"a": 10**5000}, r"attributes\['a'\], an integer of 16610 bits; .*hexadecimal"),
    ],
)
def test_what_restart_cannot_return_is_refused(
    tmp_path: Path, attributes: dict[Any, Any], where: str
) -> None:
    group = oc.ArrayGroup(tmp_path / "run", SPECS)
    with pytest.raises(InvalidError, match=where):
        group.checkpoint(U, attributes)
    assert group.checkpoints() == []


@pytest.mark.parametrize(
    ("attributes", "where"),
    [
        ({"t": {1: "x"}}, r"the key of attributes\['t'\]\[1\] of type int; give text"),
        ({"t": [(1, 2)]}, r"attributes\['t'\]\[0\] of type tuple; give a list"),
        ({"t": np.zeros(2)}, r"attributes\['t'\] of type numpy.ndarray; give its tolist\(\)"),
        ({"t": 1j}, r"attributes\['t'\] of type complex"),
        ({"t": {"u": math.nan}}, r"attributes\['t'\]\['u'\] = nan; give text, such as 'NaN'"),
        ({"t": np.float64("inf")}, r"attributes\['t'\] = inf"),
        ({"t": b"a"}, r"attributes\['t'\] of type bytes"),
        ({1: "a"}, r"the key of attributes\[1\]"),
        ({"t": 10**5000}, "hexadecimal"),
    ],
)
def test_what_json_would_change_is_refused(
    tmp_path: Path, attributes: dict[Any, Any], where: str
) -> None:
    """The same rule holds for arrays, groups, and arrays and coordinates of time steps."""
    spec = oc.ArraySpec(6, attributes=attributes)
    for call in [
        lambda path: oc.create_array(path, 6, attributes=attributes),
        lambda path: oc.create_group(path, attributes=attributes),
        lambda path: oc.ArrayGroup(path, {"u": spec}),
        lambda path: oc.ArrayGroup(path, SPECS, attributes=attributes),
        lambda path: oc.ArrayGroup(path, SPECS, time_attributes=attributes),
    ]:
        with pytest.raises(InvalidError, match=where):
            call(tmp_path / "new")
        assert not (tmp_path / "new").exists()


def test_attributes_that_contain_themselves(tmp_path: Path) -> None:
    itself: list[Any] = []
    itself.append(itself)
    with pytest.raises(InvalidError, match="contains itself"):
        oc.create_array(tmp_path / "A", 6, attributes={"a": itself})
    with pytest.raises(InvalidError, match="contains itself"):
        oc.ArrayGroup(tmp_path / "run", SPECS).checkpoint(U, {"a": itself})


def test_attributes_of_an_array_are_what_other_software_reads(tmp_path: Path) -> None:
    """Check the attributes of the new array too, before it is opened again."""
    given = {"step": np.int64(3), "dt": np.float32(0.1), "tags": ["a", {"b": None}], "on": True}
    array = oc.create_array(tmp_path / "A", 6, attributes=given)
    expected = {"step": 3, "dt": float(np.float32(0.1)), "tags": ["a", {"b": None}], "on": True}
    assert_same(array.attrs, expected)
    assert_same(oc.open_array(tmp_path / "A").attrs, expected)
    read = zarr.open_array(tmp_path / "A", mode="r").attrs.asdict()
    assert {name: read[name] for name in expected} == expected
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{tmp_path}/A/"}}
    assert tensorstore.open(spec, read=True).result().shape == (6,)


def test_attributes_that_were_given_or_taken_may_be_changed(tmp_path: Path) -> None:
    """A later write of ``zarr.json`` stores the attributes as they were given."""
    given = {"tags": ["a"]}
    array = oc.create_array(tmp_path / "A", (0, 3), growing=True, attributes=given)
    given["tags"].append("b")
    array.attrs["tags"].append("c")
    array.append(np.zeros(3))
    assert oc.open_array(tmp_path / "A").attrs == {"tags": ["a"]}
    group = oc.ArrayGroup(tmp_path / "run", SPECS, attributes=given)
    given["tags"].append("d")
    group.attrs["tags"].append("e")
    group.timestep(U)
    assert oc.ArrayGroup(tmp_path / "run").attrs == {"tags": ["a", "b"]}
