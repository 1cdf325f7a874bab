"""Where LU keeps things: the matrix, the factors, and the journal that makes it restartable."""

import contextlib
import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from outcore import blas_choice
from outcore._core import ArrayFile, Ticket
from outcore.array import Array, read_generation, read_metadata, write_metadata
from outcore.create import create_array
from outcore.errors import (
    ClosedError,
    ConsumedError,
    ExistsError,
    IncompleteError,
    InvalidError,
    JournalError,
)
from outcore.linalg.factor import (
    LUFactor,
    open_factor,
    open_tiles,
    read_group,
    tile_grid,
    tile_metadata,
    write_group,
)
from outcore.linalg.journal import Header, Journal, Record, read_journal
from outcore.linalg.lu_checks import Extremes
from outcore.linalg.lu_plan import LuGeometry, Slab, lu_geometry
from outcore.longcall import LongCall
from outcore.report import Report, io_and_wait_seconds
from outcore.streams import wait
from outcore.volumes import PathLike, Place, exclusive, place
from outcore.zarr_format import Metadata

_COPY_WHY = "its factorization was stopped; call lu_factor again to finish it"


class LuStorage:
    """The files of one factorization.

    Attributes
    ----------
    geometry
        How the matrix is cut.
    matrix, factors
        Their files, once `open` was called.
    matrix_chunks
        Chunk shape of the matrix.
    places
        Place on disk of each panel whose factors were written or are being written.
    """

    def __init__(
        self, source: Place, metadata: Metadata, target: Place, g: LuGeometry, journal: Journal
    ) -> None:
        self._source, self._metadata, self._target = source, metadata, target
        self.geometry, self.journal = g, journal
        self.name = source.path.name
        self.matrix_chunks = metadata.chunks
        self.places = {
            record.first + i: at for record in journal.records for i, at in enumerate(record.places)
        }
        self._pending: tuple[Ticket, Record] | None = None
        self._matrix: ArrayFile | None = None
        self._factors: ArrayFile | None = None

    @property
    def matrix(self) -> ArrayFile:
        """File of the matrix."""
        return _opened(self._matrix)

    @property
    def factors(self) -> ArrayFile:
        """File of the factors, as whole tiles."""
        return _opened(self._factors)

    def open(self, call: LongCall) -> None:
        """Open the files within a call's budget."""
        g, where = self.geometry, self._target
        self._trace = call.trace
        if not self.journal.header.overwrite_a:
            grid = tile_grid(g.n, g.dtype, (g.rows, g.columns), range(g.panels))
            self._factors = open_tiles(where, grid, call.arena, call.trace, writable=True)
            self._matrix = ArrayFile(
                self._source.volume, self._source.name, self._metadata.grid(), False, call.arena,
                g.bounce_bytes, call.trace, 0,
            )  # fmt: skip
            return
        # The factors and the matrix share a file, with places for one slab more than the matrix
        # has. An unfinished run may already use more: its slabs were wider.
        used = max([g.panels, *(at + 1 for at in self.places.values())])
        self._room = range(max(used, g.panels + g.slab_panels))
        grid = tile_grid(g.n, g.dtype, (g.rows, g.columns), self._room)
        ArrayFile.adopt(where.volume, where.inside("lu"), grid)
        self._matrix = self._factors = open_tiles(
            where, grid, call.arena, call.trace, writable=True, bounce_bytes=g.bounce_bytes
        )

    def panel_pivots(self) -> list[npt.NDArray[np.int32]]:
        """Row swaps of the panels that are done, each counted from its panel's first row."""
        width = self.geometry.columns
        return [
            record.piv[at : at + width] - np.int32(record.first * width + at)
            for record in self.journal.records
            for at in range(0, len(record.piv), width)
        ]

    def place_slab(self, slab: Slab) -> None:
        """Choose places for a slab's factors, none of which holds anything still needed."""
        panels = range(slab.first, slab.last)
        if not self.journal.header.overwrite_a:
            self.places.update({panel: panel for panel in panels})
            return
        # Nothing may be overwritten before what replaces it is durable.
        self.commit()
        needed = {*self.places.values(), *range(slab.first, self.geometry.panels)}
        free = (at for at in self._room if at not in needed)
        self.places.update(zip(panels, free, strict=False))

    def places_of(self, slab: Slab) -> list[int]:
        """Places of a slab's panels."""
        return [self.places[panel] for panel in range(slab.first, slab.last)]

    def commit_later(self, record: Record) -> None:
        """Note a slab in the journal as soon as it is durable."""
        self.commit()
        self._pending = (self.factors.submit_sync(), record)

    def commit_if_durable(self) -> None:
        """Write the note that is due, if its slab has become durable."""
        if self._pending and self._pending[0].done():
            self.commit()

    def commit(self) -> None:
        """Wait until the last slab is durable, and note it."""
        if self._pending:
            ticket, record = self._pending
            self._pending = None
            wait(ticket, self._trace)
            self.journal.append(record)

    def finish(self, call: LongCall, flops_done: float) -> LUFactor:
        """Complete the factors on disk and return them, with the report."""
        g, where = self.geometry, self._target
        extremes = Extremes()
        for record in self.journal.records:
            extremes.see(record.extremes)
        piv = np.concatenate([record.piv for record in self.journal.records])
        metadata = tile_metadata(g.n, g.dtype, (g.rows, g.columns))
        if self.journal.header.overwrite_a:
            places = tuple(self.places[panel] for panel in range(g.panels))
            metadata = dataclasses.replace(metadata, column_places=places)
            ArrayFile.adopt(where.volume, where.inside("lu"), metadata.grid())
        create_array(where.path / "piv", g.n, "i4", overwrite=True)[...] = piv
        write_metadata(where.below("lu"), metadata)
        report = self._report(call, flops_done, extremes)
        write_group(
            where,
            "complete",
            self._values()
            | {
                "places": [self.places[panel] for panel in range(g.panels)],
                "norm1": extremes.norm1,
                "growth": extremes.growth,
                "info": extremes.info,
                "report": report.to_dict(),
            },
        )
        self.journal.remove()
        return dataclasses.replace(open_factor(where.path), report=report)

    def _values(self) -> dict[str, Any]:
        g = self.geometry
        return {
            "n": g.n,
            "dtype": g.dtype.name,
            "tile": [g.rows, g.columns],
            "source": str(self._source.path),
            "generation": self.journal.header.generation,
        }

    def _report(self, call: LongCall, flops_done: float, extremes: Extremes) -> Report:
        g, header = self.geometry, self.journal.header
        first = self.first_panel
        # The files are counted apart unless they are one.
        counted = {id(file): file.counters() for file in (self.matrix, self.factors)}.values()
        planned_read = g.matrix_bytes_read(first) + g.factor_bytes_read(first)
        io_seconds, wait_seconds = io_and_wait_seconds(call.trace)
        notes = []
        if first:
            notes.append(f"resumed at panel {first} of {g.panels}; the figures are of the rest")
            now = _kernels()
            if now != (header.kernels, header.threads) or header.memory_bytes != g.budget_bytes:
                notes.append(
                    "budget, threads or BLAS changed since the run began: the factors are as good, "
                    "but their last bits may differ from those of an undisturbed run"
                )
        if extremes.info:
            notes.append(f"exactly singular: diagonal number {extremes.info} is zero")
        kernels, threads = _kernels()
        return Report(
            verb="lu",
            n=g.n,
            dtype=g.dtype.name,
            seconds=call.seconds(),
            flops=flops_done,
            bytes_read=sum(c[0] for c in counted),
            bytes_written=sum(c[1] for c in counted),
            planned_bytes_read=planned_read,
            planned_bytes_written=g.factor_bytes_written(first),
            words_lower_bound=g.words_lower_bound() if not first else None,
            io_seconds=io_seconds,
            wait_seconds=wait_seconds,
            memory_bytes=g.budget_bytes,
            peak_memory_bytes=call.arena.peak_bytes,
            growth=extremes.growth,
            kernels=kernels,
            threads=threads,
            notes=notes,
            spans=call.trace.spans()[0],
        )

    @property
    def first_panel(self) -> int:
        """Where this call began."""
        return self._first_panel

    def begin(self) -> None:
        """Note where this call begins."""
        self._first_panel = self.journal.panels_done


def _opened(file: ArrayFile | None) -> ArrayFile:
    if file is None:
        raise ClosedError("the files of the factorization are not open; call open() first")
    return file


def _kernels() -> tuple[str, int]:
    found = blas_choice.scipy_blas()
    if found is None:
        return "unknown", 0
    return f"{found.library} {found.version} {found.architecture}", found.threads


@contextmanager
def open_storage(
    A: Array | PathLike,
    out: PathLike | None,
    memory_bytes: int,
    *,
    overwrite_a: bool,
    overwrite: bool,
    resume: bool,
) -> Iterator[LuStorage]:
    """Check the arguments of `lu_factor`, and begin a factorization or find the stopped one.

    Everything that can be refused is refused here, before any work.
    """
    source = A.place if isinstance(A, Array) else place(A)
    metadata = read_metadata(source)
    n = _order(metadata, source.path)
    target = place(out if out is not None else f"{source.path}.lu")
    if target.path == source.path:
        raise InvalidError(
            f"out= is the matrix itself, {source.path}; overwrite_a=True reuses its space"
        )
    tile = _tile_to_reuse(metadata) if overwrite_a else None
    lu_geometry(n, metadata.dtype, memory_bytes, tile)
    with exclusive(target.path, "factors"):
        journal = _find_journal(source, metadata, target, overwrite=overwrite, resume=resume)
        if journal is None:
            if metadata.state == "incomplete":
                raise IncompleteError(f"{source.path} is only half written: {metadata.why}")
            if metadata.state == "consumed":
                raise ConsumedError(f"the content of {source.path} was given up: {metadata.why}")
            g = lu_geometry(n, metadata.dtype, memory_bytes, tile)
            journal = _begin(source, target, g, overwrite_a=overwrite_a)
        g = lu_geometry(n, metadata.dtype, memory_bytes, journal.header.tile)
        if journal.header.overwrite_a:
            _move_into(source, metadata, target)
        storage = LuStorage(source, metadata, target, g, journal)
        storage.begin()
        yield storage


def _order(metadata: Metadata, path: Path) -> int:
    if len(metadata.shape) != 2 or metadata.shape[0] != metadata.shape[1]:
        raise InvalidError(f"need a square matrix, have shape {metadata.shape} in {path}")
    return metadata.shape[0]


def _tile_to_reuse(metadata: Metadata) -> tuple[int, int]:
    rows, columns = metadata.chunks
    if (
        metadata.order != "F"
        or metadata.chunk_order != "column-major"
        or rows % columns
        or metadata.grid().shards != 1
    ):
        raise InvalidError(
            f"overwrite_a needs a matrix with order='F' and default chunks, have order="
            f"{metadata.order!r}, chunks {metadata.chunks}; copy it with oc.from_array(order='F') "
            "or leave overwrite_a out"
        )
    return rows, columns


def _find_journal(
    source: Place, metadata: Metadata, target: Place, *, overwrite: bool, resume: bool
) -> Journal | None:
    """Find the stopped run at `target` that a call may go on with; make room for a new one."""
    if not target.exists():
        # What a crash left before the first note was durable is nothing.
        for name in ("lu", "piv", "journal"):
            if target.exists(name):
                target.volume.remove(target.inside(name))
        return None
    group = read_group(target)
    if group["state"] == "complete":
        if not overwrite:
            raise ExistsError(
                f"{target.path} holds complete factors; open them with oc.linalg.open_factor, or "
                "pass overwrite=True or another out="
            )
        _clear(target)
        return None
    journal = read_journal(target) if resume or group.get("overwrite_a") else None
    if journal is None:
        _clear(target)
        return None
    header, dtype = journal.header, metadata.dtype.name
    fix = "pass resume=False to begin anew, or another out="
    if header.source != str(source.path):
        raise JournalError(
            f"{target.path} holds a stopped factorization of {header.source}, not of "
            f"{source.path}; {fix}"
        )
    if (header.n, header.dtype) != (metadata.shape[0], dtype):
        raise JournalError(
            f"{target.path} holds a stopped factorization of order {header.n} in {header.dtype}; "
            f"the matrix is now of order {metadata.shape[0]} in {dtype}; {fix}"
        )
    generation = read_generation(source)
    if header.generation != generation:
        raise JournalError(
            f"{source.path} was opened for writing since its factorization was stopped (generation "
            f"{header.generation} then, {generation} now); {fix}"
        )
    if header.overwrite_a and not resume:
        raise ConsumedError(
            f"the content of {source.path} was given up to the stopped factorization in "
            f"{target.path}, so it cannot begin anew; call with resume=True to finish it"
        )
    return journal


def _clear(target: Place) -> None:
    for name in ("zarr.json", "journal", "lu", "piv"):
        if target.exists(name):
            target.volume.remove(target.inside(name))


def _begin(source: Place, target: Place, g: LuGeometry, *, overwrite_a: bool) -> Journal:
    kernels, threads = _kernels()
    header = Header(
        n=g.n,
        dtype=g.dtype.name,
        tile=(g.rows, g.columns),
        source=str(source.path),
        generation=read_generation(source),
        kernels=kernels,
        threads=threads,
        memory_bytes=g.budget_bytes,
        overwrite_a=overwrite_a,
    )
    journal = Journal(target, header)
    metadata = dataclasses.replace(
        tile_metadata(g.n, g.dtype, header.tile), state="incomplete", why=_COPY_WHY
    )
    try:
        if not overwrite_a:
            ArrayFile.create(target.volume, target.inside("lu"), metadata.grid(), True)
        write_metadata(target.below("lu"), metadata)
        journal.begin()
        values = {"n": g.n, "dtype": g.dtype.name, "tile": [g.rows, g.columns]}
        values |= {"source": str(source.path), "overwrite_a": overwrite_a}
        write_group(target, "incomplete", values)
    except BaseException:
        with contextlib.suppress(OSError):
            target.volume.remove(target.name)
        raise
    return journal


def _move_into(source: Place, metadata: Metadata, target: Place) -> None:
    """Give up the matrix: its shard file becomes that of the factors. Can be repeated."""
    key = metadata.grid().shard_key(0)
    if metadata.state != "consumed":
        why = f"overwrite_a=True gave its disk space to the factors in {target.path}"
        write_metadata(source, dataclasses.replace(metadata, state="consumed", why=why))
    if source.exists(key):
        target.volume.rename(
            str((source.path / key).relative_to(_root(target))), target.inside(f"lu/{key}")
        )


def _root(where: Place) -> Path:
    return Path(str(where.path).removesuffix(where.name))
