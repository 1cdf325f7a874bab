"""Zarr arrays of zarr-python as sources."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from outcore._util.packages import is_a
from outcore._util.streams import Box, place_in
from outcore.convert.formats.zarr_chunks import ZarrChunks
from outcore.convert.sources import LIBRARY_BLOCKS, Sliced, file_version
from outcore.errors import CorruptError, InvalidError
from outcore.layout.casting import Wanted
from outcore.layout.zarr_format import DIMENSIONS
from outcore.storage.pool_path import PoolPath


class ZarrSource(Sliced):
    """An array of zarr-python. Threads read the chunks of the common kinds from their files."""

    def __init__(self, array: Any, wanted: Wanted) -> None:
        super().__init__(array, wanted)
        self._chunks: ZarrChunks | None = None
        root = getattr(array.store, "root", None)
        if root is not None:
            self.path = path = Path(root) / array.path
            # The chunks are opened when they are read, so the version is taken later.
            self.find_version = lambda: file_version(path)
            self._chunks = _chunks_of(array, path)
        if isinstance(inside := getattr(array.store, "path", None), PoolPath):
            self.path = inside / array.path
        self._describe(array)

    def _describe(self, array: Any) -> None:
        """Copy the dimension names and attributes."""
        attributes = dict(array.attrs.asdict())
        dims = getattr(array.metadata, "dimension_names", None)
        if array.metadata.zarr_format == 2:
            # xarray's place for dimension names in Zarr v2.
            dims = attributes.get(DIMENSIONS)
            if not isinstance(dims, list) or len(dims) != array.ndim:
                dims = None
            elif all(isinstance(name, str) for name in dims):
                del attributes[DIMENSIONS]
        if dims and all(isinstance(name, str) for name in dims):
            self.dims = tuple(dims)
        # This attribute describes the disk layout of the array's own source.
        attributes.pop("outcore", None)
        self.attributes = attributes

    def _fetch(self, box: Box, out: npt.NDArray[Any]) -> None:
        chunks = self._chunks
        if chunks is None:
            super()._fetch(box, out)
            return

        def read(part: Box) -> None:
            into = out[place_in(part, box)]
            try:
                found = chunks.read(part)
            except CorruptError:
                raise
            except Exception:
                # It knows chunks that were never written, and its errors for others are better.
                self._read(part, into)
            else:
                self._convert(found, into, part)

        try:
            chunks.each(read, box, LIBRARY_BLOCKS * max(out.nbytes, chunks.chunk_bytes))
        except InvalidError:
            # If several elements do not fit the type, the message names the first one.
            super()._fetch(box, out)
            raise


def _chunks_of(array: Any, path: Path) -> ZarrChunks | None:
    """Return the chunks of an array in a directory, if it is of a common kind."""
    # A class of the user may read otherwise.
    is_plain = is_a(array.store, "zarr.storage", "LocalStore")
    is_plain = is_plain and type(array.store).__module__.startswith("zarr.")
    found = ZarrChunks.of(path) if is_plain else None
    if found is None:
        return None
    stated = array.shape, array.chunks, np.dtype(array.dtype).newbyteorder("=")
    is_same = stated == (found.shape, found.chunks, found.dtype.newbyteorder("="))
    return found if is_same else None
