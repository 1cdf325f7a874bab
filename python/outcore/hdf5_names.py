"""``FILE::DATASET``: a name of a dataset in an HDF5 file.

A file may have ``::`` in its own name, and so may a dataset. The name of a file or directory that
is there always stands for that.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from outcore.errors import InvalidError

SEPARATOR = "::"
"""Between the name of an HDF5 file and that of a dataset in it."""

SUFFIXES = (".h5", ".hdf5", ".hdf", ".he5", ".nc")
_MAGIC = b"\x89HDF\r\n\x1a\n"
_FIRST_USER_BLOCK = 512


def is_named_hdf5(file: str) -> bool:
    """Whether the suffix of a name says that it is an HDF5 file."""
    return Path(file).suffix.lower() in SUFFIXES


def is_hdf5(path: Path) -> bool:
    """Whether a file is HDF5: its superblock may follow a user block of 512 bytes, 1024, ..."""
    with path.open("rb") as file:
        size, offset = os.fstat(file.fileno()).st_size, 0
        while offset < size:
            file.seek(offset)
            if file.read(len(_MAGIC)) == _MAGIC:
                return True
            offset = 2 * offset or _FIRST_USER_BLOCK
    return False


def beginning_of(path: Path) -> bytes:
    """Read the bytes by which formats are told apart."""
    with path.open("rb") as file:
        return file.read(len(_MAGIC))


def dataset_to_read(name: str) -> tuple[str, str] | None:
    """Split the name of an input into a file and a dataset; `None` if it names no dataset.

    The file is an HDF5 file that is there, the one with the longest name if there are several. If
    none is there, it is the first name with a suffix of HDF5, for the error that it is missing.
    """
    if os.path.lexists(name):
        return None
    found = list(_splits(name))
    for file, dataset in reversed(found):
        path = Path(file)
        refuse_special(path)
        if path.is_file() and (is_named_hdf5(file) or is_hdf5(path)):
            return file, dataset
    return next((each for each in found if is_named_hdf5(each[0])), None)


def dataset_to_write(name: str, *, is_hdf5: bool = False) -> tuple[str, str] | None:
    """Split the name of an output into a file and a dataset; `None` if it names no dataset.

    Only a file with a suffix of HDF5 has datasets, unless the caller knows that the output
    `is_hdf5`.
    """
    if os.path.lexists(name):
        return None
    found = list(_splits(name))
    named = [each for each in found if is_named_hdf5(each[0])]
    there = [each for each in named if Path(each[0]).is_file()]
    return next(iter(there[::-1] or named or (found if is_hdf5 else [])), None)


def refuse_special(path: Path) -> None:
    """Refuse what is neither a file nor a directory: opening it may wait for ever."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise InvalidError(
            f"{path} is a pipe, a device or the like, and is not read; write what it gives to a "
            "file, and name that"
        )


def _splits(name: str) -> Iterator[tuple[str, str]]:
    """Yield what is before and after each separator that is in no directory's own name."""
    above = name.rpartition("/")[0]
    start = len(above) + 1 if above and Path(above).is_dir() else 0
    at = name.find(SEPARATOR, start)
    while at >= 0:
        yield name[:at], name[at + len(SEPARATOR) :]
        at = name.find(SEPARATOR, at + 1)
