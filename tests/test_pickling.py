"""Open arrays and names in pools, sent to other processes, each of which opens them again."""

import multiprocessing
import pickle
from pathlib import Path

import numpy as np
import pytest
from served_pools import some_pool

import outcore as oc
from outcore.errors import InvalidError, NotFoundError


def add_one(A: oc.Array, rows: slice) -> str:
    A[rows] = A[rows] + 1
    return A.mode


def test_processes_write_parts_of_one_array(tmp_path: Path) -> None:
    a = np.arange(60.0).reshape(12, 5)
    A = oc.from_array(a, tmp_path / "A", progress=False)
    with multiprocessing.get_context("spawn").Pool(2) as processes:
        modes = processes.starmap(add_one, [(A, slice(i, i + 4)) for i in (0, 4, 8)])
    assert modes == ["r+"] * 3
    np.testing.assert_array_equal(A[...], a + 1)


def test_what_was_read_only_stays_so(tmp_path: Path) -> None:
    oc.from_array(np.arange(4), tmp_path / "A", progress=False)
    found = pickle.loads(pickle.dumps(oc.open_array(tmp_path / "A")))
    assert found.mode == "r"
    np.testing.assert_array_equal(found[...], np.arange(4))


def test_an_array_that_is_gone_is_said_to_be(tmp_path: Path) -> None:
    A = oc.from_array(np.arange(4), tmp_path / "A", progress=False)
    text = pickle.dumps(A)
    (tmp_path / "A").rename(tmp_path / "B")
    with pytest.raises(NotFoundError, match="A"):
        pickle.loads(text)


def test_names_in_pools() -> None:
    with some_pool("served") as pool:
        A = oc.from_array(np.arange(4), pool / "u", progress=False)
        assert pickle.loads(pickle.dumps(pool / "u")) == pool / "u"
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(A))[...], np.arange(4))
        text = pickle.dumps(pool / "u")
    with pytest.raises((InvalidError, NotFoundError), match="pool"):
        pickle.loads(text)
