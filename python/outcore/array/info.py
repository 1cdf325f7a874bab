"""Facts about an array that need no read of its elements."""

from dataclasses import dataclass
from typing import Any

from outcore._util.sizes import format_bytes
from outcore.array_files.placement import Placement
from outcore.layout.disk_schema import DiskSchema


@dataclass(frozen=True)
class Info:
    """Facts about an array that need no read of its elements. Sizes in bytes.

    Attributes
    ----------
    path, shape, dtype, chunks, order, chunk_order, dims, attributes
        As in `outcore.Array`; ``dtype`` is NumPy's name of the type.
    nbytes, file_bytes, shards
        Size of the elements; size of the shard files, including padding; number of shard files.
    generation
        Number of times that the array was opened and written to, including its creation.
    state
        ``"whole"``, ``"incomplete"`` or ``"consumed"``.
    block, disk_schema
        Elements of a block along each dimension, and the distribution of the blocks, for an array
        with a disk schema; else `None`.
    placement
        Share of each server, for an array in a pool; else `None`.
    access
        Words and weights for which the layout was chosen; else `None`.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    chunks: tuple[int, ...]
    order: str
    chunk_order: str
    dims: tuple[str, ...] | None
    nbytes: int
    file_bytes: int
    shards: int
    generation: int
    state: str
    attributes: dict[str, Any]
    block: tuple[int, ...] | None = None
    disk_schema: DiskSchema | None = None
    placement: Placement | None = None
    access: dict[str, float] | None = None

    def __str__(self) -> str:
        chunk_order = "in blocks" if self.block else self.chunk_order
        rows = {
            "array": self.path,
            "shape": f"{self.shape} {self.dtype}, {format_bytes(self.nbytes)}",
            "chunks": f"{self.chunks}, elements in {self.order} order, chunks {chunk_order}",
            "disk schema": f"{self.disk_schema}, blocks of {self.block}"
            if self.disk_schema
            else "",
            "access": ", ".join(
                f"{word} ({weight:g})" for word, weight in (self.access or {}).items()
            ),
            "dims": ", ".join(self.dims) if self.dims else "",
            "files": f"{self.shards} of {format_bytes(self.file_bytes / max(self.shards, 1))}",
            "generation": str(self.generation),
            "state": self.state,
        }
        if self.placement is not None:
            rows["servers"] = str(self.placement)
        return "\n".join(f"{name:<11} {text}" for name, text in rows.items() if text)
