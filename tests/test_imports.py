"""Imports of each command: servers and file verbs must start quickly, without SciPy."""

import subprocess
import sys
from pathlib import Path

import pytest

import outcore
from outcore.cli import VERBS

SLOW = ("scipy", "matplotlib", "rich", "zarr", "fsspec", "asyncio")


def slow_modules_after(script: str, directory: Path) -> set[str]:
    """Run a script in a new process; return the modules of `SLOW` that it imported."""
    script += f"\nimport sys; print([name for name in {SLOW} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        cwd=directory, capture_output=True, text=True, check=True,
    )  # fmt: skip
    found: list[str] = eval(done.stdout.splitlines()[-1])
    return set(found)


def test_the_package_alone_needs_none_of_them(tmp_path: Path) -> None:
    assert slow_modules_after("import outcore, outcore.linalg, outcore.cli", tmp_path) == set()


def test_arrays_in_a_pool_need_none_of_them(tmp_path: Path) -> None:
    script = """
import numpy as np
import outcore as oc
with oc.Pool.embedded(["d"]) as pool:
    with oc.create_array(pool / "A", (30, 20), "f8") as A:
        A[...] = 1.0
    assert oc.open_array(pool / "A")[3, 4] == 1
"""
    assert slow_modules_after(script, tmp_path) == set()


def test_solvers_need_no_more_of_scipy_than_its_functions_in_c(tmp_path: Path) -> None:
    script = """
import sys
import numpy as np
import outcore as oc
from outcore.blas import blas, lapack
from outcore.linalg import gmres, lstsq, lu_factor, lu_solve
A = oc.from_array(np.eye(9) + np.tri(9), "A", progress=False)
assert abs(A @ lu_solve(lu_factor(A), np.ones(9)) - 1).max() < 1e-12
assert abs(A @ lstsq(A, np.ones(9))[0] - 1).max() < 1e-12
assert abs(A @ gmres(A, np.ones(9))[0] - 1).max() < 1e-4
oc.plan("svd", m=900, n=40, k=3)
assert "scipy.linalg" not in sys.modules
import scipy.linalg.cython_blas
import scipy.linalg.cython_lapack
assert scipy.linalg.cython_blas is blas.cython_blas
assert scipy.linalg.cython_lapack is lapack.cython_lapack
assert scipy.linalg.cython_blas.__spec__.name == "scipy.linalg.cython_blas"
"""
    assert slow_modules_after(script, tmp_path) == {"scipy"}


def test_verbs_that_do_not_compute_need_none_of_them(tmp_path: Path) -> None:
    """The first verb that imports one of them is named."""
    verbs = [
        "attr", "chmod", "chown", "cp", "df", "env", "find", "info", "ls", "mkdir", "mv", "pool",
        "rm", "serve", "stat", "verify",
    ]  # fmt: skip
    assert set(verbs) <= set(VERBS)
    script = f"""
import importlib, sys
for verb in {verbs}:
    importlib.import_module("outcore.cli." + verb)
    assert not set({SLOW}) & set(sys.modules), verb
"""
    assert slow_modules_after(script, tmp_path) == set()


def test_all_that_linalg_promises_is_there() -> None:
    assert set(outcore.linalg.__all__) <= set(dir(outcore.linalg))
    for name in outcore.linalg.__all__:
        found = getattr(outcore.linalg, name)
        assert found.__name__ == name
        assert found.__doc__
    with pytest.raises(AttributeError, match="lu_factorize"):
        _ = outcore.linalg.lu_factorize  # type: ignore[attr-defined]
