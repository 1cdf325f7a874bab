"""Predict the passes, bytes, requests, disk space and time of a re-layout before it starts."""

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy.typing as npt

from outcore._util import budget
from outcore._util.if_exists import IfExists, check_if_exists, overwrites
from outcore._util.sizes import format_bytes, format_seconds
from outcore.array.create import DiskLayout, array_metadata
from outcore.convert.copy_plan import Pass
from outcore.convert.copying import array_between, order_of_blocks
from outcore.convert.export import Named
from outcore.convert.formats.zarr_codecs import Codec
from outcore.convert.open_source import open_source
from outcore.convert.rechunk import Permuted, check_no_codec, export_to, permuted
from outcore.convert.rechunk_plan import End, array_end, array_passes, source_end
from outcore.convert.sources import Source, Stored, fast_to_slow
from outcore.errors import DiskFullError
from outcore.layout.box_traffic import BoxTraffic, Traffic
from outcore.layout.casting import Casting
from outcore.layout.disk_reads import DiskReads
from outcore.layout.distribution import Rules
from outcore.layout.zarr_format import Metadata
from outcore.machine.rates import Rates, stored_or_measured
from outcore.storage.volumes import PathLike, place, room_at

Dims: TypeAlias = tuple[int, ...]

MOST_KINDS = 5000
"""Largest number of different parts of chunks that a plan counts one by one, in about a second."""


@dataclass(frozen=True)
class RelayoutPlan:
    """Resources and time of `outcore.rechunk`; print it to read it. Sizes in bytes.

    Attributes
    ----------
    source, path, shape, dtype, chunks
        The source, and the new array.
    passes, blocks, between
        Number of passes, shape of the blocks of each, and chunk shapes of the arrays between them.
    memory_bytes, peak_memory_bytes
        The budget, and the largest amount that the call will use of it.
    disk_bytes, between_bytes
        Disk space of the new array, before compression, and the most beside it for an array between
        two passes.
    bytes_read, reads, bytes_written, writes
        Bytes and requests of all passes. They are exact on plain paths if `is_exact` is true; a
        pool gathers several requests in one message.
    is_exact
        Whether bytes and requests are counted one by one. Otherwise they are estimates: for sources
        and targets in other formats, and for chunks and blocks that meet in too many ways.
    format, is_compressed
        Format of the new array, `None` for an array of outcore; whether a codec compresses it.
    seconds
        Time at the measured rates of the disk of the new array.
    notes
        Remarks for the reader.
    """

    source: str
    path: str
    shape: tuple[int, ...]
    dtype: str
    chunks: tuple[int, ...]
    passes: int
    blocks: tuple[tuple[int, ...], ...]
    between: tuple[tuple[int, ...], ...]
    memory_bytes: int
    peak_memory_bytes: int
    disk_bytes: int
    between_bytes: int
    bytes_read: int
    reads: int
    bytes_written: int
    writes: int
    is_exact: bool
    format: str | None
    is_compressed: bool
    seconds: float
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain values, for JSON."""
        return asdict(self)

    def validate(self, if_exists: IfExists = "error") -> "RelayoutPlan":
        """Return the plan if the disk has room now.

        `if_exists` is that of the call. With ``"overwrite"`` the room of an array of outcore that
        it replaces counts as free; files of other formats are written beside the old ones. With
        ``"open"`` an array that exists needs no room. For a compressed array this does not check
        the room, which is not known.

        Raises
        ------
        DiskFullError
            If it has too little.
        InvalidError
            If the call refuses `if_exists`.
        """
        need = self.disk_bytes + self.between_bytes
        if self.format is None:
            check_room(self.path, need, if_exists)
            return self
        overwrites(if_exists)  # refuses other words
        if not self.is_compressed:
            check_room(self.path, need, "error")
        return self

    def __str__(self) -> str:
        about = "" if self.is_exact else "about "
        shape = " x ".join(map(str, self.shape))
        rows = [
            ("passes", str(self.passes)),
            ("blocks", ", then ".join(" x ".join(map(str, each)) for each in self.blocks)),
            (
                "memory",
                f"{format_bytes(self.peak_memory_bytes)} of {format_bytes(self.memory_bytes)}",
            ),
            ("disk", format_bytes(self.disk_bytes)),
            ("read", f"{about}{format_bytes(self.bytes_read)} in {self.reads} requests"),
            ("write", f"{about}{format_bytes(self.bytes_written)} in {self.writes} requests"),
            ("time", f"about {format_seconds(self.seconds)}"),
        ]
        if self.between:
            chunks = ", then ".join(" x ".join(map(str, each)) for each in self.between)
            text = f"chunks {chunks}, {format_bytes(self.between_bytes)} of disk meanwhile"
            rows.insert(2, ("between", text))
        rows += [("note", note) for note in self.notes]
        title = f"plan: rechunk {self.source} to {self.path}, {shape} {self.dtype}"
        return "\n".join([title, *(f"  {name:<12} {text}" for name, text in rows)])


def check_room(path: str, need: int, if_exists: IfExists) -> None:
    """Raise `DiskFullError` if the disk of a new array has fewer than `need` bytes free."""
    where, is_replaced = place(path), check_if_exists(if_exists) == "overwrite"
    if if_exists == "open" and where.exists():
        return
    have = room_at(where, is_replaced=is_replaced)
    if need > have:
        raise DiskFullError(
            f"need {need} bytes on disk for {path}, {have} are free; free some room or choose "
            "another directory"
        )


def plan_rechunk(
    *,
    source: Any,
    path: PathLike | None = None,
    chunks: Sequence[int] | int | None = None,
    order: str | None = None,
    chunk_order: str | None = None,
    disk_schema: Rules | None = None,
    mesh: Sequence[int] | int | None = None,
    transpose: Sequence[int] | None = None,
    dtype: npt.DTypeLike | None = None,
    format: str | None = None,  # noqa: A002  # as in `rechunk`
    codec: Codec | None = None,
    casting: Casting = "same_kind",
    shape: Sequence[int] | int | None = None,
    source_order: str = "C",
    offset: int = 0,
    memory: int | str | None = None,
    verify: bool = False,
    rates: Rates | None = None,
) -> RelayoutPlan:
    """Plan `outcore.rechunk` to `path`; see `outcore.plan`. It has no array yet."""
    memory_bytes, path = budget.resolve(memory), "rechunked" if path is None else path
    with open_source(
        source, shape=shape, dtype=dtype, source_order=source_order, offset=offset, casting=casting
    ) as given:
        opened = permuted(given, transpose)
        target: Metadata | End
        if format is None:
            check_no_codec(codec)
            where, notes = place(path), []
            if order is None:
                order = opened.order if disk_schema is None else "C"
            target = metadata = array_metadata(
                opened.shape, opened.dtype, chunks, order, chunk_order, None, None
            )
            is_chosen = bool(chunks or chunk_order or order == "F")
            layout = DiskLayout(disk_schema, None, mesh)
            target = metadata = layout.of(where, metadata, is_chosen=is_chosen)
            passes, disk_bytes = array_passes(opened, metadata, memory_bytes), file_bytes(metadata)
        else:
            named = Named.of(path, format, 3, "error")
            made = export_to(opened, named, codec, chunks, order, chunk_order, disk_schema, mesh)
            where, target, disk_bytes, notes = (
                place(named.path),
                made.end(),
                made.nbytes,
                made.notes,
            )
            passes = made.passes(memory_bytes)
            metadata = array_metadata(
                opened.shape, opened.dtype, None, opened.order, None, None, None
            )
        known = rates or stored_or_measured(where.path.parent)
        cost = cost_of_passes(opened, target, passes, known.reads, verify=verify, array=metadata)
        name = str(opened.path or type(source).__name__)
    read, written = cost.read, cost.written
    requests = read.requests + written.requests
    return RelayoutPlan(
        source=name,
        path=str(where.path),
        shape=metadata.shape,
        dtype=metadata.dtype.name,
        chunks=target.chunks,
        passes=len(passes),
        blocks=tuple(one.plan.extents for one in passes),
        between=cost.between,
        memory_bytes=memory_bytes,
        peak_memory_bytes=cost.peak_memory_bytes,
        disk_bytes=disk_bytes,
        between_bytes=cost.between_bytes,
        bytes_read=read.nbytes,
        reads=read.requests,
        bytes_written=written.nbytes,
        writes=written.requests,
        is_exact=cost.is_exact,
        format=format,
        is_compressed=format is not None and made.is_compressed,
        seconds=read.nbytes / known.read_bytes_s
        + written.nbytes / known.write_bytes_s
        + requests * known.request_s,
        notes=[*notes, *known.notes],
    )


class Cost(NamedTuple):
    """Traffic, memory and disk space of all passes of a copy."""

    read: Traffic
    written: Traffic
    is_exact: bool
    between: tuple[Dims, ...]
    between_bytes: int
    peak_memory_bytes: int


def cost_of_passes(
    source: Source,
    target: Metadata | End,
    passes: Sequence[Pass],
    disk: DiskReads,
    *,
    verify: bool,
    array: Metadata | None = None,
) -> Cost:
    """Count the cost of passes from a source; arrays between them are made for `array`."""
    if array is None:
        assert isinstance(target, Metadata), "other targets need it"
        array = target
    arrays = [array_between(array, one, source.order) for one in passes[:-1]]
    ends = [source, *arrays, target]
    moves = []
    for pair, one in zip(itertools.pairwise(ends), passes, strict=True):
        order = _order_of_blocks(source.order, target, pair[1])
        memory = fast_to_slow(order, len(source.shape))
        moves.append(_moved(*pair, one, disk, memory, verify=verify))
    sides, sizes = [_described(each).side for each in ends], [file_bytes(each) for each in arrays]
    return Cost(
        read=sum((each[0] for each in moves), Traffic()),
        written=sum((each[1] for each in moves), Traffic()),
        is_exact=all(each[2] for each in moves),
        between=tuple(each.chunks for each in arrays),
        between_bytes=max(
            (a + b for a, b in zip([0, *sizes], [*sizes, 0], strict=True)), default=0
        ),
        peak_memory_bytes=max(
            one.plan.depth * one.plan.block_bytes
            + (sides[i].bounces + sides[i + 1].bounces) * one.plan.bounce_bytes
            for i, one in enumerate(passes)
        ),
    )


def file_bytes(metadata: Metadata) -> int:
    """Return the disk space of an array."""
    grid = metadata.grid()
    return grid.shard_bytes * grid.shards


def _order_of_blocks(order: str, target: Metadata | End, following: Source | Metadata | End) -> str:
    """Return the order of blocks that `following` gets from an array between two passes."""
    if isinstance(target, Metadata) and isinstance(following, Metadata):
        return order_of_blocks(order, following)
    return order


def _moved(
    source: Source | Metadata | End,
    target: Source | Metadata | End,
    one: Pass,
    disk: DiskReads,
    memory: Dims,
    *,
    verify: bool,
) -> tuple[Traffic, Traffic, bool]:
    """Return the reads and the writes of a pass, and whether they are exact."""
    if isinstance(source, Source):
        memory = source.fast_to_slow
    read, is_exact = _counted(source, one, one.plan.pieces, disk, memory, is_write=False)
    written, is_counted = _counted(target, one, one.plan.pieces, disk, memory, is_write=True)
    if verify:
        read += _counted(target, one, one.plan.pieces, disk, memory, is_write=False)[0]
    return read, written, is_exact and is_counted


def _counted(
    end: Source | Metadata | End,
    one: Pass,
    pieces: Sequence[Sequence[slice]],
    disk: DiskReads,
    memory: Dims,
    *,
    is_write: bool,
) -> tuple[Traffic, bool]:
    """Count the traffic of one side of a pass, or estimate it; return whether it is exact."""
    inside = end
    if isinstance(end, Permuted):
        inside, pieces, memory = end.source, end.there(pieces), end.source.fast_to_slow
    if isinstance(inside, Metadata) or (isinstance(inside, Stored) and not inside.converts):
        metadata = inside if isinstance(inside, Metadata) else inside.metadata
        traffic = BoxTraffic(metadata, is_write, memory, one.plan.bounce_bytes, disk)
        if traffic.kinds(pieces) <= MOST_KINDS:
            return traffic.of_pieces(pieces), True
    return _described(end).traffic(one.plan.extents, is_write=is_write), False


def _described(end: Source | Metadata | End) -> End:
    if isinstance(end, End):
        return end
    return array_end(end) if isinstance(end, Metadata) else source_end(end)
