"""Advice: the layout of an array that suits the reads of a program, with exact figures.

The cost of a layout is that of `outcore.rechunk`: the bytes that are read, and `REQUEST_BYTES` for
each request. It is fixed, so the same call gives the same advice on every machine.

`advise` estimates this cost for all chunk shapes whose sides are powers of two, whole sides of the
array or sides of the program's boxes. It counts the cost of the `_COUNTED` best ones, and of the
default, by a sample of the reads.
"""

import contextlib
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from outcore._util import budget
from outcore._util.counts import count_of
from outcore._util.sizes import format_bytes, parse_bytes
from outcore._util.streams import Box
from outcore.array.access import Access, Pattern, patterns_of, weights_of
from outcore.array.access_figures import AdvisedLayout, Sample
from outcore.errors import InvalidError
from outcore.layout.disk_chunks import with_disk_schema
from outcore.layout.disk_reads import REQUEST_BYTES
from outcore.layout.disk_schema import divide
from outcore.layout.zarr_format import (
    MAX_TILE_BYTES,
    MAX_TILES,
    POOL_SLOT_ALIGN_BYTES,
    SLOT_ALIGN_BYTES,
    TILE_BYTES,
    Metadata,
    check_dtype,
    check_shape,
    default_chunks,
)

MEMORY_BYTES = 256 << 20
"""Memory of the program's stream by default: the same on every machine."""

_ROW_MAJOR = {"C": "row-major", "F": "column-major"}
"""The default order of chunks, by the order of elements."""

_CURVES = ("hilbert", "z-order")
_LEAST_CHUNK_BYTES = 64 << 10
_MOST_SHAPES = 100_000
_COUNTED = 8


@dataclass(frozen=True)
class Advice:
    """The layout that suits the reads of a program, and the default one; print it to read it.

    Attributes
    ----------
    shape, dtype
        The array.
    access
        The words, and their weights.
    memory_bytes
        Memory of the program's stream.
    servers
        Number of I/O servers of the pool; `None` for a plain path.
    best, default
        The advised layout and that of `create_array` without options. Each has ``chunks``,
        ``order``, ``chunk_order``, ``disk_schema``, ``mesh``, ``cost``, and in ``figures`` for each
        word: ``access``, ``weight``; ``reads`` and ``bytes_wanted`` of a sample; the ``bytes_read``
        and ``requests`` of `Array.stream` for this sample on a plain path; ``places``, the runs of
        adjacent chunks on disk that each read touches, summed over the reads. In a pool also
        ``server_bytes``, the wanted bytes on each server; ``busiest_bytes``, those on the busiest
        server of each read, summed over the reads; ``imbalance``, their ratio to the mean.
    """

    shape: tuple[int, ...]
    dtype: str
    access: dict[str, float]
    memory_bytes: int
    servers: int | None
    best: AdvisedLayout
    default: AdvisedLayout

    @property
    def chunks(self) -> tuple[int, ...]:
        """Advised shape of a chunk."""
        return self.best.chunks

    @property
    def order(self) -> str:
        """Advised order of the elements in a chunk."""
        return self.best.order

    @property
    def chunk_order(self) -> str:
        """Advised order of the chunks on disk."""
        return self.best.chunk_order

    @property
    def disk_schema(self) -> str | None:
        """Advised `disk_schema` of `create_array`; it then replaces the chunks and both orders."""
        return self.best.disk_schema

    @property
    def mesh(self) -> tuple[int, ...] | None:
        """Servers along each dimension that `disk_schema` distributes; `None` without one."""
        return self.best.mesh

    def sample(self, word: str) -> list[Box]:
        """Return the boxes for which the figures of a word are exact, for `Array.stream`."""
        itemsize = np.dtype(self.dtype).itemsize
        [pattern] = patterns_of(word, self.shape, itemsize, _read_bytes(self.memory_bytes))
        return pattern.sample(self.shape)

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain values, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        extents = " x ".join(map(str, self.shape))
        head = "weight  read/wanted  requests   places" + "  imbalance" * bool(self.servers)
        width = max(len("for each read"), *map(len, self.access))
        lines = [
            f"advice: {extents} {self.dtype}, reads by streams of {format_bytes(self.memory_bytes)}"
            + (f", {self.servers} servers" if self.servers else "")
        ]
        for name, layout in (("best", self.best), ("default", self.default)):
            lines += [
                f"  {name}: {layout}; cost {layout.cost:.4g}",
                f"    {'for each read':<{width}}  {head}",
            ]
            for one in layout.figures:
                ratio = one.bytes_read / one.bytes_wanted
                lines.append(
                    f"    {one.access:<{width}}  {one.weight:>6.4g}  {ratio:>11.4g}  "
                    f"{one.requests / one.reads:>8.4g}  {one.places / one.reads:>7.4g}"
                    + (f"  {one.imbalance:>9.4g}" if self.servers else "")
                )
        return "\n".join(lines)


def advise(
    shape: Sequence[int] | int,
    dtype: npt.DTypeLike = "f8",
    *,
    access: Access,
    memory: int | str | None = None,
    servers: int | None = None,
) -> Advice:
    """Choose the layout of an array for the reads of a program, and predict these reads.

    Parameters
    ----------
    shape, dtype
        As in `create_array`.
    access
        How the program reads the array: a word, several words of equal weight, or a dictionary such
        as ``{"planes:0": 3, "columns": 1}``. A weight is the word's share of the bytes wanted.

        - ``"planes:D"``: one index along dimension D, all of the others.
        - ``"lines:D"``: all of dimension D, one index along the others. ``"rows"`` are the lines
          along the last dimension, ``"columns"`` those along the first.
        - The same with ``" in order"``, such as ``"rows in order"``: one after another from the
          first to the last, so a read contains as many as fit into an eighth of `memory`.
        - ``"boxes:64x64x64"``: boxes of this shape, anywhere.
        - ``"points"``: single elements, anywhere.
    memory
        Budget of the program's stream, by default 256 MiB, or two reads if that is more.
    servers
        Number of I/O servers of a pool; `None` for a plain path. A read then costs as much as if
        all servers had as many bytes as its busiest one. Disk schemas that divide the array into
        one block for each server are tried, too.

    Returns
    -------
    Advice
        The layout with the lowest cost, and the default one. The figures are exact for
        ``A.stream(advice.sample(word), memory=advice.memory_bytes)`` on a plain path. Servers send
        exactly the wanted bytes, and gaps of up to 32 bytes between them.

    Raises
    ------
    InvalidError
        If a word is unknown or does not fit the shape, or a weight is not a positive number.
    BudgetError
        If `memory` is less than two reads.
    """
    extents = check_shape((shape,) if isinstance(shape, int | np.integer) else shape)
    kind = check_dtype(dtype)
    if servers is not None:
        servers = count_of("servers=", servers)
    weights = weights_of(access)
    memory_bytes = MEMORY_BYTES if memory is None else parse_bytes(memory)
    largest = max(
        math.prod(pattern.sides) * kind.itemsize
        for pattern in patterns_of(weights, extents, kind.itemsize, _read_bytes(memory_bytes))
    )
    if memory is None:
        memory_bytes = max(memory_bytes, 2 * largest)
    elif 2 * largest > memory_bytes:
        raise budget.too_small(2 * largest, memory_bytes, "two reads")
    patterns = patterns_of(weights, extents, kind.itemsize, _read_bytes(memory_bytes))
    like = Metadata(
        extents,
        kind,
        default_chunks(extents, kind.itemsize, "C"),
        slot_align_bytes=SLOT_ALIGN_BYTES if servers is None else POOL_SLOT_ALIGN_BYTES,
    )
    sample = Sample(patterns, extents, memory_bytes, servers)
    default = sample.counted(like)
    layouts = _layouts(default, like, patterns, sample, servers)
    return Advice(
        shape=extents,
        dtype=kind.name,
        access={pattern.word: pattern.weight for pattern in patterns},
        memory_bytes=memory_bytes,
        servers=servers,
        best=min(layouts, key=lambda layout: (layout.cost, layout.distance)),
        default=default,
    )


def _read_bytes(memory_bytes: int) -> int:
    """Memory for one read in order, so that several are in flight."""
    return memory_bytes // 8


def _layouts(
    default: AdvisedLayout,
    like: Metadata,
    patterns: Sequence[Pattern],
    sample: Sample,
    servers: int | None,
) -> Iterator[AdvisedLayout]:
    """Yield the layouts to choose from, the default one first."""
    yield default
    candidates = _candidates(like, patterns)
    for metadata in [like, *candidates]:
        layout = default if metadata is like else sample.counted(metadata)
        for chunk_order in (metadata.chunk_order, *_ROW_MAJOR.values(), *_CURVES):
            yield sample.reordered(layout, replace(metadata, chunk_order=chunk_order))
    if servers is not None and servers > 1:
        for metadata in _divided(like, servers):
            yield sample.counted(metadata)


def _divided(like: Metadata, servers: int) -> Iterator[Metadata]:
    """Yield the disk schemas that give each server one block of the array."""
    sides = [[n for n in range(1, servers + 1) if servers % n == 0]] * len(like.shape)
    for mesh in itertools.product(*sides):
        if math.prod(mesh) == servers and all(
            m <= n for m, n in zip(mesh, like.shape, strict=True)
        ):
            rules = ["block" if m > 1 else "*" for m in mesh]
            along = [m for m in mesh if m > 1]
            # A schema needs an array of at most 4 TiB, and no more chunks than a file can have.
            with contextlib.suppress(InvalidError):
                divided = divide(like.shape, rules, None, along, servers)
                metadata = with_disk_schema(like, *divided, like.slot_align_bytes)
                # Figures are counted for chunks that begin on a block of the disk.
                if metadata.slot_align_bytes == like.slot_align_bytes:
                    yield metadata


def _candidates(default: Metadata, patterns: Sequence[Pattern]) -> list[Metadata]:
    """Return the layouts with the lowest estimated cost."""
    shape, itemsize = default.shape, default.dtype.itemsize
    chunks = _chunk_shapes(shape, itemsize, patterns)
    orders = "CF" if len(shape) > 1 else "C"
    costs = [_estimated(chunks, default, order, patterns) for order in orders]
    # Among equal costs, the largest chunk comes first.
    sizes = np.tile(chunks.prod(1), len(orders))
    ranked = np.lexsort((-sizes, np.concatenate(costs)))
    found = []
    for at in map(int, ranked[:_COUNTED]):
        order = orders[at // len(chunks)]
        chunk = tuple(map(int, chunks[at % len(chunks)]))
        found.append(replace(default, chunks=chunk, order=order, chunk_order=_ROW_MAJOR[order]))
    return found


def _chunk_shapes(
    shape: Sequence[int], itemsize: int, patterns: Sequence[Pattern]
) -> npt.NDArray[np.int64]:
    """Return chunk shapes to try, one a row: of 64 KiB to 4 MiB, if that is not too many chunks.

    Chunks may be larger if half of `MAX_TILES` chunks of 4 MiB do not hold the array, up to 64 MiB.
    If half of `MAX_TILES` of these do not hold it either, there may be twice as many as hold it.
    """
    sides = []
    for d, n in enumerate(shape):
        powers = (1 << bits for bits in range(n.bit_length()))
        sides.append(sorted({*powers, n, *(pattern.sides[d] for pattern in patterns)}))
    while math.prod(map(len, sides)) > _MOST_SHAPES:
        longest = max(sides, key=len)
        longest[:] = [*longest[:-1:2], longest[-1]]
    each = np.meshgrid(*map(np.array, sides), indexing="ij")
    chunks: npt.NDArray[np.int64] = np.stack(each, -1).reshape(-1, len(shape))
    sizes = chunks.prod(1) * itemsize
    counts = (-(-np.array(shape) // chunks)).prod(1)
    nbytes = math.prod(shape) * itemsize
    most = min(max(TILE_BYTES, 2 * nbytes // MAX_TILES), MAX_TILE_BYTES)
    least = min(_LEAST_CHUNK_BYTES, nbytes)
    fits = (least <= sizes) & (sizes <= most) & (counts <= max(MAX_TILES, 2 * nbytes // most))
    found: npt.NDArray[np.int64] = chunks[fits]
    return found


def _estimated(
    chunks: npt.NDArray[np.int64], default: Metadata, order: str, patterns: Sequence[Pattern]
) -> npt.NDArray[np.float64]:
    """Estimate the cost of each chunk shape, as if all parts of a read in its chunks were alike."""
    shape, itemsize = default.shape, default.dtype.itemsize
    cost = np.zeros(len(chunks))
    for pattern in patterns:
        times = np.ones(len(chunks))
        extent, stride, runs = np.full((3, len(chunks)), float(itemsize))
        runs[:] = 1
        for d in range(len(shape)) if order == "F" else range(len(shape))[::-1]:
            side, chunk = pattern.sides[d], chunks[:, d]
            touched = 1 + (side - 1) / chunk
            if pattern.is_in_order:
                touched = np.maximum(side / chunk, 1)
            touched = np.minimum(touched, -(-shape[d] // chunk))
            part = np.minimum(side / touched, chunk)
            is_joined = (runs == 1) & (stride - extent <= REQUEST_BYTES)
            extent = np.where(is_joined, extent + (part - 1) * stride, extent)
            runs = np.where(is_joined, runs, runs * part)
            stride = stride * chunk
            times *= touched
        requests = runs * np.maximum(extent / TILE_BYTES, 1)
        wanted = math.prod(pattern.sides) * itemsize
        cost += pattern.weight * times * (extent * runs + REQUEST_BYTES * requests) / wanted
    return cost
