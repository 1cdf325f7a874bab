"""``FILE::DATASET``: names of datasets in HDF5 files.

Both file names and dataset names may contain ``::``. The name of an existing file or directory
always means that file or directory.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from outcore.errors import InvalidError

SEPARATOR = "::"
"""Separator between the name of an HDF5 file and the name of a dataset in it."""

SUFFIXES = (".h5", ".hdf5", ".hdf", ".he5", ".nc")
_MAGIC = b"\x89HDF\r\n\x1a\n"
_FIRST_USER_BLOCK = 512


def is_named_hdf5(file: str) -> bool:
    """Whether a name has the suffix of an HDF5 file."""
    return Path(file).suffix.lower() in SUFFIXES


def is_hdf5(path: Path) -> bool:
    """Whether a file is HDF5: its superblock may follow a user block of 512, 1024, ... bytes."""
    with path.open("rb") as file:
        size, offset = os.fstat(file.fileno()).st_size, 0
        while offset < size:
            file.seek(offset)
            if file.read(len(_MAGIC)) == _MAGIC:
                return True
            offset = 2 * offset or _FIRST_USER_BLOCK
    return False


def beginning_of(path: Path) -> bytes:
    """Read the first bytes of a file, which identify its format."""
    with path.open("rb") as file:
        return file.read(len(_MAGIC))


def dataset_to_read(name: str) -> tuple[str, str] | None:
    """Split the name of an input into a file and a dataset; `None` if it names no dataset.

    The file is an existing HDF5 file, with the longest name if there are several. If none exists,
    it is the first name with an HDF5 suffix, so that the caller's error names the missing file.
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

    Only a file with an HDF5 suffix has datasets, unless the caller knows that the output `is_hdf5`.
    """
    if os.path.lexists(name):
        return None
    found = list(_splits(name))
    named = [each for each in found if is_named_hdf5(each[0])]
    there = [each for each in named if Path(each[0]).is_file()]
    return next(iter(there[::-1] or named or (found if is_hdf5 else [])), None)


def refuse_special(path: Path) -> None:
    """Refuse a path that is neither a file nor a directory: opening it may block for ever."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise InvalidError(
            f"{path} is a pipe, a device or the like, and is not read; write its output to a "
            "file, and name that"
        )


def _splits(name: str) -> Iterator[tuple[str, str]]:
    """Yield the parts before and after each separator, except in names of existing directories."""
    above = name.rpartition("/")[0]
    start = len(above) + 1 if above and Path(above).is_dir() else 0
    at = name.find(SEPARATOR, start)
    while at >= 0:
        yield name[:at], name[at + len(SEPARATOR) :]
        at = name.find(SEPARATOR, at + 1)
