"""SciPy's BLAS and LAPACK without its package ``scipy.linalg``.

That package imports most of NumPy, in a third of the time in which a short command runs.
"""

import functools
import importlib.util
import sys
from importlib.machinery import PathFinder
from typing import Any

from outcore._util.packages import imported
from outcore._util.signals import signals_held


@functools.cache
def exported(name: str) -> Any:
    """Return the module ``scipy.linalg.NAME``, with pointers to C functions.

    It loads OpenBLAS, which picks its kernels then: call `blas_choice.choose` before.
    """
    whole = f"scipy.linalg.{name}"
    folders = [f"{folder}/linalg" for folder in imported("scipy").__path__]
    spec = PathFinder.find_spec(whole, folders)
    if whole in sys.modules or spec is None or spec.loader is None:
        return imported(whole)
    module = importlib.util.module_from_spec(spec)
    with signals_held():
        spec.loader.exec_module(module)
    # The module has added itself. A later import must also make it an attribute of the package.
    sys.modules.pop(whole, None)
    return module
