"""TIFF files as sources: tifffile decodes their strips, tiles and pages one by one."""

from pathlib import Path
from typing import Any

import numpy as np

from outcore._util.packages import load, require
from outcore.convert.sources import Flat, Sliced, Source, file_version
from outcore.errors import InvalidError, MissingPackageError
from outcore.layout.casting import Wanted
from outcore.layout.slicing import opening

SUFFIXES = (".tif", ".tiff", ".btf")
MAGICS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
"""First bytes of TIFF and BigTIFF files, little-endian and big-endian."""


def open_tiff(path: Path, wanted: Wanted) -> Source:
    """Open a file of one image, stack or volume.

    A file whose elements are contiguous is read like a raw file. Other files also need zarr, with
    which tifffile reads chunks.

    Raises
    ------
    InvalidError
        If the file is damaged, or holds several images of different shapes.
    MissingPackageError
        If tifffile, or a package that decodes the file, is not installed.
    """
    purpose = f"reading {path}"
    tifffile = load("tifffile", purpose)
    version = file_version(path)
    with opening(path, "TIFF"):
        file = tifffile.TiffFile(path)
    try:
        with opening(path, "TIFF"):
            return _open_series(tifffile, file, path, wanted, version)
    except BaseException:
        file.close()
        raise


def _open_series(
    tifffile: Any, file: Any, path: Path, wanted: Wanted, version: dict[str, Any] | None
) -> Source:
    series = file.series
    if len(series) != 1:
        shapes = ", ".join(str(each.shape) for each in series[:5])
        raise InvalidError(
            f"need one image or stack in {path}, have {len(series)}, of shapes {shapes}; pass "
            "zarr.open_array(tifffile.imread(path, series=NUMBER, aszarr=True))"
        )
    [only] = series
    if only.keyframe.dtype is None:
        raise ValueError("its elements have a type that NumPy lacks")
    found: Source
    if only.dataoffset is not None and not only.is_multifile:
        dtype = np.dtype(only.dtype).newbyteorder(file.byteorder)
        file.close()
        found = Flat(path, only.shape, dtype, "C", only.dataoffset, wanted)
    else:
        _check_pages(only)
        _check_codec(tifffile, only.keyframe, path)
        require("zarr", f"reading {path}, whose elements are compressed or scattered,")
        array = load("zarr", f"reading {path}").open_array(only.aszarr(level=0), mode="r")
        found = Sliced(array, wanted)
        found.path = path
        # The other files may change while this one stays the same.
        found.find_version = lambda: None if only.is_multifile else version
        found.keep(file)
    if len(set(only.axes)) == len(only.axes) and "Q" not in only.axes:  # Q is an unknown axis
        found.dims = tuple(only.axes)
    return found


def _check_pages(series: Any) -> None:
    """Refuse elements that tifffile's arrays would show as zeros.

    This reads the header of every page. A contiguous series has `dataoffset`, which tifffile finds
    without that.
    """
    # A page that is `None` has no elements in the file, and reads as zeros.
    if any(page is not None and not page.dataoffsets for page in series.pages):
        raise ValueError("a page has no offsets of its elements")


def _check_codec(tifffile: Any, page: Any, path: Path) -> None:
    """Refuse an image whose codec needs a package that is not installed."""
    try:
        tifffile.TIFF.DECOMPRESSORS[page.compression]
        tifffile.TIFF.UNPREDICTORS[page.predictor]
    except KeyError:
        raise MissingPackageError(
            f"decoding {path}, of compression {page.compression.name}, needs the package "
            "imagecodecs; install it with: pip install imagecodecs"
        ) from None
