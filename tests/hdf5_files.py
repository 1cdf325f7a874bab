"""HDF5 files of tests, opened by the driver of a pool."""

from pathlib import Path
from typing import Any

import h5py
import pytest
from served import Served
from served_pools import pool

import outcore.h5py  # noqa: F401  # it registers the driver

__all__ = ["pool"]  # a fixture


@pytest.fixture(autouse=True)
def key(pool: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTCORE_KEY", str(pool.key))


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """Return a name that no other test uses."""
    return "".join(c if c.isalnum() else "-" for c in request.node.name) + ".h5"


@pytest.fixture
def url(pool: Served, name: str) -> str:
    return f"{pool.url}/{name}"


def driven(place: str | Path, mode: str = "r", **options: Any) -> h5py.File:
    return h5py.File(place, mode, driver="outcore", **options)
