"""NIfTI files as sources, read with nibabel: images of the brain, in column-major order."""

import contextlib
import dataclasses
import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from outcore._util.packages import load
from outcore.convert.copy_plan import Cuts
from outcore.convert.sources import Flat, Sliced, Source, file_version
from outcore.errors import CorruptError
from outcore.layout.casting import Wanted
from outcore.layout.slicing import opening

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
    with opening(path, "NIfTI"):
        image = nibabel.load(path, mmap=False, keep_file_open=True)
    with contextlib.ExitStack() as opened:
        stream = None
        if path.suffix.lower() == ".gz":
            stream = opened.enter_context(gzip.open(path))
            with opening(path, "NIfTI"):
                image = type(image).from_file_map({"image": nibabel.FileHolder(fileobj=stream)})
        found = _found(image, path, wanted, stream, version)
        # The source closes the stream from now on.
        opened.pop_all()
    found.attributes = {"affine": np.asarray(image.affine).tolist()}
    return found


def _found(
    image: Any, path: Path, wanted: Wanted, stream: gzip.GzipFile | None, version: Any
) -> Source:
    """Return the source of an image; a compressed one is read from `stream`."""
    proxy = image.dataobj
    if (proxy.slope, proxy.inter) == (1.0, 0.0) and stream is None:
        return Flat(path, proxy.shape, proxy.dtype, "F", proxy.offset, wanted)
    shown = _Image(proxy, path)
    found = Sliced(shown, wanted) if stream is None else _Compressed(shown, wanted, stream)
    found.path = path
    found.find_version = lambda: version
    if stream is not None:
        # A step back in a compressed file decompresses it from the start, so blocks span whole
        # slices.
        cuts = (*(Cuts(n, n) for n in found.shape[:-1]), Cuts(found.shape[-1]))
        found.side = dataclasses.replace(found.side, cuts=cuts, loose=())
    return found


_PIECE_BYTES = 1 << 20

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
        with _decoding(self._path):
            return self._proxy[box]


class _Compressed(Sliced):
    """An image in a compressed file, whose checksum follows its elements."""

    def __init__(self, image: _Image, wanted: Wanted, stream: gzip.GzipFile) -> None:
        super().__init__(image, wanted)
        self.keep(stream)
        self._stream = stream

    def check_end(self) -> None:
        """Read the rest of the file; gzip then compares the checksum.

        Raises
        ------
        CorruptError
            If the checksum differs.
        """
        with _decoding(self.path):
            while self._stream.read(_PIECE_BYTES):
                pass


@contextmanager
def _decoding(path: object) -> Iterator[None]:
    try:
        yield
    except _DAMAGED as error:
        raise CorruptError(f"cannot decode {path}: {error}; restore it from a copy") from error
