"""Packages that outcore can do without: imported when something needs them."""

import importlib
import sys
from typing import Any

from outcore.errors import MissingPackageError


def load(name: str, purpose: str) -> Any:
    """Import a package that `purpose` needs.

    Raises
    ------
    MissingPackageError
        If it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != name.split(".")[0]:
            raise
        package = name.split(".")[0]
        raise MissingPackageError(
            f"{purpose} needs the package {package}, which is not installed; "
            f"install it with: pip install {package}"
        ) from None


def is_a(thing: object, package: str, name: str) -> bool:
    """Whether a thing is an instance of a package's class; one of no loaded package is not."""
    module = sys.modules.get(package)
    kind = getattr(module, name, None)
    return isinstance(kind, type) and isinstance(thing, kind)
