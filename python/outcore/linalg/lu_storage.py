"""Where LU keeps things: the matrix, the factors, and the journal that makes it restartable."""

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from outcore import blas_choice
from outcore._core import ArrayFile, Ticket
from outcore.array import write_metadata
from outcore.create import create_array
from outcore.errors import ClosedError, JournalError
from outcore.linalg.changes import version_of
from outcore.linalg.factor import (
    LUFactor,
    open_factor,
    open_tiles,
    tile_grid,
    tile_metadata,
    write_group,
)
from outcore.linalg.journal import Journal, Record
from outcore.linalg.lu_checks import Extremes
from outcore.linalg.lu_plan import LuGeometry, Slab
from outcore.longcall import LongCall
from outcore.report import Report
from outcore.streams import wait
from outcore.volumes import Place
from outcore.zarr_format import Metadata


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
    first_panel
        Where this call begins.
    """

    def __init__(
        self, source: Place, metadata: Metadata, target: Place, g: LuGeometry, journal: Journal
    ) -> None:
        self._source, self._metadata, self._target = source, metadata, target
        self.geometry, self.journal = g, journal
        self.name = source.path.name
        self.first_panel = journal.panels_done
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
        self._room = shared_room(g, self.places.values())
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
            wait(ticket, self._trace)
            # Not after the note: an interrupt between the two must not have it written twice.
            self._pending = None
            self.journal.append(record)

    def finish(self, call: LongCall, flops_done: float) -> LUFactor:
        """Complete the factors on disk and return them, with the report."""
        g, where = self.geometry, self._target
        header = self.journal.header
        modified_ns = version_of(self._source).modified_ns
        if modified_ns != header.modified_ns and not header.overwrite_a:
            raise JournalError(
                f"{self._source.path} was written to while it was factored, so the factors may be "
                "of neither its old nor its new content; call again"
            )
        extremes = Extremes()
        for record in self.journal.records:
            extremes.see(record.extremes)
        piv = np.concatenate([record.piv for record in self.journal.records])
        metadata = tile_metadata(g.n, g.dtype, (g.rows, g.columns))
        if self.journal.header.overwrite_a:
            places = tuple(self.places[panel] for panel in range(g.panels))
            metadata = dataclasses.replace(metadata, column_places=places)
            ArrayFile.adopt(where.volume, where.inside("lu"), metadata.grid())
        with create_array(where.path / "piv", g.n, "i4", overwrite=True) as file:
            file[...] = piv
            file.flush()
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
            "modified_ns": self.journal.header.modified_ns,
        }

    def _report(self, call: LongCall, flops_done: float, extremes: Extremes) -> Report:
        g, header = self.geometry, self.journal.header
        first = self.first_panel
        # The files are counted apart unless they are one.
        counted = {id(file): file.counters() for file in (self.matrix, self.factors)}.values()
        planned_read = g.matrix_bytes_read(first) + g.factor_bytes_read(first)
        notes = []
        if first:
            notes.append(f"resumed at panel {first} of {g.panels}; the figures are of the rest")
            now = blas_choice.in_use()
            if now != (header.kernels, header.threads) or header.memory_bytes != g.budget_bytes:
                notes.append(
                    "budget, threads or BLAS changed since the run began: the factors are as good, "
                    "but their last bits may differ from those of an undisturbed run"
                )
        if extremes.info:
            notes.append(f"exactly singular: diagonal number {extremes.info} is zero")
        kernels, threads = blas_choice.in_use()
        return Report(
            verb="lu",
            n=g.n,
            dtype=g.dtype.name,
            flops=flops_done,
            bytes_read=sum(c[0] for c in counted),
            bytes_written=sum(c[1] for c in counted),
            planned_bytes_read=planned_read,
            planned_bytes_written=g.factor_bytes_written(first),
            words_lower_bound=g.words_lower_bound() if not first else None,
            growth=extremes.growth,
            kernels=kernels,
            threads=threads,
            notes=notes,
            **call.figures(),
        )


def _opened(file: ArrayFile | None) -> ArrayFile:
    if file is None:
        raise ClosedError("the files of the factorization are not open; call open() first")
    return file


def shared_room(g: LuGeometry, used: Iterable[int]) -> range:
    """Places of the file that the factors share with the matrix: those of one slab more.

    A stopped run may already use more, since its slabs were wider.
    """
    return range(max([g.panels + g.slab_panels, *(at + 1 for at in used)]))
