"""Where a factorization keeps things: the matrix, the factors, and the journal to go on from."""

import dataclasses
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ClassVar, Generic, TypeVar

from outcore import blas_choice
from outcore._core import ArrayFile, Grid, Ticket
from outcore.array_metadata import write_metadata
from outcore.array_version import version_of
from outcore.errors import ClosedError, JournalError
from outcore.linalg.factors.factor import Kind, open_tiles, tile_grid, tile_metadata, write_group
from outcore.linalg.factors.geometry import Geometry
from outcore.linalg.factors.journal import Journal, Record
from outcore.linalg.lu.plan import TILE_BOUNCE_BYTES, Slab
from outcore.linalg.lu.segments import Layout
from outcore.linalg.tile_copy import TileCopy
from outcore.linalg.widened import MatrixFile, widened_file
from outcore.longcall import LongCall
from outcore.report import Report
from outcore.streams import wait
from outcore.volumes import Place
from outcore.zarr_format import SLOT_ALIGN_BYTES, Metadata

G = TypeVar("G", bound=Geometry)


class FactorStorage(Generic[G]):
    """The files of one factorization. Each kind has its own class, which completes the factors.

    Attributes
    ----------
    kind
        Of the factors.
    geometry
        How the matrix is cut.
    matrix, factors
        Their files, once `open` was called.
    metadata
        Of the matrix.
    places
        Place on disk of each panel whose factors were written or are being written.
    first_panel
        Where this call begins.
    """

    kind: ClassVar[Kind]

    def __init__(
        self, source: Place, metadata: Metadata, target: Place, g: G, journal: Journal
    ) -> None:
        self._source, self._target = source, target
        self.metadata, self.geometry, self.journal = metadata, g, journal
        self.name = source.path.name
        self.first_panel = journal.panels_done
        self.places = {
            record.first + i: at for record in journal.records for i, at in enumerate(record.places)
        }
        self._pending: tuple[Ticket, Record] | None = None
        self._note: Future[None] | None = None
        self._background = ThreadPoolExecutor(1, thread_name_prefix="outcore-journal")
        self._aside = (0, 0)
        self._matrix: MatrixFile | None = None
        self._factors: ArrayFile | None = None

    @property
    def matrix(self) -> MatrixFile:
        """File of the matrix, in the type of the factors."""
        return _opened(self._matrix)

    @property
    def factors(self) -> ArrayFile:
        """File of the factors, as whole tiles."""
        return _opened(self._factors)

    @property
    def target(self) -> Place:
        """Directory of the factors."""
        return self._target

    def open(self, call: LongCall) -> None:
        """Open the files within a call's budget."""
        g, where = self.geometry, self._target
        self._trace = call.trace
        if not self.journal.header.overwrite_a:
            grid = self._grid(range(g.panels))
            self._factors = open_tiles(
                where, self.kind, grid, call.arena, call.trace, writable=True
            )
            self._matrix = self._widened(
                ArrayFile(
                    self._source.volume, self._source.name, self.metadata.grid(), False,
                    call.arena, g.bounce_bytes, call.trace, 0,
                )
            )  # fmt: skip
            return
        self._room = shared_room(g, self.places.values())
        grid = self._grid(self._room)
        ArrayFile.adopt(where.volume, where.inside(self.kind.array), grid)
        self._matrix = self._factors = open_tiles(
            where, self.kind, grid, call.arena, call.trace, writable=True,
            bounce_bytes=g.bounce_bytes,
        )  # fmt: skip

    def _widened(self, file: ArrayFile) -> MatrixFile:
        """Have the elements of the matrix in the type of the factors."""
        return widened_file(file, self.metadata.dtype, self.geometry.dtype)

    @property
    def layout(self) -> Layout:
        """Of the matrix on disk."""
        return Layout.of(self.metadata, self.geometry.dtype)

    def _grid(self, places: range) -> Grid:
        g = self.geometry
        return tile_grid(
            self.kind.shape_of(self.metadata.shape)[0], g.dtype, (g.rows, g.columns), places,
            self._target.volume.slot_align_bytes,
        )  # fmt: skip

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
        """Write the note that is due, if its slab has become durable: in the background."""
        if self._pending and self._pending[0].done():
            ticket, record = self._pending
            ticket.wait()
            self._pending = None
            self._note = self._background.submit(self.journal.append, record)

    def commit(self) -> None:
        """Wait until the last slab is durable, and noted."""
        if self._pending:
            ticket, record = self._pending
            wait(ticket, self._trace)
            # Not after the note: an interrupt between the two must not have it written twice.
            self._pending = None
            self.journal.append(record)
        if self._note:
            self._note.result()
            self._note = None

    def close(self) -> None:
        """Wait for a note that is being written, whatever becomes of it."""
        self._background.shutdown()

    def refuse_changed(self) -> None:
        """Refuse to complete factors of a matrix that was written to meanwhile."""
        header = self.journal.header
        modified_ns = version_of(self._source).modified_ns
        if modified_ns != header.modified_ns and not header.overwrite_a:
            raise JournalError(
                f"{self._source.path} was written to while it was factored, so the factors may be "
                "of neither its old nor its new content; call again"
            )

    def lay_out(self) -> Metadata:
        """Give the file of the tiles the layout of whole factors; return what describes it."""
        g, where = self.geometry, self._target
        m, n = self.kind.shape_of(self.metadata.shape)
        metadata = tile_metadata(m, g.dtype, (g.rows, g.columns), n).on(where.volume)
        if self.journal.header.overwrite_a:
            places = tuple(self.places[panel] for panel in range(g.panels))
            metadata = dataclasses.replace(metadata, column_places=places)
            ArrayFile.adopt(where.volume, where.inside(self.kind.array), metadata.grid())
        return metadata

    def complete(self, metadata: Metadata, report: Report, values: dict[str, Any]) -> None:
        """Say on disk that the factors are whole, after everything in them is durable."""
        g, header = self.geometry, self.journal.header
        write_metadata(self._target.below(self.kind.array), metadata)
        own = {
            "n": g.n,
            "dtype": g.dtype.name,
            "tile": [g.rows, g.columns],
            "source": str(self._source.path),
            "generation": header.generation,
            "modified_ns": header.modified_ns,
            "places": [self.places[panel] for panel in range(g.panels)],
        }
        if self._target.volume.slot_align_bytes != SLOT_ALIGN_BYTES:
            own["slot_align_bytes"] = self._target.volume.slot_align_bytes
        values = own | values | {"report": report.to_dict()}
        write_group(self._target, self.kind, "complete", values)
        self.journal.remove()

    def bytes_moved(self) -> tuple[int, int]:
        """Bytes read and written by this call so far."""
        # The files are counted apart unless they are one.
        counted = {id(file): file.counters() for file in (self.matrix, self.factors)}.values()
        read, written = self._aside
        return read + sum(c[0] for c in counted), written + sum(c[1] for c in counted)

    def copy_to_tiles(self, copy: TileCopy, call: LongCall, *, is_transposed: bool = False) -> None:
        """Copy what is not factored yet of the matrix, to where its factors will be written.

        `copy` describes the matrix, or its transpose. What is moved is counted; all memory is back
        when it is done.
        """
        g, shape = self.geometry, (self.metadata.shape[0], copy.end)
        if is_transposed:
            shape = copy.end, self.metadata.shape[1]
        grid = dataclasses.replace(self.metadata, shape=shape).grid()
        matrix = ArrayFile(
            self._source.volume, self._source.name, grid, False, call.arena, TILE_BOUNCE_BYTES,
            call.trace, 0,
        )  # fmt: skip
        tiles = open_tiles(
            self._target, self.kind, self._grid(range(g.panels)), call.arena, call.trace,
            writable=True, bounce_bytes=g.bounce_bytes,
        )  # fmt: skip
        copy.run(self._widened(matrix), tiles, self.first_panel, call, is_transposed=is_transposed)
        self._aside = matrix.counters()[0], tiles.counters()[1]
        # Their buffers go with them.
        del matrix, tiles
        call.wait_for_memory()

    def report(
        self, call: LongCall, *, flops_done: float, planned_bytes_read: int, **more: Any
    ) -> Report:
        """Report on the run; `more` are further figures of a `Report`."""
        g, header, first = self.geometry, self.journal.header, self.first_panel
        bytes_read, bytes_written = self.bytes_moved()
        notes = []
        kernels, threads = blas_choice.in_use()
        if first:
            notes.append(f"resumed at panel {first} of {g.panels}; the figures are of the rest")
            if header.is_mixed:
                notes.append(
                    "budget, threads or BLAS changed since the run began: the factors are as good, "
                    "but their last bits may differ from those of an undisturbed run"
                )
        return Report(
            verb=self.kind.name,
            n=g.n,
            dtype=g.dtype.name,
            flops=flops_done,
            bytes_read=bytes_read,
            bytes_written=bytes_written,
            planned_bytes_read=planned_bytes_read,
            planned_bytes_written=more.pop("planned_bytes_written", g.factor_bytes_written(first)),
            words_lower_bound=g.words_lower_bound() if not first else None,
            kernels=kernels,
            threads=threads,
            notes=notes + more.pop("notes", []),
            **more,
            **call.figures(),
        )


F = TypeVar("F")


def _opened(file: F | None) -> F:
    if file is None:
        raise ClosedError("the files of the factorization are not open; call open() first")
    return file


def shared_room(g: Geometry, used: Iterable[int]) -> range:
    """Places of the file that the factors share with the matrix: those of one slab more.

    A stopped run may already use more, since its slabs were wider.
    """
    return range(max([g.panels + g.slab_panels, *(at + 1 for at in used)]))
