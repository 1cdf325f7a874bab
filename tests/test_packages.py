"""Packages that a call imports: the accepted versions, the error for all others, and Ctrl-C."""

import subprocess
import tomllib
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr
from packaging.version import Version
from timeouts import HANG_S

import outcore as oc
from outcore._util import packages
from outcore.errors import MissingPackageError

OLD = Path(__file__).parent / "stand_ins" / "old_packages"
PROJECT = Path(__file__).parent.parent / "pyproject.toml"


def test_the_oldest_versions_are_those_that_the_extras_name() -> None:
    extras = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]
    named = dict(
        requirement.replace("[array]", "").split(">=")
        for extra, requirements in extras.items()
        if extra not in ("dev", "test")
        for requirement in requirements
    )
    del named["mpich"]
    assert named == packages.OLDEST


@pytest.mark.parametrize("version", ["3.0.9", "3.1", "3.1.0", "3.1.0rc1", "3.10.2", "2.18.3", "4"])
def test_versions_are_ordered_as_packaging_orders_them(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zarr, "__version__", version)
    # A release candidate counts as the release.
    if Version(Version(version).base_version) >= Version("3.1"):
        packages.require("zarr", "a test")
    else:
        with pytest.raises(MissingPackageError) as told:
            packages.require("zarr", "a test")
        assert str(told.value) == (
            f"a test needs the package zarr, version 3.1 or later, have {version}; install it "
            "with: pip install 'zarr>=3.1'"
        )


def test_a_package_that_tells_no_version_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(packages.sys.modules, "zarr", types.ModuleType("zarr"))
    packages.require("zarr", "a test")


@pytest.mark.parametrize("known", [{}, {"no_such_package": "1.2"}])
def test_a_missing_package_and_its_purpose_are_named(
    known: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages, "OLDEST", known)
    wanted = "'no_such_package>=1.2'" if known else "no_such_package"
    with pytest.raises(MissingPackageError) as told:
        packages.load("no_such_package.part", "a test")
    assert str(told.value) == (
        "a test needs the package no_such_package, which is not installed; install it with: "
        f"pip install {wanted}"
    )


@pytest.mark.parametrize(
    ("package", "call"),
    [
        ("zarr", "oc.from_array('a.zarr', 'A')"),
        ("zarr", "oc.export_array(np.ones(3), 'b.zarr')"),
        ("zarr", "import outcore.zarr_store"),
        ("h5py", "oc.from_array('a.h5', 'A')"),
        ("h5py", "import outcore.h5py"),
        ("h5py", "oc.export_array(np.ones(3), 'b.h5')"),
        (
            "fsspec",
            "import fsspec; fsspec.__version__ = '2024.10.0'; "
            "import outcore.pool.fsspec_filesystem",
        ),
        ("mpi4py", "oc.Pool.from_comm(type('C', (), {'__module__': 'mpi4py.MPI'})(), 'p')"),
    ],
)
def test_versions_that_are_too_old_are_refused(
    tmp_path: Path, run_python: Callable[..., Any], package: str, call: str
) -> None:
    zarr.create_array(tmp_path / "a.zarr", shape=3, dtype="f8")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["a"] = np.ones(3)
    script = f"""
import sys
sys.path.insert(0, {str(OLD)!r})
import numpy as np
import outcore as oc
try:
    {call}
except oc.OutcoreError as error:
    assert error.kind == "missing_package", error
    assert isinstance(error, ImportError)
    assert "needs the package {package}, version {packages.OLDEST[package]} or later" in str(error)
else:
    raise AssertionError("it was taken")
"""
    process = run_python(script)
    said = process.communicate()[1]
    assert process.returncode == 0, said


@pytest.mark.parametrize("package", ["dask", "xarray", "zarr", "h5py"])
def test_objects_of_versions_that_are_too_old_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    module = types.ModuleType(package)
    module.__version__ = "0.9"  # type: ignore[attr-defined]
    monkeypatch.setitem(packages.sys.modules, package, module)
    thing = type("Array", (), {"__module__": f"{package}.core", "shape": (3,), "dtype": "f8"})()
    with pytest.raises(MissingPackageError, match=r"copying a Array needs .* have 0\.9; install"):
        oc.from_array(thing, tmp_path / "A")


INTERRUPTED = """
import signal, sys
from outcore._util.packages import imported

class Finder:
    found = []

    def find_spec(self, name, path=None, target=None):
        self.found.append(name)
        if len(self.found) == int(sys.argv[1]):
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Finder())
try:
    imported("numpy.random")
    print("lost")
except KeyboardInterrupt:
    print("stopped", "numpy.random.mtrand" in sys.modules)
"""


@pytest.mark.parametrize("number", ["1", "3", "8"])
def test_an_import_loses_no_ctrl_c(
    number: str, run_python: Callable[..., subprocess.Popen[str]]
) -> None:
    """A compiled module of NumPy makes another error of a `KeyboardInterrupt` in its import."""
    said, errors = run_python(INTERRUPTED, number).communicate(timeout=HANG_S)
    assert said == "stopped True\n", errors
