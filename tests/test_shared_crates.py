"""Each crate is compiled once for the Python module, the C library and the plugin of HDF5.

Cargo compiles a crate again for other features of it, or of a crate that it uses. That took three
minutes of processor time.
"""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def features(package: str) -> set[str]:
    """List the crates that a package needs, each with its features."""
    command = ["cargo", "tree", "--locked", "--package", package]
    form = ["--edges", "normal,build", "--prefix", "none", "--format", "{p} {f}", "--no-dedupe"]
    found = subprocess.run(
        [*command, *form], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    return set(found.splitlines())


@pytest.mark.parametrize("package", ["outcore-capi", "outcore-hdf5"])
def test_crates_have_the_features_of_the_python_module(package: str) -> None:
    of_module, mine = features("outcore-py"), features(package)
    names = {line.split()[0] for line in of_module}
    shared = {line for line in mine if line.split()[0] in names}
    assert len(shared) > 20
    assert shared <= of_module
