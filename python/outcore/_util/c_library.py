"""The C library inside the package, and the flags that a C compiler needs for it."""

import shlex
from pathlib import Path

from outcore.errors import NotFoundError

_DIRECTORY = Path(__file__).parent.parent / "_c"
_FILE = "liboutcore.so.0"
"""The file has the name by which programs load the library: a wheel has no symbolic links."""


def _directory(name: str) -> str:
    if not (_DIRECTORY / "lib" / _FILE).exists():
        raise NotFoundError(
            f"need the C library {_FILE}, have none in {_DIRECTORY}; install outcore from a wheel, "
            "or run 'make setup' in its source"
        )
    return str(_DIRECTORY / name)


def cflags() -> str:
    """Return the flags of a compiler that finds the header.

    Raises
    ------
    NotFoundError
        If outcore was installed without the library.
    """
    return shlex.join([f"-I{_directory('include')}"])


def libs() -> str:
    """Return the flags of a linker. The program then finds the library where it is now.

    Raises
    ------
    NotFoundError
        If outcore was installed without the library.
    """
    directory = _directory("lib")
    return shlex.join([f"-L{directory}", f"-l:{_FILE}", f"-Wl,-rpath,{directory}"])


def pkgconfigdir() -> str:
    """Return the directory of ``outcore.pc``, for the variable ``PKG_CONFIG_PATH``.

    Raises
    ------
    NotFoundError
        If outcore was installed without the library.
    """
    return _directory("lib/pkgconfig")
