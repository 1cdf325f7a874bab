"""Storage of a factorization: the matrix, the factors, and the journal to resume from."""

import dataclasses
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from outcore._core import ArrayFile, Grid, Ticket
from outcore._util.streams import wait
from outcore.array_files.metadata import version_of, write_metadata
from outcore.errors import ClosedError, JournalError
from outcore.layout.zarr_format import SLOT_ALIGN_BYTES, Metadata
from outcore.linalg._factors.panel_servers import PanelServers
from outcore.linalg._geometry.factor_plan import TILE_BOUNCE_BYTES, Slab
from outcore.linalg._geometry.geometry import Geometry
from outcore.linalg._geometry.loads import ColumnLoads, Loads
from outcore.linalg._geometry.segments import Layout
from outcore.linalg._geometry.tile_copy import TileCopy
from outcore.linalg._output.factor import Kind, open_tiles, tile_grid, tile_metadata, write_group
from outcore.linalg._output.journal import Journal, Record
from outcore.linalg._tiles.widened import MatrixFile, widened_file
from outcore.processes.reports import process_figures, whole_report
from outcore.processes.sharing import seconds_for
from outcore.processes.team import Team
from outcore.report.longcall import LongCall
from outcore.report.report import Report
from outcore.storage.volumes import Place

G = TypeVar("G", bound=Geometry)


class Source(NamedTuple):
    """The source of slabs.

    Attributes
    ----------
    file
        A file, whose first element is the first element of the part that is factored.
    rows
        Rows to read.
    groups
        Tiles and panels that a read covers.
    is_transposed
        Whether the file stores the transpose.
    """

    file: MatrixFile
    rows: int
    groups: tuple[int, int]
    is_transposed: bool = False


class FactorStorage(Generic[G]):
    """The files of one factorization. A subclass for each kind completes the factors.

    Attributes
    ----------
    kind
        Kind of the factors.
    geometry
        Cuts of the matrix.
    matrix, factors
        Their files, after a call of `open`.
    metadata
        Metadata of the matrix.
    places
        Place on disk of each panel whose factors are written or in flight.
    first_panel
        First panel of this call.
    team
        The processes of the call.
    sent
        Bytes and messages that this process has sent to others.
    remote_read
        Bytes of earlier panels that this process has read, or is going to, from I/O servers of
        others.
    """

    team: Team
    kind: ClassVar[Kind]

    def __init__(
        self, source: Place, metadata: Metadata, target: Place, g: G, journal: Journal
    ) -> None:
        self._source, self._target = source, target
        self.metadata, self.geometry, self.journal = metadata, g, journal
        self.name = source.title
        self.first_panel = journal.panels_done
        self.places = {
            record.first + i: at for record in journal.records for i, at in enumerate(record.places)
        }
        self._pending: tuple[Ticket, Record] | None = None
        self._note: Future[None] | None = None
        self._background = ThreadPoolExecutor(1, thread_name_prefix="outcore-journal")
        self.sent = self._aside = (0, 0)
        self.remote_read = 0
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
        if self.team.size > 1:
            # Several processes have the factors in one file, panel by panel.
            tiles = self._grid(range(g.panels))
            self._servers = PanelServers(where, self.kind, tiles, g.tile_bytes)
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
        """Return a view of the matrix file in the type of the factors."""
        return widened_file(file, self.metadata.dtype, self.geometry.dtype)

    @property
    def layout(self) -> Layout:
        """Layout of the matrix on disk."""
        return Layout.of(self.metadata, self.geometry.dtype)

    def _grid(self, places: range) -> Grid:
        g = self.geometry
        return tile_grid(
            self.kind.shape_of(self.metadata.shape)[0], g.dtype, (g.rows, g.columns), places,
            self._target.volume.slot_align_bytes,
        )  # fmt: skip

    def place_slab(self, slab: Slab) -> None:
        """Choose places for a slab's factors, none of which holds data that is still needed."""
        panels = range(slab.first, slab.last)
        if not self.journal.header.overwrite_a:
            self.places.update({panel: panel for panel in panels})
            return
        # A replacement must be durable before anything is overwritten.
        self.commit()
        needed = {*self.places.values(), *range(slab.first, self.geometry.panels)}
        free = (at for at in self._room if at not in needed)
        self.places.update(zip(panels, free, strict=False))

    def places_of(self, slab: Slab) -> list[int]:
        """Places of a slab's panels."""
        return [self.places[panel] for panel in range(slab.first, slab.last)]

    def commit_later(self, record: Record) -> None:
        """Record a slab in the journal as soon as it is durable."""
        self.commit()
        durable = self.factors.submit_sync()
        if self.team.size == 1:
            self._pending = durable, self.joined([record])
        else:
            self._note = self._background.submit(self._record_together, durable, record)

    def _record_together(self, durable: Ticket, record: Record) -> None:
        """Record a slab once it is durable on all processes."""
        g = self.geometry
        # Another process may still have to write and sync its part of the slab.
        more_s = seconds_for(2 * g.shape[0] * g.slab_panels * g.columns * g.dtype.itemsize)
        try:
            durable.wait()
            whole = self.joined(self.team.exchange(record, more_s))
            if self.team.rank == 0:
                self.journal.append(whole)
            else:
                self.journal.records.append(whole)
            # No process overwrites the slab's old place before the journal names the new one.
            self.team.exchange(None)
        except BaseException as error:
            # The main thread may wait for blocks of other processes, which wait for this record.
            self.team.fail(error)
            raise

    def planned_sent(self) -> tuple[int, int]:
        """Return the bytes and messages that this process sends according to the plan."""
        return 0, 0

    def remote_bytes(self, panel: int, tiles: Iterable[int]) -> int:
        """Return the bytes of some tiles of a panel on I/O servers of other processes."""
        if self.team.size == 1:
            return 0
        return self._servers.remote_bytes(self.places[panel], tiles)

    def planned_remote_read(self) -> int:
        """Return the `remote_read` of the plan."""
        return 0

    def joined(self, records: Sequence[Record]) -> Record:
        """Return the record of a slab from those of all processes, each about its own columns.

        Here, for the methods of one process, it is the only record.
        """
        (record,) = records
        return record

    def commit_if_durable(self) -> None:
        """Record the pending slab in the background, if it has become durable."""
        if self._pending and self._pending[0].done():
            ticket, record = self._pending
            ticket.wait()
            self._pending = None
            self._note = self._background.submit(self.journal.append, record)

    def commit(self) -> None:
        """Wait until the last slab is durable, and recorded."""
        if self._pending:
            ticket, record = self._pending
            wait(ticket, self._trace)
            # Clear this before the append: an interrupt between the two must not cause a second
            # line.
            self._pending = None
            self.journal.append(record)
        if self._note:
            self._note.result()
            self._note = None

    def close(self) -> None:
        """Wait for a journal line that is being written, and ignore its errors."""
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
        """Give the file of the tiles the layout of whole factors; return their metadata."""
        g, where = self.geometry, self._target
        m, n = self.kind.shape_of(self.metadata.shape)
        metadata = tile_metadata(m, g.dtype, (g.rows, g.columns), n).on(where.volume)
        if self.journal.header.overwrite_a:
            places = tuple(self.places[panel] for panel in range(g.panels))
            metadata = dataclasses.replace(metadata, column_places=places)
            ArrayFile.adopt(where.volume, where.inside(self.kind.array), metadata.grid())
        return metadata

    def complete(self, metadata: Metadata, report: Report, values: dict[str, Any]) -> None:
        """Mark the factors complete on disk, once everything in them is durable."""
        g, header = self.geometry, self.journal.header
        write_metadata(self._target.below(self.kind.array), metadata)
        own = {
            "n": g.n,
            "dtype": g.dtype.name,
            "tile": [g.rows, g.columns],
            "source": self._source.source,
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
        # Matrix and factors may be one file, which is counted once.
        counted = {id(file): file.counters() for file in (self.matrix, self.factors)}.values()
        read, written = self._aside
        return read + sum(c[0] for c in counted), written + sum(c[1] for c in counted)

    def copy_to_tiles(self, copy: TileCopy, call: LongCall, *, is_transposed: bool = False) -> None:
        """Copy the part of the matrix that is not factored yet to the place of its factors.

        `copy` describes the matrix, or its transpose. The copy is counted in the bytes moved, and
        returns all of its memory.
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
        # This frees their buffers.
        del matrix, tiles
        call.wait_for_memory()

    def to_load(
        self, loads: Loads[Any], call: LongCall, *, is_transposed: bool = False
    ) -> tuple[MatrixFile, bool]:
        """Return the file of the slabs: the matrix, or its copy in tiles, which this call makes.

        The second value is whether the file stores the transpose of what `loads` describes.
        """
        if not loads.is_copied:
            return self.matrix, is_transposed
        self.copy_to_tiles(loads.copy, call, is_transposed=is_transposed)
        return self.factors, False

    def source(
        self, loads: ColumnLoads[Any], call: LongCall, *, is_transposed: bool = False
    ) -> Source:
        """Return the source of slabs of whole columns, as `to_load` does."""
        file, is_transposed = self.to_load(loads, call, is_transposed=is_transposed)
        rows = loads.geometry.height if loads.is_copied else loads.geometry.shape[0]
        return Source(file, rows, loads.groups(loads.source_layout.chunks), is_transposed)

    def report(
        self, call: LongCall, *, flops_done: float, planned_bytes_read: int, **more: Any
    ) -> Report:
        """Return the report of the run, on all processes; `more` are further figures."""
        g, header, first = self.geometry, self.journal.header, self.first_panel
        bytes_read, bytes_written = self.bytes_moved()
        notes = []
        if first:
            notes.append(f"resumed at panel {first} of {g.panels}; the figures are of the rest")
            if header.is_mixed:
                notes.append(
                    "budget, threads, processes or BLAS changed since the run began: the factors "
                    "are as good, but their last bits may differ from those of an undisturbed run"
                )
        planned_written = more.pop("planned_bytes_written", g.factor_bytes_written(first))
        own = call.report(
            Report, self.kind.name, g.n, g.dtype, flops=flops_done,
            moved=(bytes_read, bytes_written), planned=(planned_bytes_read, planned_written),
            words_lower_bound=g.words_lower_bound() if not first else None,
            notes=notes + more.pop("notes", []), **more,
        )  # fmt: skip
        if self.team.size > 1:
            remote = self.remote_read, self.planned_remote_read()
            own.processes = [process_figures(own, self.sent, self.planned_sent(), remote)]
        return whole_report(own, self.team)


F = TypeVar("F")


def _opened(file: F | None) -> F:
    if file is None:
        raise ClosedError("the files of the factorization are not open; call open() first")
    return file


def shared_room(g: Geometry, used: Iterable[int]) -> range:
    """Return the places of a file shared by matrix and factors: those of one more slab.

    A stopped run may use more places, if its slabs were wider.
    """
    return range(max([g.panels + g.slab_panels, *(at + 1 for at in used)]))
