"""Arrays larger than memory, and solvers that run out of core at in-core speed.

Source: the README has a quick start; ``docs/`` has the formats, semantics and how-to pages.
``__init__.pyi`` lists the contents, which are imported on first use: a server, or a verb of the
command line, needs a few of them.
"""

import sys

import lazy_loader

if sys.platform != "linux":
    raise ImportError("outcore runs on Linux only: it needs O_DIRECT, fallocate and flock")

from outcore.blas import blas_choice

# OpenBLAS picks its kernels when it is loaded; the imports below load it.
blas_choice.choose()

# `errors` needs NumPy, and `linalg` says how arrays on disk are multiplied.
from outcore import errors, linalg  # noqa: E402, F401
from outcore.version import VERSION  # noqa: E402

__getattr__, _, __all__ = lazy_loader.attach_stub(__name__, __file__)
__version__ = VERSION


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
