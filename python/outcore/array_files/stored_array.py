"""The part of an `Array` that collectives and the block interface use: they lie below its class."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from outcore._core import Arena, ArrayFile
from outcore.errors import ClosedError
from outcore.layout.zarr_format import Metadata
from outcore.report.collective_report import CollectiveReport
from outcore.storage.volumes import AnyPath, Place


class StoredArray(Protocol):
    """An open array; `outcore.Array` documents the members."""

    metadata: Metadata
    mode: Literal["r", "r+"]
    collective_report: CollectiveReport | None

    @property
    def path(self) -> AnyPath:
        """Its directory."""

    @property
    def place(self) -> Place:
        """Its directory, as a volume and a name there."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each dimension."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the elements."""

    @property
    def chunks(self) -> tuple[int, ...]:
        """Elements of a chunk along each dimension."""

    @property
    def order(self) -> str:
        """Order of the elements in a chunk, ``"C"`` or ``"F"``."""

    @property
    def is_closed(self) -> bool:
        """Whether its files were released."""

    def open_file(self, arena: Arena, bounce_bytes: int, *, writable: bool = False) -> ArrayFile:
        """Open the shard files for a call with its own memory."""

    def count_writing(self, *, elsewhere: bool = False) -> None:
        """Raise the generation before the first write."""

    def refresh(self) -> "StoredArray":
        """Reload the metadata."""

    def mark(self, state: str | None, why: str = "") -> None:
        """Record on disk that the array is whole, incomplete or consumed."""


@dataclass
class NewArray:
    """A new array that nobody reads yet, such as a step before it counts.

    It has no ``zarr.json``, so there is nothing to mark. `make` creates its files: of several
    processes, the first one calls it before the transfer.
    """

    place: Place
    metadata: Metadata
    make: Callable[[], None]
    mode: Literal["r", "r+"] = "r+"
    is_closed: bool = False

    @property
    def path(self) -> AnyPath:
        """Its directory."""
        return self.place.path

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each dimension."""
        return self.metadata.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the elements."""
        return self.metadata.dtype

    @property
    def chunks(self) -> tuple[int, ...]:
        """Elements of a chunk along each dimension."""
        return self.metadata.chunks

    @property
    def order(self) -> str:
        """Order of the elements in a chunk, ``"C"`` or ``"F"``."""
        return self.metadata.order


def check_open(array: StoredArray | NewArray) -> None:
    """Refuse an array that was closed."""
    if array.is_closed:
        raise ClosedError(f"{array.path} was closed; open it again with oc.open_array")
