"""NIfTI files as sources, read with nibabel: images of the brain, in column-major order."""

import dataclasses
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from outcore._util.packages import load
from outcore.convert.copy_plan import Cuts
from outcore.convert.sources import Flat, Sliced, Source, file_version
from outcore.errors import CorruptError, InvalidError
from outcore.layout.casting import Wanted

SUFFIXES = (".nii", ".nii.gz")


def is_named_nifti(name: str) -> bool:
    """Whether a name has the suffix of a NIfTI file."""
    return name.lower().endswith(SUFFIXES)


def open_nifti(path: Path, wanted: Wanted) -> Source:
    """Open the image of a file, scaled as nibabel does.

    In an uncompressed file, elements without scaling are read like those of a raw file. A
    compressed file is read once, from beginning to end.

    Raises
    ------
    InvalidError
        If the file is damaged.
    MissingPackageError
        If nibabel is not installed.
    """
    nibabel = load("nibabel", f"reading {path}")
    version = file_version(path)
    try:
        image = nibabel.load(path, mmap=False, keep_file_open=True)
    except (nibabel.filebasedimages.ImageFileError, *_DAMAGED) as error:
        raise InvalidError(f"{path} cannot be read as NIfTI: {error}") from None
    proxy = image.dataobj
    found: Source
    is_compressed = path.suffix.lower() == ".gz"
    if (proxy.slope, proxy.inter) == (1.0, 0.0) and not is_compressed:
        found = Flat(path, proxy.shape, proxy.dtype, "F", proxy.offset, wanted)
    else:
        found = Sliced(_Image(proxy, path), wanted)
        found.path = path
        found.find_version = lambda: version
        if is_compressed:
            # A step back in a compressed file decompresses it from the start, so blocks span whole
            # slices.
            cuts = (*(Cuts(n, n) for n in found.shape[:-1]), Cuts(found.shape[-1]))
            found.side = dataclasses.replace(found.side, cuts=cuts, loose=())
    found.attributes = {"affine": np.asarray(image.affine).tolist()}
    return found


_DAMAGED = (EOFError, OSError, ValueError, zlib.error)
"""Errors of nibabel for a file that is cut off or damaged."""


class _Image:
    """An image in a file, read with nibabel's scaling."""

    order = "F"

    def __init__(self, proxy: Any, path: Path) -> None:
        self._proxy, self._path = proxy, path
        self.shape = proxy.shape
        # The type depends on the type in the file and on the scaling.
        self.dtype = np.asarray(self[(slice(0, 1),) * len(self.shape)]).dtype

    def __getitem__(self, box: Any) -> Any:
        try:
            return self._proxy[box]
        except _DAMAGED as error:
            raise CorruptError(
                f"cannot decode {self._path}: {error}; restore it from a copy"
            ) from error
