"""Packages that are imported when a call needs them: optional ones, and slow ones."""

import importlib
import re
import sys
from typing import Any

from outcore._util.signals import signals_held
from outcore.errors import MissingPackageError

OLDEST = {
    "dask": "2025.1",
    "fsspec": "2024.12",
    "h5py": "3.11",
    "mpi4py": "4.1",
    "nibabel": "5.3",
    "pyarrow": "17.0",
    "tifffile": "2025.5.21",
    "xarray": "2024.10",
    "zarr": "3.1",
}
"""The oldest supported version of each package, the same as in ``pyproject.toml``."""


def imported(name: str) -> Any:
    """Import a module that is always installed but slow, such as ``scipy.linalg``.

    Ctrl-C and SIGTERM wait for the end of the import. The compiled modules of `numpy.random`, which
    ``scipy.linalg`` imports too, lose a `KeyboardInterrupt` or raise `ImportError` instead of it.
    """
    with signals_held():
        return importlib.import_module(name)


def load(name: str, purpose: str) -> Any:
    """Import an optional package, or a module of it, for `purpose`.

    Raises
    ------
    MissingPackageError
        If the package is not installed, or too old.
    """
    require(name.split(".")[0], purpose)
    return _import(name, purpose)


def require(package: str, purpose: str) -> None:
    """Import an optional package for `purpose`, and check its version.

    Raises
    ------
    MissingPackageError
        If the package is not installed, or too old.
    """
    found = getattr(_import(package, purpose), "__version__", None)
    oldest = OLDEST.get(package)
    if oldest is None or found is None or _numbers(found) >= _numbers(oldest):
        return
    raise MissingPackageError(
        f"{purpose} needs the package {package}, version {oldest} or later, have {found}; "
        f"install it with: pip install '{package}>={oldest}'"
    )


def require_that_of(thing: object, purpose: str) -> None:
    """Check the version of an object's package, if the package is in `OLDEST`.

    Raises
    ------
    MissingPackageError
        If the package is too old.
    """
    package = type(thing).__module__.split(".")[0]
    if package in OLDEST:
        require(package, purpose)


def _numbers(version: str) -> tuple[int, ...]:
    """Parse the numbers at the start of a version: 3.1.0rc1 is (3, 1, 0)."""
    found = re.match(r"[0-9]+(\.[0-9]+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()


def _import(name: str, purpose: str) -> Any:
    try:
        return imported(name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != name.split(".")[0]:
            raise
        package = name.split(".")[0]
        wanted = f"'{package}>={OLDEST[package]}'" if package in OLDEST else package
        raise MissingPackageError(
            f"{purpose} needs the package {package}, which is not installed; "
            f"install it with: pip install {wanted}"
        ) from None


def is_a(thing: object, package: str, name: str) -> bool:
    """Whether an object is an instance of a package's class, without importing the package."""
    module = sys.modules.get(package)
    kind = getattr(module, name, None)
    return isinstance(kind, type) and isinstance(thing, kind)
