"""Specification of an array in a group: shape, type, dimension names, layout."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from outcore.array.access import Access
from outcore.array.create import DiskLayout, array_metadata
from outcore.errors import InvalidError
from outcore.layout.disk_schema import MemorySchema
from outcore.layout.distribution import Rules
from outcore.layout.zarr_format import Metadata
from outcore.storage.pool_path import is_text
from outcore.storage.volumes import Place

CHECKPOINTS = "checkpoints"


@dataclass(frozen=True)
class ArraySpec:
    """An array of an `outcore.ArrayGroup`, as one time step or checkpoint contains it.

    Attributes
    ----------
    shape, dtype
        Shape and type of the whole array in one step.
    dims
        Names of its dimensions, without the time dimension; by default derived from the array's
        name.
    chunks, order, chunk_order, disk_schema, memory_schema, mesh, access, attributes
        As for `outcore.create_array`.
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
    access: Access | None = None
    attributes: dict[str, Any] = field(default_factory=dict)

    def metadata(self, name: str, time: str) -> Metadata:
        """Describe the array of time steps, which has no steps yet."""
        shape = _extents(self.shape)
        dims = self.dims or [f"{name}_{number}" for number in range(len(shape))]
        return array_metadata(
            (0, *shape), self.dtype, self.chunks, self.order, self.chunk_order, (time, *dims),
            self.attributes, growing=True,
        )  # fmt: skip

    def alone(self, where: Place, servers: int) -> Metadata:
        """Describe the array as `create_array` would make it on that many servers."""
        metadata = array_metadata(
            self.shape, self.dtype, self.chunks, self.order, self.chunk_order, self.dims,
            self.attributes,
        )  # fmt: skip
        return self.laid_out(where, metadata, servers)

    def laid_out(self, where: Place, metadata: Metadata, servers: int | None = None) -> Metadata:
        """Add the disk layout at `where` to the metadata, for `servers` or the whole pool."""
        layout = DiskLayout(self.disk_schema, self.memory_schema, self.mesh, self.access)
        is_chosen = bool(self.chunks or self.chunk_order or self.order != "C")
        return layout.of(where, metadata, is_chosen=is_chosen, servers=servers)


def group_metadata(specs: Mapping[str, ArraySpec], time: str) -> dict[str, Metadata]:
    """Describe the arrays of a group, and check that they can form one.

    Raises
    ------
    InvalidError
        If a name is not valid for an array, or a dimension has two lengths.
    """
    if not isinstance(specs, Mapping):
        raise InvalidError(
            f"need the arrays of a group by their names, have {type(specs).__name__}; give {{name: "
            "oc.ArraySpec(shape)}"
        )
    if not specs:
        raise InvalidError("a group needs at least one array; give {name: oc.ArraySpec(shape)}")
    _check_name(time, "the dimension of the steps of a group")
    found: dict[str, Metadata] = {}
    lengths: dict[str, int] = {}
    for name, spec in specs.items():
        _check_name(name, "an array of a group", time)
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


def _extents(shape: Any) -> tuple[Any, ...]:
    """Treat a single number as a one-dimensional shape."""
    return tuple(shape) if isinstance(shape, Iterable) else (shape,)


def _check_name(name: object, what: str, *others: str) -> None:
    """Refuse a name that an array in a group's directory cannot have."""
    is_name = isinstance(name, str) and name and "/" not in name and is_text(name)
    taken = (*others, CHECKPOINTS, "zarr.json")
    if not is_name or str(name).startswith((".", "__")) or name in taken:
        raise InvalidError(
            f"{what} cannot be named {name!r}: names are UTF-8 without '/', do not begin with '.' "
            f"or '__', and are not {', '.join(map(repr, taken[:-1]))} or {taken[-1]!r}"
        )
