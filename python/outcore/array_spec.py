"""What the arrays of a group are: shape, type, names of dimensions, layout."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from outcore.create import DiskLayout, array_metadata
from outcore.disk_schema import MemorySchema
from outcore.distribution import Rules
from outcore.errors import InvalidError
from outcore.volumes import Place
from outcore.zarr_format import Metadata

CHECKPOINTS = "checkpoints"


@dataclass(frozen=True)
class ArraySpec:
    """An array of an `outcore.ArrayGroup`: what of it a time step or a checkpoint holds.

    Attributes
    ----------
    shape, dtype
        Of the whole array, at one time.
    dims
        Names of its dimensions, without that of time; by default made of the array's name.
    chunks, order, chunk_order, disk_schema, memory_schema, mesh, attributes
        As of `outcore.create_array`.
    """

    shape: Sequence[int] | int
    dtype: npt.DTypeLike = "f8"
    dims: Sequence[str] | None = None
    chunks: Sequence[int] | int | None = None
    order: str = "C"
    chunk_order: str | None = None
    disk_schema: Rules | None = None
    memory_schema: MemorySchema | None = None
    mesh: Sequence[int] | int | None = None
    attributes: dict[str, Any] = field(default_factory=dict)

    def metadata(self, name: str, time: str) -> Metadata:
        """Describe the array of its time steps, which has none yet."""
        shape = (self.shape,) if isinstance(self.shape, int) else tuple(self.shape)
        dims = self.dims or [f"{name}_{number}" for number in range(len(shape))]
        chunks = (self.chunks,) if isinstance(self.chunks, int) else self.chunks
        return array_metadata(
            (0, *shape), self.dtype, chunks, self.order, self.chunk_order, (time, *dims),
            self.attributes, growing=True,
        )  # fmt: skip

    def alone(self, where: Place, servers: int) -> Metadata:
        """Describe the array by itself, as `create_array` would make it over so many servers."""
        metadata = array_metadata(
            self.shape, self.dtype, self.chunks, self.order, self.chunk_order, self.dims,
            self.attributes,
        )  # fmt: skip
        return self.laid_out(where, metadata, servers)

    def laid_out(self, where: Place, metadata: Metadata, servers: int | None = None) -> Metadata:
        """Lay an array of it out where it is to be; over so many servers, or all of a pool."""
        layout = DiskLayout(self.disk_schema, self.memory_schema, self.mesh)
        is_chosen = bool(self.chunks or self.chunk_order or self.order != "C")
        return layout.of(where, metadata, is_chosen=is_chosen, servers=servers)


def group_metadata(specs: Mapping[str, ArraySpec], time: str) -> dict[str, Metadata]:
    """Describe the arrays of a group, and check that they can be in one.

    Raises
    ------
    InvalidError
        If a name cannot be that of an array, or a dimension has two lengths.
    """
    if not specs:
        raise InvalidError("a group needs at least one array; give {name: oc.ArraySpec(shape)}")
    found: dict[str, Metadata] = {}
    lengths: dict[str, int] = {}
    for name, spec in specs.items():
        _check_name(name, time)
        if not isinstance(spec, ArraySpec):
            raise InvalidError(f"need an oc.ArraySpec for {name!r}, have {type(spec).__name__}")
        metadata = found[name] = spec.metadata(name, time)
        if len(metadata.shape) < 2:
            raise InvalidError(f"{name!r} needs at least one dimension, have none; give it one")
        for dim, length in zip((metadata.dims or ())[1:], metadata.shape[1:], strict=True):
            if dim == time or lengths.setdefault(dim, length) != length:
                elsewhere = "it is time" if dim == time else str(lengths[dim])
                raise InvalidError(
                    f"the dimension {dim!r} of {name!r} has length {length}, elsewhere in the "
                    f"group {elsewhere}; give it another name in dims="
                )
    return found


def _check_name(name: object, time: str) -> None:
    is_name = isinstance(name, str) and name and "/" not in name and "\0" not in name
    if not is_name or str(name).startswith((".", "__")) or name in (time, CHECKPOINTS, "zarr.json"):
        raise InvalidError(
            f"an array of a group cannot be named {name!r}: names are without '/', do not begin "
            f"with '.' or '__', and are not {time!r}, {CHECKPOINTS!r} or 'zarr.json'"
        )
