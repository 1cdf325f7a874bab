"""The Zarr v3 metadata of an array or group, and the default chunk shape.

Sources: Zarr core specification version 3; sharding codec version 1.0 (``sharding_indexed``).
``docs/format.md`` specifies the bytes.
"""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from outcore._core import Grid, Volume
from outcore._util.counts import is_count
from outcore.errors import CorruptError, InvalidError
from outcore.layout.disk_schema import DiskSchema

SLOT_ALIGN_BYTES = 4096
POOL_SLOT_ALIGN_BYTES = 64 << 10
TILE_BYTES = 4 << 20
"""Default size of a chunk: one disk request, and a good operand for a matrix product."""

MAX_TILE_BYTES = 64 << 20
MAX_TILES = 60_000
"""Larger matrices get larger tiles, so that one shard file holds them all."""

TALL = 8
"""Ratio of rows to columns from which a matrix gets chunks of whole rows."""

DIMENSIONS = "_ARRAY_DIMENSIONS"
"""Attribute with the names of dimensions in Zarr version 2, by xarray's convention:
https://docs.xarray.dev/en/stable/internals/zarr-encoding-spec.html"""

_FORMAT = 1
_TRANSPOSED = {"row-major": "column-major", "column-major": "row-major"}
"""Chunk orders whose transpose has another name."""

_ZARR_NAMES = {
    "bool": "bool",
    **{f"{kind}{bits}": f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
    **{name: name for name in ("float16", "float32", "float64", "complex64", "complex128")},
}


@dataclass(frozen=True)
class Metadata:
    """The content of an array's ``zarr.json``.

    ``chunks`` is the inner (unit of I/O) chunk shape. ``state`` is `None` for a complete array,
    otherwise ``"incomplete"`` or ``"consumed"``, with the reason in ``why``. ``column_places`` are
    the places on disk of the columns of chunks, if they are not in order. ``block_chunks`` is the
    number of chunks of a block along each dimension, if a ``disk_schema`` arranges chunks in
    blocks. Slots of chunks are padded to ``slot_align_bytes``. An array that is ``growing`` along
    its first dimension has separate shard files for each row of chunks, each with its own blocks.
    ``made`` identifies the call that made a complete array, for ``if_exists="open"``. ``access``
    has the words for which the layout was chosen, and their weights; a transpose has none. With
    ``is_transposed`` the object describes the transpose of the array in ``zarr.json``.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunks: tuple[int, ...]
    order: str = "C"
    chunk_order: str = "row-major"
    dims: tuple[str, ...] | None = None
    attributes: dict[str, Any] = field(default_factory=dict)
    state: str | None = None
    why: str = ""
    column_places: tuple[int, ...] | None = None
    slot_align_bytes: int = SLOT_ALIGN_BYTES
    growing: bool = False
    block_chunks: tuple[int, ...] | None = None
    disk_schema: DiskSchema | None = None
    made: dict[str, Any] | None = None
    access: dict[str, float] | None = None
    is_transposed: bool = False

    def transposed(self) -> "Metadata":
        """Return the metadata of the transpose of the array, in the same files."""
        return dataclasses.replace(
            self,
            shape=self.shape[::-1],
            chunks=self.chunks[::-1],
            order="C" if self.order == "F" else "F",
            chunk_order=_TRANSPOSED.get(self.chunk_order, self.chunk_order),
            dims=None if self.dims is None else self.dims[::-1],
            access=None,
            is_transposed=not self.is_transposed,
        )

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of chunks along each dimension."""
        return tuple(-(-n // c) for n, c in zip(self.shape, self.chunks, strict=True))

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def chunks_per_block(self) -> tuple[int, ...] | None:
        """Chunks of a block along each dimension, including the growing one."""
        if self.block_chunks is None:
            return None
        found = (1, *self.block_chunks) if self.growing else self.block_chunks
        return found[::-1] if self.is_transposed else found

    @property
    def block(self) -> tuple[int, ...] | None:
        """Elements of a block of chunks along each dimension; fewer at the array's edges."""
        if self.chunks_per_block is None:
            return None
        sizes = zip(self.chunks_per_block, self.chunks, self.shape, strict=True)
        return tuple(min(b * c, max(n, 1)) for b, c, n in sizes)

    @property
    def stripe_count(self) -> int | None:
        """Largest number of servers of the shard file; `None` for all."""
        if self.disk_schema is None or self.block_chunks is None:
            return None
        counts = self.counts[int(self.growing) :]
        blocks = math.prod(-(-n // b) for n, b in zip(counts, self.block_chunks, strict=True))
        return min(math.prod(self.disk_schema.mesh), blocks)

    def on(self, volume: Volume) -> "Metadata":
        """Return the same metadata with the chunk alignment of a volume."""
        return dataclasses.replace(self, slot_align_bytes=volume.slot_align_bytes)

    def grid(self) -> Grid:
        """Return the layout on disk."""
        if self.is_transposed:
            return self.transposed().grid().transposed()
        return Grid(
            list(self.shape),
            list(self.chunks),
            self.dtype.itemsize,
            self.order,
            self.chunk_order,
            self.slot_align_bytes,
            self.column_places,
            self.growing,
            self.block_chunks,
        )

    def to_json(self) -> bytes:
        """Return the text of ``zarr.json``."""
        codecs: list[dict[str, Any]] = []
        if self.order == "F" and len(self.shape) > 1:
            order = list(range(len(self.shape)))[::-1]
            codecs.append({"name": "transpose", "configuration": {"order": order}})
        codecs.append({"name": "bytes", "configuration": {"endian": "little"}})
        own: dict[str, Any] = {
            "format": _FORMAT,
            "order": self.order,
            "chunk_order": self.chunk_order,
        }
        if self.column_places is not None:
            own["column_places"] = list(self.column_places)
        if self.block_chunks is not None:
            own["block_chunks"] = list(self.block_chunks)
        if self.disk_schema is not None:
            own["disk_schema"] = self.disk_schema.to_json()
        if self.slot_align_bytes != SLOT_ALIGN_BYTES:
            own["slot_align_bytes"] = self.slot_align_bytes
        if self.growing:
            own["growing"] = True
        if self.state:
            own |= {"state": self.state, "why": self.why}
        if self.made is not None:
            own["made"] = self.made
        if self.access is not None:
            own["access"] = self.access
        document: dict[str, Any] = {
            "zarr_format": 3,
            "node_type": "array",
            "shape": list(self.shape),
            "data_type": _ZARR_NAMES[self.dtype.name],
            "chunk_grid": {
                "name": "regular",
                "configuration": {"chunk_shape": list(self.grid().shard_shape)},
            },
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": _zero(self.dtype),
            "codecs": [
                {
                    "name": "sharding_indexed",
                    "configuration": {
                        "chunk_shape": list(self.chunks),
                        "codecs": codecs,
                        "index_codecs": [
                            {"name": "bytes", "configuration": {"endian": "little"}},
                            {"name": "crc32c"},
                        ],
                        "index_location": "end",
                    },
                }
            ],
            "attributes": {**self.attributes, "outcore": own},
        }
        if self.dims is not None:
            document["dimension_names"] = list(self.dims)
        return json.dumps(document, indent=2).encode()


def _integers(given: list[int] | None) -> tuple[int, ...] | None:
    return None if given is None else tuple(int(number) for number in given)


def _weights(given: dict[str, float] | None) -> dict[str, float] | None:
    return None if given is None else {str(word): float(given[word]) for word in given}


def _zero(dtype: np.dtype[Any]) -> Any:
    if dtype.kind == "b":
        return False
    if dtype.kind == "c":
        return [0.0, 0.0]
    return 0.0 if dtype.kind == "f" else 0


def parse(text: bytes, path: str) -> Metadata | None:
    """Parse ``zarr.json``; `None` if it is not an array of outcore.

    Raises
    ------
    CorruptError
        If it cannot be parsed, or describes an impossible array of outcore.
    """
    try:
        document = json.loads(text)
        if document["zarr_format"] != 3:
            return None
        own = (document.get("attributes") or {}).get("outcore")
        if document["node_type"] != "array" or not isinstance(own, dict) or "format" not in own:
            return None
        if own["format"] != _FORMAT:
            raise CorruptError(
                f"{path} is of format {own['format']}, this outcore reads {_FORMAT}; update outcore"
            )
        attributes = dict(document["attributes"])
        del attributes["outcore"]
        dims = document.get("dimension_names")
        codec = document["codecs"][0]
        if codec["name"] != "sharding_indexed":
            return None
        shape = tuple(int(n) for n in document["shape"])
        growing = own.get("growing") is True
        schema = own.get("disk_schema")
        divided = shape[int(growing) :]
        metadata = Metadata(
            shape=shape,
            dtype=np.dtype(document["data_type"]),
            chunks=tuple(int(n) for n in codec["configuration"]["chunk_shape"]),
            order=own["order"],
            chunk_order=own["chunk_order"],
            dims=None if dims is None else tuple(dims),
            attributes=attributes,
            state=own.get("state"),
            why=own.get("why", ""),
            column_places=_integers(own.get("column_places")),
            slot_align_bytes=int(own.get("slot_align_bytes", SLOT_ALIGN_BYTES)),
            growing=growing,
            block_chunks=_integers(own.get("block_chunks")),
            disk_schema=None if schema is None else DiskSchema.from_json(schema, divided),
            made=None if own.get("made") is None else dict(own["made"]),
            access=_weights(own.get("access")),
        )
        # Attributes are easily copied from array to array; the layout identifies an array of
        # outcore.
        return metadata if _layout(document) == _layout(json.loads(metadata.to_json())) else None
    except (
        ValueError,
        KeyError,
        IndexError,
        TypeError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        if isinstance(error, CorruptError):
            raise
        raise CorruptError(
            f"{path}/zarr.json cannot be read ({error!r}); restore it from a copy, "
            "or create the array again"
        ) from error


def _layout(document: dict[str, Any]) -> list[Any]:
    """Return the parts of the metadata that locate elements, which other writers do not change."""
    configuration = document["codecs"][0]["configuration"]
    key = document["chunk_key_encoding"]
    key = {"name": key} if isinstance(key, str) else key
    return [
        document["chunk_grid"]["configuration"]["chunk_shape"],
        key["name"],
        (key.get("configuration") or {}).get("separator", "/"),
        document["fill_value"],
        *map(_codec, configuration["codecs"]),
        *map(_codec, configuration["index_codecs"]),
        configuration.get("index_location", "end"),
    ]


def _codec(codec: dict[str, Any]) -> list[Any]:
    """Return the name of a codec, and its effect on the elements of a chunk."""
    given = codec.get("configuration") or {}
    return [codec["name"], given.get("order"), given.get("endian", "little")]


def group_json(attributes: dict[str, Any]) -> bytes:
    """Return the ``zarr.json`` of a group."""
    document = {"zarr_format": 3, "node_type": "group", "attributes": attributes}
    return json.dumps(document, indent=2).encode()


def consolidated_json(
    attributes: dict[str, Any],
    members: Mapping[str, Metadata],
    others: Mapping[str, Any] | None = None,
) -> bytes:
    """Return the ``zarr.json`` of a group, with the metadata of its arrays inside.

    `others` are entries of other software.

    Zarr version 3 does not specify consolidated metadata yet. The result is in the form of
    zarr-python, and other readers may ignore it (``must_understand``).
    """
    document = json.loads(group_json(attributes))
    document["consolidated_metadata"] = {
        "kind": "inline",
        "must_understand": False,
        "metadata": {
            **(others or {}),
            **{name: json.loads(one.to_json()) for name, one in members.items()},
        },
    }
    return json.dumps(document, indent=2).encode()


def check_dtype(dtype: Any) -> np.dtype[Any]:
    """Return a NumPy number type that Zarr v3 has too, in little-endian order.

    Raises
    ------
    InvalidError
        If Zarr v3 has no such type.
    """
    try:
        found = np.dtype(dtype)
    except TypeError as error:
        raise InvalidError(f"{dtype!r} is not a NumPy type: {error}") from None
    if found.name not in _ZARR_NAMES:
        raise InvalidError(
            f"need a number type of NumPy, have {found}; use one of 'f8', 'c16', ..."
        )
    little: np.dtype[Any] = found.newbyteorder("<")
    return little


def check_shape(shape: Sequence[int], *, growing: bool = False) -> tuple[int, ...]:
    """Return the extents of an array as plain integers.

    Raises
    ------
    InvalidError
        If they are not integers of at least 1; a `growing` array has a first extent of 0.
    """
    try:
        extents = tuple(shape)
    except TypeError:
        raise InvalidError(_need_extents(shape)) from None
    if not extents:
        raise InvalidError("need an array of at least one dimension, have one without dimensions")
    if growing and extents[0] != 0:
        raise InvalidError(
            f"an array that grows begins empty: need a shape such as {(0, *extents)} or "
            f"{(0, *extents[1:])}, have {extents}"
        )
    fixed = extents[1:] if growing else extents
    if not all(map(is_count, fixed)):
        raise InvalidError(_need_extents(shape))
    return tuple(int(n) for n in extents)


def _need_extents(shape: object) -> str:
    return (
        f"a shape is integers of at least 1, have {shape!r}; leave out arrays without "
        "elements, or make one that grows with create_array(..., growing=True)"
    )


def default_chunks(shape: Sequence[int], itemsize: int, order: str) -> tuple[int, ...]:
    """Choose a chunk shape of about 4 MiB.

    - A matrix in F order gets the tiles of LU: 256 columns (128 for 16-byte elements) and as many
      rows as fill the tile; in C order rows and columns are swapped.
    - A matrix in C order of at least `TALL` times as many rows as columns gets whole rows, for
      methods that stream rows; in F order rows and columns are swapped.
    - A vector gets 4 MiB.
    - Arrays of more dimensions are cut into near cubes: see `_near_cubes`.
    """
    shape = [max(int(n), 1) for n in shape]
    if len(shape) == 2:
        slow, fast = shape if order == "C" else shape[::-1]
        if slow >= TALL * fast:
            lines = _whole_lines(slow, fast * itemsize)
            return (lines, fast) if order == "C" else (fast, lines)
        rows, columns = tile_shape(max(shape), itemsize, nbytes=math.prod(shape) * itemsize)
        if order == "C":
            rows, columns = columns, rows
        if shape[0] == shape[1]:
            return rows, columns
        return min(rows, shape[0]), min(columns, shape[1])
    if len(shape) == 1:
        return (min(shape[0], max(TILE_BYTES // itemsize, 1)),)
    return _near_cubes(shape, itemsize, order)


def _near_cubes(shape: list[int], itemsize: int, order: str) -> tuple[int, ...]:
    """Halve the longest side, rounding up, until a chunk has at most 4 MiB.

    Then no side is more than twice another, unless the array itself is that short. Chunks end at
    halves, quarters and so on of the array, where programs divide arrays too. Among sides of equal
    length the slower one is halved, which leaves longer runs.
    """
    most = _tile_bytes(math.prod(shape) * itemsize, TILE_BYTES)
    slow_to_fast = range(len(shape)) if order == "C" else range(len(shape))[::-1]
    chunk = list(shape)
    while max(chunk) > 1 and math.prod(chunk) * itemsize > most:
        longest = max(slow_to_fast, key=chunk.__getitem__)
        chunk[longest] = -(-chunk[longest] // 2)
    return tuple(chunk)


def _whole_lines(count: int, line_bytes: int) -> int:
    """Choose the number of rows, or columns, in a chunk of whole ones.

    They are spread evenly over the chunks. Consider the smallest group of lines that ends on a
    page. If it is small beside a chunk, the chunk is a multiple of such groups, which can then be
    read separately.
    """
    on_a_page = SLOT_ALIGN_BYTES // math.gcd(line_bytes, SLOT_ALIGN_BYTES)
    unit = on_a_page if on_a_page * line_bytes <= TILE_BYTES // 2 else 1
    if count <= unit:
        return count
    most = max(_tile_bytes(count * line_bytes, TILE_BYTES) // line_bytes // unit, 1) * unit
    return math.ceil(count / math.ceil(count / most) / unit) * unit


def _tile_bytes(nbytes: int, tile_bytes: int) -> int:
    """Double the size of a tile until the number of tiles is small enough."""
    while nbytes // tile_bytes > MAX_TILES and tile_bytes < MAX_TILE_BYTES:
        tile_bytes *= 2
    return tile_bytes


def full_columns(itemsize: int) -> int:
    """Return the columns of a tile with which a matrix product reaches nearly full speed."""
    return 128 if itemsize >= 16 else 256


def tile_shape(
    n: int,
    itemsize: int,
    tile_bytes: int = TILE_BYTES,
    most_columns: int | None = None,
    *,
    nbytes: int | None = None,
) -> tuple[int, int]:
    """Return the shape of a column-major tile of at most `tile_bytes`, for a matrix of order `n`.

    The rows are a multiple of the columns, so that every diagonal block lies in one tile. They are
    spread evenly, so that the last tile has little padding. Tiles are whole pages.

    `most_columns` is a power of 2; `None` means `full_columns`. `nbytes` is the size of the matrix,
    if it is not square.
    """
    tile_bytes = _tile_bytes(n * n * itemsize if nbytes is None else nbytes, tile_bytes)
    columns = min(most_columns or full_columns(itemsize), max(8, 1 << (n - 1).bit_length()))
    while columns > 8 and columns * columns * itemsize > tile_bytes:
        columns //= 2
    unit = max(columns, SLOT_ALIGN_BYTES // (columns * itemsize))
    most = max(tile_bytes // (itemsize * columns) // unit, 1) * unit
    tiles = math.ceil(n / most)
    return math.ceil(n / tiles / unit) * unit, columns
